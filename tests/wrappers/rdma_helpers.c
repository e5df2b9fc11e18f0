// SPDX-License-Identifier: GPL-2.0
/* The driver's own; a file here, as objects are made beside their sources. */
#include "../../bindings/rdma_helpers.c"
