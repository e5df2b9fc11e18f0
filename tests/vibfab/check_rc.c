// SPDX-License-Identifier: GPL-2.0
/* Checks of reliable connections and shared receive queues. */

#include <linux/preempt.h>
#include "check.h"

static const struct vc_cfg vc_plain = { .type = IB_QPT_RC };
static const struct vc_cfg vc_shared = { .type = IB_QPT_RC, .srq = 8 };

#define EVENTS(e, what)	atomic_read(&(e)->event[IB_EVENT_##what])

/* A connection from vib0 to vib1, both ends in RTS. */
static int vc_connect(struct vc *c, const struct vc_cfg *b, u8 retry,
		      u8 rnr_retry)
{
	VC_TRY(c, vc_open(&c->a, "vib0", 1, &vc_plain));
	VC_TRY(c, vc_open(&c->b, "vib1", 1, b));
	VC_TRY(c, vc_rc_rtr(&c->a, &c->b));
	VC_TRY(c, vc_rc_rtr(&c->b, &c->a));
	VC_TRY(c, vc_rc_rts(&c->a, retry, rnr_retry));
	VC_TRY(c, vc_rc_rts(&c->b, retry, rnr_retry));
	return 0;
}

/* Send @n messages; each must succeed. */
static int vc_messages(struct vc *c, u32 n)
{
	struct ib_wc wc;
	u32 i;

	for (i = 0; i < n; i++) {
		VC_TRY(c, vc_send(&c->a, &c->b, 8));
		VC_TRY(c, vc_wait(c->a.scq, &wc));
		VC_EXPECT(c, !wc.status, "%d", wc.status);
		VC_TRY(c, vc_wait(c->b.rcq, &wc));
		VC_EXPECT(c, !wc.status, "%d", wc.status);
	}
	return 0;
}

/* Wait for a send to end with @status and the QP to be in ERR. */
static int vc_ends(struct vc *c, enum ib_wc_status status)
{
	struct ib_wc wc;

	VC_TRY(c, vc_wait(c->a.scq, &wc));
	VC_EXPECT(c, wc.status == status, "%d instead of %d", wc.status,
		  status);
	VC_EXPECT(c, vc_query(&c->a) == IB_QPS_ERR, "%d", vc_query(&c->a));
	VC_TRY(c, vc_send(&c->a, &c->b, 8));
	VC_TRY(c, vc_wait(c->a.scq, &wc));
	VC_EXPECT(c, wc.status == IB_WC_WR_FLUSH_ERR, "%d", wc.status);
	return 0;
}

/* Messages arrive in order, whole, with their immediate data. */
static int vc_rc_order(struct vc *c)
{
	struct ib_wc wc;
	u32 i;

	if (vc_connect(c, &vc_plain, 7, 7))
		return -EPROTO;
	for (i = 0; i < 4000; i++)
		c->a.buf[i] = i * 11;
	for (i = 0; i < 12; i++)
		VC_TRY(c, vc_recv(&c->b, i, VC_SLOT));
	for (i = 0; i < 12; i++)
		VC_TRY(c, vc_send_imm(&c->a, &c->b, 4000 - i, i, 0));
	for (i = 0; i < 12; i++) {
		VC_TRY(c, vc_wait(c->b.rcq, &wc));
		VC_EXPECT(c, !wc.status && wc.wr_id == i &&
			  wc.byte_len == 4000 - i &&
			  be32_to_cpu(wc.ex.imm_data) == i, "%d, %llu, %u",
			  wc.status, wc.wr_id, wc.byte_len);
		VC_EXPECT(c, !memcmp(c->a.buf, c->b.buf + (i + 1) * VC_SLOT,
				     4000 - i), "other bytes in %u", i);
	}
	return 0;
}

/* No receive posted, and the sender was told not to try again. */
static int vc_rnr(struct vc *c)
{
	if (vc_connect(c, &vc_plain, 7, 0))
		return -EPROTO;
	VC_TRY(c, vc_send(&c->a, &c->b, 8));
	return vc_ends(c, IB_WC_RNR_RETRY_EXC_ERR);
}

/* No receive posted; the sender tries until there is one. */
static int vc_rnr_wait(struct vc *c)
{
	struct ib_wc wc;

	if (vc_connect(c, &vc_plain, 7, 7))
		return -EPROTO;
	VC_TRY(c, vc_send(&c->a, &c->b, 8));
	VC_EXPECT(c, !ib_poll_cq(c->a.scq, 1, &wc), "status %d", wc.status);
	VC_TRY(c, vc_recv(&c->b, 0, 100));
	VC_TRY(c, vc_wait(c->a.scq, &wc));
	VC_EXPECT(c, !wc.status, "%d", wc.status);
	VC_TRY(c, vc_wait(c->b.rcq, &wc));
	VC_EXPECT(c, !wc.status && wc.byte_len == 8, "%d", wc.status);
	return 0;
}

