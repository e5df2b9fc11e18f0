// SPDX-License-Identifier: GPL-2.0
/* The embedded SA: its queue of requests, path records, faults. */

#include <linux/slab.h>
#include <rdma/ib_pack.h>
#include <rdma/ib_sa.h>
#include "sa.h"

#define VIB_SA_QUEUE_MAX	16384U
#define VIB_SA_METHOD_DELETE	0x15

struct vib_sa vib_sa;

struct vib_sa_req {
	struct list_head list;
	unsigned long due;	/* jiffies */
	u64 came;		/* ns */
	struct vib_pkt pkt;	/* addressing of the request */
	struct ib_sa_mad mad;
};

static u16 vib_sa_cpi(struct ib_sa_mad *mad)
{
	struct ib_class_port_info *cpi = (void *)mad->data;

	memset(cpi, 0, sizeof(*cpi));
	cpi->base_version = 1;
	cpi->class_version = 2;
	cpi->cap_mask2_resp_time =
		cpu_to_be32(IB_SA_CAP_MASK2_SENDONLY_FULL_MEM_SUPPORT << 5 | 16);
	return VIB_SA_OK;
}

/* The P_Key for a path between @a and @b: @want, or one both have. */
static u16 vib_path_pkey(struct vib_port *a, struct vib_port *b, u16 want)
{
	u32 i, j;

	for (i = 0; i < vib_par.pkeys; i++)
		for (j = 0; j < vib_par.pkeys; j++)
			if (vib_pkey_match(a->pkey[i], b->pkey[j]) &&
			    (!want || !((want ^ a->pkey[i]) & 0x7fff)))
				return a->pkey[i];
	return 0;
}

/* RCU read side */
static u16 vib_sa_path(struct ib_sa_mad *mad, u16 slid)
{
	struct vib_sa_path *p = (struct vib_sa_path *)mad->data;
	ib_sa_comp_mask mask = mad->sa_hdr.comp_mask;
	struct vib_port *from, *to = NULL;
	u16 far = 0, pkey = 0;
	u8 mtu;

	if (mask & IB_SA_PATH_REC_SGID)
		from = vib_sm_port_by_gid(&p->sgid);
	else
		from = vib_sm_port_by_lid(mask & IB_SA_PATH_REC_SLID ?
					  be16_to_cpu(p->slid) : slid);
	if (!from)
		return VIB_SA_NO_RECORDS;
	if (mask & IB_SA_PATH_REC_DGID) {
		to = vib_sm_port_by_gid(&p->dgid);
		if (!to)
			far = vib_far_lid(&p->dgid);
	} else if (mask & IB_SA_PATH_REC_DLID) {
		to = vib_sm_port_by_lid(be16_to_cpu(p->dlid));
	}
	if (!far && (!to || to->state != IB_PORT_ACTIVE))
		return VIB_SA_NO_RECORDS;
	if (mask & IB_SA_PATH_REC_PKEY)
		pkey = be16_to_cpu(p->pkey);
	pkey = vib_path_pkey(from, to ?: from, pkey);
	if (!pkey)
		return VIB_SA_NO_RECORDS;

	if (!(mask & IB_SA_PATH_REC_SGID)) {
		p->sgid.global.subnet_prefix = cpu_to_be64(from->prefix);
		p->sgid.global.interface_id = from->guid[0];
	}
	if (!(mask & IB_SA_PATH_REC_DGID) && to) {
		p->dgid.global.subnet_prefix = cpu_to_be64(to->prefix);
		p->dgid.global.interface_id = to->guid[0];
	}
	mtu = to ? min(from->active_mtu, to->active_mtu) : from->active_mtu;
	p->service_id = 0;
	p->slid = cpu_to_be16(from->lid);
	p->dlid = cpu_to_be16(to ? to->lid : far);
	p->flow_hop = cpu_to_be32(vib_par.hop_limit & 0xff);
	if (!(mask & IB_SA_PATH_REC_TRAFFIC_CLASS))
		p->tclass = 0;
	p->rev_numb = 0x80 | 1;
	p->pkey = cpu_to_be16(pkey);
	p->qos_sl = 0;
	p->mtu = IB_SA_EQ << 6 | mtu;
	p->rate = IB_SA_EQ << 6 | IB_RATE_40_GBPS;
	p->life = IB_SA_EQ << 6 | 16;
	p->preference = 0;
	memset(p->resv, 0, sizeof(p->resv));
	return VIB_SA_OK;
}

