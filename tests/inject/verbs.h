/* SPDX-License-Identifier: GPL-2.0 */
/* What the bindings are made from. */
#include <infiniband/verbs.h>
