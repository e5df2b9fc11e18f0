// SPDX-License-Identifier: GPL-2.0
/* Completion queues: ring, arming, moderation, delivery of the handler. */

#include <linux/cpumask.h>
#include <linux/slab.h>
#include "vibfab.h"

static int vib_vector_cpu(u32 vector)
{
	u32 n = vector % num_online_cpus();
	int cpu;

	for_each_online_cpu(cpu)
		if (!n--)
			return cpu;
	return 0;
}

static void vib_cq_handler(struct vib_cq *cq)
{
	cq->notified++;
	if (cq->ibcq.comp_handler)
		cq->ibcq.comp_handler(&cq->ibcq, cq->ibcq.cq_context);
}

static void vib_cq_work(struct work_struct *work)
{
	vib_cq_handler(container_of(work, struct vib_cq, work));
}

static void vib_cq_queue(struct vib_cq *cq)
{
	struct workqueue_struct *wq = vib_fab.bh_wq;

	if (vib_par.comp == VIB_COMP_WQ)
		wq = vib_fab.wq;
	queue_work_on(cq->cpu, wq, &cq->work);
}

static void vib_cq_event_work(struct work_struct *work)
{
	struct vib_cq *cq = container_of(work, struct vib_cq, ev_work);
	struct ib_event ev = { .device = cq->ibcq.device };

	ev.element.cq = &cq->ibcq;
	if (test_and_clear_bit(IB_EVENT_CQ_ERR, &cq->events)) {
		ev.event = IB_EVENT_CQ_ERR;
		pr_warn("vibfab: %s: completion queue overflow\n",
			dev_name(&cq->ibcq.device->dev));
		if (cq->ibcq.event_handler)
			cq->ibcq.event_handler(&ev, cq->ibcq.cq_context);
	}
}

static enum hrtimer_restart vib_cq_mod_timer(struct hrtimer *t)
{
	struct vib_cq *cq = container_of(t, struct vib_cq, mod_timer);
	unsigned long flags;
	bool kick = false;

	spin_lock_irqsave(&cq->lock, flags);
	if (cq->notify && cq->mod_pending) {
		cq->notify = 0;
		cq->mod_pending = 0;
		kick = true;
	}
	spin_unlock_irqrestore(&cq->lock, flags);
	if (kick)
		vib_cq_queue(cq);
	return HRTIMER_NORESTART;
}

/* With cq->lock held: does a new completion call for the handler now? */
static bool vib_cq_wants_kick(struct vib_cq *cq, const struct ib_wc *wc,
			      bool solicited)
{
	if (!cq->notify || cq->hold)
		return false;
	if (cq->notify == IB_CQ_SOLICITED && !solicited &&
	    wc->status == IB_WC_SUCCESS)
		return false;
	if (cq->mod_count > 1 && cq->mod_period &&
	    ++cq->mod_pending < cq->mod_count) {
		if (cq->mod_pending == 1)
			hrtimer_start(&cq->mod_timer,
				      us_to_ktime(cq->mod_period),
				      HRTIMER_MODE_REL);
		return false;
	}
	cq->mod_pending = 0;
	cq->notify = 0;
	return true;
}

/*
 * Put a completion into @cq. @out (may be NULL) is lowered by @credits when
 * the consumer polls it. Any context; the caller runs vib_kicks_run() on @k
 * after it has dropped its locks and before it leaves its RCU section.
 */
void vib_cq_add(struct vib_cq *cq, const struct ib_wc *wc, atomic_t *out,
		u32 credits, bool solicited, struct vib_kicks *k)
{
	struct vib_cqe *e;
	unsigned long flags;
	bool kick;

	spin_lock_irqsave(&cq->lock, flags);
	if (cq->head - cq->tail >= cq->size) {
		bool first = !cq->overflow;

		cq->overflow = true;
		spin_unlock_irqrestore(&cq->lock, flags);
		if (first) {
			vib_strict(VIB_S_CQ_OVERFLOW);
			set_bit(IB_EVENT_CQ_ERR, &cq->events);
			queue_work(vib_fab.wq, &cq->ev_work);
		}
		return;
	}
	e = &cq->ring[cq->head % cq->size];
	e->wc = *wc;
	e->out = out;
	e->credits = credits;
	cq->head++;
	cq->added++;
	kick = vib_cq_wants_kick(cq, wc, solicited);
	spin_unlock_irqrestore(&cq->lock, flags);

	if (!kick)
		return;
	if (vib_par.comp == VIB_COMP_DIRECT && k->n < ARRAY_SIZE(k->cq))
		k->cq[k->n++] = cq;
	else
		vib_cq_queue(cq);
}

void __vib_kicks_run(struct vib_kicks *k)
{
	u32 i;

	for (i = 0; i < k->n; i++)
		vib_cq_handler(k->cq[i]);
	k->n = 0;
}

/* Forget all completions of @qp, as a driver does that destroys a QP. */
void vib_cq_purge(struct vib_cq *cq, struct vib_qp *qp)
{
	unsigned long flags;
	u32 from, to;

	spin_lock_irqsave(&cq->lock, flags);
	to = cq->tail;
	for (from = cq->tail; from != cq->head; from++) {
		struct vib_cqe *e = &cq->ring[from % cq->size];

		if (e->wc.qp == &qp->ibqp) {
			if (e->out)
				atomic_sub(e->credits, e->out);
			continue;
		}
		if (to != from)
			cq->ring[to % cq->size] = *e;
		to++;
	}
	cq->head = to;
	spin_unlock_irqrestore(&cq->lock, flags);
}

