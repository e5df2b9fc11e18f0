// SPDX-License-Identifier: GPL-2.0
/* The switch: its management agent, and the forwarding of directed routes. */

#include <linux/slab.h>
#include <rdma/ib_pack.h>
#include "sma.h"

#define VIB_SMP_QUEUE_MAX	4096

struct vib_switch_info {
	__be16 linear_cap;
	__be16 random_cap;
	__be16 mcast_cap;
	__be16 linear_top;
	u8 def_port;
	u8 def_mcast_primary;
	u8 def_mcast_not_primary;
	u8 life_change;		/* life time 5, port state change 1, 2 */
	__be16 lids_per_port;
	__be16 enforce_cap;
	u8 flags;
	u8 resv;
	__be16 mcast_top;
} __packed;

struct vib_smp_req {
	struct list_head list;
	struct vib_pkt pkt;
	struct ib_smp smp;
};

static struct {
	spinlock_t lock;	/* the queue */
	struct list_head queue;
	u32 queued;
	struct work_struct work;
	/* below: changed by the work item only, but for state and change */
	struct vib_switch_info si;
	u8 state[VIB_SW_PORTS];
	u8 mtu[VIB_SW_PORTS];
	u16 pkey0[32];
	__be64 mkey;
	u64 prefix;
	u8 sm_sl;
	u8 timeout;
	bool change;
	bool trap;
	__be64 tid;
} vib_sw;

static struct vib_port *vib_sw_peer(u32 n)
{
	return n && n <= vib_fab.nports ?
	       rcu_dereference(vib_fab.port[n]) : NULL;
}

static bool vib_sw_link(u32 n)
{
	struct vib_port *peer;
	bool up;

	rcu_read_lock();
	peer = vib_sw_peer(n);
	up = !n || (peer && READ_ONCE(peer->link_up));
	rcu_read_unlock();
	return up;
}

/* The link of port @swport went down, came up, or was plugged. Any context. */
void vib_switch_link_change(u32 swport)
{
	unsigned long flags;

	spin_lock_irqsave(&vib_sw.lock, flags);
	vib_sw.state[swport] = vib_sw_link(swport) ? IB_PORT_INIT :
						     IB_PORT_DOWN;
	vib_sw.change = true;
	vib_sw.trap = true;
	spin_unlock_irqrestore(&vib_sw.lock, flags);
	queue_work(vib_fab.wq, &vib_sw.work);
}

static void vib_sw_node_info(u32 in, struct ib_smp *smp)
{
	struct ib_node_info *ni = (struct ib_node_info *)smp->data;

	memset(ni, 0, sizeof(*ni));
	ni->base_version = 1;
	ni->class_version = 1;
	ni->node_type = 2;
	ni->num_ports = vib_fab.nports;
	ni->sys_guid = vib_fab.sw_guid;
	ni->node_guid = vib_fab.sw_guid;
	ni->port_guid = vib_fab.sw_guid;
	ni->partition_cap = cpu_to_be16(32);
	ni->device_id = cpu_to_be16(0x7ac);
	ni->revision = cpu_to_be32(1);
	ni->local_port_num = in;
	memset(ni->vendor_id, 0x1b, 3);
}

static void vib_sw_switch_info(struct ib_smp *smp, bool set)
{
	struct vib_switch_info *si = (struct vib_switch_info *)smp->data;

	if (set) {
		vib_sw.si.linear_top = si->linear_top;
		vib_sw.si.def_port = si->def_port;
		vib_sw.si.def_mcast_primary = si->def_mcast_primary;
		vib_sw.si.def_mcast_not_primary = si->def_mcast_not_primary;
		vib_sw.si.mcast_top = si->mcast_top;
		vib_sw.si.life_change = si->life_change & 0xf8;
		if (si->life_change & 0x04)
			vib_sw.change = false;
	}
	memset(smp->data, 0, sizeof(smp->data));
	*si = vib_sw.si;
	si->linear_cap = cpu_to_be16(VIB_LIDS - 1);
	si->mcast_cap = cpu_to_be16(VIB_MLIDS);
	si->life_change |= vib_sw.change ? 0x04 : 0;
}

static void vib_sw_set_port0(const struct ib_port_info *pi)
{
	u16 lid = be16_to_cpu(pi->lid);

	vib_sw.mkey = pi->mkey;
	vib_sw.prefix = be64_to_cpu(pi->gid_prefix);
	vib_sw.sm_sl = pi->neighbormtu_mastersmsl & 0xf;
	vib_sw.timeout = pi->clientrereg_resv_subnetto & 0x1f;
	if (lid && lid < VIB_LIDS)
		WRITE_ONCE(vib_fab.sw_lid, lid);
	vib_fab.sw_sm_lid = be16_to_cpu(pi->sm_lid);
}

