// SPDX-License-Identifier: GPL-2.0
/*
 * The far end: thousands of simulated IPoIB nodes behind one switch port.
 * They keep no state: each request is turned into its answer. Node i has LID
 * far_lid + i, QPN 0x100000 + i, IPv4 address far_ip + i, and the IPv6
 * link-local address its GUID gives. They answer ARP, neighbour solicitation,
 * ping and UDP (echoed, ports swapped). Connections are in farcm.c.
 */

#include <linux/icmp.h>
#include <linux/icmpv6.h>
#include <linux/if_arp.h>
#include <linux/inet.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/module.h>
#include <linux/slab.h>
#include <linux/udp.h>
#include <net/checksum.h>
#include <net/ip6_checksum.h>
#include <net/ndisc.h>
#include <rdma/ib_pack.h>
#include "cmd.h"
#include "sa.h"

#define VIB_FAR_QPN		0x100000
#define VIB_FAR_QUEUE_MAX	65536
#define VIB_ENCAP		4
#define VIB_HWLEN		20

static uint vib_far;
module_param_named(far, vib_far, uint, 0444);
MODULE_PARM_DESC(far, "simulated far-end nodes (embedded SM)");
static uint vib_far_lid0 = 0x1000;
module_param_named(far_lid, vib_far_lid0, uint, 0444);
MODULE_PARM_DESC(far_lid, "LID of the first far-end node");
static char *vib_far_ip = "10.128.0.1";
module_param_named(far_ip, vib_far_ip, charp, 0444);
MODULE_PARM_DESC(far_ip, "IPv4 address of the first far-end node");

struct vib_far_req {
	struct list_head list;
	struct vib_pkt pkt;
	u8 data[];		/* pkt.len bytes of payload */
};

static struct {
	spinlock_t lock;	/* the queue */
	struct list_head queue;
	u32 queued;
	struct work_struct work;
	u32 ip;			/* of node 0, host order */
	u64 guid;		/* of node 0 */
} vib_fe;

struct vib_arp {
	__be16 hrd;
	__be16 pro;
	u8 hln;
	u8 pln;
	__be16 op;
	u8 sha[VIB_HWLEN];
	__be32 sip;
	u8 tha[VIB_HWLEN];
	__be32 tip;
} __packed;

struct vib_nd {
	struct icmp6hdr icmp;
	struct in6_addr target;
	u8 type;
	u8 len;
	u8 resv[2];
	u8 hw[VIB_HWLEN];
} __packed;

u32 vib_far_nodes(void)
{
	return vib_far;
}

static bool vib_far_by_guid(__be64 guid, u32 *node)
{
	u64 off = be64_to_cpu(guid) - vib_fe.guid;

	*node = off;
	return off < vib_far;
}

static bool vib_far_by_ip(__be32 ip, u32 *node)
{
	*node = ntohl(ip) - vib_fe.ip;
	return *node < vib_far;
}

/* LID of the far-end node with that GID, 0 when there is none. */
u16 vib_far_lid(const union ib_gid *gid)
{
	u32 node;

	if (gid->global.subnet_prefix != cpu_to_be64(0xfe80000000000000ULL) ||
	    !vib_far_by_guid(gid->global.interface_id, &node))
		return 0;
	return vib_far_lid0 + node;
}

static void vib_far_hw(u32 node, u8 *hw)
{
	put_unaligned_be32((VIB_FAR_QPN + node) | vib_farcm_flags(), hw);
	put_unaligned_be64(0xfe80000000000000ULL, hw + 4);
	put_unaligned_be64(vib_fe.guid + node, hw + 12);
}

static bool vib_far_arp(struct vib_far_req *r, u32 *node)
{
	struct vib_arp *a = (struct vib_arp *)(r->data + VIB_ENCAP);

	if (r->pkt.len < VIB_ENCAP + sizeof(*a) ||
	    a->hrd != htons(ARPHRD_INFINIBAND) || a->hln != VIB_HWLEN ||
	    a->op != htons(ARPOP_REQUEST) || !vib_far_by_ip(a->tip, node))
		return false;
	a->op = htons(ARPOP_REPLY);
	memcpy(a->tha, a->sha, VIB_HWLEN);
	swap(a->sip, a->tip);
	vib_far_hw(*node, a->sha);
	return true;
}

static bool vib_far_ipv4(struct vib_far_req *r, u32 *node)
{
	struct iphdr *ip = (struct iphdr *)(r->data + VIB_ENCAP);
	u32 room = r->pkt.len - VIB_ENCAP;
	struct icmphdr *icmp;
	struct udphdr *udp;
	u32 hlen;

	if (room < sizeof(*ip) || ip->ihl < 5)
		return false;
	hlen = ip->ihl * 4;
	if (room < hlen + 8 || ip->frag_off & htons(0x3fff) ||
	    !vib_far_by_ip(ip->daddr, node))
		return false;
	swap(ip->saddr, ip->daddr);
	if (ip->protocol == IPPROTO_UDP) {
		/* the sums do not change when both halves are swapped */
		udp = (struct udphdr *)((u8 *)ip + hlen);
		swap(udp->source, udp->dest);
		return true;
	}
	icmp = (struct icmphdr *)((u8 *)ip + hlen);
	if (ip->protocol != IPPROTO_ICMP || icmp->type != ICMP_ECHO)
		return false;
	icmp->type = ICMP_ECHOREPLY;
	csum_replace2(&icmp->checksum, htons(ICMP_ECHO << 8),
		      htons(ICMP_ECHOREPLY << 8));
	return true;
}

