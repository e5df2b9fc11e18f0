// SPDX-License-Identifier: GPL-2.0
/* The ends that checks talk through: objects, states, posting, waiting. */

#include <linux/delay.h>
#include <linux/dma-mapping.h>
#include <linux/slab.h>
#include <linux/smp.h>
#include "check.h"

/* Far more than anything takes, even on a loaded machine. */
#define VC_WAIT_MS	30000

static void vc_event(struct ib_event *ev, void *ctx)
{
	struct vc_end *e = ctx;

	if (ev->event < VC_EVENTS)
		atomic_inc(&e->event[ev->event]);
}

static void vc_send_kick(struct ib_cq *cq, void *ctx)
{
	atomic_inc(&((struct vc_end *)ctx)->skicks);
}

static void vc_recv_kick(struct ib_cq *cq, void *ctx)
{
	struct vc_end *e = ctx;

	e->kick_cpu = raw_smp_processor_id();
	atomic_inc(&e->rkicks);
}

static int vc_open_qp(struct vc_end *e, const struct vc_cfg *cfg, u32 wr)
{
	struct ib_qp_init_attr init = {
		.event_handler = vc_event,
		.qp_context = e,
		.send_cq = e->scq,
		.recv_cq = e->rcq,
		.srq = e->srq,
		.cap = {
			.max_send_wr = wr,
			.max_recv_wr = e->srq ? 0 : wr,
			.max_send_sge = 1,
			.max_recv_sge = 1,
		},
		.sq_sig_type = IB_SIGNAL_ALL_WR,
		.qp_type = cfg->type ?: IB_QPT_UD,
		.create_flags = cfg->flags,
	};

	e->qp = ib_create_qp(e->pd, &init);
	return PTR_ERR_OR_ZERO(e->qp);
}

static int vc_open_objects(struct vc_end *e, const struct vc_cfg *cfg)
{
	u32 wr = cfg->wr ?: 16;
	struct ib_cq_init_attr cq = {
		.cqe = 64,
		.comp_vector = cfg->vector,
	};
	struct ib_srq_init_attr srq = {
		.event_handler = vc_event,
		.srq_context = e,
		.attr = { .max_wr = cfg->srq, .max_sge = 1 },
		.srq_type = IB_SRQT_BASIC,
	};

	e->pd = ib_alloc_pd(e->dev, 0);
	if (IS_ERR(e->pd))
		return PTR_ERR(e->pd);
	e->scq = ib_create_cq(e->dev, vc_send_kick, vc_event, e, &cq);
	if (IS_ERR(e->scq))
		return PTR_ERR(e->scq);
	cq.cqe = cfg->rcqe ?: 64;
	e->rcq = ib_create_cq(e->dev, vc_recv_kick, vc_event, e, &cq);
	if (IS_ERR(e->rcq))
		return PTR_ERR(e->rcq);
	if (cfg->srq) {
		e->srq = ib_create_srq(e->pd, &srq);
		if (IS_ERR(e->srq))
			return PTR_ERR(e->srq);
	}
	return vc_open_qp(e, cfg, wr);
}

/*
 * Make the objects of one end on a port; the QP stays in RESET. After an
 * error, too, vc_close() takes away what there is.
 */
int vc_open(struct vc_end *e, const char *dev, u32 port,
	    const struct vc_cfg *cfg)
{
	struct ib_port_attr pa;
	int err;

	e->dev = vc_device(dev);
	if (!e->dev)
		return -ENODEV;
	err = ib_query_port(e->dev, port, &pa);
	if (err)
		return err;
	e->port = port;
	e->lid = pa.lid;
	e->mtu = ib_mtu_enum_to_int(pa.active_mtu);
	e->buf = kzalloc(VC_BUF, GFP_KERNEL);
	if (!e->buf)
		return -ENOMEM;
	e->dma = ib_dma_map_single(e->dev, e->buf, VC_BUF, DMA_BIDIRECTIONAL);
	if (ib_dma_mapping_error(e->dev, e->dma)) {
		kfree(e->buf);
		e->buf = NULL;
		return -ENOMEM;
	}
	return vc_open_objects(e, cfg);
}