static bool vib_sw_set_port(u32 n, const struct ib_port_info *pi)
{
	u8 want = pi->linkspeed_portstate & 0xf;
	u8 mtu = pi->neighbormtu_mastersmsl >> 4;
	u8 now = vib_sw.state[n];
	struct vib_port *peer;

	if (mtu >= IB_MTU_256 && mtu <= vib_mtu_enum(vib_par.mtu))
		vib_sw.mtu[n] = mtu;
	rcu_read_lock();
	peer = vib_sw_peer(n);
	if (peer)
		vib_port_phys(peer, pi->portphysstate_linkdown >> 4);
	rcu_read_unlock();
	switch (want) {
	case IB_PORT_NOP:
		return true;
	case IB_PORT_DOWN:
		vib_switch_link_change(n);
		return true;
	case IB_PORT_ARMED:
		if (now != IB_PORT_INIT && now != IB_PORT_ARMED)
			return false;
		break;
	case IB_PORT_ACTIVE:
		if (now != IB_PORT_ARMED && now != IB_PORT_ACTIVE)
			return false;
		break;
	default:
		return false;
	}
	vib_sw.state[n] = want;
	return true;
}

static bool vib_sw_port_info(u32 in, struct ib_smp *smp, bool set)
{
	struct ib_port_info *pi = (struct ib_port_info *)smp->data;
	u32 n = be32_to_cpu(smp->attr_mod) & 0xff;
	bool ok = true;
	u8 state;

	if (n > vib_fab.nports)
		return false;
	if (set && n)
		ok = vib_sw_set_port(n, pi);
	else if (set)
		vib_sw_set_port0(pi);
	state = vib_sw.state[n];
	if (!n || (vib_par.sm == VIB_SM_EMBEDDED && vib_sw_link(n)))
		state = IB_PORT_ACTIVE;
	memset(pi, 0, sizeof(*pi));
	vib_port_info_common(pi, state, vib_sw_link(n),
			     vib_sw.mtu[n] ?: vib_mtu_enum(vib_par.mtu));
	pi->local_port_num = in;
	if (n)
		return ok;
	pi->mkey = vib_sw.mkey;
	pi->gid_prefix = cpu_to_be64(vib_sw.prefix);
	pi->lid = cpu_to_be16(vib_fab.sw_lid);
	pi->sm_lid = cpu_to_be16(vib_fab.sw_sm_lid);
	pi->neighbormtu_mastersmsl |= vib_sw.sm_sl;
	pi->clientrereg_resv_subnetto = vib_sw.timeout;
	pi->cap_mask = cpu_to_be32(IB_PORT_TRAP_SUP |
				   IB_PORT_SYS_IMAGE_GUID_SUP);
	pi->guid_cap = 1;
	return true;
}

static bool vib_sw_pkeys(struct ib_smp *smp, bool set)
{
	u32 mod = be32_to_cpu(smp->attr_mod), i;
	__be16 *t = (__be16 *)smp->data;

	if (mod >> 16 || mod & 0xffff) {
		/* an external port, or past the end: no enforcement here */
		memset(smp->data, 0, sizeof(smp->data));
		return (mod & 0xffff) == 0;
	}
	for (i = 0; i < 32; i++) {
		if (set)
			vib_sw.pkey0[i] = be16_to_cpu(t[i]);
		t[i] = cpu_to_be16(vib_sw.pkey0[i]);
	}
	return true;
}

static bool vib_sw_lft(struct ib_smp *smp, bool set)
{
	u32 first = be32_to_cpu(smp->attr_mod) * 64, i;

	if (be32_to_cpu(smp->attr_mod) >= VIB_LIDS / 64)
		return false;
	for (i = 0; i < 64; i++) {
		if (set && first + i)
			vib_lft_set(first + i, smp->data[i]);
		smp->data[i] = READ_ONCE(vib_fab.lft[first + i]);
	}
	return true;
}