static u16 vib_sa_dispatch(struct vib_sa_req *r)
{
	u8 method = r->mad.mad_hdr.method;
	u16 st;

	switch (r->mad.mad_hdr.attr_id) {
	case VIB_SA_ATTR_CPI:
		if (method != IB_MGMT_METHOD_GET)
			break;
		return vib_sa_cpi(&r->mad);
	case VIB_SA_ATTR_PATH:
		if (method != IB_MGMT_METHOD_GET)
			break;
		rcu_read_lock();
		st = vib_sa_path(&r->mad, r->pkt.slid);
		rcu_read_unlock();
		return st;
	case VIB_SA_ATTR_MCMEMBER:
		if (method != IB_MGMT_METHOD_GET &&
		    method != IB_MGMT_METHOD_SET &&
		    method != VIB_SA_METHOD_DELETE)
			break;
		return vib_sa_mcmember(&r->mad);
	}
	return VIB_SA_UNSUP_ATTR;
}

/* One of a number of requests a fault was asked for? */
static bool vib_sa_take(u32 *n)
{
	if (!READ_ONCE(*n))
		return false;
	WRITE_ONCE(*n, *n - 1);
	return true;
}

/* @full: there was no room for the request. */
static void vib_sa_answer(struct vib_sa_req *r, bool full)
{
	struct ib_mad_hdr *h = &r->mad.mad_hdr;
	u16 only = READ_ONCE(vib_sa.only_attr);
	bool hit = !only || h->attr_id == cpu_to_be16(only);
	struct vib_pkt p = {};
	u16 st;

	vib_sa.requests++;
	if (h->mgmt_class != IB_MGMT_CLASS_SUBN_ADM || (h->method & 0x80))
		return;
	if (hit && (vib_sa.down || vib_sa_take(&vib_sa.lose)))
		return;
	if (full || (hit && vib_sa_take(&vib_sa.busy)))
		st = VIB_SA_BUSY;
	else if (hit && vib_sa_take(&vib_sa.reject))
		st = vib_sa.reject_status;
	else
		st = vib_sa_dispatch(r);
	/* a Set is answered by a GetResp too */
	if (h->method == IB_MGMT_METHOD_SET)
		h->method = IB_MGMT_METHOD_GET;
	h->method |= IB_MGMT_METHOD_RESP;
	h->status = cpu_to_be16(st);
	r->mad.sa_hdr.attr_offset = 0;

	p.opcode = IB_OPCODE_UD_SEND_ONLY;
	p.slid = r->pkt.dlid;
	p.dlid = r->pkt.slid;
	p.sl = r->pkt.sl;
	p.pkey = r->pkt.pkey | 0x8000;
	p.sqpn = 1;
	p.dqpn = r->pkt.sqpn;
	p.qkey = IB_QP1_QKEY;
	p.len = sizeof(r->mad);
	p.hdr = &r->mad;
	p.hlen = sizeof(r->mad);
	if (r->pkt.has_grh) {
		p.has_grh = true;
		p.sgid = r->pkt.dgid;
		p.dgid = r->pkt.sgid;
		p.hop_limit = 64;
		p.tclass_flow = r->pkt.tclass_flow;
	}
	vib_sa.replies++;
	vib_switch_inject(&p, VIB_NO_PORT);
}

/*
 * One request is worked on at a time and takes 1 s / rate, counted from when
 * it came or the one before it was done with: how late this runs does not
 * matter. Is the first one done? With the lock held.
 */
static bool vib_sa_done(const struct vib_sa_req *r)
{
	u32 rate = READ_ONCE(vib_sa.rate);
	u64 now = ktime_get_ns();
	u64 end;

	if (!rate) {
		vib_sa.idle_since = now;
		return true;
	}
	end = max(r->came, vib_sa.idle_since) + NSEC_PER_SEC / rate;
	if (now < end) {
		mod_delayed_work(vib_fab.wq, &vib_sa.work,
				 nsecs_to_jiffies(end - now) + 1);
		return false;
	}
	vib_sa.idle_since = end;
	return true;
}

static struct vib_sa_req *vib_sa_next(bool all)
{
	struct vib_sa_req *r;
	unsigned long flags;

	spin_lock_irqsave(&vib_sa.lock, flags);
	r = list_first_entry_or_null(&vib_sa.queue, struct vib_sa_req, list);
	if (r && !all && time_before(jiffies, r->due)) {
		mod_delayed_work(vib_fab.wq, &vib_sa.work, r->due - jiffies);
		r = NULL;
	}
	if (r && !all && !vib_sa_done(r))
		r = NULL;
	if (r) {
		list_del(&r->list);
		vib_sa.queued--;
	}
	spin_unlock_irqrestore(&vib_sa.lock, flags);
	return r;
}

/* The next one that is to be told BUSY. */
static struct vib_sa_req *vib_sa_next_refused(void)
{
	struct vib_sa_req *r;
	unsigned long flags;

	spin_lock_irqsave(&vib_sa.lock, flags);
	r = list_first_entry_or_null(&vib_sa.refused, struct vib_sa_req, list);
	if (r) {
		list_del(&r->list);
		vib_sa.refusals--;
	}
	spin_unlock_irqrestore(&vib_sa.lock, flags);
	return r;
}