void vc_close(struct vc_end *e)
{
	if (!e->dev)
		return;
	if (!IS_ERR_OR_NULL(e->ah))
		rdma_destroy_ah(e->ah, RDMA_DESTROY_AH_SLEEPABLE);
	if (!IS_ERR_OR_NULL(e->qp))
		ib_destroy_qp(e->qp);
	if (!IS_ERR_OR_NULL(e->srq))
		ib_destroy_srq(e->srq);
	if (!IS_ERR_OR_NULL(e->rcq))
		ib_destroy_cq(e->rcq);
	if (!IS_ERR_OR_NULL(e->scq))
		ib_destroy_cq(e->scq);
	if (!IS_ERR_OR_NULL(e->pd))
		ib_dealloc_pd(e->pd);
	if (e->buf)
		ib_dma_unmap_single(e->dev, e->dma, VC_BUF, DMA_BIDIRECTIONAL);
	kfree(e->buf);
	ib_device_put(e->dev);
	e->dev = NULL;
}

/* Move the QP one step; a UD QP gets what each step needs. */
int vc_state(struct vc_end *e, enum ib_qp_state state)
{
	struct ib_qp_attr a = {
		.qp_state = state,
		.port_num = e->port,
		.qkey = VC_QKEY,
	};
	int mask = IB_QP_STATE;

	if (state == IB_QPS_INIT)
		mask |= IB_QP_PORT | IB_QP_PKEY_INDEX |
			(e->qp->qp_type == IB_QPT_UD ? IB_QP_QKEY :
						       IB_QP_ACCESS_FLAGS);
	else if (state == IB_QPS_RTS && vc_query(e) == IB_QPS_RTR)
		mask |= IB_QP_SQ_PSN;
	return ib_modify_qp(e->qp, &a, mask);
}

enum ib_qp_state vc_query(struct vc_end *e)
{
	struct ib_qp_init_attr init;
	struct ib_qp_attr a;

	return ib_query_qp(e->qp, &a, IB_QP_STATE, &init) ? -1 : a.qp_state;
}

/* RESET to RTR, connected with @peer. */
int vc_rc_rtr(struct vc_end *e, const struct vc_end *peer)
{
	struct ib_qp_attr a = {
		.qp_state = IB_QPS_RTR,
		.path_mtu = IB_MTU_1024,
		.dest_qp_num = peer->qp->qp_num,
		.rq_psn = 1,
		.min_rnr_timer = 1,
		.ah_attr.type = RDMA_AH_ATTR_TYPE_IB,
	};
	int err;

	err = vc_state(e, IB_QPS_INIT);
	if (err)
		return err;
	rdma_ah_set_dlid(&a.ah_attr, peer->lid);
	rdma_ah_set_port_num(&a.ah_attr, e->port);
	return ib_modify_qp(e->qp, &a, IB_QP_STATE | IB_QP_AV |
			    IB_QP_PATH_MTU | IB_QP_DEST_QPN | IB_QP_RQ_PSN |
			    IB_QP_MAX_DEST_RD_ATOMIC | IB_QP_MIN_RNR_TIMER);
}

/* RTR to RTS; the local ACK time-out is about a millisecond. */
int vc_rc_rts(struct vc_end *e, u8 retry, u8 rnr_retry)
{
	struct ib_qp_attr a = {
		.qp_state = IB_QPS_RTS,
		.timeout = 8,
		.retry_cnt = retry,
		.rnr_retry = rnr_retry,
		.sq_psn = 1,
	};

	return ib_modify_qp(e->qp, &a, IB_QP_STATE | IB_QP_TIMEOUT |
			    IB_QP_RETRY_CNT | IB_QP_RNR_RETRY | IB_QP_SQ_PSN |
			    IB_QP_MAX_QP_RD_ATOMIC);
}

