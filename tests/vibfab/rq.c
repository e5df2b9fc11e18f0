// SPDX-License-Identifier: GPL-2.0
/* Receive queues, shared receive queues, and copying of payload. */

#include <linux/io.h>
#include <linux/mm.h>
#include <linux/slab.h>
#include "vibfab.h"

int vib_rq_init(struct vib_rq *rq, u32 size, u32 max_sge)
{
	spin_lock_init(&rq->lock);
	rq->size = size;
	rq->max_sge = max_sge;
	rq->stride = sizeof(struct vib_wqe) + max_sge * sizeof(struct ib_sge);
	if (!size)
		return 0;
	rq->ring = kvzalloc(array_size(size, rq->stride), GFP_KERNEL);
	return rq->ring ? 0 : -ENOMEM;
}

void vib_rq_free(struct vib_rq *rq)
{
	kvfree(rq->ring);
	rq->ring = NULL;
}

static struct vib_wqe *vib_rq_slot(struct vib_rq *rq, u32 n)
{
	return rq->ring + (size_t)(n % rq->size) * rq->stride;
}

/* Is the first buffer of @wr already posted? O(ring), for strict >= 2. */
static bool vib_rq_has(struct vib_rq *rq, const struct ib_recv_wr *wr)
{
	u32 n;

	if (!wr->num_sge)
		return false;
	for (n = rq->tail; n != rq->head; n++) {
		struct vib_wqe *w = vib_rq_slot(rq, n);

		if (w->num_sge && w->sge[0].addr == wr->sg_list[0].addr)
			return true;
	}
	return false;
}

/* With rq->lock held. */
static int vib_rq_push(struct vib_rq *rq, u32 lkey, const struct ib_recv_wr *wr)
{
	struct vib_wqe *w;
	int i;

	if (wr->num_sge < 0 || wr->num_sge > rq->max_sge) {
		vib_strict(VIB_S_TOO_MANY_SGE);
		return -EINVAL;
	}
	if (!rq->size || atomic_read(&rq->out) >= rq->size) {
		vib_strict(VIB_S_OVERPOST_RQ);
		return -ENOMEM;
	}
	if (vib_par.strict >= 2 && vib_rq_has(rq, wr))
		vib_strict(VIB_S_DOUBLE_POST);
	w = vib_rq_slot(rq, rq->head);
	w->wr_id = wr->wr_id;
	w->num_sge = wr->num_sge;
	w->len = 0;
	for (i = 0; i < wr->num_sge; i++) {
		if (wr->sg_list[i].lkey != lkey) {
			vib_strict(VIB_S_BAD_LKEY);
			return -EINVAL;
		}
		w->sge[i] = wr->sg_list[i];
		w->len += wr->sg_list[i].length;
	}
	rq->head++;
	atomic_inc(&rq->out);
	return 0;
}

static void vib_flush_wc(struct vib_qp *qp, u64 wr_id, struct ib_wc *wc)
{
	memset(wc, 0, sizeof(*wc));
	wc->wr_id = wr_id;
	wc->status = IB_WC_WR_FLUSH_ERR;
	wc->opcode = IB_WC_RECV;
	wc->qp = &qp->ibqp;
}

/* With qp->rq.lock held: complete all posted receives with a flush error. */
void vib_rq_flush(struct vib_qp *qp, struct vib_kicks *k)
{
	struct vib_rq *rq = &qp->rq;
	struct ib_wc wc;

	for (; rq->tail != rq->head; rq->tail++) {
		vib_flush_wc(qp, vib_rq_slot(rq, rq->tail)->wr_id, &wc);
		vib_cq_add(qp->rcq, &wc, &rq->out, 1, true, k);
	}
}

int vib_post_recv(struct ib_qp *ibqp, const struct ib_recv_wr *wr,
		  const struct ib_recv_wr **bad)
{
	struct vib_qp *qp = to_vqp(ibqp);
	struct vib_rq *rq = &qp->rq;
	struct vib_kicks k = {};
	unsigned long flags;
	int err = 0;

	if (vib_gone(qp->magic) || qp->srq) {
		*bad = wr;
		return -EINVAL;
	}
	rcu_read_lock();
	spin_lock_irqsave(&rq->lock, flags);
	for (; wr && !err; wr = err ? wr : wr->next) {
		if (qp->type > IB_QPT_GSI && vib_fail(VIB_F_POST_RECV)) {
			err = -ENOMEM;
		} else if (qp->state == IB_QPS_RESET) {
			vib_strict(VIB_S_BAD_STATE_POST);
			err = -EINVAL;
		} else {
			err = vib_rq_push(rq, ibqp->device->local_dma_lkey, wr);
		}
		/* and those before it, if what broke the QP has not yet */
		if (!err && qp->state == IB_QPS_ERR)
			vib_rq_flush(qp, &k);
	}
	spin_unlock_irqrestore(&rq->lock, flags);
	vib_kicks_run(&k);
	rcu_read_unlock();
	if (err)
		*bad = wr;
	return err;
}