/* Answer a solicitation for one of the nodes. */
static bool vib_far_ns(struct vib_far_req *r, struct ipv6hdr *ip, u32 *node)
{
	struct vib_nd *nd = (struct vib_nd *)(ip + 1);
	__be64 guid;

	if (r->pkt.len < VIB_ENCAP + sizeof(*ip) + 24)
		return false;
	memcpy(&guid, &nd->target.s6_addr[8], 8);
	if (!vib_far_by_guid(guid, node) || ipv6_addr_any(&ip->saddr) ||
	    !(ipv6_addr_type(&nd->target) & IPV6_ADDR_LINKLOCAL))
		return false;
	memset(&nd->icmp, 0, sizeof(nd->icmp));
	nd->icmp.icmp6_type = NDISC_NEIGHBOUR_ADVERTISEMENT;
	nd->icmp.icmp6_solicited = 1;
	nd->icmp.icmp6_override = 1;
	nd->type = ND_OPT_TARGET_LL_ADDR;
	nd->len = 3;
	nd->resv[0] = 0;
	nd->resv[1] = 0;
	vib_far_hw(*node, nd->hw);
	ip->daddr = ip->saddr;
	ip->saddr = nd->target;
	ip->payload_len = htons(sizeof(*nd));
	r->pkt.len = VIB_ENCAP + sizeof(*ip) + sizeof(*nd);
	nd->icmp.icmp6_cksum =
		csum_ipv6_magic(&ip->saddr, &ip->daddr, sizeof(*nd),
				IPPROTO_ICMPV6,
				csum_partial(nd, sizeof(*nd), 0));
	return true;
}

static bool vib_far_ipv6(struct vib_far_req *r, u32 *node)
{
	struct ipv6hdr *ip = (struct ipv6hdr *)(r->data + VIB_ENCAP);
	struct icmp6hdr *icmp = (struct icmp6hdr *)(ip + 1);
	struct udphdr *udp = (struct udphdr *)(ip + 1);
	__be64 guid;

	if (r->pkt.len < VIB_ENCAP + sizeof(*ip) + 8)
		return false;
	if (ip->nexthdr == IPPROTO_ICMPV6 &&
	    icmp->icmp6_type == NDISC_NEIGHBOUR_SOLICITATION)
		return vib_far_ns(r, ip, node);
	memcpy(&guid, &ip->daddr.s6_addr[8], 8);
	if (!(ipv6_addr_type(&ip->daddr) & IPV6_ADDR_LINKLOCAL) ||
	    !vib_far_by_guid(guid, node))
		return false;
	swap(ip->saddr, ip->daddr);
	if (ip->nexthdr == IPPROTO_UDP) {
		swap(udp->source, udp->dest);
		return true;
	}
	if (ip->nexthdr != IPPROTO_ICMPV6 ||
	    icmp->icmp6_type != ICMPV6_ECHO_REQUEST)
		return false;
	icmp->icmp6_type = ICMPV6_ECHO_REPLY;
	csum_replace2(&icmp->icmp6_cksum, htons(ICMPV6_ECHO_REQUEST << 8),
		      htons(ICMPV6_ECHO_REPLY << 8));
	return true;
}

static void vib_far_answer(struct vib_far_req *r)
{
	struct vib_pkt p = {};
	u32 node = 0;
	bool ok;

	if (r->pkt.dqpn == 1) {
		node = r->pkt.dlid - vib_far_lid0;
		if (node < vib_far)
			vib_farcm_mad(&r->pkt, r->data, vib_fe.guid + node);
		return;
	}
	switch (get_unaligned_be16(r->data)) {
	case ETH_P_ARP:
		ok = vib_far_arp(r, &node);
		break;
	case ETH_P_IP:
		ok = vib_far_ipv4(r, &node);
		break;
	case ETH_P_IPV6:
		ok = vib_far_ipv6(r, &node);
		break;
	default:
		ok = false;
	}
	/* what was sent to another node's LID or QPN is not for this one */
	if (!ok || (r->pkt.dlid < VIB_MLID_BASE &&
		    (r->pkt.dlid != vib_far_lid0 + node ||
		     r->pkt.dqpn != VIB_FAR_QPN + node)))
		return;
	p.in_port = VIB_FAR_PORT;
	p.opcode = IB_OPCODE_UD_SEND_ONLY;
	p.slid = vib_far_lid0 + node;
	p.dlid = r->pkt.slid;
	p.pkey = r->pkt.pkey | 0x8000;
	p.sqpn = VIB_FAR_QPN + node;
	p.dqpn = r->pkt.sqpn;
	p.qkey = r->pkt.qkey;
	p.csum_ok = vib_par.csum && r->pkt.csum_ok;
	p.len = r->pkt.len;
	p.hdr = r->data;
	p.hlen = r->pkt.len;
	vib_switch_inject(&p, VIB_NO_PORT);
}

