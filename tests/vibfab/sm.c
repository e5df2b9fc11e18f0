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

/* Are the parameters sound? Those of the fabric itself were looked at before. */
int vib_sm_check(void)
{
	u32 i;

	if (vib_lmc > VIB_MAX_LMC || !vib_partitions ||
	    vib_partitions > vib_par.pkeys)
		return -EINVAL;
	for (i = 0; i < vib_partitions; i++)
		if (!(vib_partition[i] & 0x7fff))
			return -EINVAL;
	return 0;
}

/* The LIDs from here on belong to no port when the fabric comes up. */
u32 vib_sm_first_free_lid(void)
{
	return (vib_par.hcas * vib_par.ports + 2) << vib_lmc;
}

/*
 * Route the LIDs of @port to it, or no longer. While it was down they may have
 * become another's: those stay. RCU or fab.mutex keeps the port.
 */
static void vib_sm_route(struct vib_port *port, bool on)
{
	u32 first = port->lid & ~((1U << port->lmc) - 1), lid;

	if (!port->lid || (on && !READ_ONCE(port->link_up)))
		return;
	for (lid = first; lid < first + (1U << port->lmc); lid++)
		if (on)
			vib_lft_set(lid, port->swport);
		else if (lid < VIB_LIDS && vib_fab.lft[lid] == port->swport)
			vib_lft_set(lid, VIB_NO_PORT);
}

/*
 * May @port have the LIDs that @lid and @lmc name? Not the switch's, another
 * port's or a simulated node's. A port that is unplugged or down has none.
 */
bool vib_sm_lid_free(struct vib_port *port, u16 lid, u8 lmc)
{
	u32 first = lid & ~((1U << lmc) - 1), i;

	for (i = first; i < first + (1U << lmc); i++) {
		u32 out = i < VIB_LIDS ? vib_fab.lft[i] : VIB_NO_PORT;

		if (!i || i >= VIB_LIDS || i == vib_fab.sw_lid ||
		    (out != VIB_NO_PORT && out != port->swport))
			return false;
	}
	return true;
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
	u32 i, lid = (port->swport + 1) << vib_lmc;

	if (vib_par.sm != VIB_SM_EMBEDDED)
		return;	/* its link comes up when the device is there */
	/* a command may have given its LID away while it was out */
	while (!vib_sm_lid_free(port, lid, vib_lmc) &&
	       lid + (2U << vib_lmc) <= VIB_LIDS)
		lid += 1U << vib_lmc;
	for (i = 0; i < vib_par.pkeys; i++)
		port->pkey[i] = i < vib_partitions ? vib_partition[i] : 0;
	port->sm_lid = vib_fab.sw_lid;
	vib_sm_set_lid(port, lid, vib_lmc);
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
