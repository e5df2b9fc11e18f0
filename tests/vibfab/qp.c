// SPDX-License-Identifier: GPL-2.0
/* Queue pairs: life, state machine, events; multicast attachment. */

#include <linux/jhash.h>
#include <linux/rculist.h>
#include <linux/slab.h>
#include "vibfab.h"

static void vib_qp_event_work(struct work_struct *work)
{
	struct vib_qp *qp = container_of(work, struct vib_qp, ev_work);
	struct ib_event ev = { .device = qp->ibqp.device };
	int i;

	/* An error found by the remote side: finish the move to ERR here. */
	if (qp->rc && READ_ONCE(qp->state) == IB_QPS_ERR)
		vib_qp_to_err(qp);
	ev.element.qp = &qp->ibqp;
	for (i = 0; i <= IB_EVENT_DEVICE_SPEED_CHANGE; i++) {
		if (!test_and_clear_bit(i, &qp->events))
			continue;
		ev.event = i;
		if (qp->ibqp.event_handler)
			qp->ibqp.event_handler(&ev, qp->ibqp.qp_context);
	}
}

/* Raise @event for @qp from a workqueue. Any context. */
void vib_qp_event(struct vib_qp *qp, enum ib_event_type event)
{
	set_bit(event, &qp->events);
	queue_work(vib_fab.wq, &qp->ev_work);
}

/* With the locks of the QP held: flush what is queued, once. */
static void vib_qp_err_locked(struct vib_qp *qp, struct vib_kicks *k)
{
	WRITE_ONCE(qp->state, IB_QPS_ERR);
	if (qp->rc)
		vib_rc_flush(qp, k);
	vib_rq_flush(qp, k);
	if (qp->srq && !qp->last_wqe_sent) {
		qp->last_wqe_sent = true;
		vib_qp_event(qp, IB_EVENT_QP_LAST_WQE_REACHED);
	}
}

/*
 * Move @qp to ERR from outside a verb. No lock of the QP may be held. False
 * when it is in RESET, and stays there.
 */
bool vib_qp_to_err(struct vib_qp *qp)
{
	struct vib_kicks k = {};
	unsigned long flags;
	bool moved;

	rcu_read_lock();
	vib_qp_lock(qp, &flags);
	moved = qp->state != IB_QPS_RESET;
	if (moved)
		vib_qp_err_locked(qp, &k);
	vib_qp_unlock(qp, &flags);
	vib_kicks_run(&k);
	rcu_read_unlock();
	return moved;
}

/*
 * Leave RTS for SQE or ERR after a failed send; queued work stays. False when
 * the QP was not in RTS.
 */
bool vib_qp_set_state(struct vib_qp *qp, enum ib_qp_state state)
{
	unsigned long flags;
	bool sends;

	spin_lock_irqsave(&qp->rq.lock, flags);
	sends = qp->state == IB_QPS_RTS || qp->state == IB_QPS_SQD;
	if (sends)
		WRITE_ONCE(qp->state, state);
	spin_unlock_irqrestore(&qp->rq.lock, flags);
	return sends;
}

void vib_qp_lock(struct vib_qp *qp, unsigned long *flags)
{
	if (qp->rc) {
		vib_rc_lock(qp, flags);
		spin_lock(&qp->rq.lock);
	} else {
		spin_lock_irqsave(&qp->rq.lock, *flags);
	}
}

void vib_qp_unlock(struct vib_qp *qp, unsigned long *flags)
{
	if (qp->rc) {
		spin_unlock(&qp->rq.lock);
		vib_rc_unlock(qp, flags);
	} else {
		spin_unlock_irqrestore(&qp->rq.lock, *flags);
	}
}

static int vib_qp_check_caps(struct vib_qp *qp, struct ib_qp_init_attr *init)
{
	struct ib_qp_cap *c = &init->cap;
	u32 flags = 0;

	if (!init->send_cq || !init->recv_cq)
		return -EINVAL;
	if (c->max_send_wr > vib_par.max_wr || c->max_recv_wr > vib_par.max_wr ||
	    c->max_send_sge > vib_par.max_send_sge || c->max_inline_data ||
	    (!init->srq && c->max_recv_sge > vib_par.max_recv_sge))
		return -EINVAL;
	if (init->qp_type == IB_QPT_UD && vib_par.tso)
		flags |= IB_QP_CREATE_IPOIB_UD_LSO;
	if (init->qp_type == IB_QPT_UD && vib_par.block_loopback)
		flags |= IB_QP_CREATE_BLOCK_MULTICAST_LOOPBACK;
	if (init->create_flags & ~flags)
		return -EOPNOTSUPP;
	if (init->create_flags & READ_ONCE(vib_fab.refused_flags))
		return -EINVAL;
	return 0;
}