static void vib_sa_work(struct work_struct *work)
{
	struct vib_sa_req *r;

	while ((r = vib_sa_next_refused())) {
		vib_sa_answer(r, true);
		kfree(r);
		cond_resched();
	}
	while ((r = vib_sa_next(false))) {
		vib_sa_answer(r, false);
		kfree(r);
		cond_resched();
	}
}

/* With the lock held. */
static void vib_sa_count(const struct ib_mad_hdr *h)
{
	struct vib_sa_counts *c = &vib_sa.counts;

	if (h->mgmt_class != IB_MGMT_CLASS_SUBN_ADM)
		c->others++;
	else if (h->attr_id == VIB_SA_ATTR_PATH)
		c->paths++;
	else if (h->attr_id == VIB_SA_ATTR_MCMEMBER &&
		 h->method == IB_MGMT_METHOD_SET)
		c->joins++;
	else if (h->attr_id == VIB_SA_ATTR_MCMEMBER &&
		 h->method == VIB_SA_METHOD_DELETE)
		c->leaves++;
	else
		c->others++;
}

/*
 * Take a request in. With the lock held. Returns false when it is dropped for
 * want of room.
 */
static bool vib_sa_admit(struct vib_sa_req *r)
{
	struct vib_sa_counts *c = &vib_sa.counts;
	u32 room = READ_ONCE(vib_sa.room);

	vib_sa_count(&r->mad.mad_hdr);
	if (vib_sa.queued < min_not_zero(room, VIB_SA_QUEUE_MAX)) {
		list_add_tail(&r->list, &vib_sa.queue);
		vib_sa.queued++;
		c->queued_max = max(c->queued_max, vib_sa.queued);
		return true;
	}
	c->full++;
	if (!READ_ONCE(vib_sa.room_busy) ||
	    vib_sa.refusals >= VIB_SA_QUEUE_MAX)
		return false;
	list_add_tail(&r->list, &vib_sa.refused);
	vib_sa.refusals++;
	return true;
}

/* A packet for QP1 at the SM's LID. Any context. */
void vib_sa_rx(struct vib_pkt *p)
{
	struct vib_sa_req *r;
	unsigned long flags;
	bool taken;

	if (p->len != sizeof(struct ib_mad))
		return;
	r = kmalloc_obj(*r, GFP_ATOMIC);
	if (!r)
		return;
	r->pkt = *p;
	vib_pkt_linear(p, &r->mad, sizeof(r->mad));
	r->due = jiffies + msecs_to_jiffies(READ_ONCE(vib_sa.slow_ms));
	r->came = ktime_get_ns();
	spin_lock_irqsave(&vib_sa.lock, flags);
	taken = vib_sa_admit(r);
	spin_unlock_irqrestore(&vib_sa.lock, flags);
	if (!taken)
		kfree(r);
	else if (vib_sa.slow_ms && !READ_ONCE(vib_sa.refusals))
		queue_delayed_work(vib_fab.wq, &vib_sa.work,
				   msecs_to_jiffies(vib_sa.slow_ms));
	else
		mod_delayed_work(vib_fab.wq, &vib_sa.work, 0);
}

/* Answer at once what "sa slow" and "sa rate" hold back. */
void vib_sa_hurry(void)
{
	struct vib_sa_req *r;
	unsigned long flags;

	spin_lock_irqsave(&vib_sa.lock, flags);
	list_for_each_entry(r, &vib_sa.queue, list)
		r->due = jiffies;
	spin_unlock_irqrestore(&vib_sa.lock, flags);
	mod_delayed_work(vib_fab.wq, &vib_sa.work, 0);
}

int vib_sa_init(void)
{
	int err = 0;

	mutex_init(&vib_sa.mutex);
	INIT_LIST_HEAD(&vib_sa.queue);
	INIT_LIST_HEAD(&vib_sa.refused);
	spin_lock_init(&vib_sa.lock);
	INIT_DELAYED_WORK(&vib_sa.work, vib_sa_work);
	if (vib_par.sm == VIB_SM_EMBEDDED) {
		vib_fab.sw_lid = 1;
		mutex_lock(&vib_sa.mutex);
		err = vib_groups_init();
		if (err)
			vib_groups_free(true);
		mutex_unlock(&vib_sa.mutex);
	}
	return err;
}

/* All HCAs are gone: nothing comes in any more. */
void vib_sa_exit(void)
{
	struct vib_sa_req *r;

	cancel_delayed_work_sync(&vib_sa.work);
	while ((r = vib_sa_next(true)) || (r = vib_sa_next_refused()))
		kfree(r);
	mutex_lock(&vib_sa.mutex);
	vib_groups_free(true);
	mutex_unlock(&vib_sa.mutex);
}
