/* SPDX-License-Identifier: GPL-2.0 */
/*
 * vibfab: virtual InfiniBand HCAs on one virtual switch.
 *
 * Locks, outermost first:
 *   fab.mutex      hot-plug and control commands (sleeps)
 *   rc.lock        one RC send queue: keeps its messages in order
 *   rq.lock        one receive queue or SRQ, and the state of its QP
 *   cq.lock        one completion queue
 *   fab.lock       forwarding tables, port attributes (leaf)
 * All spinlocks are taken with interrupts off: post_send may come with a
 * caller's lock held. No handler of a consumer is called under any of them.
 * QPs, ports and attachments are looked up under RCU; whoever takes one away
 * waits for a grace period before the memory goes.
 */
#ifndef VIBFAB_H
#define VIBFAB_H

#include <linux/atomic.h>
#include <linux/hrtimer.h>
#include <linux/list.h>
#include <linux/mutex.h>
#include <linux/sizes.h>
#include <linux/spinlock.h>
#include <linux/types.h>
#include <linux/workqueue.h>
#include <linux/xarray.h>
#include <rdma/ib_mad.h>
#include <rdma/ib_smi.h>
#include <rdma/ib_verbs.h>

#define VIB_MAX_PORTS	64	/* HCA ports on the switch: 1..64 */
#define VIB_FAR_PORT	65	/* switch port of the simulated far end */
#define VIB_SW_PORTS	66	/* port 0, HCA ports, far end */
#define VIB_MFT_POS	5	/* positions of 16 ports in a multicast mask */
#define VIB_QPN_MIN	0x40	/* of other than QP0 and QP1 */
#define VIB_QPN_MAX	0xfffffe
#define VIB_MAX_GIDS	128
#define VIB_MAX_PKEYS	128
#define VIB_MAX_SGE	32
#define VIB_MAX_VECTORS	1024
#define VIB_MAX_WR	(1 << 20)
#define VIB_MAX_CQE	(1 << 24)
#define VIB_MAX_LMC	7
#define VIB_MLID_BASE	0xc000
#define VIB_MLIDS	16352	/* what 9 bits of blocks of 32 can name */
#define VIB_LIDS	0xc000	/* unicast LIDs: 1..0xbfff */
#define VIB_NO_PORT	0xff	/* forwarding table: no route */
#define VIB_PERMISSIVE	0xffff
#define VIB_MAX_MSG	SZ_128K		/* largest RC message, bytes */
#define VIB_GRH_LEN	40
#define VIB_MAGIC	0x7ab1ab1e	/* of an object that lives */
#define VIB_MC_HASH	64
/* packets that a softirq work item carries before others have their turn */
#define VIB_BH_BATCH	64

/* What became of a packet; also the index of the counter that goes up. */
enum vib_verdict {
	VIB_OK,
	VIB_NO_ROUTE,
	VIB_PORT_DOWN,
	VIB_WRONG_LID,
	VIB_BAD_PKEY,
	VIB_BAD_QKEY,
	VIB_NO_QP,
	VIB_BAD_STATE,
	VIB_NO_WQE,
	VIB_TOO_LONG,
	VIB_NO_MEMBER,
	VIB_FAULT_DROP,
	VIB_RNR,
	VIB_VERDICTS
};

/* Strict accounting: each of these is a mistake of the consumer. */
enum vib_strict {
	VIB_S_OVERPOST_SQ,
	VIB_S_OVERPOST_RQ,
	VIB_S_CQ_OVERFLOW,
	VIB_S_DOUBLE_POST,
	VIB_S_FOREIGN_AH,
	VIB_S_BAD_STATE_POST,
	VIB_S_NO_QKEY,
	VIB_S_TOO_MANY_SGE,
	VIB_S_BAD_LKEY,
	VIB_S_DMA_ADDR,
	VIB_S_DESTROYED,
	VIB_S_LEAK,
	VIB_STRICTS
};

enum vib_obj {
	VIB_O_PD,
	VIB_O_CQ,
	VIB_O_QP,
	VIB_O_SRQ,
	VIB_O_AH,
	VIB_O_MR,
	VIB_O_MCAST,
	VIB_OBJS
};

/* Verbs that can be made to fail on the n-th call. */
enum vib_failop {
	VIB_F_CREATE_AH,
	VIB_F_CREATE_QP,
	VIB_F_CREATE_CQ,
	VIB_F_CREATE_SRQ,
	VIB_F_ALLOC_PD,
	VIB_F_MODIFY_QP,
	VIB_F_POST_SEND,
	VIB_F_POST_RECV,
	VIB_F_POST_SRQ,
	VIB_F_ATTACH,
	VIB_F_REQ_NOTIFY,
	VIB_F_QUERY_PORT,
	VIB_F_MODIFY_CQ,
	VIB_F_OPS
};

