// SPDX-License-Identifier: GPL-2.0
/* Checks of datagrams: headers, keys, lengths, states, multicast loopback. */

#include <rdma/ib_cache.h>
#include <rdma/ib_pack.h>
#include "check.h"

static const union ib_gid vc_mgid = { .raw = {
	0xff, 0x12, 0x40, 0x1b, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4 } };
#define VC_MLID	0xc0f0

static const struct vc_cfg vc_plain;

/* A datagram arrives whole; without a GRH its place is poisoned. */
static int vc_datagram(struct vc *c)
{
	struct ib_wc wc;
	u32 i;

	VC_TRY(c, vc_pair(c, &vc_plain, &vc_plain));
	for (i = 0; i < 1000; i++)
		c->a.buf[i] = i * 7;
	VC_TRY(c, vc_recv(&c->b, 0, 2000));
	VC_TRY(c, vc_send_imm(&c->a, &c->b, 1000, 0xabcdef, 0));
	VC_TRY(c, vc_wait(c->a.scq, &wc));
	VC_EXPECT(c, !wc.status && wc.wr_id == 0xabcdef, "%d", wc.status);
	VC_TRY(c, vc_wait(c->b.rcq, &wc));
	VC_EXPECT(c, !wc.status && wc.byte_len == 1000 + VC_GRH, "%d, %u",
		  wc.status, wc.byte_len);
	VC_EXPECT(c, wc.src_qp == c->a.qp->qp_num && wc.slid == c->a.lid,
		  "0x%x, %u", wc.src_qp, wc.slid);
	VC_EXPECT(c, wc.wc_flags == IB_WC_WITH_IMM, "0x%x", wc.wc_flags);
	VC_EXPECT(c, be32_to_cpu(wc.ex.imm_data) == 0xabcdef, "0x%x",
		  be32_to_cpu(wc.ex.imm_data));
	VC_EXPECT(c, !memcmp(c->a.buf, c->b.buf + VC_SLOT + VC_GRH, 1000),
		  "other bytes");
	VC_EXPECT(c, c->b.buf[VC_SLOT] == 0xa5 &&
		  c->b.buf[VC_SLOT + VC_GRH - 1] == 0xa5, "no poison");
	return 0;
}

/* With a GRH, every field of it is what the address handle said. */
static int vc_grh(struct vc *c)
{
	union ib_gid sgid, dgid;
	struct ib_grh *grh;
	struct ib_wc wc;

	VC_TRY(c, vc_pair(c, &vc_plain, &vc_plain));
	VC_TRY(c, rdma_query_gid(c->a.dev, 1, 0, &sgid));
	VC_TRY(c, rdma_query_gid(c->b.dev, 1, 0, &dgid));
	rdma_destroy_ah(c->a.ah, RDMA_DESTROY_AH_SLEEPABLE);
	c->a.ah = vc_ah(&c->a, c->b.lid, &dgid);
	VC_TRY(c, PTR_ERR_OR_ZERO(c->a.ah));
	VC_TRY(c, vc_recv(&c->b, 0, 2000));
	VC_TRY(c, vc_send(&c->a, &c->b, 10));
	VC_TRY(c, vc_wait(c->b.rcq, &wc));
	VC_EXPECT(c, wc.wc_flags & IB_WC_GRH, "0x%x", wc.wc_flags);
	grh = (void *)c->b.buf + VC_SLOT;
	VC_EXPECT(c, be32_to_cpu(grh->version_tclass_flow) == 0x62112345,
		  "0x%x", be32_to_cpu(grh->version_tclass_flow));
	/* BTH 12, DETH 8, immediate 4, 10 bytes padded to 12, ICRC 4 */
	VC_EXPECT(c, be16_to_cpu(grh->paylen) == 40, "%u",
		  be16_to_cpu(grh->paylen));
	VC_EXPECT(c, grh->next_hdr == 0x1b && grh->hop_limit == 7, "0x%x, %u",
		  grh->next_hdr, grh->hop_limit);
	VC_EXPECT(c, !memcmp(&grh->sgid, &sgid, 16) &&
		  !memcmp(&grh->dgid, &dgid, 16), "other GIDs");
	return 0;
}

/*
 * A buffer that is one byte too short: dropped, and the buffer stays; with
 * strict_len (argument 1) a completion in error.
 */
