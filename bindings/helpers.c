// SPDX-License-Identifier: GPL-2.0
/*
 * One function per static inline or macro that the networking wrappers need.
 * No logic here: what to call, and when, is decided in Rust.
 */
#include <linux/icmp.h>
#include <linux/icmpv6.h>
#include <linux/netdevice.h>
#include <linux/inetdevice.h>
#include <linux/skbuff.h>
#include <linux/tcp.h>
#include <linux/rtnetlink.h>
#include <linux/spinlock.h>
#include <linux/workqueue.h>
#include <linux/prefetch.h>
#include <linux/ratelimit.h>
#include <linux/sched/signal.h>
#include <net/addrconf.h>
#include <net/busy_poll.h>
#include <net/dst.h>
#include <net/icmp.h>
#include <net/netdev_lock.h>
#include <net/netlink.h>

#include "helpers.h"

void *ipoib_h_netdev_priv(struct net_device *dev)
{
	return netdev_priv(dev);
}

void ipoib_h_dev_hold(struct net_device *dev)
{
	dev_hold(dev);
}

void ipoib_h_dev_put(struct net_device *dev)
{
	dev_put(dev);
}

void ipoib_h_dev_net_set(struct net_device *dev, struct net *net)
{
	dev_net_set(dev, net);
}

void ipoib_h_set_netdev_dev(struct net_device *dev, struct device *parent)
{
	SET_NETDEV_DEV(dev, parent);
}

void ipoib_h_keep_dst(struct net_device *dev)
{
	netif_keep_dst(dev);
}

bool ipoib_h_netif_running(struct net_device *dev)
{
	return netif_running(dev);
}

bool ipoib_h_netif_carrier_ok(struct net_device *dev)
{
	return netif_carrier_ok(dev);
}

void ipoib_h_netdev_lock_ops(struct net_device *dev)
{
	netdev_lock_ops(dev);
}

void ipoib_h_netdev_unlock_ops(struct net_device *dev)
{
	netdev_unlock_ops(dev);
}

void ipoib_h_assert_rtnl(void)
{
	ASSERT_RTNL();
}

bool ipoib_h_is_l3_master(const struct net_device *dev)
{
	return netif_is_l3_master(dev);
}

struct in_device *ipoib_h_in_dev_get_rcu(const struct net_device *dev)
{
	return __in_dev_get_rcu(dev);
}

/* Without IPv6 there is no such function. */
bool ipoib_h_has_ipv6(struct net_device *dev, const struct in6_addr *addr)
{
	return IS_ENABLED(CONFIG_IPV6) && ipv6_chk_addr(dev_net(dev), addr, dev, 1);
}

struct net *ipoib_h_dev_net(const struct net_device *dev)
{
	return dev_net(dev);
}

struct net *ipoib_h_link_net(struct rtnl_newlink_params *params)
{
	return rtnl_newlink_link_net(params);
}

u16 ipoib_h_nla_get_u16(const struct nlattr *nla)
{
	return nla_get_u16(nla);
}

u32 ipoib_h_nla_get_u32(const struct nlattr *nla)
{
	return nla_get_u32(nla);
}

const void *ipoib_h_nla_data(const struct nlattr *nla)
{
	return nla_data(nla);
}

int ipoib_h_nla_len(const struct nlattr *nla)
{
	return nla_len(nla);
}

size_t ipoib_h_nla_total_size(int payload)
{
	return nla_total_size(payload);
}

int ipoib_h_restart_syscall(void)
{
	return restart_syscall();
}

struct netdev_queue *ipoib_h_get_tx_queue(struct net_device *dev, unsigned int i)
{
	return netdev_get_tx_queue(dev, i);
}

void ipoib_h_tx_lock_bh(struct netdev_queue *txq)
{
	__netif_tx_lock_bh(txq);
}

void ipoib_h_tx_unlock_bh(struct netdev_queue *txq)
{
	__netif_tx_unlock_bh(txq);
}

void ipoib_h_tx_stop_queue(struct netdev_queue *txq)
{
	netif_tx_stop_queue(txq);
}

void ipoib_h_tx_start_queue(struct netdev_queue *txq)
{
	netif_tx_start_queue(txq);
}

bool ipoib_h_tx_queue_stopped(struct netdev_queue *txq)
{
	return netif_tx_queue_stopped(txq);
}

bool ipoib_h_xmit_stopped(struct netdev_queue *txq)
{
	return netif_xmit_stopped(txq);
}

void ipoib_h_tx_start_all_queues(struct net_device *dev)
{
	netif_tx_start_all_queues(dev);
}

void ipoib_h_tx_stop_all_queues(struct net_device *dev)
{
	netif_tx_stop_all_queues(dev);
}

void ipoib_h_tx_disable(struct net_device *dev)
{
	netif_tx_disable(dev);
}

bool ipoib_h_xmit_more(void)
{
	return netdev_xmit_more();
}

unsigned int ipoib_h_tx_sent(struct netdev_queue *txq, unsigned int bytes)
{
	bool more = netdev_xmit_more();

	__netdev_tx_sent_queue(txq, bytes, more);
	return (more ? IPOIB_H_MORE : 0) | (netif_xmit_stopped(txq) ? IPOIB_H_STOPPED : 0);
}

void ipoib_h_tx_completed_queue(struct netdev_queue *txq, unsigned int pkts,
				unsigned int bytes)
{
	netdev_tx_completed_queue(txq, pkts, bytes);
}

void ipoib_h_tx_reset_queue(struct netdev_queue *txq)
{
	netdev_tx_reset_queue(txq);
}

void ipoib_h_txq_trans_update(struct netdev_queue *txq)
{
	txq_trans_cond_update(txq);
}

