// SPDX-License-Identifier: GPL-2.0
/*
 * What the HCA does for IPoIB: checksums and segmentation. Payloads begin
 * with the 4-byte IPoIB header. Headers are worked on in a copy: the buffers
 * of the sender are read only.
 */

#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <net/checksum.h>
#include <net/ip6_checksum.h>
#include "vibfab.h"

#define VIB_ENCAP	4
#define VIB_HDR_MAX	192

struct vib_sum {
	__wsum sum;
	u32 off;		/* bytes summed so far */
	u32 skip;		/* bytes in front of the first summed */
};

static void vib_sum_piece(void *ctx, const void *d, u32 n)
{
	struct vib_sum *s = ctx;
	u32 cut = min(s->skip, n);

	s->skip -= cut;
	d += cut;
	n -= cut;
	if (!n)
		return;
	s->sum = csum_block_add(s->sum, csum_partial(d, n, 0), s->off);
	s->off += n;
}

/*
 * Find the transport header in @buf (@hlen bytes of headers of @p). Returns
 * its offset, 0 when there is none that can be handled; @field is the offset
 * of the checksum in it.
 */
static u32 vib_l4(const u8 *buf, u32 hlen, u8 *proto, u32 *field)
{
	u32 off;

	if (hlen < VIB_ENCAP + sizeof(struct iphdr))
		return 0;
	switch (get_unaligned_be16(buf)) {
	case ETH_P_IP: {
		const struct iphdr *ip = (const void *)(buf + VIB_ENCAP);

		if (ip->ihl < 5 || (ip->frag_off & htons(0x3fff)))
			return 0;
		*proto = ip->protocol;
		off = VIB_ENCAP + ip->ihl * 4;
		break;
	}
	case ETH_P_IPV6: {
		const struct ipv6hdr *ip = (const void *)(buf + VIB_ENCAP);

		off = VIB_ENCAP + sizeof(*ip);
		if (hlen < off)
			return 0;
		*proto = ip->nexthdr;
		break;
	}
	default:
		return 0;
	}
	if (*proto == IPPROTO_TCP)
		*field = offsetof(struct tcphdr, check);
	else if (*proto == IPPROTO_UDP)
		*field = offsetof(struct udphdr, check);
	else
		return 0;
	return off + *field + 2 <= hlen ? off : 0;
}

/* Fill in the IP and transport checksums in @buf, the first bytes of @p. */
static bool vib_fill_csum(u8 *buf, u32 hlen, struct vib_pkt *p)
{
	struct vib_sum s = {};
	u32 off, field, len;
	__sum16 *check, sum;
	u8 proto;

	off = vib_l4(buf, hlen, &proto, &field);
	if (!off)
		return false;
	check = (__sum16 *)(buf + off + field);
	*check = 0;
	if (!vib_par.csum_fill)
		return true;
	s.skip = off;
	len = p->len - off;
	vib_pkt_walk(p, p->len, vib_sum_piece, &s);
	if (get_unaligned_be16(buf) == ETH_P_IP) {
		struct iphdr *ip = (void *)(buf + VIB_ENCAP);

		ip->check = 0;
		ip->check = ip_fast_csum(ip, ip->ihl);
		sum = csum_tcpudp_magic(ip->saddr, ip->daddr, len, proto,
					s.sum);
	} else {
		struct ipv6hdr *ip = (void *)(buf + VIB_ENCAP);

		sum = csum_ipv6_magic(&ip->saddr, &ip->daddr, len, proto,
				      s.sum);
	}
	*check = sum ?: CSUM_MANGLED_0;
	return true;
}

/* Send @p with checksums filled in. Returns an enum ib_wc_status. */
int vib_csum_send(struct vib_pkt *p, struct vib_kicks *k)
{
	u8 buf[VIB_HDR_MAX] __aligned(8);
	u32 hlen = min_t(u32, p->len, sizeof(buf));

	if (!vib_par.csum)
		return IB_WC_LOC_QP_OP_ERR;
	vib_pkt_linear(p, buf, hlen);
	p->hdr = buf;
	p->hlen = hlen;
	p->skip = hlen;
	p->csum_ok = vib_fill_csum(buf, hlen, p);
	vib_fault_transmit(p, k);
	return IB_WC_SUCCESS;
}

/* Make the headers of one segment out of those of the whole. */
static bool vib_lso_header(u8 *buf, u32 hlen, u32 off, u32 seg, u32 total,
			   u32 index)
{
	struct tcphdr *tcp;
	u32 l4, field;
	u8 proto;

	l4 = vib_l4(buf, hlen, &proto, &field);
	if (!l4 || proto != IPPROTO_TCP)
		return false;
	tcp = (struct tcphdr *)(buf + l4);
	if (l4 + tcp->doff * 4 != hlen)
		return false;
	if (get_unaligned_be16(buf) == ETH_P_IP) {
		struct iphdr *ip = (void *)(buf + VIB_ENCAP);

		ip->tot_len = htons(hlen - VIB_ENCAP + seg);
		ip->id = htons(ntohs(ip->id) + index);
	} else {
		struct ipv6hdr *ip = (void *)(buf + VIB_ENCAP);

		ip->payload_len = htons(hlen - VIB_ENCAP - sizeof(*ip) + seg);
	}
	tcp->seq = htonl(ntohl(tcp->seq) + off);
	if (off + seg < total) {
		tcp->fin = 0;
		tcp->psh = 0;
	}
	if (off)
		tcp->cwr = 0;
	return true;
}

/*
 * Send @p, whose gather list is the payload of one big TCP segment, as many
 * small ones. Returns an enum ib_wc_status.
 */
int vib_lso_send(struct vib_qp *qp, const struct ib_ud_wr *ud,
		 struct vib_pkt *p, u32 mtu, struct vib_kicks *k)
{
	u8 buf[VIB_HDR_MAX] __aligned(8);
	u32 total = p->len, hlen = ud->hlen;
	u32 off, seg, index = 0;
	int err;

	if (!(qp->create_flags & IB_QP_CREATE_IPOIB_UD_LSO) || ud->mss <= 0 ||
	    ud->hlen <= 0 || hlen > sizeof(buf) || !total)
		return IB_WC_LOC_QP_OP_ERR;
	if (hlen + min_t(u32, ud->mss, total) > mtu)
		return IB_WC_LOC_LEN_ERR;
	for (off = 0; off < total; off += seg, index++) {
		seg = min_t(u32, ud->mss, total - off);
		memcpy(buf, ud->header, hlen);
		if (!vib_lso_header(buf, hlen, off, seg, total, index))
			return IB_WC_LOC_QP_OP_ERR;
		p->hdr = buf;
		p->hlen = hlen;
		p->skip = off;
		p->len = hlen + seg;
		p->csum_ok = vib_fill_csum(buf, hlen, p);
		err = vib_fault_wc(p);
		if (err)
			return err;
		vib_fault_transmit(p, k);
		p->id = 0;
		p->psn = (p->psn + 1) & 0xffffff;
	}
	qp->sq_psn = (p->psn - 1) & 0xffffff;
	return IB_WC_SUCCESS;
}
