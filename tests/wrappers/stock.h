/* SPDX-License-Identifier: GPL-2.0 */
#ifndef WRAPPERS_STOCK_H
#define WRAPPERS_STOCK_H

/* A device that is never registered; NULL without memory. May sleep, like all below. */
struct net_device *stock_netdev(void);
void stock_free_netdev(struct net_device *dev);

/* A packet with room in front and `len` octets of 0x5a; NULL without memory. */
struct sk_buff *stock_skb(unsigned int headroom, unsigned int len);
/* Appends a page of which `len` octets count. */
int stock_skb_add_page(struct sk_buff *skb, unsigned int len);
/* References on a packet. */
int stock_skb_users(struct sk_buff *skb);
struct sk_buff *stock_skb_get(struct sk_buff *skb);
struct sk_buff *stock_skb_clone(struct sk_buff *skb);
void stock_skb_free(struct sk_buff *skb);

/* Not 0 while bottom halves are off. */
unsigned int stock_softirqs_off(void);
void stock_bh_disable(void);
void stock_bh_enable(void);

#endif
