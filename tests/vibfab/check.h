/* SPDX-License-Identifier: GPL-2.0 */
/*
 * vibcheck: a consumer of verbs that checks what the HCAs of vibfab do. It
 * knows of vibfab no more than any driver does: the public verbs.
 */
#ifndef VIBFAB_CHECK_H
#define VIBFAB_CHECK_H

#include <linux/atomic.h>
#include <linux/sizes.h>
#include <linux/string.h>
#include <rdma/ib_verbs.h>

#define VC_BUF		SZ_64K
#define VC_SLOT		SZ_4K	/* receive n goes to slot n + 1; sends come from slot 0 */
#define VC_GRH		40
#define VC_QKEY		0x7ab
#define VC_EVENTS	32

/* One end of a conversation, and what its handlers saw. */
struct vc_end {
	struct ib_device *dev;
	u32 port;
	u16 lid;
	u32 mtu;
	struct ib_pd *pd;
	struct ib_cq *scq;
	struct ib_cq *rcq;
	struct ib_srq *srq;
	struct ib_qp *qp;
	struct ib_ah *ah;
	u8 *buf;
	u64 dma;
	atomic_t event[VC_EVENTS];	/* by enum ib_event_type */
	atomic_t skicks;		/* calls of the send CQ's handler */
	atomic_t rkicks;
	int kick_cpu;
};

/* What vc_open() makes; 0 stands for the default in brackets. */
struct vc_cfg {
	enum ib_qp_type type;	/* (UD) */
	u32 wr;			/* work requests of each queue (16) */
	u32 rcqe;		/* entries of the receive CQ (64) */
	u32 srq;		/* size of the shared receive queue (none) */
	u32 flags;		/* of ib_create_qp */
	u32 vector;
};

/* One run of a check. */
struct vc {
	struct vc_end a, b, x;
	u64 arg;
	char text[256];
};

struct vc_check {
	const char *name;
	int (*run)(struct vc *c);
};

extern const struct vc_check vc_ud_checks[];
extern const struct vc_check vc_cq_checks[];
extern const struct vc_check vc_rc_checks[];
extern const struct vc_check vc_misuse_checks[];
extern const struct vc_check vc_device_checks[];

struct ib_device *vc_device(const char *name);
__printf(2, 3) int vc_fail(struct vc *c, const char *fmt, ...);

/* Ends the check with a reason, unless @cond holds. */
#define VC_EXPECT(c, cond, fmt, ...) do {				\
	if (!(cond))							\
		return vc_fail(c, "%s:%d: not (%s): " fmt,		\
			       kbasename(__FILE__), __LINE__, #cond,	\
			       ##__VA_ARGS__);				\
} while (0)

/* Ends the check, unless @call returns 0. */
#define VC_TRY(c, call) do {						\
	int __err = (call);						\
									\
	VC_EXPECT(c, !__err, "%d from " #call, __err);			\
} while (0)

/* check_end.c: all may sleep */
int vc_open(struct vc_end *e, const char *dev, u32 port,
	    const struct vc_cfg *cfg);
void vc_close(struct vc_end *e);
int vc_state(struct vc_end *e, enum ib_qp_state state);
enum ib_qp_state vc_query(struct vc_end *e);
int vc_rc_rtr(struct vc_end *e, const struct vc_end *peer);
int vc_rc_rts(struct vc_end *e, u8 retry, u8 rnr_retry);
int vc_recv(struct vc_end *e, u32 slot, u32 len);
int vc_send(struct vc_end *e, const struct vc_end *to, u32 len);
int vc_send_imm(struct vc_end *e, const struct vc_end *to, u32 len, u32 imm,
		int flags);
int vc_wait(struct ib_cq *cq, struct ib_wc *wc);
bool vc_wait_count(atomic_t *count, int want);
struct ib_ah *vc_ah(struct vc_end *e, u16 lid, const union ib_gid *dgid);
int vc_pair(struct vc *c, const struct vc_cfg *a, const struct vc_cfg *b);

#endif
