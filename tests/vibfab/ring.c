// SPDX-License-Identifier: GPL-2.0
/* The last packets: as text lines, and as pcap with ERF records. */

#include <linux/crc32.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/seq_file.h>
#include <linux/timekeeping.h>
#include <linux/vmalloc.h>
#include <rdma/ib_pack.h>
#include "ring.h"

#define VIB_RING_MAX	(1 << 18)

DEFINE_STATIC_KEY_FALSE(vib_ring_on);

static uint vib_ring_size = 1024;
module_param_named(ring, vib_ring_size, uint, 0444);
MODULE_PARM_DESC(ring, "packets remembered, up to 262144; 0: none");
static uint vib_ring_snap = 384;
module_param_named(snap, vib_ring_snap, uint, 0444);
MODULE_PARM_DESC(snap, "bytes of payload remembered of each, up to 4096");

static struct {
	spinlock_t lock;	/* all of it */
	void *rec;
	u32 stride;
	u64 next;		/* records ever added */
	u64 first;		/* the oldest that is wanted */
	u64 ids;
} vib_ring;

static struct vib_rec *vib_rec(u64 n)
{
	u32 slot = do_div(n, vib_ring_size);

	return vib_ring.rec + (size_t)slot * vib_ring.stride;
}

void __vib_ring_add(struct vib_pkt *p, u32 out, enum vib_verdict v)
{
	struct vib_rec *r;
	unsigned long flags;

	spin_lock_irqsave(&vib_ring.lock, flags);
	if (!p->id)
		p->id = ++vib_ring.ids;
	r = vib_rec(vib_ring.next++);
	r->ns = ktime_get_real_ns();
	r->out = out;
	r->verdict = v;
	r->pkt = *p;
	r->snap = min(p->len, vib_ring_snap);
	vib_pkt_linear(p, r->data, r->snap);
	spin_unlock_irqrestore(&vib_ring.lock, flags);
}

/* Forget what was recorded. */
void vib_ring_clear(void)
{
	unsigned long flags;

	spin_lock_irqsave(&vib_ring.lock, flags);
	vib_ring.first = vib_ring.next;
	spin_unlock_irqrestore(&vib_ring.lock, flags);
}

void vib_ring_enable(bool on)
{
	/* a key that is being switched on can't be switched off */
	static DEFINE_MUTEX(one);

	if (!vib_ring_size)
		return;
	mutex_lock(&one);
	if (on)
		static_branch_enable(&vib_ring_on);
	else
		static_branch_disable(&vib_ring_on);
	mutex_unlock(&one);
}

/* Number of the oldest record there is; *end is one past the newest. */
static u64 vib_ring_range(u64 *end)
{
	unsigned long flags;
	u64 first;

	spin_lock_irqsave(&vib_ring.lock, flags);
	*end = vib_ring.next;
	first = vib_ring.first;
	if (*end - first > vib_ring_size)
		first = *end - vib_ring_size;
	spin_unlock_irqrestore(&vib_ring.lock, flags);
	return first;
}

/* Copy record @n to @r (vib_ring.stride bytes); false when it is gone. */
static bool vib_ring_get(u64 n, struct vib_rec *r)
{
	unsigned long flags;
	bool ok;

	spin_lock_irqsave(&vib_ring.lock, flags);
	ok = n < vib_ring.next && vib_ring.next - n <= vib_ring_size;
	if (ok)
		memcpy(r, vib_rec(n), vib_ring.stride);
	spin_unlock_irqrestore(&vib_ring.lock, flags);
	return ok;
}

