// SPDX-License-Identifier: GPL-2.0
/* What the suites need and the driver does not: objects that the kernel hands to it otherwise. */
#include <linux/etherdevice.h>
#include <linux/netdevice.h>
#include <linux/skbuff.h>
#include <linux/spinlock.h>
#include <net/gro.h>

#include "stock.h"

struct net_device *stock_netdev(void)
{
	return alloc_netdev_dummy(0);
}

void stock_free_netdev(struct net_device *dev)
{
	free_netdev(dev);
}

struct sk_buff *stock_skb(unsigned int headroom, unsigned int len)
{
	struct sk_buff *skb = alloc_skb(headroom + len, GFP_KERNEL);

	if (skb) {
		skb_reserve(skb, headroom);
		memset(skb_put(skb, len), 0x5a, len);
	}
	return skb;
}

int stock_skb_add_page(struct sk_buff *skb, unsigned int len)
{
	struct page *page = alloc_page(GFP_KERNEL | __GFP_ZERO);

	if (!page)
		return -ENOMEM;
	skb_add_rx_frag(skb, skb_shinfo(skb)->nr_frags, page, 0, len, PAGE_SIZE);
	return 0;
}

int stock_skb_users(struct sk_buff *skb)
{
	return refcount_read(&skb->users);
}

struct sk_buff *stock_skb_get(struct sk_buff *skb)
{
	return skb_get(skb);
}

struct sk_buff *stock_skb_clone(struct sk_buff *skb)
{
	return skb_clone(skb, GFP_KERNEL);
}

void stock_skb_free(struct sk_buff *skb)
{
	kfree_skb(skb);
}

unsigned int stock_softirqs_off(void)
{
	return in_softirq();
}

void stock_bh_disable(void)
{
	local_bh_disable();
}

void stock_bh_enable(void)
{
	local_bh_enable();
}
