/* SPDX-License-Identifier: GPL-2.0 */
/* What the files of vibfab offer each other. Included by vibfab.h only. */
#ifndef VIBFAB_PROTO_H
#define VIBFAB_PROTO_H

#include <linux/jump_label.h>
#include <linux/percpu.h>

/* main.c */
__be64 vib_guid(u32 node, u32 port);
u64 vib_hash(u64 a, u64 b);
enum ib_mtu vib_mtu_enum(u32 bytes);
void vib_event(struct vib_port *port, enum ib_event_type event);
int vib_hca_plug(u32 index);
int vib_hca_unplug(u32 index);

static inline void vib_strict(enum vib_strict what)
{
	if (vib_par.strict)
		atomic_inc(&vib_fab.strict[what]);
}

bool __vib_fail(enum vib_failop op);

/* Is this call of a verb the one that was asked to fail? */
static inline bool vib_fail(enum vib_failop op)
{
	return unlikely(atomic_read(&vib_fab.fail_in[op])) && __vib_fail(op);
}

static inline void vib_count(struct vib_port *port, enum vib_verdict v)
{
	this_cpu_inc(port->pcpu->verdict[v]);
}

/* Was the object with that magic destroyed? Counted. */
static inline bool vib_gone(u32 magic)
{
	if (likely(magic == VIB_MAGIC))
		return false;
	vib_strict(VIB_S_DESTROYED);
	return true;
}

/* hca.c */
int vib_hca_add(u32 index);
void vib_hca_remove(struct vib_hca *hca);

/* cq.c */
void vib_cq_add(struct vib_cq *cq, const struct ib_wc *wc, atomic_t *out,
		u32 credits, bool solicited, struct vib_kicks *k);
void vib_cq_purge(struct vib_cq *cq, struct vib_qp *qp);
void vib_cq_hold(struct vib_cq *cq, bool hold);
void vib_cq_force_overflow(struct vib_cq *cq);
void __vib_kicks_run(struct vib_kicks *k);
int vib_poll_cq(struct ib_cq *ibcq, int num, struct ib_wc *wc);
int vib_req_notify_cq(struct ib_cq *ibcq, enum ib_cq_notify_flags flags);
int vib_modify_cq(struct ib_cq *ibcq, u16 count, u16 period);
int vib_create_cq(struct ib_cq *ibcq, const struct ib_cq_init_attr *attr,
		  struct uverbs_attr_bundle *attrs);
int vib_destroy_cq(struct ib_cq *ibcq, struct ib_udata *udata);

static inline void vib_kicks_run(struct vib_kicks *k)
{
	if (k->n)
		__vib_kicks_run(k);
}

/* rq.c */
int vib_rq_init(struct vib_rq *rq, u32 size, u32 max_sge);
void vib_rq_free(struct vib_rq *rq);
void vib_rq_flush(struct vib_qp *qp, struct vib_kicks *k);
struct vib_wqe *vib_rq_pop(struct vib_qp *qp, u32 need, atomic_t **out);
int vib_post_recv(struct ib_qp *ibqp, const struct ib_recv_wr *wr,
		  const struct ib_recv_wr **bad);
int vib_post_srq_recv(struct ib_srq *ibsrq, const struct ib_recv_wr *wr,
		      const struct ib_recv_wr **bad);
int vib_create_srq(struct ib_srq *ibsrq, struct ib_srq_init_attr *init,
		   struct ib_udata *udata);
int vib_modify_srq(struct ib_srq *ibsrq, struct ib_srq_attr *attr,
		   enum ib_srq_attr_mask mask, struct ib_udata *udata);
int vib_query_srq(struct ib_srq *ibsrq, struct ib_srq_attr *attr);
int vib_destroy_srq(struct ib_srq *ibsrq, struct ib_udata *udata);
void vib_scatter(const struct vib_wqe *w, u32 off, const void *data, u32 len);
void vib_copy_pkt(const struct vib_wqe *w, u32 off, const struct vib_pkt *p);
void vib_pkt_walk(const struct vib_pkt *p, u32 len,
		  void (*fn)(void *ctx, const void *d, u32 n), void *ctx);
