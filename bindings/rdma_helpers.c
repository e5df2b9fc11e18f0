// SPDX-License-Identifier: GPL-2.0
/* One function per static inline or macro of the RDMA headers. No logic here. */
#include "rdma_helpers.h"
