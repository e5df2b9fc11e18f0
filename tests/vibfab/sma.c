// SPDX-License-Identifier: GPL-2.0
/* process_mad: the subnet management agent of the HCA ports. Atomic-safe. */

#include "sma.h"

static void vib_node_info(struct vib_hca *hca, u32 num, struct ib_smp *smp)
{
	struct ib_node_info *ni = (struct ib_node_info *)smp->data;

	memset(ni, 0, sizeof(*ni));
	ni->base_version = 1;
	ni->class_version = 1;
	ni->node_type = 1;
	ni->num_ports = hca->nports;
	ni->sys_guid = hca->node_guid;
	ni->node_guid = hca->node_guid;
	ni->port_guid = hca->port[num - 1].guid[0];
	ni->partition_cap = cpu_to_be16(vib_par.pkeys);
	ni->device_id = cpu_to_be16(0x7ab);
	ni->revision = cpu_to_be32(1);
	ni->local_port_num = num;
	memset(ni->vendor_id, 0x1b, 3);
}

void vib_port_info_common(struct ib_port_info *pi, u8 state, bool link,
			  u8 active_mtu)
{
	pi->link_width_enabled = VIB_WIDTHS;
	pi->link_width_supported = VIB_WIDTHS;
	pi->link_width_active = IB_WIDTH_4X;
	pi->linkspeed_portstate = VIB_SPEEDS << 4 | state;
	pi->portphysstate_linkdown =
		(link ? VIB_PHYS_LINK_UP : VIB_PHYS_POLLING) << 4 |
		VIB_PHYS_POLLING;
	pi->linkspeedactive_enabled = IB_SPEED_QDR << 4 | VIB_SPEEDS;
	pi->neighbormtu_mastersmsl = active_mtu << 4;
	pi->vlcap_inittype = 1 << 4;
	pi->inittypereply_mtucap = vib_mtu_enum(vib_par.mtu);
	pi->operationalvl_pei_peo_fpi_fpo = 1 << 4;
	pi->resv_resptimevalue = 16;
	pi->localphyerrors_overrunerrors = 0x88;
}

static void vib_port_info(struct vib_port *port, u32 through,
			  struct ib_port_info *pi)
{
	unsigned long flags;

	memset(pi, 0, sizeof(*pi));
	spin_lock_irqsave(&vib_fab.lock, flags);
	vib_port_info_common(pi, port->state, port->link_up, port->active_mtu);
	pi->mkey = port->mkey;
	pi->gid_prefix = cpu_to_be64(port->prefix);
	pi->lid = cpu_to_be16(port->lid);
	pi->sm_lid = cpu_to_be16(port->sm_lid);
	pi->cap_mask = cpu_to_be32(port->cap_mask);
	pi->mkey_lease_period = port->mkey_lease;
	pi->local_port_num = through;
	pi->mkeyprot_resv_lmc = port->mkey_prot | port->lmc;
	pi->neighbormtu_mastersmsl |= port->sm_sl;
	pi->vl_high_limit = port->vl_high_limit;
	pi->pkey_violations = cpu_to_be16(min(port->pkey_viol, 0xffffU));
	pi->qkey_violations = cpu_to_be16(min(port->qkey_viol, 0xffffU));
	pi->guid_cap = vib_par.gids;
	pi->clientrereg_resv_subnetto = port->subnet_timeout;
	spin_unlock_irqrestore(&vib_fab.lock, flags);
}

void vib_port_phys(struct vib_port *port, u8 phys)
{
	if (phys == VIB_PHYS_DISABLED && port->link_up) {
		WRITE_ONCE(port->link_up, false);
		WRITE_ONCE(port->state, IB_PORT_DOWN);
		vib_event(port, IB_EVENT_PORT_ERR);
		vib_switch_link_change(port->swport);
	} else if (phys == VIB_PHYS_POLLING && !port->link_up) {
		WRITE_ONCE(port->link_up, true);
		WRITE_ONCE(port->state, IB_PORT_INIT);
		vib_switch_link_change(port->swport);
	}
}