unsigned long ipoib_h_trans_start(struct netdev_queue *txq)
{
	return READ_ONCE(txq->trans_start);
}

void ipoib_h_napi_add(struct net_device *dev, struct napi_struct *napi,
		      int (*poll)(struct napi_struct *, int), int weight)
{
	netif_napi_add_weight(dev, napi, poll, weight);
}

/* Past GRO. */
void ipoib_h_napi_receive(struct napi_struct *napi, struct sk_buff *skb)
{
	skb_mark_napi_id(skb, napi);
	netif_receive_skb(skb);
}

void ipoib_h_timer_setup(struct timer_list *timer, void (*expired)(struct timer_list *))
{
	timer_setup(timer, expired, 0);
}

void ipoib_h_napi_del(struct napi_struct *napi)
{
	netif_napi_del(napi);
}

/* One step for each received frame: a packet around the memory, as the stack wants to have it. */
struct sk_buff *ipoib_h_rx_skb(void *mem, struct net_device *dev, const struct ipoib_h_rx *rx)
{
	struct sk_buff *skb = napi_build_skb(mem, rx->size);

	if (unlikely(!skb))
		return NULL;
	skb_reserve(skb, rx->start);
	memset(__skb_put(skb, rx->hard + rx->linear), 0, IPOIB_H_PSEUDO);
	skb_reset_mac_header(skb);
	__skb_pull(skb, rx->hard);
	skb->dev = dev;
	skb->protocol = rx->protocol;
	skb->pkt_type = rx->pkt_type;
	skb->ip_summed = rx->ip_summed;
	skb_record_rx_queue(skb, rx->queue);
	return skb;
}

int ipoib_h_skb_transport_offset(const struct sk_buff *skb)
{
	return skb_transport_offset(skb);
}

int ipoib_h_skb_tcp_all_headers(const struct sk_buff *skb)
{
	return skb_tcp_all_headers(skb);
}

/* One step for each packet that is about to be posted. */
void ipoib_h_skb_detach(struct sk_buff *skb)
{
	skb_tx_timestamp(skb);
	skb_orphan(skb);
	skb_dst_drop(skb);
}

int ipoib_h_skb_cow_head(struct sk_buff *skb, unsigned int headroom)
{
	return skb_cow_head(skb, headroom);
}

struct page *ipoib_h_skb_frag_page(const struct sk_buff *skb, unsigned int i)
{
	return skb_frag_page(&skb_shinfo(skb)->frags[i]);
}

int ipoib_h_skb_linearize(struct sk_buff *skb)
{
	return skb_linearize(skb);
}

int ipoib_h_dev_queue_xmit(struct sk_buff *skb)
{
	return dev_queue_xmit(skb);
}

void ipoib_h_kfree_skb_any(struct sk_buff *skb)
{
	dev_kfree_skb_any(skb);
}

void ipoib_h_consume_skb_any(struct sk_buff *skb)
{
	dev_consume_skb_any(skb);
}

struct page *ipoib_h_alloc_rx_page(void)
{
	return dev_alloc_page();
}

void *ipoib_h_page_address(struct page *page)
{
	return page_address(page);
}

/* Not worth keeping: pages of the emergency reserve, and those far away. */
bool ipoib_h_page_keep(struct page *page)
{
	if (!dev_page_is_reusable(page))
		return false;
	get_page(page);
	return true;
}

int ipoib_h_page_ref_count(struct page *page)
{
	return page_ref_count(page);
}

void ipoib_h_put_page(struct page *page)
{
	put_page(page);
}

void ipoib_h_skb_add_rx_page(struct sk_buff *skb, int i, struct page *page, unsigned int len)
{
	skb_add_rx_frag(skb, i, page, 0, len, PAGE_SIZE);
}

void ipoib_h_skb_update_pmtu(struct sk_buff *skb, u32 mtu)
{
	skb_dst_update_pmtu(skb, mtu);
}

/* The stack's control block is a clean one to whoever sends an error message. */
void ipoib_h_skb_clear_cb(struct sk_buff *skb)
{
	memset(skb->cb, 0, sizeof(skb->cb));
}

__be16 ipoib_h_skb_protocol(const struct sk_buff *skb)
{
	return skb->protocol;
}

void ipoib_h_icmp_frag_needed(struct sk_buff *skb, u32 mtu)
{
	icmp_send(skb, ICMP_DEST_UNREACH, ICMP_FRAG_NEEDED, htonl(mtu));
}

void ipoib_h_icmpv6_too_big(struct sk_buff *skb, u32 mtu)
{
	icmpv6_send(skb, ICMPV6_PKT_TOOBIG, 0, mtu);
}

void ipoib_h_prefetch(const void *addr)
{
	prefetch(addr);
}

void ipoib_h_spin_lock_bh(spinlock_t *lock)
{
	spin_lock_bh(lock);
}

void ipoib_h_spin_unlock_bh(spinlock_t *lock)
{
	spin_unlock_bh(lock);
}

bool ipoib_h_spin_trylock_bh(spinlock_t *lock)
{
	return spin_trylock_bh(lock);
}

void ipoib_h_local_bh_disable(void)
{
	local_bh_disable();
}

void ipoib_h_local_bh_enable(void)
{
	local_bh_enable();
}

unsigned int ipoib_h_num_online_cpus(void)
{
	return num_online_cpus();
}

struct workqueue_struct *ipoib_h_alloc_ordered_wq(const char *name, bool mem_reclaim)
{
	return alloc_ordered_workqueue("%s", mem_reclaim ? WQ_MEM_RECLAIM : 0, name);
}

bool ipoib_h_ratelimit(void)
{
	static DEFINE_RATELIMIT_STATE(rs, 10 * HZ, 100);

	return __ratelimit(&rs);
}
