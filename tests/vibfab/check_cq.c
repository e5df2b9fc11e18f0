// SPDX-License-Identifier: GPL-2.0
/* Checks of completion queues: arming, moderation, vectors, overflow. */

#include <linux/cpumask.h>
#include <linux/ktime.h>
#include "check.h"

static const struct vc_cfg vc_plain;

/*
 * Send one and wait for the send queue's handler. It comes after any call of
 * the receive queue's: both run on one CPU, in the order they were asked for.
 */
static int vc_send_and_settle(struct vc *c, int flags)
{
	int before = atomic_read(&c->a.skicks);
	struct ib_wc wc;

	VC_TRY(c, ib_req_notify_cq(c->a.scq, IB_CQ_NEXT_COMP));
	VC_TRY(c, vc_send_imm(&c->a, &c->b, 8, 0, flags));
	VC_EXPECT(c, vc_wait_count(&c->a.skicks, before + 1), "no handler");
	VC_TRY(c, vc_wait(c->a.scq, &wc));
	VC_EXPECT(c, !wc.status, "%d", wc.status);
	return 0;
}

static int vc_open_pair(struct vc *c, u32 receives)
{
	u32 i;

	if (vc_pair(c, &vc_plain, &vc_plain))
		return -EPROTO;
	for (i = 0; i < receives; i++)
		VC_TRY(c, vc_recv(&c->b, i, 100));
	return 0;
}

/* Armed once, the handler runs once; not armed, not at all. */
static int vc_arming(struct vc *c)
{
	if (vc_open_pair(c, 4) || vc_send_and_settle(c, 0))
		return -EPROTO;
	VC_EXPECT(c, !atomic_read(&c->b.rkicks), "called without arming");
	VC_EXPECT(c, ib_req_notify_cq(c->b.rcq, IB_CQ_NEXT_COMP |
				      IB_CQ_REPORT_MISSED_EVENTS) == 1,
		  "the completion that waits was not reported");
	if (vc_send_and_settle(c, 0) || vc_send_and_settle(c, 0))
		return -EPROTO;
	VC_EXPECT(c, atomic_read(&c->b.rkicks) == 1, "%d",
		  atomic_read(&c->b.rkicks));
	return 0;
}

/* Armed for solicited completions, others do not count. */
static int vc_solicited(struct vc *c)
{
	if (vc_open_pair(c, 4))
		return -EPROTO;
	VC_TRY(c, ib_req_notify_cq(c->b.rcq, IB_CQ_SOLICITED));
	if (vc_send_and_settle(c, 0))
		return -EPROTO;
	VC_EXPECT(c, !atomic_read(&c->b.rkicks), "called for an unsolicited");
	if (vc_send_and_settle(c, IB_SEND_SOLICITED))
		return -EPROTO;
	VC_EXPECT(c, atomic_read(&c->b.rkicks) == 1, "%d",
		  atomic_read(&c->b.rkicks));
	return 0;
}

/* The handler waits for four completions, or for the time to pass. */
static int vc_moderation(struct vc *c)
{
	u64 start = ktime_get_ns();
	int i, early;

	if (vc_open_pair(c, 5))
		return -EPROTO;
	VC_TRY(c, rdma_set_cq_moderation(c->b.rcq, 4, 60000));
	VC_TRY(c, ib_req_notify_cq(c->b.rcq, IB_CQ_NEXT_COMP));
	for (i = 0; i < 3; i++)
		if (vc_send_and_settle(c, 0))
			return -EPROTO;
	early = atomic_read(&c->b.rkicks);
	/* on a machine as slow as that the time decides, not the number */
	VC_EXPECT(c, !early || ktime_get_ns() - start > 60000 * NSEC_PER_USEC,
		  "called too early");
	if (vc_send_and_settle(c, 0))
		return -EPROTO;
	VC_EXPECT(c, atomic_read(&c->b.rkicks) == 1, "%d",
		  atomic_read(&c->b.rkicks));
	VC_TRY(c, rdma_set_cq_moderation(c->b.rcq, 4, 1000));
	VC_TRY(c, ib_req_notify_cq(c->b.rcq, IB_CQ_NEXT_COMP));
	if (vc_send_and_settle(c, 0))
		return -EPROTO;
	VC_EXPECT(c, vc_wait_count(&c->b.rkicks, 2), "time passed for nothing");
	return 0;
}

/* Argument: a completion vector. Its handler runs on its CPU. */
static int vc_vector(struct vc *c)
{
	struct vc_cfg cfg = { .vector = c->arg };
	u32 n = c->arg % num_online_cpus();
	int cpu;

	VC_TRY(c, vc_pair(c, &vc_plain, &cfg));
	VC_TRY(c, vc_recv(&c->b, 0, 100));
	VC_TRY(c, ib_req_notify_cq(c->b.rcq, IB_CQ_NEXT_COMP));
	VC_TRY(c, vc_send(&c->a, &c->b, 8));
	VC_EXPECT(c, vc_wait_count(&c->b.rkicks, 1), "no handler");
	for_each_online_cpu(cpu)
		if (!n--)
			break;
	VC_EXPECT(c, c->b.kick_cpu == cpu, "on %d instead of %d",
		  c->b.kick_cpu, cpu);
	return 0;
}

/* More completions than entries: one event, and the rest is lost. */
static int vc_overflow(struct vc *c)
{
	struct vc_cfg tiny = { .rcqe = 2 };
	struct ib_wc wc;
	int i;

	VC_TRY(c, vc_pair(c, &vc_plain, &tiny));
	for (i = 0; i < 5; i++)
		VC_TRY(c, vc_recv(&c->b, i, 100));
	for (i = 0; i < 4; i++) {
		VC_EXPECT(c, !i || i > 2 ||
			  !atomic_read(&c->b.event[IB_EVENT_CQ_ERR]),
			  "an event with room for %d more", 2 - i);
		VC_TRY(c, vc_send(&c->a, &c->b, 8));
	}
	VC_EXPECT(c, vc_wait_count(&c->b.event[IB_EVENT_CQ_ERR], 1),
		  "no event");
	for (i = 0; i < 2; i++)
		VC_TRY(c, vc_wait(c->b.rcq, &wc));
	VC_EXPECT(c, !ib_poll_cq(c->b.rcq, 1, &wc), "more than there is room");
	/* a second overflow of the same queue is no news */
	VC_EXPECT(c, atomic_read(&c->b.event[IB_EVENT_CQ_ERR]) == 1, "%d",
		  atomic_read(&c->b.event[IB_EVENT_CQ_ERR]));
	return 0;
}

const struct vc_check vc_cq_checks[] = {
	{ "arming", vc_arming },
	{ "solicited", vc_solicited },
	{ "moderation", vc_moderation },
	{ "vector", vc_vector },
	{ "cq_overflow", vc_overflow },
	{}
};
