// SPDX-License-Identifier: GPL-2.0
/* The embedded subnet manager: brings ports up without a single SMP. */

#include <linux/module.h>
#include "sa.h"

/* Partitions of the subnet; bit 15 clear: the ports are limited members. */
u16 vib_partition[VIB_MAX_PKEYS] = { 0xffff };
u32 vib_partitions = 1;
module_param_array_named(partition, vib_partition, ushort, &vib_partitions,
			 0444);
MODULE_PARM_DESC(partition, "P_Keys of every port (embedded SM)");

static u8 vib_lmc;
module_param_named(lmc, vib_lmc, byte, 0444);
MODULE_PARM_DESC(lmc, "LID mask control of every port (embedded SM)");

/* Route the LIDs of @port to it. RCU or fab.mutex keeps the port. */
static void vib_sm_route(struct vib_port *port, bool on)
{
	u32 i;

	if (!port->lid)
		return;
	for (i = 0; i < 1U << port->lmc; i++)
		vib_lft_set((port->lid & ~((1 << port->lmc) - 1)) + i,
			    on ? port->swport : VIB_NO_PORT);
}

/* Give @port another LID, and route it there. */
void vib_sm_set_lid(struct vib_port *port, u16 lid, u8 lmc)
{
	unsigned long flags;

	vib_sm_route(port, false);
	spin_lock_irqsave(&vib_fab.lock, flags);
	WRITE_ONCE(port->lid, lid);
	port->lmc = lmc;
	spin_unlock_irqrestore(&vib_fab.lock, flags);
	vib_sm_route(port, true);
}

/* A port appears on the switch, before its device is registered. */
void vib_sm_port_plugged(struct vib_port *port)
{
	u32 i;

	if (vib_par.sm != VIB_SM_EMBEDDED) {
		vib_switch_link_change(port->swport);
		return;
	}
	for (i = 0; i < vib_par.pkeys; i++)
		port->pkey[i] = i < vib_partitions ? vib_partition[i] : 0;
	port->sm_lid = vib_fab.sw_lid;
	vib_sm_set_lid(port, (port->swport + 1) << min_t(u8, vib_lmc, 7),
		       min_t(u8, vib_lmc, 7));
	port->state = IB_PORT_ACTIVE;
}

/* A port leaves the switch, or its link goes down. */
void vib_sm_port_gone(struct vib_port *port)
{
	if (vib_par.sm != VIB_SM_EMBEDDED) {
		vib_switch_link_change(port->swport);
		return;
	}
	vib_sm_route(port, false);
	vib_sa_port_gone(port);
}

/* RCU read side; NULL when no port has that GID. */
struct vib_port *vib_sm_port_by_gid(const union ib_gid *gid)
{
	struct vib_port *port;
	u32 i, g;

	for (i = 1; i <= vib_fab.nports; i++) {
		port = rcu_dereference(vib_fab.port[i]);
		if (!port ||
		    gid->global.subnet_prefix != cpu_to_be64(port->prefix))
			continue;
		for (g = 0; g < vib_par.gids; g++)
			if (gid->global.interface_id &&
			    gid->global.interface_id == port->guid[g])
				return port;
	}
	return NULL;
}

struct vib_port *vib_sm_port_by_lid(u16 lid)
{
	u32 out = vib_switch_lookup(lid);

	if (!out || out >= VIB_FAR_PORT)
		return NULL;
	return rcu_dereference(vib_fab.port[out]);
}

bool vib_port_has_pkey(struct vib_port *port, u16 pkey)
{
	u32 i;

	for (i = 0; i < vib_par.pkeys; i++)
		if ((port->pkey[i] & 0x7fff) == (pkey & 0x7fff))
			return true;
	return false;
}