void vib_pkt_linear(const struct vib_pkt *p, void *buf, u32 len);

/* qp.c */
void vib_qp_event(struct vib_qp *qp, enum ib_event_type event);
bool vib_qp_to_err(struct vib_qp *qp);
bool vib_qp_set_state(struct vib_qp *qp, enum ib_qp_state state);
void vib_qp_lock(struct vib_qp *qp, unsigned long *flags);
void vib_qp_unlock(struct vib_qp *qp, unsigned long *flags);
int vib_create_qp(struct ib_qp *ibqp, struct ib_qp_init_attr *init,
		  struct ib_udata *udata);
int vib_destroy_qp(struct ib_qp *ibqp, struct ib_udata *udata);
int vib_modify_qp(struct ib_qp *ibqp, struct ib_qp_attr *a, int mask,
		  struct ib_udata *udata);
int vib_query_qp(struct ib_qp *ibqp, struct ib_qp_attr *a, int mask,
		 struct ib_qp_init_attr *init);
int vib_attach_mcast(struct ib_qp *ibqp, union ib_gid *gid, u16 lid);
int vib_detach_mcast(struct ib_qp *ibqp, union ib_gid *gid, u16 lid);
void vib_mcast_forget(struct vib_qp *qp);
enum vib_verdict vib_port_mcast(struct vib_port *port, struct vib_pkt *p,
				struct vib_qp *skip, struct vib_kicks *k);

/* ud.c */
void vib_send_wc(struct vib_qp *qp, const struct ib_send_wr *wr,
		 enum ib_wc_status status, u32 len, struct vib_kicks *k);
int vib_send_len(struct vib_qp *qp, const struct ib_send_wr *wr, u32 *len);
int vib_send_charge(struct vib_qp *qp);
void vib_pkt_route(struct vib_pkt *p, struct vib_port *port,
		   const struct rdma_ah_attr *av);
void vib_ud_transmit(struct vib_pkt *p, struct vib_kicks *k);
int vib_post_send(struct ib_qp *ibqp, const struct ib_send_wr *wr,
		  const struct ib_send_wr **bad);
bool vib_pkey_match(u16 a, u16 b);
enum vib_verdict vib_qp_rx_ud(struct vib_port *port, struct vib_qp *qp,
			      struct vib_pkt *p, struct vib_kicks *k);

/* Bytes after the GRH: BTH, DETH, immediate, padded payload, ICRC. */
static inline u32 vib_ib_len(const struct vib_pkt *p)
{
	return 12 + (p->opcode >= 0x60 ? 8 : 0) + (p->has_imm ? 4 : 0) +
	       ALIGN(p->len, 4) + 4;
}

/* rc.c */
int vib_rc_init(struct vib_qp *qp);
void vib_rc_free(struct vib_qp *qp);
void vib_rc_lock(struct vib_qp *qp, unsigned long *flags);
void vib_rc_unlock(struct vib_qp *qp, unsigned long *flags);
void vib_rc_reset(struct vib_qp *qp);
void vib_rc_rearm(struct vib_qp *qp);
void vib_rc_flush(struct vib_qp *qp, struct vib_kicks *k);
int vib_rc_post(struct vib_qp *qp, const struct ib_send_wr *wr,
		struct vib_kicks *k);

/* offload.c: both return an enum ib_wc_status */
int vib_lso_send(struct vib_qp *qp, const struct ib_ud_wr *ud,
		 struct vib_pkt *p, u32 mtu, struct vib_kicks *k);
int vib_csum_send(struct vib_pkt *p, struct vib_kicks *k);

/* switch.c */
bool vib_port_can(struct vib_port *port, bool qp0);
bool vib_port_has_lid(struct vib_port *port, u16 lid);
struct vib_qp *vib_port_qp(struct vib_port *port, u32 qpn);
enum vib_verdict vib_port_rx(struct vib_port *port, struct vib_pkt *p,
			     struct vib_kicks *k);
u32 vib_switch_lookup(u16 lid);
void vib_switch_forward(struct vib_pkt *p, struct vib_kicks *k);
void vib_switch_inject(struct vib_pkt *p, u32 out);
void vib_lft_set(u16 lid, u8 out);
void vib_mft_set(u16 mlid, u32 port, bool on);