/* The other end is not connected: nobody answers. */
static int vc_retry(struct vc *c)
{
	VC_TRY(c, vc_open(&c->a, "vib0", 1, &vc_plain));
	VC_TRY(c, vc_open(&c->b, "vib1", 1, &vc_plain));
	VC_TRY(c, vc_rc_rtr(&c->a, &c->b));
	VC_TRY(c, vc_rc_rts(&c->a, 2, 7));
	VC_TRY(c, vc_send(&c->a, &c->b, 8));
	return vc_ends(c, IB_WC_RETRY_EXC_ERR);
}

/* A third QP that was never connected does not get into a connection. */
static int vc_stranger(struct vc *c)
{
	struct ib_wc wc;

	if (vc_connect(c, &vc_plain, 7, 7))
		return -EPROTO;
	VC_TRY(c, vc_open(&c->x, "vib0", 1, &vc_plain));
	VC_TRY(c, vc_rc_rtr(&c->x, &c->b));
	VC_TRY(c, vc_rc_rts(&c->x, 1, 0));
	VC_TRY(c, vc_recv(&c->b, 0, 100));
	VC_TRY(c, vc_send(&c->x, &c->b, 8));
	VC_TRY(c, vc_wait(c->x.scq, &wc));
	VC_EXPECT(c, wc.status == IB_WC_RETRY_EXC_ERR, "%d", wc.status);
	VC_EXPECT(c, !ib_poll_cq(c->b.rcq, 1, &wc), "it got through");
	return vc_messages(c, 1);
}

/* A message longer than its buffer ends the connection on both sides. */
static int vc_long_message(struct vc *c)
{
	struct ib_wc wc;

	if (vc_connect(c, &vc_plain, 7, 7))
		return -EPROTO;
	VC_TRY(c, vc_recv(&c->b, 0, 99));
	VC_TRY(c, vc_send(&c->a, &c->b, 100));
	if (vc_ends(c, IB_WC_REM_INV_REQ_ERR))
		return -EPROTO;
	VC_TRY(c, vc_wait(c->b.rcq, &wc));
	VC_EXPECT(c, wc.status == IB_WC_LOC_LEN_ERR, "%d", wc.status);
	VC_EXPECT(c, vc_query(&c->b) == IB_QPS_ERR, "%d", vc_query(&c->b));
	return 0;
}

/* The first message in RTR is an event, the second is not. */
static int vc_comm_est(struct vc *c)
{
	u32 i;

	VC_TRY(c, vc_open(&c->a, "vib0", 1, &vc_plain));
	VC_TRY(c, vc_open(&c->b, "vib1", 1, &vc_plain));
	VC_TRY(c, vc_rc_rtr(&c->a, &c->b));
	VC_TRY(c, vc_rc_rtr(&c->b, &c->a));
	VC_TRY(c, vc_rc_rts(&c->a, 7, 7));
	for (i = 0; i < 3; i++)
		VC_TRY(c, vc_recv(&c->b, i, 100));
	VC_EXPECT(c, !EVENTS(&c->b, COMM_EST), "an event of nothing");
	if (vc_messages(c, 1))
		return -EPROTO;
	VC_EXPECT(c, vc_wait_count(&c->b.event[IB_EVENT_COMM_EST], 1),
		  "no event");
	if (vc_messages(c, 1))
		return -EPROTO;
	VC_TRY(c, vc_rc_rts(&c->b, 7, 7));
	if (vc_messages(c, 1))
		return -EPROTO;
	VC_EXPECT(c, EVENTS(&c->b, COMM_EST) == 1, "%d",
		  EVENTS(&c->b, COMM_EST));
	return 0;
}

static int vc_limit(struct vc_end *e)
{
	struct ib_srq_attr a;

	return ib_query_srq(e->srq, &a) ? -1 : a.srq_limit;
}

/*
 * The limit of a shared receive queue: the event comes when fewer receives
 * are left than it says, once, and again only when it is armed again.
 */
static int vc_srq_limit(struct vc *c)
{
	struct ib_srq_attr a = { .srq_limit = 4 };
	u32 i;

	if (vc_connect(c, &vc_shared, 7, 0))
		return -EPROTO;
	for (i = 0; i < 8; i++)
		VC_TRY(c, vc_recv(&c->b, i, 100));
	VC_TRY(c, ib_modify_srq(c->b.srq, &a, IB_SRQ_LIMIT));
	if (vc_messages(c, 4))
		return -EPROTO;
	/* four are left: not fewer than four */
	VC_EXPECT(c, vc_limit(&c->b) == 4, "%d", vc_limit(&c->b));
	VC_EXPECT(c, !EVENTS(&c->b, SRQ_LIMIT_REACHED), "too early");
	if (vc_messages(c, 1))
		return -EPROTO;
	VC_EXPECT(c, vc_limit(&c->b) == 0, "%d", vc_limit(&c->b));
	VC_EXPECT(c, vc_wait_count(&c->b.event[IB_EVENT_SRQ_LIMIT_REACHED], 1),
		  "no event");
	if (vc_messages(c, 1))
		return -EPROTO;
	a.srq_limit = 2;
	VC_TRY(c, ib_modify_srq(c->b.srq, &a, IB_SRQ_LIMIT));
	VC_EXPECT(c, EVENTS(&c->b, SRQ_LIMIT_REACHED) == 1, "not disarmed");
	if (vc_messages(c, 1))
		return -EPROTO;
	VC_EXPECT(c, vc_wait_count(&c->b.event[IB_EVENT_SRQ_LIMIT_REACHED], 2),
		  "no second event");
	VC_EXPECT(c, EVENTS(&c->b, SRQ_LIMIT_REACHED) == 2, "%d",
		  EVENTS(&c->b, SRQ_LIMIT_REACHED));
	return 0;
}

