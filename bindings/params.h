/* SPDX-License-Identifier: GPL-2.0 */
#ifndef IPOIB_RS_PARAMS_H
#define IPOIB_RS_PARAMS_H

#include <linux/types.h>

/*
 * Module parameters. They live in C because the kernel crate's module! macro
 * offers no sysfs permissions and no run-time writes. src/base/params.rs is the
 * only reader; it also checks the ranges at load.
 */
extern int ipoib_param_send_queue_size;
extern int ipoib_param_recv_queue_size;
extern int ipoib_param_num_queues;
extern bool ipoib_param_roce;
extern char *ipoib_param_link_kind;
extern int ipoib_param_debug_level;
extern int ipoib_param_mcast_debug_level;

#endif