/* The state an SM may ask for, 0 when it may not. */
static bool vib_state_ok(u8 now, u8 want)
{
	switch (want) {
	case IB_PORT_NOP:
	case IB_PORT_DOWN:
		return true;
	case IB_PORT_ARMED:
		return now == IB_PORT_INIT || now == IB_PORT_ARMED;
	case IB_PORT_ACTIVE:
		return now == IB_PORT_ARMED || now == IB_PORT_ACTIVE;
	default:
		return false;
	}
}

static void vib_port_set_state(struct vib_port *port, u8 want)
{
	u8 was = port->state;

	if (want == IB_PORT_NOP || want == was)
		return;
	/* DOWN from the SM means: train again */
	WRITE_ONCE(port->state, want == IB_PORT_DOWN ? IB_PORT_INIT : want);
	if (want == IB_PORT_ACTIVE)
		vib_event(port, IB_EVENT_PORT_ACTIVE);
	else if (was == IB_PORT_ACTIVE)
		vib_event(port, IB_EVENT_PORT_ERR);
	if (want == IB_PORT_DOWN)
		vib_switch_link_change(port->swport);
}

static bool vib_set_port_info(struct vib_port *port,
			      const struct ib_port_info *pi)
{
	u8 state = pi->linkspeed_portstate & 0xf;
	u8 mtu = pi->neighbormtu_mastersmsl >> 4;
	u16 lid = be16_to_cpu(pi->lid), sm_lid = be16_to_cpu(pi->sm_lid);
	u8 lmc = pi->mkeyprot_resv_lmc & 7;
	u8 sl = pi->neighbormtu_mastersmsl & 0xf;
	bool new_lid, new_sm, new_prefix;
	unsigned long flags;

	if (!vib_state_ok(port->state, state) || lid >= VIB_LIDS ||
	    sm_lid >= VIB_LIDS ||
	    (mtu && (mtu < IB_MTU_256 || mtu > vib_mtu_enum(vib_par.mtu))))
		return false;
	spin_lock_irqsave(&vib_fab.lock, flags);
	new_lid = lid && (lid != port->lid || lmc != port->lmc);
	new_sm = sm_lid != port->sm_lid || sl != port->sm_sl;
	new_prefix = be64_to_cpu(pi->gid_prefix) != port->prefix;
	port->mkey = pi->mkey;
	port->mkey_lease = pi->mkey_lease_period;
	port->mkey_prot = pi->mkeyprot_resv_lmc & 0xc0;
	port->vl_high_limit = pi->vl_high_limit;
	port->subnet_timeout = pi->clientrereg_resv_subnetto & 0x1f;
	WRITE_ONCE(port->prefix, be64_to_cpu(pi->gid_prefix));
	if (lid)
		WRITE_ONCE(port->lid, lid);
	port->lmc = lmc;
	port->sm_lid = sm_lid;
	port->sm_sl = sl;
	if (mtu)
		port->active_mtu = mtu;
	if (!pi->pkey_violations)
		port->pkey_viol = 0;
	if (!pi->qkey_violations)
		port->qkey_viol = 0;
	spin_unlock_irqrestore(&vib_fab.lock, flags);

	if (new_prefix)
		vib_event(port, IB_EVENT_GID_CHANGE);
	if (new_lid)
		vib_event(port, IB_EVENT_LID_CHANGE);
	if (new_sm)
		vib_event(port, IB_EVENT_SM_CHANGE);
	if (pi->clientrereg_resv_subnetto & 0x80)
		vib_event(port, IB_EVENT_CLIENT_REREGISTER);
	vib_port_set_state(port, state);
	vib_port_phys(port, pi->portphysstate_linkdown >> 4);
	return true;
}

static bool vib_pkey_table(struct vib_port *port, struct ib_smp *smp, bool set)
{
	u32 first = (be32_to_cpu(smp->attr_mod) & 0xffff) * 32, i;
	__be16 *t = (__be16 *)smp->data;
	bool changed = false;

	if (first >= vib_par.pkeys)
		return false;
	for (i = 0; i < 32; i++) {
		u16 *have = &port->pkey[first + i];

		if (first + i >= vib_par.pkeys) {
			t[i] = 0;
			continue;
		}
		if (set && *have != be16_to_cpu(t[i])) {
			WRITE_ONCE(*have, be16_to_cpu(t[i]));
			changed = true;
		}
		t[i] = cpu_to_be16(*have);
	}
	if (changed)
		vib_event(port, IB_EVENT_PKEY_CHANGE);
	return true;
}

