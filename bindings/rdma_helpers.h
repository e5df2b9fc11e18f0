/* SPDX-License-Identifier: GPL-2.0 */
#ifndef IPOIB_RS_RDMA_HELPERS_H
#define IPOIB_RS_RDMA_HELPERS_H

/* One function per static inline or macro of the RDMA headers. No logic here. */
#include <rdma/ib_verbs.h>

#endif