/* sma.c, swsma.c */
int vib_process_mad(struct ib_device *ibdev, int flags, u32 num,
		    const struct ib_wc *wc, const struct ib_grh *grh,
		    const struct ib_mad *in, struct ib_mad *out,
		    size_t *out_size, u16 *out_pkey_index);
void vib_switch_dr(struct vib_pkt *p);
void vib_port0_rx(struct vib_pkt *p);
void vib_switch_link_change(u32 swport);
void vib_switch_init(void);
void vib_switch_exit(void);

/* sm.c, sa.c */
int vib_sm_check(void);
u32 vib_sm_first_free_lid(void);
void vib_sm_port_plugged(struct vib_port *port);
void vib_sm_port_gone(struct vib_port *port);
void vib_sa_port_gone(struct vib_port *port);
int vib_sa_init(void);
void vib_sa_exit(void);
void vib_sa_rx(struct vib_pkt *p);

/* far.c */
void vib_far_rx(struct vib_pkt *p);
bool vib_far_rc(struct vib_pkt *p);
u16 vib_far_lid(const union ib_gid *gid);
u32 vib_far_nodes(void);
int vib_far_check(void);
int vib_far_init(void);
void vib_far_exit(void);

/* farcm.c */
struct seq_file;
u32 vib_farcm_flags(void);
void vib_farcm_mad(struct vib_pkt *p, u8 *data, u64 guid);
bool vib_farcm_data(struct vib_pkt *p);
void vib_farcm_show(struct seq_file *s);
void vib_farcm_init(void);
void vib_farcm_exit(void);

/* ring.c */
int vib_ring_check(void);
int vib_ring_init(void);
void vib_ring_exit(void);
DECLARE_STATIC_KEY_FALSE(vib_ring_on);
void __vib_ring_add(struct vib_pkt *p, u32 out, enum vib_verdict v);

static inline void vib_ring_add(struct vib_pkt *p, u32 out, enum vib_verdict v)
{
	if (static_branch_unlikely(&vib_ring_on))
		__vib_ring_add(p, out, v);
}

/* cmd.c, dbg.c */
int vib_cmd_boot(void);
void vib_dbg_init(void);
void vib_dbg_exit(void);

/* fault.c */
void vib_fault_init(void);
void vib_fault_exit(void);
DECLARE_STATIC_KEY_FALSE(vib_fault_on);
enum ib_wc_status __vib_fault_wc(struct vib_pkt *p);
void __vib_fault_transmit(const struct vib_pkt *orig, struct vib_kicks *k);
void __vib_fault_recv(struct vib_pkt *p, struct ib_wc *wc);
int __vib_fault_rc(struct vib_pkt *p, u32 *delay);
bool __vib_fault_egress(struct vib_pkt *p, u32 out);

/* Status a rule wants the send of @p to end with; SUCCESS: none does. */
static inline enum ib_wc_status vib_fault_wc(struct vib_pkt *p)
{
	return static_branch_unlikely(&vib_fault_on) ? __vib_fault_wc(p) : 0;
}

/*
 * Faults of an RC message: -ETIMEDOUT it is lost, -EAGAIN the receiver is not
 * ready. A delay in microseconds goes to @delay, unless that is NULL.
 */
static inline int vib_fault_rc(struct vib_pkt *p, u32 *delay)
{
	return static_branch_unlikely(&vib_fault_on) ?
	       __vib_fault_rc(p, delay) : 0;
}

static inline bool vib_fault_egress(struct vib_pkt *p, u32 out)
{
	return static_branch_unlikely(&vib_fault_on) &&
	       __vib_fault_egress(p, out);
}

static inline void vib_fault_transmit(struct vib_pkt *p, struct vib_kicks *k)
{
	if (static_branch_unlikely(&vib_fault_on))
		__vib_fault_transmit(p, k);
	else
		vib_ud_transmit(p, k);
}

static inline void vib_fault_recv(struct vib_pkt *p, struct ib_wc *wc)
{
	if (static_branch_unlikely(&vib_fault_on))
		__vib_fault_recv(p, wc);
}

#endif