static bool vib_guid_info(struct vib_port *port, struct ib_smp *smp, bool set)
{
	u32 first = be32_to_cpu(smp->attr_mod) * 8, i;
	__be64 *t = (__be64 *)smp->data;
	bool changed = false;

	if (first >= vib_par.gids)
		return false;
	for (i = 0; i < 8; i++) {
		if (first + i >= vib_par.gids) {
			t[i] = 0;
			continue;
		}
		/* GUID 0 is burnt in */
		if (set && first + i && port->guid[first + i] != t[i]) {
			WRITE_ONCE(port->guid[first + i], t[i]);
			changed = true;
		}
		t[i] = port->guid[first + i];
	}
	if (changed)
		vib_event(port, IB_EVENT_GID_CHANGE);
	return true;
}

void vib_sma_hca(struct vib_hca *hca, u32 num, struct ib_smp *smp)
{
	struct ib_port_info *pi = (struct ib_port_info *)smp->data;
	struct vib_port *port = &hca->port[num - 1];
	bool set = smp->method == IB_MGMT_METHOD_SET;
	u32 which;

	smp->method = IB_MGMT_METHOD_GET_RESP;
	switch (smp->attr_id) {
	case IB_SMP_ATTR_NODE_DESC:
		memset(smp->data, 0, sizeof(smp->data));
		memcpy(smp->data, hca->ibdev.node_desc,
		       min(sizeof(smp->data), sizeof(hca->ibdev.node_desc)));
		return;
	case IB_SMP_ATTR_NODE_INFO:
		vib_node_info(hca, num, smp);
		return;
	case IB_SMP_ATTR_PORT_INFO:
		which = be32_to_cpu(smp->attr_mod) & 0xff;
		if (which > hca->nports)
			break;
		if (which)
			port = &hca->port[which - 1];
		if (set && !vib_set_port_info(port, pi))
			break;
		vib_port_info(port, num, pi);
		return;
	case IB_SMP_ATTR_PKEY_TABLE:
		if (!vib_pkey_table(port, smp, set))
			break;
		return;
	case IB_SMP_ATTR_GUID_INFO:
		if (!vib_guid_info(port, smp, set))
			break;
		return;
	case IB_SMP_ATTR_SL_TO_VL_TABLE:
	case IB_SMP_ATTR_VL_ARB_TABLE:
		if (!set)
			memset(smp->data, 0, sizeof(smp->data));
		return;
	default:
		smp->status |= VIB_SMP_BAD_ATTR;
		return;
	}
	smp->status |= VIB_SMP_BAD_VALUE;
}

int vib_process_mad(struct ib_device *ibdev, int flags, u32 num,
		    const struct ib_wc *wc, const struct ib_grh *grh,
		    const struct ib_mad *in, struct ib_mad *out,
		    size_t *out_size, u16 *out_pkey_index)
{
	struct vib_hca *hca = to_vhca(ibdev);
	const struct ib_mad_hdr *h = &in->mad_hdr;
	struct ib_smp *smp = (struct ib_smp *)out;

	if (!num || num > hca->nports)
		return IB_MAD_RESULT_FAILURE;
	if (h->method != IB_MGMT_METHOD_GET && h->method != IB_MGMT_METHOD_SET)
		return IB_MAD_RESULT_SUCCESS;
	switch (h->mgmt_class) {
	case IB_MGMT_CLASS_SUBN_LID_ROUTED:
	case IB_MGMT_CLASS_SUBN_DIRECTED_ROUTE:
		/* the SM in user space answers for itself */
		if (h->attr_id == IB_SMP_ATTR_SM_INFO)
			return IB_MAD_RESULT_SUCCESS;
		*out = *in;
		smp->status = 0;
		if (h->mgmt_class == IB_MGMT_CLASS_SUBN_DIRECTED_ROUTE)
			smp->status = IB_SMP_DIRECTION;
		vib_sma_hca(hca, num, smp);
		return IB_MAD_RESULT_SUCCESS | IB_MAD_RESULT_REPLY;
	case IB_MGMT_CLASS_PERF_MGMT:
		return vib_pma(&hca->port[num - 1], in, out);
	default:
		return IB_MAD_RESULT_SUCCESS;
	}
}