/* Post a receive of @len bytes, GRH included, into a slot. */
int vc_recv(struct vc_end *e, u32 slot, u32 len)
{
	struct ib_sge sge = {
		.addr = e->dma + (slot % 14 + 1) * VC_SLOT,
		.length = len,
		.lkey = e->pd->local_dma_lkey,
	};
	struct ib_recv_wr wr = { .wr_id = slot, .sg_list = &sge, .num_sge = 1 };

	return e->srq ? ib_post_srq_recv(e->srq, &wr, NULL) :
			ib_post_recv(e->qp, &wr, NULL);
}

/* Post a send with immediate data; @to is for a UD QP, which needs e->ah. */
int vc_send_imm(struct vc_end *e, const struct vc_end *to, u32 len, u32 imm,
		int flags)
{
	struct ib_sge sge = {
		.addr = e->dma,
		.length = len,
		.lkey = e->pd->local_dma_lkey,
	};
	struct ib_ud_wr wr = {
		.wr = {
			.wr_id = imm,
			.sg_list = &sge,
			.num_sge = 1,
			.opcode = IB_WR_SEND_WITH_IMM,
			.send_flags = flags,
			.ex.imm_data = cpu_to_be32(imm),
		},
		.ah = e->ah,
		.remote_qpn = to->qp->qp_num,
		.remote_qkey = VC_QKEY,
	};

	return ib_post_send(e->qp, &wr.wr, NULL);
}

int vc_send(struct vc_end *e, const struct vc_end *to, u32 len)
{
	return vc_send_imm(e, to, len, 0, 0);
}

/* Wait for one completion. */
int vc_wait(struct ib_cq *cq, struct ib_wc *wc)
{
	int i;

	for (i = 0; i < VC_WAIT_MS; i++) {
		if (ib_poll_cq(cq, 1, wc) == 1)
			return 0;
		usleep_range(1000, 1500);
	}
	return -ETIMEDOUT;
}

/* Wait until @count is at least @want. */
bool vc_wait_count(atomic_t *count, int want)
{
	int i;

	for (i = 0; i < VC_WAIT_MS && atomic_read(count) < want; i++)
		usleep_range(1000, 1500);
	return atomic_read(count) >= want;
}

/* An address handle; with a GRH when @dgid is given. */
struct ib_ah *vc_ah(struct vc_end *e, u16 lid, const union ib_gid *dgid)
{
	struct rdma_ah_attr attr = { .type = RDMA_AH_ATTR_TYPE_IB };

	rdma_ah_set_dlid(&attr, lid);
	rdma_ah_set_port_num(&attr, e->port);
	if (dgid) {
		rdma_ah_set_grh(&attr, NULL, 0x12345, 0, 7, 0x21);
		rdma_ah_set_dgid_raw(&attr, (void *)dgid->raw);
	}
	return rdma_create_ah(e->pd, &attr, RDMA_CREATE_AH_SLEEPABLE);
}

/* Two UD ends in RTS on two HCAs, each with an address handle to the other. */
int vc_pair(struct vc *c, const struct vc_cfg *a, const struct vc_cfg *b)
{
	struct vc_end *e[2] = { &c->a, &c->b };
	enum ib_qp_state st;
	int i;

	VC_TRY(c, vc_open(&c->a, "vib0", 1, a));
	VC_TRY(c, vc_open(&c->b, "vib1", 1, b));
	for (i = 0; i < 2; i++) {
		for (st = IB_QPS_INIT; st <= IB_QPS_RTS; st++)
			VC_TRY(c, vc_state(e[i], st));
		e[i]->ah = vc_ah(e[i], e[!i]->lid, NULL);
		VC_TRY(c, PTR_ERR_OR_ZERO(e[i]->ah));
	}
	return 0;
}