static bool vib_sw_mft(struct ib_smp *smp, bool set)
{
	u32 mod = be32_to_cpu(smp->attr_mod);
	u32 first = (mod & 0x1ff) * 32, pos = mod >> 28, i;
	__be16 *t = (__be16 *)smp->data;

	if (first >= VIB_MLIDS || pos >= VIB_MFT_POS)
		return false;
	for (i = 0; i < 32; i++) {
		u16 *mask = &vib_fab.mft[first + i][pos];

		if (set)
			WRITE_ONCE(*mask, be16_to_cpu(t[i]));
		t[i] = cpu_to_be16(*mask);
	}
	return true;
}

void vib_sma_switch(u32 in, struct ib_smp *smp)
{
	bool set = smp->method == IB_MGMT_METHOD_SET;
	bool ok = true;

	smp->method = IB_MGMT_METHOD_GET_RESP;
	switch (smp->attr_id) {
	case IB_SMP_ATTR_NODE_DESC:
		memset(smp->data, 0, sizeof(smp->data));
		strscpy(smp->data, "vibfab switch", sizeof(smp->data));
		break;
	case IB_SMP_ATTR_NODE_INFO:
		vib_sw_node_info(in, smp);
		break;
	case IB_SMP_ATTR_SWITCH_INFO:
		vib_sw_switch_info(smp, set);
		break;
	case IB_SMP_ATTR_PORT_INFO:
		ok = vib_sw_port_info(in, smp, set);
		break;
	case IB_SMP_ATTR_PKEY_TABLE:
		ok = vib_sw_pkeys(smp, set);
		break;
	case IB_SMP_ATTR_GUID_INFO:
		memset(smp->data, 0, sizeof(smp->data));
		*(__be64 *)smp->data = vib_fab.sw_guid;
		break;
	case IB_SMP_ATTR_LINEAR_FORWARD_TABLE:
		ok = vib_sw_lft(smp, set);
		break;
	case IB_SMP_ATTR_MCAST_FORWARD_TABLE:
		ok = vib_sw_mft(smp, set);
		break;
	case IB_SMP_ATTR_SL_TO_VL_TABLE:
	case IB_SMP_ATTR_VL_ARB_TABLE:
		if (!set)
			memset(smp->data, 0, sizeof(smp->data));
		break;
	default:
		smp->status |= VIB_SMP_BAD_ATTR;
	}
	if (!ok)
		smp->status |= VIB_SMP_BAD_VALUE;
}

static void vib_sw_send(struct ib_smp *smp, u32 out, u16 slid, u16 dlid)
{
	struct vib_pkt p = {
		.opcode = IB_OPCODE_UD_SEND_ONLY,
		.pkey = IB_DEFAULT_PKEY_FULL,
		.slid = slid,
		.dlid = dlid,
		.len = sizeof(*smp),
		.hdr = smp,
		.hlen = sizeof(*smp),
	};

	if (out == VIB_NO_PORT || (out && out <= vib_fab.nports))
		vib_switch_inject(&p, out);
}

/* Go back one hop of a returning directed route, and out. */
static void vib_sw_return(struct ib_smp *smp)
{
	smp->hop_ptr--;
	vib_sw_send(smp, smp->return_path[smp->hop_ptr], VIB_PERMISSIVE,
		    VIB_PERMISSIVE);
}

/* A directed route passes, or ends here (IBA 14.2.2). */
static void vib_sw_directed(u32 in, struct ib_smp *smp)
{
	u8 ptr = smp->hop_ptr, cnt = smp->hop_cnt;

	if (!ptr || !cnt || cnt >= IB_SMP_MAX_PATH_HOPS)
		return;
	if (ib_get_smp_direction(smp)) {
		if (ptr >= 2 && ptr <= cnt)
			vib_sw_return(smp);
		return;
	}
	if (ptr > cnt)
		return;
	smp->return_path[ptr] = in;
	smp->hop_ptr++;
	if (ptr < cnt) {
		vib_sw_send(smp, smp->initial_path[ptr + 1], VIB_PERMISSIVE,
			    VIB_PERMISSIVE);
		return;
	}
	if (smp->method != IB_MGMT_METHOD_GET &&
	    smp->method != IB_MGMT_METHOD_SET)
		return;
	smp->status = IB_SMP_DIRECTION;
	vib_sma_switch(in, smp);
	vib_sw_return(smp);
}

static void vib_sw_lid_routed(struct vib_smp_req *r)
{
	struct ib_smp *smp = &r->smp;

	if (smp->mgmt_class != IB_MGMT_CLASS_SUBN_LID_ROUTED ||
	    (smp->method != IB_MGMT_METHOD_GET &&
	     smp->method != IB_MGMT_METHOD_SET))
		return;
	smp->status = 0;
	vib_sma_switch(r->pkt.in_port, smp);
	vib_sw_send(smp, VIB_NO_PORT, r->pkt.dlid, r->pkt.slid);
}