static int vib_qp_publish(struct vib_qp *qp, struct ib_qp_init_attr *init)
{
	struct vib_hca *hca = qp->hca;
	u32 special;
	int err;

	if (qp->type == IB_QPT_UD || qp->type == IB_QPT_RC) {
		err = xa_alloc_cyclic(&hca->qps, &qp->qpn, qp,
				      XA_LIMIT(VIB_QPN_MIN, VIB_QPN_MAX), &hca->next_qpn,
				      GFP_KERNEL);
		return err < 0 ? err : 0;
	}
	if (!init->port_num || init->port_num > hca->nports)
		return -EINVAL;
	special = qp->type == IB_QPT_GSI;
	qp->qpn = special;
	qp->port = &hca->port[init->port_num - 1];
	if (cmpxchg((struct vib_qp __force **)&qp->port->special[special],
		    NULL, qp))
		return -EBUSY;
	return 0;
}

static void vib_qp_unpublish(struct vib_qp *qp)
{
	if (qp->type == IB_QPT_UD || qp->type == IB_QPT_RC)
		xa_erase(&qp->hca->qps, qp->qpn);
	else
		RCU_INIT_POINTER(qp->port->special[qp->qpn], NULL);
	synchronize_rcu_expedited();
}

int vib_create_qp(struct ib_qp *ibqp, struct ib_qp_init_attr *init,
		  struct ib_udata *udata)
{
	struct vib_hca *hca = to_vhca(ibqp->device);
	struct vib_qp *qp = to_vqp(ibqp);
	int err;

	switch (init->qp_type) {
	case IB_QPT_SMI:
	case IB_QPT_GSI:
	case IB_QPT_UD:
	case IB_QPT_RC:
		break;
	default:
		return -EOPNOTSUPP;
	}
	if (udata)
		return -EOPNOTSUPP;
	err = vib_qp_check_caps(qp, init);
	if (err)
		return err;
	if (vib_fail(VIB_F_CREATE_QP))
		return -ENOMEM;

	qp->magic = VIB_MAGIC;
	qp->hca = hca;
	qp->type = init->qp_type;
	qp->scq = to_vcq(init->send_cq);
	qp->rcq = to_vcq(init->recv_cq);
	qp->srq = init->srq ? to_vsrq(init->srq) : NULL;
	qp->create_flags = init->create_flags;
	qp->max_send_wr = init->cap.max_send_wr;
	qp->max_send_sge = init->cap.max_send_sge;
	qp->sig_all = init->sq_sig_type == IB_SIGNAL_ALL_WR;
	qp->state = IB_QPS_RESET;
	qp->init = *init;
	INIT_WORK(&qp->ev_work, vib_qp_event_work);
	err = vib_rq_init(&qp->rq, qp->srq ? 0 : init->cap.max_recv_wr,
			  init->cap.max_recv_sge);
	if (err)
		return err;
	if (qp->srq) {
		qp->srq_wqe = kzalloc(qp->srq->rq.stride, GFP_KERNEL);
		if (!qp->srq_wqe) {
			err = -ENOMEM;
			goto err_rq;
		}
	}
	if (qp->type == IB_QPT_RC) {
		err = vib_rc_init(qp);
		if (err)
			goto err_wqe;
	}
	err = vib_qp_publish(qp, init);
	if (err)
		goto err_rc;
	ibqp->qp_num = qp->qpn;
	atomic_inc(&hca->live[VIB_O_QP]);
	spin_lock_irq(&hca->list_lock);
	list_add_tail(&qp->list, &hca->qp_list);
	spin_unlock_irq(&hca->list_lock);
	return 0;

err_rc:
	vib_rc_free(qp);
err_wqe:
	kfree(qp->srq_wqe);
err_rq:
	vib_rq_free(&qp->rq);
	return err;
}

int vib_destroy_qp(struct ib_qp *ibqp, struct ib_udata *udata)
{
	struct vib_qp *qp = to_vqp(ibqp);
	struct vib_hca *hca = qp->hca;
	unsigned long flags;

	spin_lock_irq(&hca->list_lock);
	list_del(&qp->list);
	spin_unlock_irq(&hca->list_lock);
	vib_qp_lock(qp, &flags);
	WRITE_ONCE(qp->state, IB_QPS_RESET);
	qp->magic = 0;
	vib_qp_unlock(qp, &flags);
	vib_qp_unpublish(qp);
	if (qp->type == IB_QPT_UD && qp->port)
		vib_mcast_forget(qp);
	vib_rc_free(qp);
	cancel_work_sync(&qp->ev_work);
	vib_cq_purge(qp->scq, qp);
	if (qp->rcq != qp->scq)
		vib_cq_purge(qp->rcq, qp);
	kfree(qp->srq_wqe);
	vib_rq_free(&qp->rq);
	atomic_dec(&hca->live[VIB_O_QP]);
	return 0;
}