/*
 * A QP on a shared receive queue goes to ERR: the last-WQE event, once, and
 * what is posted stays for the others. A QP with its own queue has no such.
 */
static int vc_last_wqe(struct vc *c)
{
	struct ib_wc wc;

	if (vc_connect(c, &vc_shared, 7, 0))
		return -EPROTO;
	VC_TRY(c, vc_recv(&c->b, 0, 100));
	VC_TRY(c, vc_state(&c->a, IB_QPS_ERR));
	VC_TRY(c, vc_state(&c->b, IB_QPS_ERR));
	VC_EXPECT(c, vc_wait_count(&c->b.event[IB_EVENT_QP_LAST_WQE_REACHED],
				   1), "no event");
	VC_EXPECT(c, !ib_poll_cq(c->b.rcq, 1, &wc), "a shared receive flushed");
	VC_TRY(c, vc_state(&c->b, IB_QPS_ERR));
	ib_destroy_qp(c->a.qp);
	c->a.qp = NULL;
	VC_EXPECT(c, !EVENTS(&c->a, QP_LAST_WQE_REACHED), "without an SRQ");
	VC_EXPECT(c, EVENTS(&c->b, QP_LAST_WQE_REACHED) == 1, "%d",
		  EVENTS(&c->b, QP_LAST_WQE_REACHED));
	return 0;
}

/* The same when the other side's message is what kills the connection. */
static int vc_last_wqe_remote(struct vc *c)
{
	struct ib_wc wc;

	if (vc_connect(c, &vc_shared, 7, 0))
		return -EPROTO;
	VC_TRY(c, vc_recv(&c->b, 0, 99));
	VC_TRY(c, vc_send(&c->a, &c->b, 100));
	if (vc_ends(c, IB_WC_REM_INV_REQ_ERR))
		return -EPROTO;
	VC_TRY(c, vc_wait(c->b.rcq, &wc));
	VC_EXPECT(c, wc.status == IB_WC_LOC_LEN_ERR, "%d", wc.status);
	VC_EXPECT(c, vc_wait_count(&c->b.event[IB_EVENT_QP_LAST_WQE_REACHED],
				   1), "no event");
	VC_TRY(c, vc_state(&c->b, IB_QPS_ERR));
	VC_EXPECT(c, EVENTS(&c->b, QP_LAST_WQE_REACHED) == 1, "%d",
		  EVENTS(&c->b, QP_LAST_WQE_REACHED));
	return 0;
}

/*
 * Receives that are posted just after the other side's message has killed the
 * QP: all come back in the order in which they were posted, each once.
 */
static int vc_err_post(struct vc *c)
{
	struct ib_wc wc;
	int err;
	u32 i;

	if (vc_connect(c, &vc_plain, 7, 0))
		return -EPROTO;
	VC_TRY(c, vc_recv(&c->b, 0, 99));
	for (i = 1; i < 4; i++)
		VC_TRY(c, vc_recv(&c->b, i, 100));
	/* on this CPU nothing that the device puts off comes in between */
	preempt_disable();
	err = vc_send(&c->a, &c->b, 100);
	for (; i < 6 && !err; i++)
		err = vc_recv(&c->b, i, 100);
	preempt_enable();
	VC_TRY(c, err);
	for (i = 0; i < 6; i++) {
		VC_TRY(c, vc_wait(c->b.rcq, &wc));
		VC_EXPECT(c, wc.wr_id == i && wc.status ==
			  (i ? IB_WC_WR_FLUSH_ERR : IB_WC_LOC_LEN_ERR),
			  "%llu in place of %u, %d", wc.wr_id, i, wc.status);
	}
	VC_EXPECT(c, vc_query(&c->b) == IB_QPS_ERR, "%d", vc_query(&c->b));
	VC_EXPECT(c, !ib_poll_cq(c->b.rcq, 1, &wc), "%llu again", wc.wr_id);
	return 0;
}

const struct vc_check vc_rc_checks[] = {
	{ "rc_order", vc_rc_order },
	{ "rnr", vc_rnr },
	{ "rnr_wait", vc_rnr_wait },
	{ "retry", vc_retry },
	{ "stranger", vc_stranger },
	{ "long_message", vc_long_message },
	{ "comm_est", vc_comm_est },
	{ "err_post", vc_err_post },
	{ "srq_limit", vc_srq_limit },
	{ "last_wqe", vc_last_wqe },
	{ "last_wqe_remote", vc_last_wqe_remote },
	{}
};
