// SPDX-License-Identifier: GPL-2.0
/*
 * Reliable connections. A message is carried whole, in the poster's context
 * when nothing stands in its way; else it waits for a timer with all that
 * follow it. SEND only: that is what IPoIB's connected mode needs.
 */

#include <linux/hrtimer.h>
#include <linux/slab.h>
#include <rdma/ib_pack.h>
#include "vibfab.h"

struct vib_swqe {
	struct ib_send_wr wr;
	u32 len;
	struct ib_sge sge[];
};

struct vib_rc {
	spinlock_t lock;	/* the send queue */
	struct vib_qp *qp;
	struct hrtimer timer;
	struct work_struct work;
	void *ring;
	u32 size;
	u32 stride;
	u32 head;
	u32 tail;
	bool waiting;		/* for the timer */
	bool delayed;		/* the message at the tail has had its delay */
	bool dead;
	u8 retries;
	u8 rnr_retries;
	bool comm_est;
};

/* RNR timer field to microseconds (IBA 9.7.5.2.8; 0 stands for 655.36 ms). */
static const u32 vib_rnr_us[32] = {
	655360, 10, 20, 30, 40, 60, 80, 120, 160, 240, 320, 480, 640, 960,
	1280, 1920, 2560, 3840, 5120, 7680, 10240, 15360, 20480, 30720, 40960,
	61440, 81920, 122880, 163840, 245760, 327680, 491520
};

static struct vib_swqe *vib_rc_slot(struct vib_rc *rc, u32 n)
{
	return rc->ring + (size_t)(n % rc->size) * rc->stride;
}

void vib_rc_lock(struct vib_qp *qp, unsigned long *flags)
{
	spin_lock_irqsave(&qp->rc->lock, *flags);
}

void vib_rc_unlock(struct vib_qp *qp, unsigned long *flags)
{
	spin_unlock_irqrestore(&qp->rc->lock, *flags);
}

/* Full retry counters again. With rc->lock held. */
void vib_rc_rearm(struct vib_qp *qp)
{
	struct vib_rc *rc = qp->rc;

	rc->retries = qp->attr.retry_cnt;
	rc->rnr_retries = qp->attr.rnr_retry;
	rc->delayed = false;
}

static void vib_rc_wait(struct vib_rc *rc, u64 us)
{
	rc->waiting = true;
	if (!rc->dead)
		hrtimer_start(&rc->timer, ns_to_ktime(us * NSEC_PER_USEC),
			      HRTIMER_MODE_REL);
}

/* With both locks of @qp held: complete all queued sends with a flush. */
void vib_rc_flush(struct vib_qp *qp, struct vib_kicks *k)
{
	struct vib_rc *rc = qp->rc;

	for (; rc->tail != rc->head; rc->tail++)
		vib_send_wc(qp, &vib_rc_slot(rc, rc->tail)->wr,
			    IB_WC_WR_FLUSH_ERR, 0, k);
	rc->waiting = false;
}

/* With both locks of @qp held. */
void vib_rc_reset(struct vib_qp *qp)
{
	struct vib_rc *rc = qp->rc;

	rc->tail = rc->head;
	rc->waiting = false;
	rc->comm_est = false;
	vib_rc_rearm(qp);
}

/* The sender's error: complete the message at the tail, flush the rest. */
static void vib_rc_fail(struct vib_qp *qp, enum ib_wc_status status,
			struct vib_kicks *k)
{
	struct vib_rc *rc = qp->rc;

	spin_lock(&qp->rq.lock);
	WRITE_ONCE(qp->state, IB_QPS_ERR);
	spin_unlock(&qp->rq.lock);
	vib_send_wc(qp, &vib_rc_slot(rc, rc->tail)->wr, status, 0, k);
	rc->tail++;
	/* receives, and the last-WQE event, follow in process context */
	queue_work(vib_fab.wq, &qp->ev_work);
	spin_lock(&qp->rq.lock);
	vib_rc_flush(qp, k);
	spin_unlock(&qp->rq.lock);
}

/* The receiver's error, found while the sender holds its own locks. */
static void vib_rc_remote_err(struct vib_qp *r)
{
	WRITE_ONCE(r->state, IB_QPS_ERR);
	queue_work(vib_fab.wq, &r->ev_work);
}

/* With r->rq.lock held. Returns the status for the sender, -EAGAIN for RNR. */
static int vib_rc_deliver(struct vib_qp *r, struct vib_pkt *p,
			  struct vib_kicks *k)
{
	struct ib_wc wc = {};
	struct vib_wqe *w;
	atomic_t *out;

