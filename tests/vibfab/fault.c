// SPDX-License-Identifier: GPL-2.0
/* Fault rules, and the queue of packets that do not go straight through. */

#include <linux/slab.h>
#include <rdma/ib_pack.h>
#include "fault.h"

#define VIB_REORDER_MAX_US	100000
#define VIB_HELD_MAX		16384	/* packets that wait at a time */
#define VIB_EGRESS		BIT(31)	/* only rules that name a destination */

DEFINE_STATIC_KEY_FALSE(vib_fault_on);

const char * const vib_kind_name[VIB_KINDS] = {
	"any", "uc", "mc", "rc", "mad", "smp",
};

const char * const vib_action_name[VIB_ACTIONS] = {
	"drop", "dup", "delay", "reorder", "corrupt", "rnr", "wc", "rxerr",
};

const char * const vib_corrupt_name[VIB_CORRUPTS] = {
	"qkey", "pkey", "srcqp", "len", "payload", "slid", "nogrh",
};

/* A packet that waits, with a copy of its payload. */
struct vib_dpkt {
	struct list_head list;
	ktime_t due;
	u32 behind;		/* goes after so many more packets; 0: by time */
	struct vib_pkt pkt;
	u8 data[];
};

static struct {
	spinlock_t lock;	/* all of it */
	struct vib_rule rule[VIB_MAX_RULES];
	u64 rng;
	struct list_head queue;	/* by due */
	u32 held;		/* how many these are */
	u32 reordered;		/* of these, how many wait to be overtaken */
	struct hrtimer timer;
	struct work_struct work;
	bool stopped;
} vib_flt;

static u32 vib_flt_random(void)
{
	u64 x = vib_flt.rng;

	x ^= x << 13;
	x ^= x >> 7;
	x ^= x << 17;
	vib_flt.rng = x;
	return x >> 32;
}

static enum vib_kind vib_pkt_kind(const struct vib_pkt *p)
{
	if (p->opcode < 0x60)
		return VIB_K_RC;
	if (p->dqpn == 0)
		return VIB_K_SMP;
	if (p->dqpn == 1)
		return VIB_K_MAD;
	return p->dlid >= VIB_MLID_BASE ? VIB_K_MC : VIB_K_UC;
}

static bool vib_rule_matches(const struct vib_rule *r, const struct vib_pkt *p,
			     u32 dst)
{
	enum vib_kind kind = vib_pkt_kind(p);
	struct ib_mad_hdr h;

	if (r->kind != VIB_K_ANY && r->kind != kind)
		return false;
	if ((r->src && r->src != p->in_port) || (r->dst && r->dst != dst) ||
	    (r->sqpn && r->sqpn != p->sqpn) ||
	    (r->dqpn && r->dqpn != p->dqpn) || p->len < r->minlen)
		return false;
	if (!r->mclass && !r->attr && !r->method)
		return true;
	if ((kind != VIB_K_MAD && kind != VIB_K_SMP) || p->len < sizeof(h))
		return false;
	vib_pkt_linear(p, &h, sizeof(h));
	return (!r->mclass || r->mclass == h.mgmt_class) &&
	       (!r->method || r->method == h.method) &&
	       (!r->attr || cpu_to_be16(r->attr) == h.attr_id);
}

/* With vib_flt.lock held: does the rule strike now that it matched? */
static bool vib_rule_strikes(struct vib_rule *r)
{
	r->seen++;
	if (r->count && r->hits >= r->count)
		return false;
	if (r->nth && r->seen != r->nth)
		return false;
	if (r->every && r->seen % r->every)
		return false;
	if (r->percent && vib_flt_random() % 100 >= r->percent)
		return false;
	r->hits++;
	return true;
}

/*
 * First rule with one of the actions in @mask that strikes @p, copied to @out.
 * @dst is the egress port; rules that name one match there only.
 */
static bool vib_rule_find(const struct vib_pkt *p, u32 mask, u32 dst,
			  struct vib_rule *out)
{
	unsigned long flags;
	bool found = false;
	u32 i;