struct vib_hca;
struct vib_qp;

struct vib_pd {
	struct ib_pd ibpd;
};

struct vib_ah {
	struct ib_ah ibah;
	u32 magic;
	struct rdma_ah_attr attr;
};

struct vib_cqe {
	struct ib_wc wc;
	atomic_t *out;		/* work requests outstanding on that queue */
	u32 credits;		/* how many of them this completion ends */
};

struct vib_cq {
	struct ib_cq ibcq;
	u32 magic;
	spinlock_t lock;	/* the ring and arming */
	struct vib_cqe *ring;
	u32 size;
	u32 head;
	u32 tail;
	u8 notify;		/* 0, IB_CQ_SOLICITED or IB_CQ_NEXT_COMP */
	bool hold;		/* fault: completions stay invisible */
	bool overflow;
	u16 mod_count;
	u16 mod_period;		/* microseconds */
	u32 mod_pending;
	int cpu;
	unsigned long events;
	struct hrtimer mod_timer;
	struct work_struct work;
	struct work_struct ev_work;
	struct list_head list;
	u64 added;
	u64 notified;
};

struct vib_wqe {
	u64 wr_id;
	u32 num_sge;
	u32 len;
	struct ib_sge sge[];
};

/* A ring of posted receives. */
struct vib_rq {
	spinlock_t lock;	/* the ring; the state of its QP */
	u32 size;
	u32 max_sge;
	u32 stride;
	u32 head;
	u32 tail;
	atomic_t out;		/* posted and not yet polled */
	void *ring;
};

struct vib_srq {
	struct ib_srq ibsrq;
	u32 magic;
	struct vib_rq rq;
	u32 limit;
	unsigned long events;
	struct work_struct ev_work;
};

struct vib_rc;

struct vib_qp {
	struct ib_qp ibqp;
	u32 magic;
	struct vib_hca *hca;
	struct vib_port *port;
	struct vib_cq *scq;
	struct vib_cq *rcq;
	struct vib_srq *srq;
	struct vib_rc *rc;
	struct vib_wqe *srq_wqe;	/* the SRQ receive in work */
	struct vib_rq rq;	/* rq.lock guards the state even with an SRQ */
	enum ib_qp_state state;
	enum ib_qp_type type;
	u32 qpn;
	u32 qkey;
	u32 create_flags;
	u32 max_send_wr;
	u32 max_send_sge;
	atomic_t unsignaled;	/* sends since the last signalled one */
	u16 pkey_index;
	bool qkey_set;
	bool sig_all;
	bool last_wqe_sent;
	u32 sq_psn;
	atomic_t sq_out;
	struct ib_qp_attr attr;
	struct ib_qp_init_attr init;
	unsigned long events;	/* bit per enum ib_event_type, to be raised */
	struct work_struct ev_work;
	struct list_head list;
	u64 sent;
	u64 received;
};

/* One packet (UD) or message (RC) on its way. */
struct vib_pkt {
	u64 id;			/* in the ring; 0: not recorded yet */
	struct vib_port *src;	/* NULL: sent by the switch or the far end */
	struct vib_qp *sender;	/* to be compared only: it may be gone */
	u8 in_port;		/* ingress port of the switch */
	u8 opcode;		/* IB transport opcode */
	u8 sl;
	u8 rnr_timer;		/* what the RC receiver asks for */
	bool has_grh;
	bool solicited;
	bool csum_ok;
	bool has_imm;
	bool no_self;		/* multicast: not back to the sender's QP */
	bool to_err;		/* a failed send ends in ERR, not in SQE */
	u16 slid;
	u16 dlid;
	u16 pkey;
	u32 sqpn;
	u32 dqpn;
	u32 qkey;
	u32 psn;
	__be32 imm;
	u32 len;		/* payload, bytes */
	const void *hdr;	/* first hlen bytes of the payload */
	u32 hlen;
	const struct ib_sge *sge;
	u32 nsge;
	u32 skip;		/* bytes of the gather list before the payload */
	__be32 tclass_flow;
	u8 hop_limit;
	union ib_gid sgid;
	union ib_gid dgid;
};

struct vib_attach {
	struct hlist_node node;
	struct rcu_head rcu;
	union ib_gid mgid;
	u16 mlid;
	struct vib_qp *qp;
};

struct vib_pcpu {
	u64 tx_pkts;
	u64 tx_bytes;
	u64 rx_pkts;
	u64 rx_bytes;
	u64 tx_mcast;
	u64 rx_mcast;
	u64 verdict[VIB_VERDICTS];
};