	w = vib_rq_pop(r, 0, &out);
	if (IS_ERR(w)) {
		p->rnr_timer = r->attr.min_rnr_timer;
		return -EAGAIN;
	}
	wc.wr_id = w->wr_id;
	wc.opcode = IB_WC_RECV;
	wc.qp = &r->ibqp;
	wc.port_num = r->port->num;
	wc.src_qp = p->sqpn;
	wc.slid = p->slid;
	wc.sl = p->sl;
	wc.pkey_index = r->pkey_index;
	if (w->len < p->len) {
		wc.status = IB_WC_LOC_LEN_ERR;
		vib_cq_add(r->rcq, &wc, out, 1, true, k);
		vib_rc_remote_err(r);
		return IB_WC_REM_INV_REQ_ERR;
	}
	vib_copy_pkt(w, 0, p);
	wc.byte_len = p->len;
	if (p->has_imm) {
		wc.wc_flags |= IB_WC_WITH_IMM;
		wc.ex.imm_data = p->imm;
	}
	vib_fault_recv(p, &wc);
	r->received++;
	vib_cq_add(r->rcq, &wc, out, 1, p->solicited, k);
	if (wc.status != IB_WC_SUCCESS) {
		vib_rc_remote_err(r);
		return IB_WC_REM_OP_ERR;
	}
	return IB_WC_SUCCESS;
}

static struct vib_port *vib_rc_egress(struct vib_pkt *p)
{
	u32 out;

	if (vib_port_has_lid(p->src, p->dlid))
		return p->src;
	out = vib_switch_lookup(p->dlid);
	if (!out || out >= VIB_FAR_PORT || out == p->in_port)
		return NULL;
	return rcu_dereference(vib_fab.port[out]);
}

/*
 * Carry one message. SUCCESS or an error status ends it, -EAGAIN is RNR,
 * -ETIMEDOUT means that nobody answered.
 */
static int vib_rc_carry(struct vib_pkt *p, struct vib_kicks *k)
{
	struct vib_port *port = vib_rc_egress(p);
	struct vib_qp *r;
	int st = -ETIMEDOUT;

	if (vib_port_can(p->src, false) &&
	    vib_switch_lookup(p->dlid) == VIB_FAR_PORT) {
		st = vib_far_rc(p) ? IB_WC_SUCCESS : -ETIMEDOUT;
		vib_ring_add(p, VIB_FAR_PORT, st ? VIB_NO_QP : VIB_OK);
		return st;
	}
	if (!vib_port_can(p->src, false) || !port ||
	    !vib_port_can(port, false) || !vib_port_has_lid(port, p->dlid))
		return st;
	r = vib_port_qp(port, p->dqpn);
	if (!r || !r->rc || r->port != port)
		return st;
	spin_lock(&r->rq.lock);
	if (r->state < IB_QPS_RTR || r->state == IB_QPS_ERR ||
	    r->attr.dest_qp_num != p->sqpn ||
	    rdma_ah_get_dlid(&r->attr.ah_attr) != p->slid)
		goto out;
	if (!vib_pkey_match(p->pkey, READ_ONCE(port->pkey[r->pkey_index]))) {
		WRITE_ONCE(port->pkey_viol, port->pkey_viol + 1);
		goto out;
	}
	if (r->state == IB_QPS_RTR && !r->rc->comm_est) {
		r->rc->comm_est = true;
		vib_qp_event(r, IB_EVENT_COMM_EST);
	}
	st = vib_rc_deliver(r, p, k);
out:
	spin_unlock(&r->rq.lock);
	if (!st) {
		this_cpu_inc(port->pcpu->rx_pkts);
		this_cpu_add(port->pcpu->rx_bytes, p->len);
	}
	vib_count(port, st == -EAGAIN ? VIB_RNR : st ? VIB_BAD_STATE : VIB_OK);
	vib_ring_add(p, port->swport, st == -EAGAIN ? VIB_RNR :
		     st == -ETIMEDOUT ? VIB_BAD_STATE : VIB_OK);
	return st;
}

static void vib_rc_pkt(struct vib_qp *qp, struct vib_swqe *w, struct vib_pkt *p)
{
	memset(p, 0, sizeof(*p));
	vib_pkt_route(p, qp->port, &qp->attr.ah_attr);
	p->sender = qp;
	p->sqpn = qp->qpn;
	p->dqpn = qp->attr.dest_qp_num;
	p->pkey = READ_ONCE(qp->port->pkey[qp->pkey_index]);
	p->psn = qp->sq_psn;
	p->opcode = IB_OPCODE_RC_SEND_ONLY;
	p->solicited = w->wr.send_flags & IB_SEND_SOLICITED;
	if (w->wr.opcode == IB_WR_SEND_WITH_IMM) {
		p->opcode = IB_OPCODE_RC_SEND_ONLY_WITH_IMMEDIATE;
		p->has_imm = true;
		p->imm = w->wr.ex.imm_data;
	}
	p->len = w->len;
	p->sge = w->sge;
	p->nsge = w->wr.num_sge;
}

