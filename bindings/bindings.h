/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What bindgen reads: the kernel headers that the driver speaks to, and the
 * prototypes of our own helpers. Order matters only for the first include, which
 * keeps bindgen from mistaking a forward-declared enum for a struct.
 */
#include <linux/hrtimer_types.h>

#include <linux/netdevice.h>
#include <linux/etherdevice.h>
#include <linux/ethtool.h>
#include <linux/if_arp.h>
#include <linux/if_infiniband.h>
#include <linux/capability.h>
#include <linux/inetdevice.h>
#include <linux/skbuff.h>
#include <linux/rtnetlink.h>
#include <net/addrconf.h>
#include <net/netdev_queues.h>
#include <net/netlink.h>
#include <net/rtnetlink.h>
#include <linux/workqueue.h>
#include <linux/llist.h>
#include <linux/rcupdate.h>
#include <linux/random.h>
#include <linux/jiffies.h>

#include <rdma/ib_verbs.h>
#include <rdma/ib_cache.h>
#include <rdma/ib_addr.h>
#include <rdma/ib_sa.h>
#include <rdma/ib_cm.h>
#include <rdma/ib_pack.h>

#include "helpers.h"
#include "rdma_helpers.h"
#include "params.h"

/* Constants whose macros bindgen cannot evaluate by itself. */
static const __u64 IPOIB_CONST_NETIF_F_SG = NETIF_F_SG;
static const __u64 IPOIB_CONST_NETIF_F_HIGHDMA = NETIF_F_HIGHDMA;
static const __u64 IPOIB_CONST_NETIF_F_VLAN_CHALLENGED = NETIF_F_VLAN_CHALLENGED;
static const __u64 IPOIB_CONST_NETIF_F_IP_CSUM = NETIF_F_IP_CSUM;
static const __u64 IPOIB_CONST_NETIF_F_RXCSUM = NETIF_F_RXCSUM;
static const __u64 IPOIB_CONST_NETIF_F_TSO = NETIF_F_TSO;
static const __u64 IPOIB_CONST_NETIF_F_GSO_MASK = NETIF_F_GSO_MASK;
static const __u64 IPOIB_CONST_IFF_XMIT_DST_RELEASE_BOTH =
	IFF_XMIT_DST_RELEASE | IFF_XMIT_DST_RELEASE_PERM;
static const __u32 IPOIB_CONST_HZ = HZ;
static const __u32 IPOIB_CONST_MORE = IPOIB_H_MORE;
static const __u32 IPOIB_CONST_STOPPED = IPOIB_H_STOPPED;
static const __u32 IPOIB_CONST_MAX_SKB_FRAGS = MAX_SKB_FRAGS;
static const __u32 IPOIB_CONST_SKB_SHARED_INFO =
	SKB_DATA_ALIGN(sizeof(struct skb_shared_info));
static const __u32 IPOIB_CONST_IFLA_ADDRESS = IFLA_ADDRESS;
static const __u32 IPOIB_CONST_IFLA_MTU = IFLA_MTU;
static const __u32 IPOIB_CONST_IFLA_LINK = IFLA_LINK;
static const __u32 IPOIB_CONST_ETHTOOL_COALESCE_RX =
	ETHTOOL_COALESCE_RX_USECS | ETHTOOL_COALESCE_RX_MAX_FRAMES;
static const __u32 IPOIB_CONST_NLA_U16 = NLA_U16;
static const __u32 IPOIB_CONST_CAP_NET_ADMIN = CAP_NET_ADMIN;
/* NET_SKB_PAD is a max() expression, which no constant initialiser may hold. */
static const __u32 IPOIB_CONST_NET_SKB_PAD =
	L1_CACHE_BYTES > 32 ? L1_CACHE_BYTES : 32;