static int vc_short_buffer(struct vc *c)
{
	struct ib_wc wc;

	VC_TRY(c, vc_pair(c, &vc_plain, &vc_plain));
	VC_TRY(c, vc_recv(&c->b, 3, VC_GRH + 20));
	VC_TRY(c, vc_send(&c->a, &c->b, 21));
	VC_TRY(c, vc_wait(c->a.scq, &wc));
	VC_EXPECT(c, !wc.status, "%d", wc.status);
	if (c->arg) {
		VC_TRY(c, vc_wait(c->b.rcq, &wc));
		VC_EXPECT(c, wc.status == IB_WC_LOC_LEN_ERR && wc.wr_id == 3,
			  "%d", wc.status);
		VC_TRY(c, vc_recv(&c->b, 4, VC_GRH + 20));
	}
	VC_EXPECT(c, !ib_poll_cq(c->b.rcq, 1, &wc), "a completion too many");
	VC_TRY(c, vc_send(&c->a, &c->b, 20));
	VC_TRY(c, vc_wait(c->b.rcq, &wc));
	VC_EXPECT(c, !wc.status && wc.byte_len == VC_GRH + 20 &&
		  wc.wr_id == (c->arg ? 4 : 3), "%d, %u, %llu", wc.status,
		  wc.byte_len, wc.wr_id);
	return 0;
}

/* The top bit of a Q_Key stands for the sending QP's own; others must match. */
static int vc_qkey(struct vc *c)
{
	struct ib_sge sge;
	struct ib_ud_wr wr = {
		.wr = { .sg_list = &sge, .num_sge = 1, .opcode = IB_WR_SEND },
	};
	static const u32 key[] = { VC_QKEY + 1, BIT(31), VC_QKEY };
	struct ib_wc wc;
	int i;

	VC_TRY(c, vc_pair(c, &vc_plain, &vc_plain));
	sge.addr = c->a.dma;
	sge.length = 8;
	sge.lkey = c->a.pd->local_dma_lkey;
	wr.ah = c->a.ah;
	wr.remote_qpn = c->b.qp->qp_num;
	for (i = 0; i < ARRAY_SIZE(key); i++) {
		wr.remote_qkey = key[i];
		VC_TRY(c, vc_recv(&c->b, i, 100));
		VC_TRY(c, ib_post_send(c->a.qp, &wr.wr, NULL));
		VC_TRY(c, vc_wait(c->a.scq, &wc));
		VC_EXPECT(c, !wc.status, "%d", wc.status);
		if (!i)
			VC_EXPECT(c, !ib_poll_cq(c->b.rcq, 1, &wc),
				  "a wrong Q_Key got through");
		else
			VC_TRY(c, vc_wait(c->b.rcq, &wc));
	}
	return 0;
}

/* More than the MTU: an error, SQE, flushes until the QP is back in RTS. */
static int vc_sqe(struct vc *c)
{
	struct ib_wc wc;

	VC_TRY(c, vc_pair(c, &vc_plain, &vc_plain));
	VC_TRY(c, vc_recv(&c->b, 0, 2000));
	VC_TRY(c, vc_send(&c->a, &c->b, c->a.mtu + 1));
	VC_TRY(c, vc_wait(c->a.scq, &wc));
	VC_EXPECT(c, wc.status == IB_WC_LOC_LEN_ERR, "%d", wc.status);
	VC_EXPECT(c, vc_query(&c->a) == IB_QPS_SQE, "%d", vc_query(&c->a));
	VC_TRY(c, vc_send(&c->a, &c->b, 10));
	VC_TRY(c, vc_wait(c->a.scq, &wc));
	VC_EXPECT(c, wc.status == IB_WC_WR_FLUSH_ERR, "%d", wc.status);
	VC_TRY(c, vc_state(&c->a, IB_QPS_RTS));
	VC_TRY(c, vc_send(&c->a, &c->b, 10));
	VC_TRY(c, vc_wait(c->a.scq, &wc));
	VC_EXPECT(c, !wc.status, "%d", wc.status);
	VC_TRY(c, vc_wait(c->b.rcq, &wc));
	VC_EXPECT(c, !wc.status && wc.byte_len == 10 + VC_GRH, "%d, %u",
		  wc.status, wc.byte_len);
	return 0;
}

