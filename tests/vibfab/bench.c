// SPDX-License-Identifier: GPL-2.0
/*
 * What the fabric itself costs: a kernel thread's worth of datagrams from one
 * port to another, without any network driver. With a clock that counts
 * instructions (scripts/guest run --icount) nanoseconds are instructions.
 */

#include <linux/dma-mapping.h>
#include <linux/ktime.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include "cmd.h"

#define VIB_BATCH	32

struct vib_side {
	struct ib_device *dev;
	struct ib_pd *pd;
	struct ib_cq *scq;
	struct ib_cq *rcq;
	struct ib_qp *qp;
	void *buf;
	u64 dma;
	u32 size;
};

static char vib_bench_result[256];

const char *vib_bench_text(void)
{
	return vib_bench_result;
}

static int vib_side_ready(struct vib_side *s, u32 port)
{
	struct ib_qp_attr a = {
		.qp_state = IB_QPS_INIT,
		.port_num = port,
		.qkey = 0x7ab,
	};
	int err;

	err = ib_modify_qp(s->qp, &a, IB_QP_STATE | IB_QP_PORT |
			   IB_QP_PKEY_INDEX | IB_QP_QKEY);
	if (err)
		return err;
	a.qp_state = IB_QPS_RTR;
	err = ib_modify_qp(s->qp, &a, IB_QP_STATE);
	if (err)
		return err;
	a.qp_state = IB_QPS_RTS;
	return ib_modify_qp(s->qp, &a, IB_QP_STATE | IB_QP_SQ_PSN);
}

static int vib_side_open(struct vib_side *s, struct vib_port *port, u32 size)
{
	struct ib_cq_init_attr cq = { .cqe = 2 * VIB_BATCH };
	struct ib_qp_init_attr init = {
		.cap = {
			.max_send_wr = VIB_BATCH,
			.max_recv_wr = VIB_BATCH,
			.max_send_sge = 1,
			.max_recv_sge = 1,
		},
		.sq_sig_type = IB_SIGNAL_ALL_WR,
		.qp_type = IB_QPT_UD,
	};

	s->dev = &port->hca->ibdev;
	s->size = size;
	s->pd = ib_alloc_pd(s->dev, 0);
	if (IS_ERR(s->pd))
		return PTR_ERR(s->pd);
	s->scq = ib_create_cq(s->dev, NULL, NULL, NULL, &cq);
	if (IS_ERR(s->scq))
		return PTR_ERR(s->scq);
	s->rcq = ib_create_cq(s->dev, NULL, NULL, NULL, &cq);
	if (IS_ERR(s->rcq))
		return PTR_ERR(s->rcq);
	init.send_cq = s->scq;
	init.recv_cq = s->rcq;
	s->qp = ib_create_qp(s->pd, &init);
	if (IS_ERR(s->qp))
		return PTR_ERR(s->qp);
	s->buf = kzalloc(size, GFP_KERNEL);
	if (!s->buf)
		return -ENOMEM;
	s->dma = ib_dma_map_single(s->dev, s->buf, size, DMA_BIDIRECTIONAL);
	if (ib_dma_mapping_error(s->dev, s->dma)) {
		kfree(s->buf);
		s->buf = NULL;
		return -ENOMEM;
	}
	return vib_side_ready(s, port->num);
}

static void vib_side_close(struct vib_side *s)
{
	if (!IS_ERR_OR_NULL(s->qp))
		ib_destroy_qp(s->qp);
	if (s->buf)
		ib_dma_unmap_single(s->dev, s->dma, s->size, DMA_BIDIRECTIONAL);
	kfree(s->buf);
	if (!IS_ERR_OR_NULL(s->rcq))
		ib_destroy_cq(s->rcq);
	if (!IS_ERR_OR_NULL(s->scq))
		ib_destroy_cq(s->scq);
	if (!IS_ERR_OR_NULL(s->pd))
		ib_dealloc_pd(s->pd);
}