int vib_post_srq_recv(struct ib_srq *ibsrq, const struct ib_recv_wr *wr,
		      const struct ib_recv_wr **bad)
{
	struct vib_srq *srq = to_vsrq(ibsrq);
	unsigned long flags;
	int err = 0;

	if (vib_gone(srq->magic)) {
		*bad = wr;
		return -EINVAL;
	}
	spin_lock_irqsave(&srq->rq.lock, flags);
	for (; wr; wr = wr->next) {
		if (vib_fail(VIB_F_POST_SRQ))
			err = -ENOMEM;
		else
			err = vib_rq_push(&srq->rq,
					  ibsrq->device->local_dma_lkey, wr);
		if (err)
			break;
	}
	spin_unlock_irqrestore(&srq->rq.lock, flags);
	if (err)
		*bad = wr;
	return err;
}

/* With rq->lock held: can the next receive take a message of @need bytes? */
static int vib_rq_check(struct vib_rq *rq, u32 need)
{
	if (rq->tail == rq->head)
		return -ENOBUFS;
	if (vib_rq_slot(rq, rq->tail)->len < need)
		return -EMSGSIZE;
	return 0;
}

/*
 * Take the next receive for @qp. ERR_PTR(-ENOBUFS) when there is none,
 * ERR_PTR(-EMSGSIZE), taking nothing, when it is shorter than @need bytes.
 * With qp->rq.lock held, which also guards the result until it is dropped.
 */
struct vib_wqe *vib_rq_pop(struct vib_qp *qp, u32 need, atomic_t **out)
{
	struct vib_srq *srq = qp->srq;
	struct vib_rq *rq = &qp->rq;
	struct vib_wqe *w;
	int err;

	if (!srq) {
		err = vib_rq_check(rq, need);
		if (err)
			return ERR_PTR(err);
		*out = &rq->out;
		return vib_rq_slot(rq, rq->tail++);
	}
	rq = &srq->rq;
	spin_lock_nested(&rq->lock, SINGLE_DEPTH_NESTING);
	err = vib_rq_check(rq, need);
	if (err) {
		spin_unlock(&rq->lock);
		return ERR_PTR(err);
	}
	/* The slot may be posted again at once: work on a copy. */
	w = qp->srq_wqe;
	memcpy(w, vib_rq_slot(rq, rq->tail++), rq->stride);
	if (srq->limit && rq->head - rq->tail < srq->limit) {
		srq->limit = 0;
		set_bit(IB_EVENT_SRQ_LIMIT_REACHED, &srq->events);
		queue_work(vib_fab.wq, &srq->ev_work);
	}
	spin_unlock(&rq->lock);
	*out = &rq->out;
	return w;
}

static void vib_srq_event_work(struct work_struct *work)
{
	struct vib_srq *srq = container_of(work, struct vib_srq, ev_work);
	struct ib_event ev = { .device = srq->ibsrq.device };
	int i;

	ev.element.srq = &srq->ibsrq;
	for (i = 0; i <= IB_EVENT_DEVICE_SPEED_CHANGE; i++) {
		if (!test_and_clear_bit(i, &srq->events))
			continue;
		ev.event = i;
		if (srq->ibsrq.event_handler)
			srq->ibsrq.event_handler(&ev, srq->ibsrq.srq_context);
	}
}

int vib_create_srq(struct ib_srq *ibsrq, struct ib_srq_init_attr *init,
		   struct ib_udata *udata)
{
	struct vib_srq *srq = to_vsrq(ibsrq);
	int err;

	if (!vib_par.srq || udata || init->srq_type != IB_SRQT_BASIC)
		return -EOPNOTSUPP;
	if (!init->attr.max_wr || init->attr.max_wr > vib_par.max_wr ||
	    init->attr.max_sge > vib_par.max_srq_sge)
		return -EINVAL;
	if (vib_fail(VIB_F_CREATE_SRQ))
		return -ENOMEM;
	err = vib_rq_init(&srq->rq, init->attr.max_wr, init->attr.max_sge);
	if (err)
		return err;
	srq->magic = VIB_MAGIC;
	srq->limit = init->attr.srq_limit;
	INIT_WORK(&srq->ev_work, vib_srq_event_work);
	atomic_inc(&to_vhca(ibsrq->device)->live[VIB_O_SRQ]);
	return 0;
}