	spin_lock_irqsave(&vib_flt.lock, flags);
	for (i = 0; i < VIB_MAX_RULES && !found; i++) {
		struct vib_rule *r = &vib_flt.rule[i];

		if (!r->used || !(mask & BIT(r->action)) ||
		    ((mask & VIB_EGRESS) && !r->dst) ||
		    !vib_rule_matches(r, p, dst) || !vib_rule_strikes(r))
			continue;
		*out = *r;
		found = true;
	}
	spin_unlock_irqrestore(&vib_flt.lock, flags);
	return found;
}

static u32 vib_pkt_egress(const struct vib_pkt *p)
{
	u32 out;

	if (p->dlid >= VIB_MLID_BASE)
		return 0;
	out = vib_switch_lookup(p->dlid);
	return out == VIB_NO_PORT ? 0 : out;
}

enum ib_wc_status __vib_fault_wc(struct vib_pkt *p)
{
	struct vib_rule r;

	if (!vib_rule_find(p, BIT(VIB_A_WC), vib_pkt_egress(p), &r))
		return IB_WC_SUCCESS;
	p->to_err = r.to_err;
	return r.arg;
}

void __vib_fault_recv(struct vib_pkt *p, struct ib_wc *wc)
{
	struct vib_rule r;

	if (vib_rule_find(p, BIT(VIB_A_RXERR), vib_pkt_egress(p), &r)) {
		wc->status = r.arg;
		wc->byte_len = 0;
	}
}

int __vib_fault_rc(struct vib_pkt *p, u32 *delay)
{
	u32 dst = vib_pkt_egress(p);
	struct vib_rule r;

	if (vib_rule_find(p, BIT(VIB_A_DROP), dst, &r)) {
		vib_count(p->src, VIB_FAULT_DROP);
		vib_ring_add(p, dst, VIB_FAULT_DROP);
		return -ETIMEDOUT;
	}
	if (vib_rule_find(p, BIT(VIB_A_RNR), dst, &r)) {
		p->rnr_timer = 1;
		vib_ring_add(p, dst, VIB_RNR);
		return -EAGAIN;
	}
	if (delay && vib_rule_find(p, BIT(VIB_A_DELAY), dst, &r))
		*delay = r.arg;
	return 0;
}

/* Is @p, a multicast, lost on its way out of port @out? */
bool __vib_fault_egress(struct vib_pkt *p, u32 out)
{
	struct vib_rule r;

	return p->dlid >= VIB_MLID_BASE && p->dlid != VIB_PERMISSIVE &&
	       vib_rule_find(p, BIT(VIB_A_DROP) | VIB_EGRESS, out, &r);
}

static struct vib_dpkt *vib_dpkt_new(const struct vib_pkt *p)
{
	struct vib_dpkt *d = kmalloc(struct_size(d, data, p->len), GFP_ATOMIC);

	if (!d)
		return NULL;
	d->behind = 0;
	d->pkt = *p;
	d->pkt.id = 0;
	vib_pkt_linear(p, d->data, p->len);
	d->pkt.hdr = d->data;
	d->pkt.hlen = p->len;
	d->pkt.nsge = 0;
	d->pkt.skip = 0;
	return d;
}

/* Queue @d to go in @us microseconds. Takes it over; what is too much is lost. */
static void vib_dpkt_queue(struct vib_dpkt *d, u64 us)
{
	struct list_head *at;
	unsigned long flags;

	d->due = ktime_add_us(ktime_get(), us);
	spin_lock_irqsave(&vib_flt.lock, flags);
	if (vib_flt.stopped || vib_flt.held >= VIB_HELD_MAX) {
		spin_unlock_irqrestore(&vib_flt.lock, flags);
		kfree(d);
		return;
	}
	vib_flt.held++;
	vib_flt.reordered += !!d->behind;
	list_for_each_prev(at, &vib_flt.queue)
		if (!ktime_before(d->due,
				  list_entry(at, struct vib_dpkt, list)->due))
			break;
	list_add(&d->list, at);
	if (!us)
		queue_work(vib_fab.bh_wq, &vib_flt.work);
	else if (vib_flt.queue.next == &d->list)
		hrtimer_start(&vib_flt.timer, d->due, HRTIMER_MODE_ABS);
	spin_unlock_irqrestore(&vib_flt.lock, flags);
}