static int vib_bench_batch(struct vib_side *tx, struct vib_side *rx,
			   struct ib_ah *ah, u32 len)
{
	struct ib_sge tsge = {
		.addr = tx->dma, .length = len, .lkey = tx->pd->local_dma_lkey,
	};
	struct ib_sge rsge = {
		.addr = rx->dma, .length = len + VIB_GRH_LEN,
		.lkey = rx->pd->local_dma_lkey,
	};
	struct ib_recv_wr rwr = { .sg_list = &rsge, .num_sge = 1 };
	struct ib_ud_wr swr = {
		.wr = { .sg_list = &tsge, .num_sge = 1, .opcode = IB_WR_SEND },
		.ah = ah,
		.remote_qpn = rx->qp->qp_num,
		.remote_qkey = 0x7ab,
	};
	struct ib_wc wc[4];
	int i, n, err;

	for (i = 0; i < VIB_BATCH; i++) {
		err = ib_post_recv(rx->qp, &rwr, NULL);
		if (err)
			return err;
	}
	for (i = 0; i < VIB_BATCH; i++) {
		err = ib_post_send(tx->qp, &swr.wr, NULL);
		if (err)
			return err;
	}
	for (i = 0; i < VIB_BATCH; i += n) {
		n = ib_poll_cq(tx->scq, ARRAY_SIZE(wc), wc);
		if (n <= 0 || wc[0].status != IB_WC_SUCCESS)
			return -EIO;
	}
	for (i = 0; i < VIB_BATCH; i += n) {
		n = ib_poll_cq(rx->rcq, ARRAY_SIZE(wc), wc);
		if (n <= 0 || wc[0].status != IB_WC_SUCCESS ||
		    wc[0].byte_len != len + VIB_GRH_LEN)
			return -EIO;
	}
	return 0;
}

static int vib_bench_run(struct vib_port *from, struct vib_port *to, u64 count,
			 u32 len)
{
	struct vib_side tx = {}, rx = {};
	struct rdma_ah_attr attr = { .type = RDMA_AH_ATTR_TYPE_IB };
	struct ib_ah *ah = NULL;
	u64 start, ns, done;
	int err;

	err = vib_side_open(&tx, from, len + VIB_GRH_LEN);
	if (!err)
		err = vib_side_open(&rx, to, len + VIB_GRH_LEN);
	if (err)
		goto out;
	rdma_ah_set_dlid(&attr, to->lid);
	rdma_ah_set_port_num(&attr, from->num);
	ah = rdma_create_ah(tx.pd, &attr, RDMA_CREATE_AH_SLEEPABLE);
	if (IS_ERR(ah)) {
		err = PTR_ERR(ah);
		goto out;
	}
	err = vib_bench_batch(&tx, &rx, ah, len);	/* warm up */
	start = ktime_get_ns();
	for (done = 0; done < count && !err; done += VIB_BATCH) {
		err = vib_bench_batch(&tx, &rx, ah, len);
		if (fatal_signal_pending(current))
			err = -EINTR;
		cond_resched();
	}
	ns = ktime_get_ns() - start;
	if (!err)
		snprintf(vib_bench_result, sizeof(vib_bench_result),
			 "packets=%llu len=%u ns=%llu ns_per_packet=%llu\n",
			 done, len, ns, done ? div64_u64(ns, done) : 0);
	rdma_destroy_ah(ah, RDMA_DESTROY_AH_SLEEPABLE);
out:
	vib_side_close(&rx);
	vib_side_close(&tx);
	return err;
}

/* bench vibH/P vibH/P COUNT LEN */
int vib_cmd_bench(struct vib_cmd *c)
{
	struct vib_port *from, *to;
	u64 count, len;
	int err;

	if (c->n != 5 || vib_cmd_u64(c, 3, 100000000, &count) ||
	    vib_cmd_u64(c, 4, vib_par.mtu, &len) || !len)
		return -EINVAL;
	mutex_lock(&vib_fab.mutex);
	err = vib_port_of(c->w[1], &from) ?: vib_port_of(c->w[2], &to) ?:
	      vib_bench_run(from, to, count, len);
	mutex_unlock(&vib_fab.mutex);
	return err;
}
