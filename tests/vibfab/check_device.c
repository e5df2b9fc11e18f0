// SPDX-License-Identifier: GPL-2.0
/*
 * Checks of the device: its limits, and DMA. With dma=direct and bounce
 * buffers (swiotlb=force) the HCA sees nothing of a buffer, and the CPU nothing
 * of what the HCA wrote, until the buffer is synchronised or unmapped.
 */

#include <linux/dma-mapping.h>
#include "check.h"

static const struct vc_cfg vc_plain;

static bool vc_refuses_cq(struct vc_end *e, u32 cqe, u32 vector)
{
	struct ib_cq_init_attr attr = { .cqe = cqe, .comp_vector = vector };
	struct ib_cq *cq = ib_create_cq(e->dev, NULL, NULL, NULL, &attr);

	if (!IS_ERR(cq))
		ib_destroy_cq(cq);
	return IS_ERR(cq);
}

static bool vc_refuses_srq(struct vc_end *e, u32 wr, u32 sge)
{
	struct ib_srq_init_attr attr = {
		.attr = { .max_wr = wr, .max_sge = sge },
		.srq_type = IB_SRQT_BASIC,
	};
	struct ib_srq *srq = ib_create_srq(e->pd, &attr);

	if (!IS_ERR(srq))
		ib_destroy_srq(srq);
	return IS_ERR(srq);
}

static bool vc_refuses_qp(struct vc_end *e, u32 swr, u32 rwr, u32 ssge,
			  u32 rsge)
{
	struct ib_qp_init_attr attr = {
		.send_cq = e->scq,
		.recv_cq = e->rcq,
		.cap = {
			.max_send_wr = swr,
			.max_recv_wr = rwr,
			.max_send_sge = ssge,
			.max_recv_sge = rsge,
		},
		.qp_type = IB_QPT_UD,
	};
	struct ib_qp *qp = ib_create_qp(e->pd, &attr);

	if (!IS_ERR(qp))
		ib_destroy_qp(qp);
	return IS_ERR(qp);
}

/* The device does what it says it can do, and no more. */
static int vc_limits(struct vc *c)
{
	struct vc_cfg cfg = {};
	struct ib_device_attr *d;
	struct vc_end *e = &c->a;
	u32 vectors;

	VC_TRY(c, vc_open(e, "vib0", 1, &cfg));
	d = &e->dev->attrs;
	vectors = e->dev->num_comp_vectors;
	VC_EXPECT(c, !vc_refuses_cq(e, d->max_cqe, 0), "%d", d->max_cqe);
	VC_EXPECT(c, vc_refuses_cq(e, d->max_cqe + 1, 0), "%d", d->max_cqe);
	VC_EXPECT(c, !vc_refuses_cq(e, 2, vectors - 1), "vector %u", vectors - 1);
	VC_EXPECT(c, vc_refuses_cq(e, 2, vectors), "vector %u", vectors);
	VC_EXPECT(c, !vc_refuses_qp(e, d->max_qp_wr, d->max_qp_wr,
				    d->max_send_sge, d->max_recv_sge), "all");
	VC_EXPECT(c, vc_refuses_qp(e, d->max_qp_wr + 1, 1, 1, 1), "sends");
	VC_EXPECT(c, vc_refuses_qp(e, 1, d->max_qp_wr + 1, 1, 1), "receives");
	VC_EXPECT(c, vc_refuses_qp(e, 1, 1, d->max_send_sge + 1, 1), "gather");
	VC_EXPECT(c, vc_refuses_qp(e, 1, 1, 1, d->max_recv_sge + 1), "scatter");
	if (d->max_srq) {
		VC_EXPECT(c, !vc_refuses_srq(e, d->max_srq_wr, d->max_srq_sge),
			  "shared");
		VC_EXPECT(c, vc_refuses_srq(e, d->max_srq_wr + 1, 1),
			  "shared receives");
		VC_EXPECT(c, vc_refuses_srq(e, 1, d->max_srq_sge + 1),
			  "shared scatter");
	} else {
		VC_EXPECT(c, vc_refuses_srq(e, 1, 1), "shared at all");
	}
	snprintf(c->text, sizeof(c->text),
		 "max_wr=%d max_cqe=%d max_send_sge=%d max_recv_sge=%d max_srq_sge=%d mtu=%u vectors=%d",
		 d->max_qp_wr, d->max_cqe, d->max_send_sge, d->max_recv_sge,
		 d->max_srq_sge, e->mtu, e->dev->num_comp_vectors);
	return 0;
}

/* Send 100 bytes; they arrive in the slot of receive @slot. */
static int vc_carry(struct vc *c, u32 slot)
{
	struct ib_wc wc;

	VC_TRY(c, vc_recv(&c->b, slot, 200));
	VC_TRY(c, vc_send(&c->a, &c->b, 100));
	VC_TRY(c, vc_wait(c->a.scq, &wc));
	VC_EXPECT(c, !wc.status, "%d", wc.status);
	VC_TRY(c, vc_wait(c->b.rcq, &wc));
	VC_EXPECT(c, !wc.status && wc.byte_len == 100 + VC_GRH, "%d, %u",
		  wc.status, wc.byte_len);
	return 0;
}

/* A consumer that forgets to synchronise: wrong data, in both directions. */
static int vc_bounce(struct vc *c)
{
	u8 *slot;

	VC_TRY(c, vc_pair(c, &vc_plain, &vc_plain));
	VC_EXPECT(c, !ib_uses_virt_dma(c->a.dev), "dma=virt");
	slot = c->b.buf + VC_SLOT;

	/* written after the mapping: the HCA does not see it */
	memset(c->a.buf, 0x77, 100);
	if (vc_carry(c, 0))
		return -EPROTO;
	/* arrived, and the CPU does not see it */
	VC_EXPECT(c, !slot[0] && !slot[VC_GRH], "0x%x 0x%x before the sync",
		  slot[0], slot[VC_GRH]);
	ib_dma_sync_single_for_cpu(c->b.dev, c->b.dma, VC_BUF,
				   DMA_BIDIRECTIONAL);
	VC_EXPECT(c, slot[0] == 0xa5, "0x%x: nothing arrived", slot[0]);
	VC_EXPECT(c, !slot[VC_GRH], "0x%x was sent", slot[VC_GRH]);

	ib_dma_sync_single_for_device(c->a.dev, c->a.dma, VC_BUF,
				      DMA_BIDIRECTIONAL);
	ib_dma_sync_single_for_device(c->b.dev, c->b.dma, VC_BUF,
				      DMA_BIDIRECTIONAL);
	slot += VC_SLOT;
	if (vc_carry(c, 1))
		return -EPROTO;
	VC_EXPECT(c, !slot[VC_GRH], "0x%x before the sync", slot[VC_GRH]);
	ib_dma_sync_single_for_cpu(c->b.dev, c->b.dma, VC_BUF,
				   DMA_BIDIRECTIONAL);
	VC_EXPECT(c, slot[VC_GRH] == 0x77 && slot[VC_GRH + 99] == 0x77,
		  "0x%x arrived", slot[VC_GRH]);
	return 0;
}

const struct vc_check vc_device_checks[] = {
	{ "limits", vc_limits },
	{ "bounce", vc_bounce },
	{}
};
