// SPDX-License-Identifier: GPL-2.0
/*
 * What a consumer must not do. Each check does it and looks at the answer;
 * that it was counted, the reader of vibfab's file "strict" sees.
 */

#include <linux/err.h>
#include "check.h"

static const struct vc_cfg vc_plain;

static int vc_overpost_sq(struct vc *c)
{
	struct vc_cfg small = { .wr = 4 };
	struct ib_wc wc;
	int i;

	VC_TRY(c, vc_pair(c, &small, &vc_plain));
	for (i = 0; i < 4; i++)
		VC_TRY(c, vc_send(&c->a, &c->b, 8));
	/* completed but not polled: still the sender's */
	VC_EXPECT(c, vc_send(&c->a, &c->b, 8) == -ENOMEM, "a fifth of four");
	VC_TRY(c, vc_wait(c->a.scq, &wc));
	VC_TRY(c, vc_send(&c->a, &c->b, 8));
	return 0;
}

static int vc_overpost_rq(struct vc *c)
{
	struct vc_cfg small = { .wr = 4 };
	int i;

	VC_TRY(c, vc_pair(c, &small, &vc_plain));
	for (i = 0; i < 4; i++)
		VC_TRY(c, vc_recv(&c->a, i, 100));
	VC_EXPECT(c, vc_recv(&c->a, 4, 100) == -ENOMEM, "a fifth of four");
	return 0;
}

/* An address handle of another protection domain. */
static int vc_foreign_ah(struct vc *c)
{
	struct ib_ah *own;
	struct ib_wc wc;
	int err;

	VC_TRY(c, vc_pair(c, &vc_plain, &vc_plain));
	own = c->a.ah;
	c->a.ah = c->b.ah;
	err = vc_send(&c->a, &c->b, 8);
	c->a.ah = own;
	VC_TRY(c, err);
	VC_TRY(c, vc_wait(c->a.scq, &wc));
	VC_EXPECT(c, wc.status == IB_WC_LOC_QP_OP_ERR, "%d", wc.status);
	VC_EXPECT(c, vc_query(&c->a) == IB_QPS_SQE, "%d", vc_query(&c->a));
	return 0;
}

/* Receives in RESET; sends before RTS. */
static int vc_bad_state(struct vc *c)
{
	VC_TRY(c, vc_pair(c, &vc_plain, &vc_plain));
	VC_TRY(c, vc_state(&c->a, IB_QPS_RESET));
	VC_EXPECT(c, vc_recv(&c->a, 0, 100) == -EINVAL, "in RESET");
	VC_TRY(c, vc_state(&c->a, IB_QPS_INIT));
	VC_TRY(c, vc_recv(&c->a, 0, 100));
	VC_EXPECT(c, vc_send(&c->a, &c->b, 8) == -EINVAL, "in INIT");
	return 0;
}

static int vc_sges(struct vc *c)
{
	struct ib_sge sge[2] = {};
	struct ib_recv_wr rwr = { .sg_list = sge, .num_sge = 2 };
	struct ib_ud_wr swr = {
		.wr = { .sg_list = sge, .num_sge = 2, .opcode = IB_WR_SEND },
	};
	int i;

	VC_TRY(c, vc_pair(c, &vc_plain, &vc_plain));
	for (i = 0; i < 2; i++) {
		sge[i].addr = c->a.dma + i * VC_SLOT;
		sge[i].length = 50;
		sge[i].lkey = c->a.pd->local_dma_lkey;
	}
	swr.ah = c->a.ah;
	swr.remote_qkey = VC_QKEY;
	VC_EXPECT(c, ib_post_recv(c->a.qp, &rwr, NULL) == -EINVAL, "receive");
	VC_EXPECT(c, ib_post_send(c->a.qp, &swr.wr, NULL) == -EINVAL, "send");
	return 0;
}

static int vc_lkey(struct vc *c)
{
	struct ib_sge sge = { .length = 50 };
	struct ib_recv_wr rwr = { .sg_list = &sge, .num_sge = 1 };
	struct ib_ud_wr swr = {
		.wr = { .sg_list = &sge, .num_sge = 1, .opcode = IB_WR_SEND },
	};

	VC_TRY(c, vc_pair(c, &vc_plain, &vc_plain));
	sge.addr = c->a.dma;
	sge.lkey = c->a.pd->local_dma_lkey + 1;
	swr.ah = c->a.ah;
	swr.remote_qkey = VC_QKEY;
	VC_EXPECT(c, ib_post_recv(c->a.qp, &rwr, NULL) == -EINVAL, "receive");
	VC_EXPECT(c, ib_post_send(c->a.qp, &swr.wr, NULL) == -EINVAL, "send");
	return 0;
}

/* A buffer posted while it is posted (seen with strict=2). */
static int vc_double_post(struct vc *c)
{
	VC_TRY(c, vc_pair(c, &vc_plain, &vc_plain));
	VC_TRY(c, vc_recv(&c->a, 0, 100));
	VC_TRY(c, vc_recv(&c->a, 1, 100));
	VC_TRY(c, vc_recv(&c->a, 0, 100));
	return 0;
}