int vib_ring_show(struct seq_file *s, void *unused)
{
	struct vib_rec *r;
	u64 n, end;

	if (!vib_ring_size)
		return 0;
	r = kvmalloc(vib_ring.stride, GFP_KERNEL);
	if (!r)
		return -ENOMEM;
	for (n = vib_ring_range(&end); n < end; n++) {
		const struct vib_pkt *p = &r->pkt;

		if (!vib_ring_get(n, r))
			continue;
		seq_printf(s, "n=%llu id=%llu ns=%llu in=%u out=%u slid=%u dlid=%u sl=%u op=0x%02x sqpn=0x%x dqpn=0x%x qkey=0x%x pkey=0x%04x psn=%u len=%u grh=%u",
			   n, p->id, r->ns, p->in_port, r->out, p->slid,
			   p->dlid, p->sl, p->opcode, p->sqpn, p->dqpn,
			   p->qkey, p->pkey, p->psn, p->len, p->has_grh);
		if (p->has_grh)
			seq_printf(s, " sgid=%pI6 dgid=%pI6", p->sgid.raw,
				   p->dgid.raw);
		seq_printf(s, " csum=%u verdict=%s data=%*phN\n", p->csum_ok,
			   vib_verdict_name[r->verdict],
			   (int)min(r->snap, 64U), r->data);
	}
	kvfree(r);
	return 0;
}

static u16 vib_vcrc(const u8 *d, u32 n)
{
	u16 crc = 0xffff;
	int bit;

	while (n--) {
		crc ^= *d++;
		for (bit = 0; bit < 8; bit++)
			crc = crc & 1 ? crc >> 1 ^ 0xd008 : crc >> 1;
	}
	return ~crc;
}

static void vib_put24(u8 *d, u32 v)
{
	d[0] = v >> 16;
	d[1] = v >> 8;
	d[2] = v;
}

/* Invariant CRC of @n bytes from the LRH on: mutable fields count as ones. */
static u32 vib_icrc(const u8 *lrh, u32 n, bool grh, u8 *tmp)
{
	u8 *bth = tmp + 8 + (grh ? VIB_GRH_LEN : 0);

	memcpy(tmp, lrh, n);
	tmp[0] |= 0xf0;
	if (grh) {
		tmp[8] |= 0x0f;
		memset(tmp + 9, 0xff, 3);
		tmp[8 + 7] = 0xff;
	}
	bth[4] = 0xff;
	return ~crc32_le(~0, tmp, n);
}

/* Write the packet of @r as it would be on the wire; returns its length. */
static u32 vib_rec_wire(const struct vib_rec *r, u8 *d, u8 *tmp)
{
	const struct vib_pkt *p = &r->pkt;
	bool ud = p->opcode >= 0x60;
	u32 pad = -p->len & 3, n = 8;
	u32 words = (8 + (p->has_grh ? VIB_GRH_LEN : 0) + vib_ib_len(p)) / 4;

	d[0] = !p->dqpn && ud ? 0xf0 : 0;
	d[1] = p->sl << 4 | (p->has_grh ? 3 : 2);
	put_unaligned_be16(p->dlid, d + 2);
	put_unaligned_be16(min(words, 0x7ffU), d + 4);
	put_unaligned_be16(p->slid, d + 6);
	if (p->has_grh) {
		put_unaligned_be32(be32_to_cpu(p->tclass_flow), d + n);
		put_unaligned_be16(vib_ib_len(p), d + n + 4);
		d[n + 6] = 0x1b;
		d[n + 7] = p->hop_limit;
		memcpy(d + n + 8, &p->sgid, 16);
		memcpy(d + n + 24, &p->dgid, 16);
		n += VIB_GRH_LEN;
	}
	d[n] = p->opcode;
	d[n + 1] = (p->solicited ? 0x80 : 0) | 0x40 | pad << 4;
	put_unaligned_be16(p->pkey, d + n + 2);
	d[n + 4] = 0;
	vib_put24(d + n + 5, p->dqpn);
	d[n + 8] = ud ? 0 : 0x80;
	vib_put24(d + n + 9, p->psn);
	n += 12;
	if (ud) {
		put_unaligned_be32(p->qkey, d + n);
		d[n + 4] = 0;
		vib_put24(d + n + 5, p->sqpn);
		n += 8;
	}
	if (p->has_imm) {
		memcpy(d + n, &p->imm, 4);
		n += 4;
	}
	memcpy(d + n, r->data, r->snap);
	n += r->snap;
	if (r->snap < p->len)
		return n;
	memset(d + n, 0, pad);
	n += pad;
	put_unaligned_le32(vib_icrc(d, n, p->has_grh, tmp), d + n);
	n += 4;
	put_unaligned_le16(vib_vcrc(d, n), d + n);
	return n + 2;
}