/* Fault: hide the completions of @cq, or show them again. */
void vib_cq_hold(struct vib_cq *cq, bool hold)
{
	unsigned long flags;
	bool kick = false;

	spin_lock_irqsave(&cq->lock, flags);
	cq->hold = hold;
	if (!hold && cq->notify && cq->head != cq->tail) {
		cq->notify = 0;
		cq->mod_pending = 0;
		kick = true;
	}
	spin_unlock_irqrestore(&cq->lock, flags);
	if (kick)
		vib_cq_queue(cq);
}

/* Fault: behave as if a completion had found no room. */
void vib_cq_force_overflow(struct vib_cq *cq)
{
	set_bit(IB_EVENT_CQ_ERR, &cq->events);
	queue_work(vib_fab.wq, &cq->ev_work);
}

int vib_poll_cq(struct ib_cq *ibcq, int num, struct ib_wc *wc)
{
	struct vib_cq *cq = to_vcq(ibcq);
	unsigned long flags;
	int i;

	if (vib_gone(cq->magic) || READ_ONCE(cq->head) == READ_ONCE(cq->tail))
		return 0;
	rcu_read_lock();
	spin_lock_irqsave(&cq->lock, flags);
	for (i = 0; i < num && cq->tail != cq->head && !cq->hold; i++) {
		struct vib_cqe *e = &cq->ring[cq->tail % cq->size];

		wc[i] = e->wc;
		if (e->out)
			atomic_sub(e->credits, e->out);
		cq->tail++;
	}
	spin_unlock_irqrestore(&cq->lock, flags);
	rcu_read_unlock();
	return i;
}

int vib_req_notify_cq(struct ib_cq *ibcq, enum ib_cq_notify_flags flags)
{
	struct vib_cq *cq = to_vcq(ibcq);
	unsigned long irq;
	u8 want = flags & IB_CQ_SOLICITED_MASK;
	int missed = 0;

	if (vib_gone(cq->magic))
		return -EIO;
	/* not the MAD layer's: it would never work again */
	if (ibcq->poll_ctx != IB_POLL_UNBOUND_WORKQUEUE &&
	    vib_fail(VIB_F_REQ_NOTIFY))
		return -EIO;
	spin_lock_irqsave(&cq->lock, irq);
	if (want == IB_CQ_NEXT_COMP || !cq->notify)
		cq->notify = want;
	if ((flags & IB_CQ_REPORT_MISSED_EVENTS) && cq->head != cq->tail &&
	    !cq->hold)
		missed = 1;
	spin_unlock_irqrestore(&cq->lock, irq);
	return missed;
}

int vib_modify_cq(struct ib_cq *ibcq, u16 count, u16 period)
{
	struct vib_cq *cq = to_vcq(ibcq);
	unsigned long flags;

	if (vib_fail(VIB_F_MODIFY_CQ))
		return -EIO;
	spin_lock_irqsave(&cq->lock, flags);
	cq->mod_count = count;
	cq->mod_period = period;
	spin_unlock_irqrestore(&cq->lock, flags);
	return 0;
}

int vib_create_cq(struct ib_cq *ibcq, const struct ib_cq_init_attr *attr,
		  struct uverbs_attr_bundle *attrs)
{
	struct vib_hca *hca = to_vhca(ibcq->device);
	struct vib_cq *cq = to_vcq(ibcq);

	if (attrs || attr->flags)
		return -EOPNOTSUPP;
	if (!attr->cqe || attr->cqe > vib_par.max_cqe ||
	    attr->comp_vector < 0 || attr->comp_vector >= vib_par.vectors)
		return -EINVAL;
	if (vib_fail(VIB_F_CREATE_CQ))
		return -ENOMEM;
	cq->ring = kvcalloc(attr->cqe, sizeof(*cq->ring), GFP_KERNEL);
	if (!cq->ring)
		return -ENOMEM;
	cq->magic = VIB_MAGIC;
	cq->size = attr->cqe;
	ibcq->cqe = attr->cqe;
	spin_lock_init(&cq->lock);
	cq->cpu = vib_vector_cpu(attr->comp_vector);
	INIT_WORK(&cq->work, vib_cq_work);
	INIT_WORK(&cq->ev_work, vib_cq_event_work);
	hrtimer_setup(&cq->mod_timer, vib_cq_mod_timer, CLOCK_MONOTONIC,
		      HRTIMER_MODE_REL);
	atomic_inc(&hca->live[VIB_O_CQ]);
	spin_lock_irq(&hca->list_lock);
	list_add_tail(&cq->list, &hca->cq_list);
	spin_unlock_irq(&hca->list_lock);
	return 0;
}

int vib_destroy_cq(struct ib_cq *ibcq, struct ib_udata *udata)
{
	struct vib_hca *hca = to_vhca(ibcq->device);
	struct vib_cq *cq = to_vcq(ibcq);

	spin_lock_irq(&hca->list_lock);
	list_del(&cq->list);
	spin_unlock_irq(&hca->list_lock);
	hrtimer_cancel(&cq->mod_timer);
	cancel_work_sync(&cq->work);
	cancel_work_sync(&cq->ev_work);
	cq->magic = 0;
	kvfree(cq->ring);
	atomic_dec(&hca->live[VIB_O_CQ]);
	return 0;
}
