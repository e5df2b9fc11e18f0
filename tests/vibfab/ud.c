// SPDX-License-Identifier: GPL-2.0
/* Unreliable datagrams: sending, key checks, receiving. Also QP0 and QP1. */

#include <rdma/ib_pack.h>
#include "vibfab.h"

/* Complete one send work request; unsignalled ones ride on the next. */
void vib_send_wc(struct vib_qp *qp, const struct ib_send_wr *wr,
		 enum ib_wc_status status, u32 len, struct vib_kicks *k)
{
	struct ib_wc wc = {};

	if (status == IB_WC_SUCCESS && !qp->sig_all &&
	    !(wr->send_flags & IB_SEND_SIGNALED)) {
		atomic_inc(&qp->unsignaled);
		return;
	}
	wc.wr_id = wr->wr_id;
	wc.status = status;
	wc.opcode = wr->opcode == IB_WR_LSO ? IB_WC_LSO : IB_WC_SEND;
	wc.qp = &qp->ibqp;
	wc.byte_len = len;
	vib_cq_add(qp->scq, &wc, &qp->sq_out,
		   1 + atomic_xchg(&qp->unsignaled, 0), false, k);
}

/* Length of the gather list of @wr; negative errno when it is not legal. */
int vib_send_len(struct vib_qp *qp, const struct ib_send_wr *wr, u32 *len)
{
	int i;

	if (wr->num_sge < 0 || wr->num_sge > qp->max_send_sge) {
		vib_strict(VIB_S_TOO_MANY_SGE);
		return -EINVAL;
	}
	*len = 0;
	for (i = 0; i < wr->num_sge; i++) {
		if (wr->sg_list[i].lkey != qp->ibqp.device->local_dma_lkey) {
			vib_strict(VIB_S_BAD_LKEY);
			return -EINVAL;
		}
		*len += wr->sg_list[i].length;
	}
	return 0;
}

/* Charge one work request to the send queue. */
int vib_send_charge(struct vib_qp *qp)
{
	if (atomic_inc_return(&qp->sq_out) > qp->max_send_wr) {
		atomic_dec(&qp->sq_out);
		vib_strict(VIB_S_OVERPOST_SQ);
		return -ENOMEM;
	}
	return 0;
}

/* Addressing of a packet from an address vector. */
void vib_pkt_route(struct vib_pkt *p, struct vib_port *port,
		   const struct rdma_ah_attr *av)
{
	const struct ib_global_route *g = &av->grh;

	p->src = port;
	p->in_port = port->swport;
	p->sl = rdma_ah_get_sl(av);
	p->dlid = rdma_ah_get_dlid(av);
	p->slid = READ_ONCE(port->lid) |
		  (rdma_ah_get_path_bits(av) & ((1 << port->lmc) - 1));
	if (p->dlid == VIB_PERMISSIVE)
		p->slid = VIB_PERMISSIVE;
	if (!(rdma_ah_get_ah_flags(av) & IB_AH_GRH))
		return;
	p->has_grh = true;
	p->dgid = g->dgid;
	p->sgid.global.subnet_prefix = cpu_to_be64(READ_ONCE(port->prefix));
	p->sgid.global.interface_id = READ_ONCE(port->guid[g->sgid_index]);
	p->tclass_flow = cpu_to_be32(6U << 28 | (u32)g->traffic_class << 20 |
				     (g->flow_label & 0xfffff));
	p->hop_limit = g->hop_limit;
}

/* Send a complete packet: local copies first, then the wire. RCU read side. */
void vib_ud_transmit(struct vib_pkt *p, struct vib_kicks *k)
{
	struct vib_port *port = p->src;
	enum vib_verdict v;

	this_cpu_inc(port->pcpu->tx_pkts);
	this_cpu_add(port->pcpu->tx_bytes, p->len);
	if (!vib_port_can(port, p->dqpn == 0)) {
		vib_count(port, VIB_PORT_DOWN);
		vib_ring_add(p, port->swport, VIB_PORT_DOWN);
		return;
	}
	if (p->dlid >= VIB_MLID_BASE && p->dlid != VIB_PERMISSIVE) {
		this_cpu_inc(port->pcpu->tx_mcast);
		v = vib_port_mcast(port, p, p->no_self ? p->sender : NULL, k);
		if (v != VIB_NO_MEMBER)
			vib_ring_add(p, port->swport, v);
	} else if (p->dlid != VIB_PERMISSIVE &&
		   vib_port_has_lid(port, p->dlid)) {
		v = vib_port_rx(port, p, k);
		vib_ring_add(p, port->swport, v);
		return;
	}
	vib_switch_forward(p, k);
}