static int vib_qp_check_attr(struct vib_qp *qp, struct ib_qp_attr *a, int mask)
{
	struct vib_hca *hca = qp->hca;

	if ((mask & IB_QP_PORT) && (!a->port_num || a->port_num > hca->nports))
		return -EINVAL;
	if ((mask & IB_QP_PKEY_INDEX) && a->pkey_index >= vib_par.pkeys)
		return -EINVAL;
	if (mask & IB_QP_AV) {
		if (a->ah_attr.port_num != qp->port->num)
			return -EINVAL;
		if ((rdma_ah_get_ah_flags(&a->ah_attr) & IB_AH_GRH) &&
		    a->ah_attr.grh.sgid_index >= vib_par.gids)
			return -EINVAL;
	}
	return 0;
}

/* With the locks of the QP held. */
static void vib_qp_apply(struct vib_qp *qp, struct ib_qp_attr *a, int mask)
{
	struct ib_qp_attr *cur = &qp->attr;

	if (mask & IB_QP_PORT)
		qp->port = &qp->hca->port[a->port_num - 1];
	if (mask & IB_QP_PKEY_INDEX)
		WRITE_ONCE(qp->pkey_index, a->pkey_index);
	if (mask & IB_QP_QKEY) {
		WRITE_ONCE(qp->qkey, a->qkey);
		qp->qkey_set = true;
	}
	if (mask & IB_QP_ACCESS_FLAGS)
		cur->qp_access_flags = a->qp_access_flags;
	if (mask & IB_QP_AV) {
		cur->ah_attr = a->ah_attr;
		/* the core owns that reference, see av_sgid_attr */
		cur->ah_attr.grh.sgid_attr = NULL;
	}
	if (mask & IB_QP_PATH_MTU)
		cur->path_mtu = a->path_mtu;
	if (mask & IB_QP_TIMEOUT)
		cur->timeout = a->timeout;
	if (mask & IB_QP_RETRY_CNT)
		cur->retry_cnt = a->retry_cnt;
	if (mask & IB_QP_RNR_RETRY)
		cur->rnr_retry = a->rnr_retry;
	if (mask & IB_QP_MIN_RNR_TIMER)
		cur->min_rnr_timer = a->min_rnr_timer;
	if (mask & IB_QP_RQ_PSN)
		cur->rq_psn = a->rq_psn;
	if (mask & IB_QP_SQ_PSN)
		qp->sq_psn = a->sq_psn;
	if (mask & IB_QP_DEST_QPN)
		cur->dest_qp_num = a->dest_qp_num;
	if (mask & IB_QP_MAX_QP_RD_ATOMIC)
		cur->max_rd_atomic = a->max_rd_atomic;
	if (mask & IB_QP_MAX_DEST_RD_ATOMIC)
		cur->max_dest_rd_atomic = a->max_dest_rd_atomic;
}

static void vib_qp_reset_locked(struct vib_qp *qp)
{
	WRITE_ONCE(qp->state, IB_QPS_RESET);
	qp->rq.tail = qp->rq.head;
	if (qp->rc)
		vib_rc_reset(qp);
	vib_cq_purge(qp->scq, qp);
	if (qp->rcq != qp->scq)
		vib_cq_purge(qp->rcq, qp);
	atomic_set(&qp->rq.out, 0);
	atomic_set(&qp->sq_out, 0);
	atomic_set(&qp->unsignaled, 0);
	qp->last_wqe_sent = false;
}

int vib_modify_qp(struct ib_qp *ibqp, struct ib_qp_attr *a, int mask,
		  struct ib_udata *udata)
{
	struct vib_qp *qp = to_vqp(ibqp);
	enum ib_qp_state cur, next;
	struct vib_kicks k = {};
	unsigned long flags;
	int err = 0;

	if (mask & ~IB_QP_ATTR_STANDARD_BITS)
		return -EOPNOTSUPP;
	if (vib_fail(VIB_F_MODIFY_QP))
		return -EIO;
	rcu_read_lock();
	vib_qp_lock(qp, &flags);
	cur = qp->state;
	next = mask & IB_QP_STATE ? a->qp_state : cur;
	if ((mask & IB_QP_CUR_STATE) && a->cur_qp_state != cur)
		err = -EINVAL;
	else if (!ib_modify_qp_is_ok(cur, next, qp->type, mask))
		err = -EINVAL;
	else
		err = vib_qp_check_attr(qp, a, mask);
	if (err)
		goto out;
	vib_qp_apply(qp, a, mask);
	if (next == IB_QPS_ERR)
		vib_qp_err_locked(qp, &k);
	else if (next == IB_QPS_RESET)
		vib_qp_reset_locked(qp);
	else
		WRITE_ONCE(qp->state, next);
	if (qp->rc && next == IB_QPS_RTS)
		vib_rc_rearm(qp);
out:
	vib_qp_unlock(qp, &flags);
	vib_kicks_run(&k);
	rcu_read_unlock();
	return err;
}