/* A bus address with no memory behind it (dma=direct only). */
static int vc_dma_addr(struct vc *c)
{
	struct ib_sge sge = { .addr = 1ULL << 50, .length = 50 };
	struct ib_ud_wr swr = {
		.wr = { .sg_list = &sge, .num_sge = 1, .opcode = IB_WR_SEND },
	};
	struct ib_wc wc;

	VC_TRY(c, vc_pair(c, &vc_plain, &vc_plain));
	VC_EXPECT(c, !ib_uses_virt_dma(c->a.dev), "it would be dereferenced");
	sge.lkey = c->a.pd->local_dma_lkey;
	swr.ah = c->a.ah;
	swr.remote_qpn = c->b.qp->qp_num;
	swr.remote_qkey = VC_QKEY;
	VC_TRY(c, vc_recv(&c->b, 0, 200));
	VC_TRY(c, ib_post_send(c->a.qp, &swr.wr, NULL));
	VC_TRY(c, vc_wait(c->b.rcq, &wc));
	return 0;
}

static int vc_zero_qkey(struct vc *c)
{
	struct ib_sge sge = { .length = 8 };
	struct ib_ud_wr swr = {
		.wr = { .sg_list = &sge, .num_sge = 1, .opcode = IB_WR_SEND },
	};
	struct ib_wc wc;

	VC_TRY(c, vc_pair(c, &vc_plain, &vc_plain));
	sge.addr = c->a.dma;
	sge.lkey = c->a.pd->local_dma_lkey;
	swr.ah = c->a.ah;
	swr.remote_qpn = c->b.qp->qp_num;
	VC_TRY(c, ib_post_send(c->a.qp, &swr.wr, NULL));
	VC_TRY(c, vc_wait(c->a.scq, &wc));
	VC_EXPECT(c, !wc.status, "%d", wc.status);
	return 0;
}

static int vc_leak_objects(struct vc *c, struct ib_device *dev)
{
	static const union ib_gid mgid = { .raw = { 0xff, 0x12, 0x40, 0x1b } };
	struct ib_cq_init_attr cq = { .cqe = 16 };
	struct ib_srq_init_attr srq = {
		.attr = { .max_wr = 4, .max_sge = 1 },
		.srq_type = IB_SRQT_BASIC,
	};
	struct ib_qp_init_attr qp = {
		.cap = { .max_send_wr = 4, .max_send_sge = 1 },
		.qp_type = IB_QPT_UD,
	};
	struct vc_end e = { .dev = dev, .port = 1 };

	/* with a memory region of its own */
	e.pd = ib_alloc_pd(dev, IB_PD_UNSAFE_GLOBAL_RKEY);
	VC_TRY(c, PTR_ERR_OR_ZERO(e.pd));
	e.ah = vc_ah(&e, 5, NULL);
	VC_TRY(c, PTR_ERR_OR_ZERO(e.ah));
	e.scq = ib_create_cq(dev, NULL, NULL, NULL, &cq);
	VC_TRY(c, PTR_ERR_OR_ZERO(e.scq));
	e.srq = ib_create_srq(e.pd, &srq);
	VC_TRY(c, PTR_ERR_OR_ZERO(e.srq));
	qp.send_cq = e.scq;
	qp.recv_cq = e.scq;
	qp.srq = e.srq;
	e.qp = ib_create_qp(e.pd, &qp);
	VC_TRY(c, PTR_ERR_OR_ZERO(e.qp));
	VC_TRY(c, vc_state(&e, IB_QPS_INIT));
	VC_TRY(c, ib_attach_mcast(e.qp, (union ib_gid *)&mgid, 0xc0f1));
	return 0;
}

/* Leaves one object of each kind to vib1, for good. */
static int vc_leak(struct vc *c)
{
	struct ib_device *dev = vc_device("vib1");
	int err;

	VC_EXPECT(c, dev, "no device");
	err = vc_leak_objects(c, dev);
	ib_device_put(dev);
	return err;
}

/* A QP that goes while it is attached to a group. */
static int vc_leak_mcast(struct vc *c)
{
	static const union ib_gid mgid = { .raw = { 0xff, 0x12, 0x40, 0x1b } };

	VC_TRY(c, vc_pair(c, &vc_plain, &vc_plain));
	VC_TRY(c, ib_attach_mcast(c->a.qp, (union ib_gid *)&mgid, 0xc0f1));
	/* the core does not let it: it counts attachments, too */
	VC_EXPECT(c, ib_destroy_qp(c->a.qp) == -EBUSY, "destroyed");
	VC_TRY(c, ib_detach_mcast(c->a.qp, (union ib_gid *)&mgid, 0xc0f1));
	return 0;
}

const struct vc_check vc_misuse_checks[] = {
	{ "overpost_sq", vc_overpost_sq },
	{ "overpost_rq", vc_overpost_rq },
	{ "foreign_ah", vc_foreign_ah },
	{ "bad_state", vc_bad_state },
	{ "sges", vc_sges },
	{ "lkey", vc_lkey },
	{ "double_post", vc_double_post },
	{ "dma_addr", vc_dma_addr },
	{ "zero_qkey", vc_zero_qkey },
	{ "leak", vc_leak },
	{ "attached", vc_leak_mcast },
	{}
};
