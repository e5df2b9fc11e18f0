// SPDX-License-Identifier: GPL-2.0
/* The switch: forwarding tables, and the receiving side of a port. */

#include <linux/rcupdate.h>
#include "vibfab.h"

/* May @port carry packets? Management of the subnet needs only a link. */
bool vib_port_can(struct vib_port *port, bool qp0)
{
	if (!READ_ONCE(port->link_up) || READ_ONCE(port->hca->fatal))
		return false;
	return qp0 || READ_ONCE(port->state) == IB_PORT_ACTIVE;
}

bool vib_port_has_lid(struct vib_port *port, u16 lid)
{
	u16 own = READ_ONCE(port->lid);

	return own && (lid >> port->lmc) == (own >> port->lmc);
}

/* QP @qpn of @port, NULL when there is none. RCU read side. */
struct vib_qp *vib_port_qp(struct vib_port *port, u32 qpn)
{
	if (qpn <= 1)
		return rcu_dereference(port->special[qpn]);
	return xa_load(&port->hca->qps, qpn);
}

static enum vib_verdict vib_port_rx_check(struct vib_port *port,
					  struct vib_pkt *p, struct vib_kicks *k)
{
	struct vib_qp *qp;

	if (!vib_port_can(port, p->dqpn == 0))
		return VIB_PORT_DOWN;
	if (p->dlid >= VIB_MLID_BASE && p->dlid != VIB_PERMISSIVE)
		return vib_port_mcast(port, p, NULL, k);
	if (p->dlid != VIB_PERMISSIVE && !vib_port_has_lid(port, p->dlid))
		return VIB_WRONG_LID;
	qp = vib_port_qp(port, p->dqpn);
	if (!qp)
		return VIB_NO_QP;
	return vib_qp_rx_ud(port, qp, p, k);
}

/* A datagram comes in at @port. RCU read side. */
enum vib_verdict vib_port_rx(struct vib_port *port, struct vib_pkt *p,
			     struct vib_kicks *k)
{
	enum vib_verdict v = vib_port_rx_check(port, p, k);

	vib_count(port, v);
	if (v == VIB_OK) {
		this_cpu_inc(port->pcpu->rx_pkts);
		this_cpu_add(port->pcpu->rx_bytes, p->len);
		if (p->dlid >= VIB_MLID_BASE && p->dlid != VIB_PERMISSIVE)
			this_cpu_inc(port->pcpu->rx_mcast);
	}
	return v;
}

/* Out of switch port @out. */
static void vib_switch_out(struct vib_pkt *p, u32 out, struct vib_kicks *k)
{
	struct vib_port *port;
	enum vib_verdict v;

	if (out == 0) {
		vib_ring_add(p, 0, VIB_OK);
		vib_port0_rx(p);
		return;
	}
	if (out == VIB_FAR_PORT) {
		vib_ring_add(p, out, VIB_OK);
		vib_far_rx(p);
		return;
	}
	port = rcu_dereference(vib_fab.port[out]);
	if (vib_fault_egress(p, out))
		v = VIB_FAULT_DROP;
	else
		v = port ? vib_port_rx(port, p, k) : VIB_PORT_DOWN;
	vib_ring_add(p, out, v);
}

static void vib_switch_flood(struct vib_pkt *p, struct vib_kicks *k)
{
	u32 index = p->dlid - VIB_MLID_BASE;
	u32 pos, bit, out, copies = 0;
	u16 mask;

	for (pos = 0; pos < VIB_MFT_POS && index < VIB_MLIDS; pos++) {
		mask = READ_ONCE(vib_fab.mft[index][pos]);
		while (mask) {
			bit = __ffs(mask);
			mask &= mask - 1;
			out = pos * 16 + bit;
			if (out == p->in_port || out >= VIB_SW_PORTS)
				continue;
			vib_switch_out(p, out, k);
			copies++;
		}
	}
	/* it was on the wire all the same, up to the switch */
	if (!copies)
		vib_ring_add(p, 0, VIB_NO_MEMBER);
}

/* Egress port for unicast @lid; VIB_NO_PORT when the table has none. */
u32 vib_switch_lookup(u16 lid)
{
	if (!lid || lid >= VIB_LIDS)
		return VIB_NO_PORT;
	if (lid == READ_ONCE(vib_fab.sw_lid))
		return 0;
	return READ_ONCE(vib_fab.lft[lid]);
}

/* A packet comes in at switch port p->in_port. RCU read side. */
void vib_switch_forward(struct vib_pkt *p, struct vib_kicks *k)
{
	u32 out;

	if (p->dlid == VIB_PERMISSIVE) {
		vib_ring_add(p, 0, VIB_OK);
		vib_switch_dr(p);
		return;
	}
	if (p->dlid >= VIB_MLID_BASE) {
		vib_switch_flood(p, k);
		return;
	}
	out = vib_switch_lookup(p->dlid);
	if (out >= VIB_SW_PORTS || (out == p->in_port && p->src)) {
		if (p->src)
			vib_count(p->src, VIB_NO_ROUTE);
		vib_ring_add(p, 0, VIB_NO_ROUTE);
		return;
	}
	vib_switch_out(p, out, k);
}

/*
 * Send a packet on behalf of the switch (@out 0xff: route it) or straight out
 * of port @out. Process or softirq context, no locks held.
 */
void vib_switch_inject(struct vib_pkt *p, u32 out)
{
	struct vib_kicks k = {};

	rcu_read_lock();
	if (out == VIB_NO_PORT)
		vib_switch_forward(p, &k);
	else
		vib_switch_out(p, out, &k);
	vib_kicks_run(&k);
	rcu_read_unlock();
}

void vib_lft_set(u16 lid, u8 out)
{
	if (lid && lid < VIB_LIDS)
		WRITE_ONCE(vib_fab.lft[lid], out);
}

/* Let @mlid reach switch port @port, or no longer. */
void vib_mft_set(u16 mlid, u32 port, bool on)
{
	u32 index = mlid - VIB_MLID_BASE;
	unsigned long flags;
	u16 *mask;

	if (index >= VIB_MLIDS || port >= VIB_SW_PORTS)
		return;
	mask = &vib_fab.mft[index][port / 16];
	spin_lock_irqsave(&vib_fab.lock, flags);
	if (on)
		WRITE_ONCE(*mask, *mask | BIT(port % 16));
	else
		WRITE_ONCE(*mask, *mask & ~BIT(port % 16));
	spin_unlock_irqrestore(&vib_fab.lock, flags);
}