int vib_modify_srq(struct ib_srq *ibsrq, struct ib_srq_attr *attr,
		   enum ib_srq_attr_mask mask, struct ib_udata *udata)
{
	struct vib_srq *srq = to_vsrq(ibsrq);
	unsigned long flags;
	int err = 0;

	if (mask & IB_SRQ_MAX_WR)
		return -EOPNOTSUPP;
	if (!(mask & IB_SRQ_LIMIT))
		return 0;
	spin_lock_irqsave(&srq->rq.lock, flags);
	if (attr->srq_limit > srq->rq.size)
		err = -EINVAL;
	else
		srq->limit = attr->srq_limit;
	spin_unlock_irqrestore(&srq->rq.lock, flags);
	return err;
}

int vib_query_srq(struct ib_srq *ibsrq, struct ib_srq_attr *attr)
{
	struct vib_srq *srq = to_vsrq(ibsrq);

	attr->max_wr = srq->rq.size;
	attr->max_sge = srq->rq.max_sge;
	attr->srq_limit = READ_ONCE(srq->limit);
	return 0;
}

int vib_destroy_srq(struct ib_srq *ibsrq, struct ib_udata *udata)
{
	struct vib_srq *srq = to_vsrq(ibsrq);

	cancel_work_sync(&srq->ev_work);
	srq->magic = 0;
	vib_rq_free(&srq->rq);
	atomic_dec(&to_vhca(ibsrq->device)->live[VIB_O_SRQ]);
	return 0;
}

/*
 * Kernel address of @n bytes behind an SGE; NULL (counted) when they cannot all
 * be memory. @n is not 0.
 */
static void *vib_sge_ptr(u64 addr, u32 n)
{
	if (!vib_par.dma_direct)
		return ib_virt_dma_to_ptr(addr);
	if (!pfn_valid(PHYS_PFN(addr)) || !pfn_valid(PHYS_PFN(addr + n - 1))) {
		vib_strict(VIB_S_DMA_ADDR);
		return NULL;
	}
	return phys_to_virt(addr);
}

/* Write @len bytes at offset @off of the scatter list of @w. */
void vib_scatter(const struct vib_wqe *w, u32 off, const void *data, u32 len)
{
	u32 i, n;
	void *to;

	for (i = 0; i < w->num_sge && len; i++) {
		if (off >= w->sge[i].length) {
			off -= w->sge[i].length;
			continue;
		}
		n = min(len, w->sge[i].length - off);
		to = vib_sge_ptr(w->sge[i].addr + off, n);
		if (to)
			memcpy(to, data, n);
		data += n;
		len -= n;
		off = 0;
	}
}

/* Call @fn for each contiguous piece of the payload, at most @len bytes. */
void vib_pkt_walk(const struct vib_pkt *p, u32 len,
		  void (*fn)(void *ctx, const void *d, u32 n), void *ctx)
{
	u32 n = min(p->hlen, len);
	u32 skip = p->skip;
	const void *from;
	u32 i;

	if (n)
		fn(ctx, p->hdr, n);
	len -= n;
	for (i = 0; i < p->nsge && len; i++) {
		if (skip >= p->sge[i].length) {
			skip -= p->sge[i].length;
			continue;
		}
		n = min(len, p->sge[i].length - skip);
		from = vib_sge_ptr(p->sge[i].addr + skip, n);
		if (from)
			fn(ctx, from, n);
		len -= n;
		skip = 0;
	}
}

struct vib_scatter_ctx {
	const struct vib_wqe *w;
	u32 off;
};

static void vib_scatter_piece(void *ctx, const void *d, u32 n)
{
	struct vib_scatter_ctx *c = ctx;

	vib_scatter(c->w, c->off, d, n);
	c->off += n;
}

/* Copy the payload of @p to offset @off of the buffers of @w. */
void vib_copy_pkt(const struct vib_wqe *w, u32 off, const struct vib_pkt *p)
{
	struct vib_scatter_ctx c = { .w = w, .off = off };

	vib_pkt_walk(p, p->len, vib_scatter_piece, &c);
}

static void vib_linear_piece(void *ctx, const void *d, u32 n)
{
	void **to = ctx;

	memcpy(*to, d, n);
	*to += n;
}

/* Copy the first @len bytes of the payload of @p to @buf. */
void vib_pkt_linear(const struct vib_pkt *p, void *buf, u32 len)
{
	vib_pkt_walk(p, min(len, p->len), vib_linear_piece, &buf);
}