/* A packet of port @in has gone: one more has overtaken those held back. */
static void vib_dpkt_overtaken(u32 in)
{
	struct vib_dpkt *d, *n;
	unsigned long flags;
	bool ready = false;

	if (!READ_ONCE(vib_flt.reordered))
		return;
	spin_lock_irqsave(&vib_flt.lock, flags);
	list_for_each_entry_safe(d, n, &vib_flt.queue, list) {
		if (!d->behind || d->pkt.in_port != in || --d->behind)
			continue;
		vib_flt.reordered--;
		d->due = 0;
		list_move(&d->list, &vib_flt.queue);
		ready = true;
	}
	spin_unlock_irqrestore(&vib_flt.lock, flags);
	if (ready)
		queue_work(vib_fab.bh_wq, &vib_flt.work);
}

static struct vib_dpkt *vib_dpkt_next(void)
{
	struct vib_dpkt *d;
	unsigned long flags;

	spin_lock_irqsave(&vib_flt.lock, flags);
	d = list_first_entry_or_null(&vib_flt.queue, struct vib_dpkt, list);
	if (d && ktime_after(d->due, ktime_get())) {
		hrtimer_start(&vib_flt.timer, d->due, HRTIMER_MODE_ABS);
		d = NULL;
	}
	if (d) {
		list_del(&d->list);
		vib_flt.held--;
		vib_flt.reordered -= !!d->behind;
	}
	spin_unlock_irqrestore(&vib_flt.lock, flags);
	return d;
}

static void vib_dpkt_work(struct work_struct *work)
{
	struct vib_kicks k = {};
	struct vib_dpkt *d;
	u32 n = 0;

	rcu_read_lock();
	while (n++ < VIB_BH_BATCH && (d = vib_dpkt_next())) {
		/* its port may have been unplugged meanwhile */
		if (rcu_dereference(vib_fab.port[d->pkt.in_port]) ==
		    d->pkt.src)
			vib_ud_transmit(&d->pkt, &k);
		vib_kicks_run(&k);
		kfree(d);
	}
	rcu_read_unlock();
	if (n > VIB_BH_BATCH)
		queue_work(vib_fab.bh_wq, &vib_flt.work);
}

static enum hrtimer_restart vib_dpkt_timer(struct hrtimer *t)
{
	queue_work(vib_fab.bh_wq, &vib_flt.work);
	return HRTIMER_NORESTART;
}

static void vib_corrupt(struct vib_pkt *p, u32 what, struct vib_dpkt **copy)
{
	p->csum_ok = false;
	switch (what) {
	case VIB_C_QKEY:
		p->qkey ^= 0x5a5a;
		break;
	case VIB_C_PKEY:
		p->pkey ^= 0x0ff0;
		break;
	case VIB_C_SRCQP:
		p->sqpn ^= 0x5a5a5;
		break;
	case VIB_C_LEN:
		p->len -= min(p->len, 4U);
		break;
	case VIB_C_SLID:
		p->slid ^= 0x1;
		break;
	case VIB_C_NOGRH:
		p->has_grh = false;
		break;
	case VIB_C_PAYLOAD:
		*copy = vib_dpkt_new(p);
		if (*copy && p->len) {
			(*copy)->data[p->len - 1] ^= 0x10;
			*p = (*copy)->pkt;
		}
		break;
	}
}

/*
 * Send @orig, or do to it what the rules say; @orig itself stays as it is: the
 * next segment is made from it. RCU read side.
 */
void __vib_fault_transmit(const struct vib_pkt *orig, struct vib_kicks *k)
{
	struct vib_pkt pkt = *orig, *p = &pkt;
	u32 dst = vib_pkt_egress(p), copies = 1;
	struct vib_dpkt *d, *copy = NULL;
	u8 in = p->in_port;
	struct vib_rule r;
	u64 us = 0;

	if (vib_rule_find(p, BIT(VIB_A_DROP), dst, &r)) {
		vib_count(p->src, VIB_FAULT_DROP);
		vib_ring_add(p, dst, VIB_FAULT_DROP);
		goto gone;
	}
	if (vib_rule_find(p, BIT(VIB_A_CORRUPT), dst, &r))
		vib_corrupt(p, r.arg, &copy);
	if (vib_rule_find(p, BIT(VIB_A_DUP), dst, &r))
		copies = 2;
	if (vib_rule_find(p, BIT(VIB_A_REORDER), dst, &r)) {
		d = vib_dpkt_new(p);
		if (d) {
			d->behind = max(r.arg, 1U);
			vib_dpkt_queue(d, VIB_REORDER_MAX_US);
		}
		goto out;	/* has not gone: overtakes nobody */
	}
	if (vib_rule_find(p, BIT(VIB_A_DELAY), dst, &r))
		us = r.arg;
	if (us || vib_par.deferred) {
		while (copies--) {
			d = vib_dpkt_new(p);
			if (d)
				vib_dpkt_queue(d, us);
		}
		goto gone;
	}
	while (copies--) {
		vib_ud_transmit(p, k);
		p->id = 0;
	}
gone:
	vib_dpkt_overtaken(in);
out:
	kfree(copy);
}

