/* SPDX-License-Identifier: GPL-2.0 */
#ifndef IPOIB_RS_HELPERS_H
#define IPOIB_RS_HELPERS_H

/*
 * One function per static inline or macro that the networking wrappers need.
 * bindgen reads the same prototypes that the compiler checks. No logic here.
 */
#include <linux/netdevice.h>
#include <linux/skbuff.h>
#include <linux/rtnetlink.h>
#include <net/rtnetlink.h>

/* net_device */
void *ipoib_h_netdev_priv(struct net_device *dev);
void ipoib_h_dev_hold(struct net_device *dev);
void ipoib_h_dev_put(struct net_device *dev);
void ipoib_h_dev_net_set(struct net_device *dev, struct net *net);
void ipoib_h_set_netdev_dev(struct net_device *dev, struct device *parent);
void ipoib_h_keep_dst(struct net_device *dev);
bool ipoib_h_netif_running(struct net_device *dev);
bool ipoib_h_netif_carrier_ok(struct net_device *dev);
void ipoib_h_netdev_lock_ops(struct net_device *dev);
void ipoib_h_netdev_unlock_ops(struct net_device *dev);
void ipoib_h_assert_rtnl(void);
struct net *ipoib_h_dev_net(const struct net_device *dev);
bool ipoib_h_is_l3_master(const struct net_device *dev);
struct in_device *ipoib_h_in_dev_get_rcu(const struct net_device *dev);
bool ipoib_h_has_ipv6(struct net_device *dev, const struct in6_addr *addr);

/* rtnetlink, sysfs */
struct net *ipoib_h_link_net(struct rtnl_newlink_params *params);
u16 ipoib_h_nla_get_u16(const struct nlattr *nla);
u32 ipoib_h_nla_get_u32(const struct nlattr *nla);
const void *ipoib_h_nla_data(const struct nlattr *nla);
int ipoib_h_nla_len(const struct nlattr *nla);
size_t ipoib_h_nla_total_size(int payload);
int ipoib_h_restart_syscall(void);

/* transmit queues */
struct netdev_queue *ipoib_h_get_tx_queue(struct net_device *dev, unsigned int i);
void ipoib_h_tx_lock_bh(struct netdev_queue *txq);
void ipoib_h_tx_unlock_bh(struct netdev_queue *txq);
void ipoib_h_tx_stop_queue(struct netdev_queue *txq);
void ipoib_h_tx_start_queue(struct netdev_queue *txq);
bool ipoib_h_tx_queue_stopped(struct netdev_queue *txq);
bool ipoib_h_xmit_stopped(struct netdev_queue *txq);
void ipoib_h_tx_start_all_queues(struct net_device *dev);
void ipoib_h_tx_stop_all_queues(struct net_device *dev);
void ipoib_h_tx_disable(struct net_device *dev);
bool ipoib_h_xmit_more(void);

/* How things stand after a packet: the stack has more, and the queue is stopped. */
#define IPOIB_H_MORE	1
#define IPOIB_H_STOPPED	2

unsigned int ipoib_h_tx_sent(struct netdev_queue *txq, unsigned int bytes);
void ipoib_h_tx_completed_queue(struct netdev_queue *txq, unsigned int pkts,
				unsigned int bytes);
void ipoib_h_tx_reset_queue(struct netdev_queue *txq);
void ipoib_h_txq_trans_update(struct netdev_queue *txq);
unsigned long ipoib_h_trans_start(struct netdev_queue *txq);

/* NAPI */
void ipoib_h_napi_add(struct net_device *dev, struct napi_struct *napi,
		      int (*poll)(struct napi_struct *, int), int weight);
void ipoib_h_napi_receive(struct napi_struct *napi, struct sk_buff *skb);
void ipoib_h_timer_setup(struct timer_list *timer, void (*expired)(struct timer_list *));
void ipoib_h_napi_del(struct napi_struct *napi);

/* socket buffers */

/* Where a packet lies in its memory, and what the stack is told of it. */
struct ipoib_h_rx {
	u32 size;
	u32 start;
	u32 hard;
	u32 linear;
	__be16 protocol;
	u16 queue;
	u8 pkt_type;
	u8 ip_summed;
};

/* Octets of the pseudo header, which are zero. */
#define IPOIB_H_PSEUDO	20

struct sk_buff *ipoib_h_rx_skb(void *mem, struct net_device *dev, const struct ipoib_h_rx *rx);
void ipoib_h_skb_detach(struct sk_buff *skb);
int ipoib_h_skb_transport_offset(const struct sk_buff *skb);
int ipoib_h_skb_tcp_all_headers(const struct sk_buff *skb);
int ipoib_h_skb_cow_head(struct sk_buff *skb, unsigned int headroom);
struct page *ipoib_h_skb_frag_page(const struct sk_buff *skb, unsigned int i);
int ipoib_h_skb_linearize(struct sk_buff *skb);
int ipoib_h_dev_queue_xmit(struct sk_buff *skb);
void ipoib_h_kfree_skb_any(struct sk_buff *skb);
void ipoib_h_consume_skb_any(struct sk_buff *skb);
struct page *ipoib_h_alloc_rx_page(void);
void *ipoib_h_page_address(struct page *page);
bool ipoib_h_page_keep(struct page *page);
int ipoib_h_page_ref_count(struct page *page);
void ipoib_h_put_page(struct page *page);
void ipoib_h_skb_add_rx_page(struct sk_buff *skb, int i, struct page *page, unsigned int len);
void ipoib_h_skb_update_pmtu(struct sk_buff *skb, u32 mtu);
void ipoib_h_skb_clear_cb(struct sk_buff *skb);
__be16 ipoib_h_skb_protocol(const struct sk_buff *skb);
void ipoib_h_icmp_frag_needed(struct sk_buff *skb, u32 mtu);
void ipoib_h_icmpv6_too_big(struct sk_buff *skb, u32 mtu);
void ipoib_h_prefetch(const void *addr);

/* locks, time, RCU */
void ipoib_h_spin_lock_bh(spinlock_t *lock);
void ipoib_h_spin_unlock_bh(spinlock_t *lock);
bool ipoib_h_spin_trylock_bh(spinlock_t *lock);
void ipoib_h_local_bh_disable(void);
void ipoib_h_local_bh_enable(void);
unsigned int ipoib_h_num_online_cpus(void);
struct workqueue_struct *ipoib_h_alloc_ordered_wq(const char *name, bool mem_reclaim);
bool ipoib_h_ratelimit(void);

#endif