#define VIB_WIRE_MAX	(8 + VIB_GRH_LEN + 12 + 8 + 4 + 4096 + 3 + 4 + 2)

/* One pcap record with an ERF header (type 21). Returns its length. */
static u32 vib_rec_pcap(const struct vib_rec *r, u8 *d, u8 *tmp)
{
	u8 *erf = d + 16;
	u32 n = vib_rec_wire(r, erf + 16, tmp);
	u32 wire = 8 + (r->pkt.has_grh ? VIB_GRH_LEN : 0) +
		   vib_ib_len(&r->pkt) + 2;
	u32 rem;
	u64 sec = div_u64_rem(r->ns, NSEC_PER_SEC, &rem);

	put_unaligned_le32(sec, d);
	put_unaligned_le32(rem / 1000, d + 4);
	put_unaligned_le32(n + 16, d + 8);
	put_unaligned_le32(min(wire, 0xffffU) + 16, d + 12);
	/* 32.32 fixed-point seconds */
	put_unaligned_le32(div_u64((u64)rem << 32, NSEC_PER_SEC), erf);
	put_unaligned_le32(sec, erf + 4);
	erf[8] = 21;
	erf[9] = 4 | (r->pkt.in_port & 3);	/* varying length, interface */
	put_unaligned_be16(n + 16, erf + 10);
	put_unaligned_be16(0, erf + 12);
	put_unaligned_be16(min(wire, 0xffffU), erf + 14);
	return n + 32;
}

/*
 * The ring as a pcap file, one record for each packet sent (a multicast has
 * one however many ports it went to). vmalloc memory, NULL when there is none.
 */
void *vib_ring_pcap(size_t *size)
{
	static const u32 head[6] = { 0xa1b2c3d4, 0x00040002, 0, 0, 65535, 197 };
	u64 n, end, seen = 0;
	struct vib_rec *r;
	u8 *buf, *tmp;

	n = vib_ring_size ? vib_ring_range(&end) : (end = 0);
	buf = vmalloc(sizeof(head) + (end - n) *
		      (32 + VIB_WIRE_MAX - 4096 + vib_ring_snap));
	r = kvmalloc(vib_ring.stride + 1, GFP_KERNEL);
	tmp = kvmalloc(VIB_WIRE_MAX, GFP_KERNEL);
	if (buf && r && tmp) {
		memcpy(buf, head, sizeof(head));
		*size = sizeof(head);
		for (; n < end; n++) {
			if (!vib_ring_get(n, r) || r->pkt.id <= seen)
				continue;
			seen = r->pkt.id;
			*size += vib_rec_pcap(r, buf + *size, tmp);
		}
	} else {
		vfree(buf);
		buf = NULL;
	}
	kvfree(r);
	kvfree(tmp);
	return buf;
}

/* Are the parameters sound? */
int vib_ring_check(void)
{
	return vib_ring_size > VIB_RING_MAX || vib_ring_snap > 4096 ? -EINVAL : 0;
}

int vib_ring_init(void)
{
	spin_lock_init(&vib_ring.lock);
	vib_ring.stride = ALIGN(sizeof(struct vib_rec) + vib_ring_snap, 8);
	if (!vib_ring_size)
		return 0;
	vib_ring.rec = vzalloc(array_size(vib_ring_size, vib_ring.stride));
	if (!vib_ring.rec)
		return -ENOMEM;
	vib_ring_enable(true);
	return 0;
}

void vib_ring_exit(void)
{
	vib_ring_enable(false);
	synchronize_rcu();
	vfree(vib_ring.rec);
}