/* With rc->lock held: send until the queue is empty or has to wait. */
static void vib_rc_run(struct vib_qp *qp, struct vib_kicks *k)
{
	struct vib_rc *rc = qp->rc;
	struct vib_swqe *w;
	struct vib_pkt p;
	u32 delay = 0;
	int st;

	while (!rc->waiting && rc->tail != rc->head &&
	       READ_ONCE(qp->state) == IB_QPS_RTS) {
		w = vib_rc_slot(rc, rc->tail);
		vib_rc_pkt(qp, w, &p);
		st = vib_fault_wc(&p);
		if (!st)
			st = vib_fault_rc(&p, rc->delayed ? NULL : &delay);
		if (!st && delay) {
			rc->delayed = true;
			vib_rc_wait(rc, delay);
			return;
		}
		if (!st)
			st = vib_rc_carry(&p, k);
		if (!st) {
			this_cpu_inc(qp->port->pcpu->tx_pkts);
			this_cpu_add(qp->port->pcpu->tx_bytes, p.len);
			qp->sq_psn = (qp->sq_psn + 1) & 0xffffff;
			qp->sent++;
			rc->tail++;
			vib_send_wc(qp, &w->wr, IB_WC_SUCCESS, w->len, k);
			vib_rc_rearm(qp);
		} else if (st == -EAGAIN && rc->rnr_retries) {
			if (rc->rnr_retries < 7)	/* 7: for ever */
				rc->rnr_retries--;
			vib_rc_wait(rc, vib_rnr_us[p.rnr_timer & 31]);
		} else if (st == -ETIMEDOUT && rc->retries) {
			rc->retries--;
			/* 4.096 us * 2^timeout; 0 is no time-out at all */
			vib_rc_wait(rc, qp->attr.timeout ?
				    4096ULL * (1U << (qp->attr.timeout & 31)) /
				    1000 : USEC_PER_SEC);
		} else {
			vib_rc_fail(qp, st == -EAGAIN ? IB_WC_RNR_RETRY_EXC_ERR :
				    st == -ETIMEDOUT ? IB_WC_RETRY_EXC_ERR : st,
				    k);
		}
	}
}

static void vib_rc_work(struct work_struct *work)
{
	struct vib_rc *rc = container_of(work, struct vib_rc, work);
	struct vib_kicks k = {};
	unsigned long flags;

	rcu_read_lock();
	spin_lock_irqsave(&rc->lock, flags);
	rc->waiting = false;
	vib_rc_run(rc->qp, &k);
	spin_unlock_irqrestore(&rc->lock, flags);
	vib_kicks_run(&k);
	rcu_read_unlock();
}

static enum hrtimer_restart vib_rc_timer(struct hrtimer *t)
{
	struct vib_rc *rc = container_of(t, struct vib_rc, timer);

	queue_work(vib_fab.bh_wq, &rc->work);
	return HRTIMER_NORESTART;
}

int vib_rc_post(struct vib_qp *qp, const struct ib_send_wr *wr,
		struct vib_kicks *k)
{
	struct vib_rc *rc = qp->rc;
	struct vib_swqe *w;
	unsigned long flags;
	u32 len;
	int err;

	if (READ_ONCE(qp->state) < IB_QPS_RTS) {
		vib_strict(VIB_S_BAD_STATE_POST);
		return -EINVAL;
	}
	if (wr->opcode != IB_WR_SEND && wr->opcode != IB_WR_SEND_WITH_IMM)
		return -EOPNOTSUPP;
	err = vib_send_len(qp, wr, &len);
	if (!err && len > VIB_MAX_MSG)
		err = -EINVAL;
	if (!err)
		err = vib_send_charge(qp);
	if (err)
		return err;

	spin_lock_irqsave(&rc->lock, flags);
	if (qp->state == IB_QPS_ERR || qp->state == IB_QPS_SQE) {
		vib_send_wc(qp, wr, IB_WC_WR_FLUSH_ERR, 0, k);
	} else {
		w = vib_rc_slot(rc, rc->head++);
		w->wr = *wr;
		w->len = len;
		memcpy(w->sge, wr->sg_list, wr->num_sge * sizeof(w->sge[0]));
		if (!rc->waiting)
			vib_rc_run(qp, k);
	}
	spin_unlock_irqrestore(&rc->lock, flags);
	return 0;
}

int vib_rc_init(struct vib_qp *qp)
{
	struct vib_rc *rc = kzalloc_obj(*rc);

	if (!rc)
		return -ENOMEM;
	spin_lock_init(&rc->lock);
	rc->qp = qp;
	rc->size = max(qp->max_send_wr, 1U);
	rc->stride = sizeof(struct vib_swqe) +
		     qp->max_send_sge * sizeof(struct ib_sge);
	rc->ring = kvzalloc(array_size(rc->size, rc->stride), GFP_KERNEL);
	if (!rc->ring) {
		kfree(rc);
		return -ENOMEM;
	}
	hrtimer_setup(&rc->timer, vib_rc_timer, CLOCK_MONOTONIC,
		      HRTIMER_MODE_REL);
	INIT_WORK(&rc->work, vib_rc_work);
	qp->rc = rc;
	return 0;
}

/* No lookup can find @qp any more. */
void vib_rc_free(struct vib_qp *qp)
{
	struct vib_rc *rc = qp->rc;
	unsigned long flags;

	if (!rc)
		return;
	spin_lock_irqsave(&rc->lock, flags);
	rc->dead = true;
	spin_unlock_irqrestore(&rc->lock, flags);
	hrtimer_cancel(&rc->timer);
	cancel_work_sync(&rc->work);
	cancel_work_sync(&qp->ev_work);
	kvfree(rc->ring);
	kfree(rc);
	qp->rc = NULL;
}
