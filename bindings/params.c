// SPDX-License-Identifier: GPL-2.0
/*
 * Module parameters; names and modes of the in-tree driver's where the meaning
 * is the same.
 */
#include <linux/module.h>
#include <linux/moduleparam.h>

#include <net/rtnetlink.h>

#include "params.h"

/* Lets `ip link add ... type ipoib` load the module. */
MODULE_ALIAS_RTNL_LINK("ipoib");

int ipoib_param_send_queue_size = 128;
module_param_named(send_queue_size, ipoib_param_send_queue_size, int, 0444);
MODULE_PARM_DESC(send_queue_size,
		 "Send ring slots per queue, 2 to 8192, rounded up to a power of two, at least 128");

int ipoib_param_recv_queue_size = 256;
module_param_named(recv_queue_size, ipoib_param_recv_queue_size, int, 0444);
MODULE_PARM_DESC(recv_queue_size,
		 "Receive ring slots per queue, 2 to 8192, rounded up to a power of two");

int ipoib_param_num_queues;
module_param_named(num_queues, ipoib_param_num_queues, int, 0444);
MODULE_PARM_DESC(num_queues,
		 "Queues per interface, 1 to 64; 0 (default): the least of online CPUs, completion vectors and 8");

bool ipoib_param_roce;
module_param_named(roce, ipoib_param_roce, bool, 0444);
MODULE_PARM_DESC(roce, "Also make interfaces on RoCEv2 ports (default: no)");

int ipoib_param_debug_level;
module_param_named(debug_level, ipoib_param_debug_level, int, 0644);
MODULE_PARM_DESC(debug_level, "Enable debug messages if > 0");

int ipoib_param_mcast_debug_level;
module_param_named(mcast_debug_level, ipoib_param_mcast_debug_level, int, 0644);
MODULE_PARM_DESC(mcast_debug_level, "Enable multicast debug messages if > 0");

char *ipoib_param_link_kind = "ipoib";
module_param_named(link_kind, ipoib_param_link_kind, charp, 0444);
MODULE_PARM_DESC(link_kind,
		 "Kind of link that `ip link add ... type KIND` makes children by; empty: none (default: ipoib)");