static int vib_ud_send(struct vib_qp *qp, const struct ib_send_wr *wr,
		       struct vib_kicks *k)
{
	const struct ib_ud_wr *ud = ud_wr(wr);
	struct vib_port *port = qp->port;
	enum ib_qp_state state = READ_ONCE(qp->state);
	struct vib_pkt p;
	struct vib_ah *ah;
	u32 len, mtu;
	int err;

	if (state < IB_QPS_RTS) {
		vib_strict(VIB_S_BAD_STATE_POST);
		return -EINVAL;
	}
	err = vib_send_len(qp, wr, &len);
	if (!err)
		err = vib_send_charge(qp);
	if (err)
		return err;
	if (state == IB_QPS_ERR || state == IB_QPS_SQE) {
		vib_send_wc(qp, wr, IB_WC_WR_FLUSH_ERR, 0, k);
		return 0;
	}
	ah = to_vah(ud->ah);
	if (vib_gone(ah->magic) || ah->ibah.pd != qp->ibqp.pd || ah->attr.port_num != port->num) {
		vib_strict(VIB_S_FOREIGN_AH);
		vib_qp_set_state(qp, IB_QPS_SQE);
		vib_send_wc(qp, wr, IB_WC_LOC_QP_OP_ERR, 0, k);
		return 0;
	}

	memset(&p, 0, sizeof(p));
	vib_pkt_route(&p, port, &ah->attr);
	p.sender = qp;
	p.no_self = !vib_par.mcast_self || (qp->create_flags &
				IB_QP_CREATE_BLOCK_MULTICAST_LOOPBACK);
	p.sqpn = qp->qpn;
	p.dqpn = ud->remote_qpn & 0xffffff;
	p.qkey = (s32)ud->remote_qkey < 0 ? READ_ONCE(qp->qkey) :
					    ud->remote_qkey;
	p.pkey = READ_ONCE(port->pkey[qp->type == IB_QPT_GSI ?
			   ud->pkey_index % VIB_MAX_PKEYS : qp->pkey_index]);
	p.psn = qp->sq_psn;
	p.opcode = IB_OPCODE_UD_SEND_ONLY;
	p.solicited = wr->send_flags & IB_SEND_SOLICITED;
	if (wr->opcode == IB_WR_SEND_WITH_IMM) {
		p.opcode = IB_OPCODE_UD_SEND_ONLY_WITH_IMMEDIATE;
		p.has_imm = true;
		p.imm = wr->ex.imm_data;
	}
	p.len = len;
	p.sge = wr->sg_list;
	p.nsge = wr->num_sge;
	qp->sent++;

	mtu = ib_mtu_enum_to_int(port->active_mtu);
	if (qp->type == IB_QPT_UD && !p.qkey)
		vib_strict(VIB_S_NO_QKEY);
	if (wr->opcode == IB_WR_LSO) {
		err = vib_lso_send(qp, ud, &p, mtu, k);
	} else if (wr->opcode != IB_WR_SEND &&
		   wr->opcode != IB_WR_SEND_WITH_IMM) {
		err = IB_WC_LOC_QP_OP_ERR;
	} else if (len > mtu) {
		err = IB_WC_LOC_LEN_ERR;
	} else {
		err = vib_fault_wc(&p);
		if (!err && (wr->send_flags & IB_SEND_IP_CSUM))
			err = vib_csum_send(&p, k);
		else if (!err)
			vib_fault_transmit(&p, k);
	}
	qp->sq_psn = (qp->sq_psn + 1) & 0xffffff;
	/* The state changes first: who sees the error may query the QP. */
	if (err)
		vib_qp_set_state(qp, p.to_err ? IB_QPS_ERR : IB_QPS_SQE);
	vib_send_wc(qp, wr, err, len, k);
	if (err && p.to_err)
		vib_qp_to_err(qp);
	return 0;
}

int vib_post_send(struct ib_qp *ibqp, const struct ib_send_wr *wr,
		  const struct ib_send_wr **bad)
{
	struct vib_qp *qp = to_vqp(ibqp);
	struct vib_kicks k = {};
	int err = 0;

	if (vib_gone(qp->magic)) {
		*bad = wr;
		return -EINVAL;
	}
	rcu_read_lock();
	for (; wr; wr = wr->next) {
		if (qp->type > IB_QPT_GSI && vib_fail(VIB_F_POST_SEND))
			err = -ENOMEM;
		else if (qp->rc)
			err = vib_rc_post(qp, wr, &k);
		else
			err = vib_ud_send(qp, wr, &k);
		if (err) {
			*bad = wr;
			break;
		}
	}
	vib_kicks_run(&k);
	rcu_read_unlock();
	return err;
}

/* May packets with P_Key @a reach a receiver that holds @b? */
bool vib_pkey_match(u16 a, u16 b)
{
	return ((a ^ b) & 0x7fff) == 0 && (a & 0x7fff) && ((a | b) & 0x8000);
}