/* Tell the SM that a port changed (trap 128), if there is an SM. */
static void vib_sw_trap(void)
{
	struct ib_smp smp = {
		.base_version = 1,
		.mgmt_class = IB_MGMT_CLASS_SUBN_LID_ROUTED,
		.class_version = 1,
		.method = IB_MGMT_METHOD_TRAP,
		.attr_id = IB_SMP_ATTR_NOTICE,
	};
	u16 sm = vib_fab.sw_sm_lid;

	if (vib_par.sm == VIB_SM_EMBEDDED || !sm)
		return;
	be64_add_cpu(&vib_sw.tid, 1);
	smp.tid = vib_sw.tid;
	smp.data[0] = 0x80 | 1;		/* generic, urgent */
	smp.data[3] = 2;		/* by a switch */
	put_unaligned_be16(128, &smp.data[4]);
	put_unaligned_be16(vib_fab.sw_lid, &smp.data[6]);
	put_unaligned_be16(vib_fab.sw_lid, &smp.data[10]);
	vib_sw_send(&smp, VIB_NO_PORT, vib_fab.sw_lid, sm);
}

static struct vib_smp_req *vib_sw_next(bool *trap)
{
	struct vib_smp_req *r;
	unsigned long flags;

	spin_lock_irqsave(&vib_sw.lock, flags);
	r = list_first_entry_or_null(&vib_sw.queue, struct vib_smp_req, list);
	if (r) {
		list_del(&r->list);
		vib_sw.queued--;
	}
	*trap = vib_sw.trap;
	vib_sw.trap = false;
	spin_unlock_irqrestore(&vib_sw.lock, flags);
	return r;
}

static void vib_sw_work(struct work_struct *work)
{
	struct vib_smp_req *r;
	bool trap;

	do {
		r = vib_sw_next(&trap);
		if (trap)
			vib_sw_trap();
		if (!r)
			break;
		if (r->pkt.dlid == VIB_PERMISSIVE)
			vib_sw_directed(r->pkt.in_port, &r->smp);
		else
			vib_sw_lid_routed(r);
		kfree(r);
		cond_resched();
	} while (1);
}

static void vib_sw_queue(struct vib_pkt *p)
{
	struct vib_smp_req *r;
	unsigned long flags;

	if (p->len != sizeof(r->smp) || vib_sw.queued >= VIB_SMP_QUEUE_MAX)
		return;
	r = kmalloc_obj(*r, GFP_ATOMIC);
	if (!r)
		return;
	r->pkt = *p;
	vib_pkt_linear(p, &r->smp, sizeof(r->smp));
	spin_lock_irqsave(&vib_sw.lock, flags);
	list_add_tail(&r->list, &vib_sw.queue);
	vib_sw.queued++;
	spin_unlock_irqrestore(&vib_sw.lock, flags);
	queue_work(vib_fab.wq, &vib_sw.work);
}

/* A directed-route SMP comes in. Any context. */
void vib_switch_dr(struct vib_pkt *p)
{
	if (p->dqpn == 0)
		vib_sw_queue(p);
}

/* A packet for the switch itself. Any context. */
void vib_port0_rx(struct vib_pkt *p)
{
	if (p->dqpn == 0)
		vib_sw_queue(p);
	else if (p->dqpn == 1 && vib_par.sm == VIB_SM_EMBEDDED)
		vib_sa_rx(p);
}

void vib_switch_init(void)
{
	spin_lock_init(&vib_sw.lock);
	INIT_LIST_HEAD(&vib_sw.queue);
	INIT_WORK(&vib_sw.work, vib_sw_work);
	vib_sw.prefix = 0xfe80000000000000ULL;
	vib_sw.timeout = 18;
	vib_sw.pkey0[0] = IB_DEFAULT_PKEY_FULL;
	vib_sw.tid = cpu_to_be64(0x7ab00000000ULL);
	if (vib_par.sm == VIB_SM_EMBEDDED)
		vib_fab.sw_sm_lid = 1;
}

/* All HCAs are gone: nothing comes in any more. */
void vib_switch_exit(void)
{
	struct vib_smp_req *r;
	bool trap;

	cancel_work_sync(&vib_sw.work);
	while ((r = vib_sw_next(&trap)))
		kfree(r);
}