/* Returns the index of the new rule, or an error. */
int vib_rule_add(const struct vib_rule *rule)
{
	unsigned long flags;
	int i;

	spin_lock_irqsave(&vib_flt.lock, flags);
	for (i = 0; i < VIB_MAX_RULES; i++)
		if (!vib_flt.rule[i].used) {
			vib_flt.rule[i] = *rule;
			vib_flt.rule[i].used = true;
			break;
		}
	spin_unlock_irqrestore(&vib_flt.lock, flags);
	if (i == VIB_MAX_RULES)
		return -ENOSPC;
	static_branch_enable(&vib_fault_on);
	return i;
}

int vib_rule_del(u32 index)
{
	unsigned long flags;
	int err = -ENOENT;

	if (index >= VIB_MAX_RULES)
		return err;
	spin_lock_irqsave(&vib_flt.lock, flags);
	if (vib_flt.rule[index].used) {
		vib_flt.rule[index].used = false;
		err = 0;
	}
	spin_unlock_irqrestore(&vib_flt.lock, flags);
	return err;
}

void vib_rules_clear(void)
{
	u32 i;

	for (i = 0; i < VIB_MAX_RULES; i++)
		vib_rule_del(i);
	if (!vib_par.deferred)
		static_branch_disable(&vib_fault_on);
}

int vib_rules_show(struct seq_file *s, void *unused)
{
	unsigned long flags;
	struct vib_rule r;
	u32 i;

	for (i = 0; i < VIB_MAX_RULES; i++) {
		spin_lock_irqsave(&vib_flt.lock, flags);
		r = vib_flt.rule[i];
		spin_unlock_irqrestore(&vib_flt.lock, flags);
		if (r.used)
			seq_printf(s, "rule=%u kind=%s action=%s arg=%u src=%u dst=%u sqpn=0x%x dqpn=0x%x minlen=%u class=0x%x method=0x%x attr=0x%x nth=%u every=%u percent=%u count=%u seen=%llu hits=%llu\n",
				   i, vib_kind_name[r.kind],
				   vib_action_name[r.action], r.arg, r.src,
				   r.dst, r.sqpn, r.dqpn, r.minlen, r.mclass,
				   r.method, r.attr, r.nth, r.every, r.percent,
				   r.count, r.seen, r.hits);
	}
	return 0;
}

void vib_fault_init(void)
{
	spin_lock_init(&vib_flt.lock);
	vib_flt.rng = vib_hash(0xfa, 0) | 1;
	INIT_LIST_HEAD(&vib_flt.queue);
	hrtimer_setup(&vib_flt.timer, vib_dpkt_timer, CLOCK_MONOTONIC,
		      HRTIMER_MODE_ABS);
	INIT_WORK(&vib_flt.work, vib_dpkt_work);
	if (vib_par.deferred)
		static_branch_enable(&vib_fault_on);
}

/* All HCAs are gone. */
void vib_fault_exit(void)
{
	struct vib_dpkt *d, *n;
	unsigned long flags;

	spin_lock_irqsave(&vib_flt.lock, flags);
	vib_flt.stopped = true;
	spin_unlock_irqrestore(&vib_flt.lock, flags);
	hrtimer_cancel(&vib_flt.timer);
	cancel_work_sync(&vib_flt.work);
	hrtimer_cancel(&vib_flt.timer);
	list_for_each_entry_safe(d, n, &vib_flt.queue, list)
		kfree(d);
}