static struct vib_far_req *vib_far_next(void)
{
	struct vib_far_req *r;
	unsigned long flags;

	spin_lock_irqsave(&vib_fe.lock, flags);
	r = list_first_entry_or_null(&vib_fe.queue, struct vib_far_req, list);
	if (r) {
		list_del(&r->list);
		vib_fe.queued--;
	}
	spin_unlock_irqrestore(&vib_fe.lock, flags);
	return r;
}

static void vib_far_work(struct work_struct *work)
{
	struct vib_far_req *r;
	u32 n = 0;

	while (n++ < VIB_BH_BATCH && (r = vib_far_next())) {
		vib_far_answer(r);
		kfree(r);
	}
	if (n > VIB_BH_BATCH)
		queue_work(vib_fab.bh_wq, &vib_fe.work);
}

/* A packet for the far end. Any context. */
void vib_far_rx(struct vib_pkt *p)
{
	struct vib_far_req *r;
	unsigned long flags;

	if (p->len < VIB_ENCAP || vib_fe.queued >= VIB_FAR_QUEUE_MAX ||
	    p->opcode < 0x60)
		return;
	/* an answer may be longer than its solicitation */
	r = kmalloc(struct_size(r, data, max(p->len, 128U)), GFP_ATOMIC);
	if (!r)
		return;
	r->pkt = *p;
	vib_pkt_linear(p, r->data, p->len);
	spin_lock_irqsave(&vib_fe.lock, flags);
	list_add_tail(&r->list, &vib_fe.queue);
	vib_fe.queued++;
	spin_unlock_irqrestore(&vib_fe.lock, flags);
	queue_work(vib_fab.bh_wq, &vib_fe.work);
}

/* A message over a connection to the far end; whether there is one. */
bool vib_far_rc(struct vib_pkt *p)
{
	struct vib_pkt datagram = *p;

	if (p->dlid - vib_far_lid0 >= vib_far || !vib_farcm_data(&datagram))
		return false;
	datagram.dqpn = VIB_FAR_QPN + p->dlid - vib_far_lid0;
	/* nobody could answer a longer one */
	if (datagram.len <= vib_par.mtu)
		vib_far_rx(&datagram);
	return true;
}

/* Are the parameters sound? Its LIDs begin behind those of the ports. */
int vib_far_check(void)
{
	__be32 ip;

	if (!vib_far)
		return 0;
	if (vib_par.sm != VIB_SM_EMBEDDED || vib_far >= VIB_LIDS ||
	    vib_far_lid0 < vib_sm_first_free_lid() ||
	    vib_far_lid0 > VIB_LIDS - vib_far ||
	    !in4_pton(vib_far_ip, -1, (u8 *)&ip, -1, NULL))
		return -EINVAL;
	vib_fe.ip = ntohl(ip);
	return 0;
}

/*
 * far lid N: node i gets LID N + i. Nobody is told, and what goes to the old
 * LIDs is lost from then on. Other words are for the connections of nodes.
 */
int vib_cmd_far(struct vib_cmd *c)
{
	u32 old, i;
	u64 lid;
	int err = 0;

	if (c->n != 3 || strcmp(c->w[1], "lid"))
		return vib_farcm_cmd(c);
	if (!vib_far ||
	    vib_cmd_u64(c, 2, VIB_LIDS - vib_far, &lid) || !lid)
		return -EINVAL;
	mutex_lock(&vib_fab.mutex);
	for (i = 0; i < vib_far && !err; i++)
		if (lid + i == vib_fab.sw_lid ||
		    (vib_fab.lft[lid + i] != VIB_NO_PORT &&
		     vib_fab.lft[lid + i] != VIB_FAR_PORT))
			err = -EADDRINUSE;
	if (!err) {
		old = vib_far_lid0;
		for (i = 0; i < vib_far; i++)
			vib_lft_set(old + i, VIB_NO_PORT);
		WRITE_ONCE(vib_far_lid0, lid);
		for (i = 0; i < vib_far; i++)
			vib_lft_set(lid + i, VIB_FAR_PORT);
	}
	mutex_unlock(&vib_fab.mutex);
	return err;
}

int vib_far_init(void)
{
	u32 i;

	spin_lock_init(&vib_fe.lock);
	INIT_LIST_HEAD(&vib_fe.queue);
	INIT_WORK(&vib_fe.work, vib_far_work);
	vib_farcm_init();
	vib_fe.guid = be64_to_cpu(vib_guid(0x1000, 0));
	for (i = 0; i < vib_far; i++)
		vib_lft_set(vib_far_lid0 + i, VIB_FAR_PORT);
	return 0;
}

/* All HCAs are gone. */
void vib_far_exit(void)
{
	struct vib_far_req *r;

	cancel_work_sync(&vib_fe.work);
	while ((r = vib_far_next()))
		kfree(r);
	vib_farcm_exit();
}