/* In ERR everything comes back flushed: what was posted and what is posted. */
static int vc_err_flush(struct vc *c)
{
	struct ib_wc wc;
	int i;

	VC_TRY(c, vc_pair(c, &vc_plain, &vc_plain));
	for (i = 0; i < 3; i++)
		VC_TRY(c, vc_recv(&c->a, i, 100));
	VC_TRY(c, vc_state(&c->a, IB_QPS_ERR));
	VC_TRY(c, vc_recv(&c->a, 3, 100));
	for (i = 0; i < 4; i++) {
		VC_TRY(c, vc_wait(c->a.rcq, &wc));
		VC_EXPECT(c, wc.status == IB_WC_WR_FLUSH_ERR && wc.wr_id == i,
			  "%d, %llu", wc.status, wc.wr_id);
	}
	VC_TRY(c, vc_send(&c->a, &c->b, 10));
	VC_TRY(c, vc_wait(c->a.scq, &wc));
	VC_EXPECT(c, wc.status == IB_WC_WR_FLUSH_ERR, "%d", wc.status);
	return 0;
}

static int vc_join(struct vc *c, struct vc_end *e)
{
	enum ib_qp_state st;

	for (st = IB_QPS_INIT; st <= IB_QPS_RTS; st++)
		VC_TRY(c, vc_state(e, st));
	VC_TRY(c, ib_attach_mcast(e->qp, (union ib_gid *)&vc_mgid, VC_MLID));
	VC_TRY(c, vc_recv(e, 0, 100));
	e->ah = vc_ah(e, VC_MLID, &vc_mgid);
	VC_TRY(c, PTR_ERR_OR_ZERO(e->ah));
	return 0;
}

/*
 * Two members of a group on one port. Argument 0: the sender gets its own
 * back; 1: it asked for a QP that does not; 2: such a QP must not exist; 3: as
 * 0, on a fabric without such echoes.
 */
static int vc_loopback(struct vc *c)
{
	struct vc_cfg block = {
		.flags = IB_QP_CREATE_BLOCK_MULTICAST_LOOPBACK,
	};
	struct ib_wc wc;
	int n;

	if (c->arg == 2) {
		VC_EXPECT(c, vc_open(&c->a, "vib0", 1, &block), "accepted");
		return 0;
	}
	VC_TRY(c, vc_open(&c->a, "vib0", 1,
			  c->arg == 1 ? &block : &vc_plain));
	VC_TRY(c, vc_open(&c->b, "vib0", 1, &vc_plain));
	if (vc_join(c, &c->a) || vc_join(c, &c->b))
		return -EPROTO;
	VC_TRY(c, vc_send(&c->a, &c->b, 30));
	VC_TRY(c, vc_wait(c->b.rcq, &wc));
	VC_EXPECT(c, !wc.status && wc.byte_len == 30 + VC_GRH &&
		  wc.src_qp == c->a.qp->qp_num, "%d, %u", wc.status,
		  wc.byte_len);
	/* local copies are made before the send ends */
	VC_TRY(c, vc_wait(c->a.scq, &wc));
	n = ib_poll_cq(c->a.rcq, 1, &wc);
	VC_EXPECT(c, n == !c->arg, "%d", n);
	VC_TRY(c, ib_detach_mcast(c->a.qp, (union ib_gid *)&vc_mgid, VC_MLID));
	VC_TRY(c, ib_detach_mcast(c->b.qp, (union ib_gid *)&vc_mgid, VC_MLID));
	return 0;
}

/* Sixty datagrams; the text says as a bit mask which of them arrived. */
static int vc_burst(struct vc *c)
{
	struct vc_cfg cfg = { .wr = 64 };
	u64 arrived = 0;
	struct ib_wc wc;
	int i;

	VC_TRY(c, vc_pair(c, &cfg, &cfg));
	for (i = 0; i < 60; i++)
		VC_TRY(c, vc_recv(&c->b, i, 100));
	for (i = 0; i < 60; i++)
		VC_TRY(c, vc_send_imm(&c->a, &c->b, 8, i, 0));
	for (i = 0; i < 60; i++)
		VC_TRY(c, vc_wait(c->a.scq, &wc));
	while (ib_poll_cq(c->b.rcq, 1, &wc) == 1)
		arrived |= BIT_ULL(be32_to_cpu(wc.ex.imm_data) & 63);
	snprintf(c->text, sizeof(c->text), "arrived=0x%llx", arrived);
	return 0;
}

const struct vc_check vc_ud_checks[] = {
	{ "datagram", vc_datagram },
	{ "grh", vc_grh },
	{ "short_buffer", vc_short_buffer },
	{ "qkey", vc_qkey },
	{ "sqe", vc_sqe },
	{ "err_flush", vc_err_flush },
	{ "loopback", vc_loopback },
	{ "burst", vc_burst },
	{}
};