struct vib_port {
	struct vib_hca *hca;
	u32 num;		/* 1.. on its HCA */
	u8 swport;		/* 1.. on the switch */
	bool link_up;
	enum ib_port_state state;
	enum ib_mtu active_mtu;
	u16 lid;
	u8 lmc;
	u16 sm_lid;
	u8 sm_sl;
	u8 subnet_timeout;
	u32 cap_mask;
	u64 prefix;		/* host order */
	__be64 guid[VIB_MAX_GIDS];
	u16 pkey[VIB_MAX_PKEYS];
	__be64 mkey;
	__be16 mkey_lease;
	u8 mkey_prot;
	u8 vl_high_limit;
	u8 overrun_errors;
	u32 pkey_viol;
	u32 qkey_viol;
	struct vib_pcpu __percpu *pcpu;
	u64 pma_base[6];
	struct vib_qp __rcu *special[2];	/* QP0, QP1 */
	spinlock_t mc_lock;	/* writers of mc */
	struct hlist_head mc[VIB_MC_HASH];
};

struct vib_hca {
	struct ib_device ibdev;
	u32 index;
	u32 nports;
	__be64 node_guid;
	struct device *parent;
	struct vib_port *port;	/* nports of them */
	struct xarray qps;
	u32 next_qpn;
	atomic_t live[VIB_OBJS];
	spinlock_t list_lock;	/* the two lists below */
	struct list_head qp_list;
	struct list_head cq_list;
	bool fatal;
	bool announced;		/* clients know of it: events reach somebody */
};

struct vib_fabric {
	struct mutex mutex;	/* hot-plug and commands */
	spinlock_t lock;	/* tables and port attributes */
	struct vib_hca *hca[VIB_MAX_PORTS];
	bool lost[VIB_MAX_PORTS];	/* unplugged with objects left */
	struct vib_port __rcu *port[VIB_SW_PORTS];
	u32 nports;		/* HCA ports the switch has, plugged or not */
	u8 *lft;		/* VIB_LIDS entries */
	u16 (*mft)[VIB_MFT_POS];	/* VIB_MLIDS entries */
	u16 sw_lid;
	u16 sw_sm_lid;
	__be64 sw_guid;
	__be64 sm_guid;
	atomic_t strict[VIB_STRICTS];
	atomic_t fail_in[VIB_F_OPS];
	u32 refused_flags;	/* of create_qp, though the device offers them */
	atomic_t pkey_queries;
	struct workqueue_struct *wq;
	struct workqueue_struct *bh_wq;
};

extern struct vib_fabric vib_fab;
extern const char * const vib_verdict_name[VIB_VERDICTS];
extern const char * const vib_strict_name[VIB_STRICTS];
extern const char * const vib_obj_name[VIB_OBJS];
extern const char * const vib_failop_name[VIB_F_OPS];

/* How a consumer's completion handler is reached. */
enum vib_comp_mode { VIB_COMP_BH, VIB_COMP_DIRECT, VIB_COMP_WQ };
enum vib_sm_mode { VIB_SM_EMBEDDED, VIB_SM_EXTERNAL };

struct vib_params {
	u32 hcas, ports, mtu, pkeys, gids, vectors;
	u32 max_send_sge, max_recv_sge, max_srq_sge, max_wr, max_cqe;
	bool srq, csum, tso, block_loopback, mcast_self, strict_len, dma_direct;
	bool deferred, csum_fill;
	u32 strict;
	u32 hop_limit;		/* in path records the embedded SA gives */
	enum vib_comp_mode comp;
	enum vib_sm_mode sm;
	u64 seed;
};

extern struct vib_params vib_par;

/* Completion queues that want their handler called once locks are dropped. */
struct vib_kicks {
	u32 n;
	struct vib_cq *cq[8];
};

static inline struct vib_hca *to_vhca(struct ib_device *d)
{
	return container_of(d, struct vib_hca, ibdev);
}

static inline struct vib_cq *to_vcq(struct ib_cq *cq)
{
	return container_of(cq, struct vib_cq, ibcq);
}

static inline struct vib_qp *to_vqp(struct ib_qp *qp)
{
	return container_of(qp, struct vib_qp, ibqp);
}

static inline struct vib_srq *to_vsrq(struct ib_srq *srq)
{
	return container_of(srq, struct vib_srq, ibsrq);
}

static inline struct vib_ah *to_vah(struct ib_ah *ah)
{
	return container_of(ah, struct vib_ah, ibah);
}

#include "proto.h"

#endif