static bool vib_ud_pkey(struct vib_port *port, struct vib_qp *qp,
			const struct vib_pkt *p, u16 *index)
{
	u32 i;

	*index = qp->pkey_index;
	if (qp->type == IB_QPT_SMI)
		return true;
	if (qp->type != IB_QPT_GSI)
		return vib_pkey_match(p->pkey,
				      READ_ONCE(port->pkey[qp->pkey_index]));
	for (i = 0; i < vib_par.pkeys; i++)
		if (vib_pkey_match(p->pkey, READ_ONCE(port->pkey[i]))) {
			*index = i;
			return true;
		}
	return false;
}

static void vib_write_grh(const struct vib_wqe *w, const struct vib_pkt *p)
{
	struct ib_grh grh;

	if (!p->has_grh) {
		/* Without a GRH the first 40 bytes are undefined. */
		if (vib_par.strict) {
			memset(&grh, 0xa5, sizeof(grh));
			vib_scatter(w, 0, &grh, sizeof(grh));
		}
		return;
	}
	grh.version_tclass_flow = p->tclass_flow;
	grh.paylen = cpu_to_be16(vib_ib_len(p));
	grh.next_hdr = 0x1b;
	grh.hop_limit = p->hop_limit;
	grh.sgid = p->sgid;
	grh.dgid = p->dgid;
	vib_scatter(w, 0, &grh, sizeof(grh));
}

static enum vib_verdict vib_ud_deliver(struct vib_port *port,
				       struct vib_qp *qp, struct vib_pkt *p,
				       u16 pkey_index, struct vib_kicks *k)
{
	struct ib_wc wc = {};
	struct vib_wqe *w;
	atomic_t *out;

	if (qp->state < IB_QPS_RTR || qp->state == IB_QPS_ERR)
		return VIB_BAD_STATE;
	w = vib_rq_pop(qp, vib_par.strict_len ? 0 : VIB_GRH_LEN + p->len, &out);
	if (IS_ERR(w))
		return PTR_ERR(w) == -ENOBUFS ? VIB_NO_WQE : VIB_TOO_LONG;
	wc.wr_id = w->wr_id;
	wc.opcode = IB_WC_RECV;
	wc.qp = &qp->ibqp;
	wc.port_num = port->num;
	if (w->len < VIB_GRH_LEN + p->len) {
		wc.status = IB_WC_LOC_LEN_ERR;
		vib_cq_add(qp->rcq, &wc, out, 1, true, k);
		return VIB_TOO_LONG;
	}
	vib_write_grh(w, p);
	vib_copy_pkt(w, VIB_GRH_LEN, p);
	wc.status = IB_WC_SUCCESS;
	wc.byte_len = VIB_GRH_LEN + p->len;
	wc.src_qp = p->sqpn;
	wc.slid = p->slid;
	wc.sl = p->sl;
	wc.pkey_index = pkey_index;
	if (p->dlid < VIB_MLID_BASE)
		wc.dlid_path_bits = p->dlid & ((1 << port->lmc) - 1);
	if (p->has_grh)
		wc.wc_flags |= IB_WC_GRH;
	if (p->csum_ok)
		wc.wc_flags |= IB_WC_IP_CSUM_OK;
	if (p->has_imm) {
		wc.wc_flags |= IB_WC_WITH_IMM;
		wc.ex.imm_data = p->imm;
	}
	vib_fault_recv(p, &wc);
	qp->received++;
	vib_cq_add(qp->rcq, &wc, out, 1, p->solicited, k);
	return VIB_OK;
}

/* A datagram for @qp arrives at @port. RCU read side, no lock held. */
enum vib_verdict vib_qp_rx_ud(struct vib_port *port, struct vib_qp *qp,
			      struct vib_pkt *p, struct vib_kicks *k)
{
	enum vib_verdict v;
	unsigned long flags;
	u16 pkey_index;

	if (qp->type == IB_QPT_RC || qp->port != port)
		return VIB_NO_QP;
	if (!vib_ud_pkey(port, qp, p, &pkey_index)) {
		WRITE_ONCE(port->pkey_viol, port->pkey_viol + 1);
		return VIB_BAD_PKEY;
	}
	if (qp->type != IB_QPT_SMI && p->qkey != READ_ONCE(qp->qkey)) {
		WRITE_ONCE(port->qkey_viol, port->qkey_viol + 1);
		return VIB_BAD_QKEY;
	}
	spin_lock_irqsave(&qp->rq.lock, flags);
	v = vib_ud_deliver(port, qp, p, pkey_index, k);
	spin_unlock_irqrestore(&qp->rq.lock, flags);
	return v;
}