int vib_query_qp(struct ib_qp *ibqp, struct ib_qp_attr *a, int mask,
		 struct ib_qp_init_attr *init)
{
	struct vib_qp *qp = to_vqp(ibqp);
	unsigned long flags;

	vib_qp_lock(qp, &flags);
	*a = qp->attr;
	a->qp_state = qp->state;
	a->cur_qp_state = qp->state;
	a->qkey = qp->qkey;
	a->sq_psn = qp->sq_psn;
	a->pkey_index = qp->pkey_index;
	a->port_num = qp->port ? qp->port->num : 0;
	a->cap = qp->init.cap;
	*init = qp->init;
	vib_qp_unlock(qp, &flags);
	return 0;
}

static struct hlist_head *vib_mc_bucket(struct vib_port *port,
					const union ib_gid *mgid)
{
	return &port->mc[jhash(mgid->raw, 16, 0) % VIB_MC_HASH];
}

int vib_attach_mcast(struct ib_qp *ibqp, union ib_gid *gid, u16 lid)
{
	struct vib_qp *qp = to_vqp(ibqp);
	struct vib_port *port = qp->port;
	struct vib_attach *a, *have;
	struct hlist_head *head;
	int err = 0;

	if (!port || gid->raw[0] != 0xff)
		return -EINVAL;
	if (vib_fail(VIB_F_ATTACH))
		return -ENOMEM;
	a = kzalloc_obj(*a);
	if (!a)
		return -ENOMEM;
	a->mgid = *gid;
	a->mlid = lid;
	a->qp = qp;
	head = vib_mc_bucket(port, gid);
	spin_lock_irq(&port->mc_lock);
	hlist_for_each_entry(have, head, node)
		if (have->qp == qp && have->mlid == lid &&
		    !memcmp(&have->mgid, gid, sizeof(*gid)))
			err = -EEXIST;
	if (!err)
		hlist_add_head_rcu(&a->node, head);
	spin_unlock_irq(&port->mc_lock);
	if (err) {
		kfree(a);
		return 0;	/* attaching twice is attaching once */
	}
	atomic_inc(&qp->hca->live[VIB_O_MCAST]);
	return 0;
}

static void vib_mc_remove(struct vib_qp *qp, struct vib_attach *a)
{
	hlist_del_rcu(&a->node);
	atomic_dec(&qp->hca->live[VIB_O_MCAST]);
	kfree_rcu(a, rcu);
}

int vib_detach_mcast(struct ib_qp *ibqp, union ib_gid *gid, u16 lid)
{
	struct vib_qp *qp = to_vqp(ibqp);
	struct vib_attach *a;
	int err = -EINVAL;

	if (!qp->port)
		return err;
	spin_lock_irq(&qp->port->mc_lock);
	hlist_for_each_entry(a, vib_mc_bucket(qp->port, gid), node)
		if (a->qp == qp && a->mlid == lid &&
		    !memcmp(&a->mgid, gid, sizeof(*gid))) {
			vib_mc_remove(qp, a);
			err = 0;
			break;
		}
	spin_unlock_irq(&qp->port->mc_lock);
	return err;
}

/* Drop the attachments a consumer left behind at the end of @qp. */
void vib_mcast_forget(struct vib_qp *qp)
{
	struct vib_attach *a;
	struct hlist_node *n;
	int i;

	spin_lock_irq(&qp->port->mc_lock);
	for (i = 0; i < VIB_MC_HASH; i++)
		hlist_for_each_entry_safe(a, n, &qp->port->mc[i], node)
			if (a->qp == qp) {
				vib_strict(VIB_S_LEAK);
				vib_mc_remove(qp, a);
			}
	spin_unlock_irq(&qp->port->mc_lock);
	synchronize_rcu_expedited();
}

/*
 * Hand @p to every QP of @port attached to its group, but @skip (NULL: none).
 * RCU read side. Returns VIB_OK when one took it, else why the last did not.
 */
enum vib_verdict vib_port_mcast(struct vib_port *port, struct vib_pkt *p,
				struct vib_qp *skip, struct vib_kicks *k)
{
	enum vib_verdict v = VIB_NO_MEMBER, r;
	struct vib_attach *a;

	hlist_for_each_entry_rcu(a, vib_mc_bucket(port, &p->dgid), node) {
		if (a->mlid != p->dlid || a->qp == skip ||
		    memcmp(&a->mgid, &p->dgid, sizeof(a->mgid)))
			continue;
		r = vib_qp_rx_ud(port, a->qp, p, k);
		if (r == VIB_OK || v == VIB_NO_MEMBER)
			v = r;
	}
	return v;
}
