// SPDX-License-Identifier: GPL-2.0
/* The embedded SA: multicast groups and their members. */

#include <linux/bitmap.h>
#include <linux/jhash.h>
#include <linux/slab.h>
#include <rdma/ib_sa.h>
#include "sa.h"

#define VIB_CREATE_MASK (IB_SA_MCMEMBER_REC_QKEY | \
			 IB_SA_MCMEMBER_REC_PKEY | \
			 IB_SA_MCMEMBER_REC_TRAFFIC_CLASS | \
			 IB_SA_MCMEMBER_REC_SL | \
			 IB_SA_MCMEMBER_REC_FLOW_LABEL)

/* IPv4 broadcast MGID of partition @pkey (RFC 4391 4.). */
void vib_ipoib_mgid(union ib_gid *mgid, u16 pkey)
{
	memset(mgid, 0, sizeof(*mgid));
	mgid->raw[0] = 0xff;
	mgid->raw[1] = 0x12;
	mgid->raw[2] = 0x40;
	mgid->raw[3] = 0x1b;
	mgid->raw[4] = (pkey | 0x8000) >> 8;
	mgid->raw[5] = pkey;
	memset(&mgid->raw[12], 0xff, 4);
}

static struct hlist_head *vib_group_bucket(const union ib_gid *mgid)
{
	return &vib_sa.groups[jhash(mgid->raw, 16, 0) % VIB_GROUP_HASH];
}

struct vib_group *vib_group_find(const union ib_gid *mgid)
{
	struct vib_group *g;

	hlist_for_each_entry(g, vib_group_bucket(mgid), node)
		if (!memcmp(&g->rec.mgid, mgid, sizeof(*mgid)))
			return g;
	return NULL;
}

static struct vib_group *vib_group_new(const union ib_gid *mgid)
{
	unsigned long bit = find_first_zero_bit(vib_sa.mlids, VIB_MLIDS);
	struct vib_group *g;

	if (bit >= VIB_MLIDS)
		return NULL;
	g = kzalloc_obj(*g);
	if (!g)
		return NULL;
	set_bit(bit, vib_sa.mlids);
	g->rec.mgid = *mgid;
	g->rec.mlid = cpu_to_be16(VIB_MLID_BASE + bit);
	hlist_add_head(&g->node, vib_group_bucket(mgid));
	/* the far end is in every group, and nobody's member record */
	if (vib_far_nodes())
		vib_mft_set(VIB_MLID_BASE + bit, VIB_FAR_PORT, true);
	return g;
}

void vib_group_free(struct vib_group *g)
{
	u16 mlid = be16_to_cpu(g->rec.mlid);
	u32 i;

	for (i = 0; i < VIB_SW_PORTS; i++)
		vib_mft_set(mlid, i, false);
	clear_bit(mlid - VIB_MLID_BASE, vib_sa.mlids);
	hlist_del(&g->node);
	kfree(g);
}

/* All groups go, or (not @all) all but those of the administrator. */
void vib_groups_free(bool all)
{
	struct hlist_node *n;
	struct vib_group *g;
	u32 b, i;

	vib_for_each_group_safe(b, g, n) {
		if (all || !g->persistent) {
			vib_group_free(g);
			continue;
		}
		for (i = 0; i < VIB_FAR_PORT; i++) {
			g->join[i] = 0;
			vib_mft_set(be16_to_cpu(g->rec.mlid), i, false);
		}
	}
}

/* The IPv4 broadcast group of partition @pkey, as an administrator makes it. */
int vib_group_admin(u16 pkey)
{
	struct vib_group *g;
	union ib_gid mgid;

	vib_ipoib_mgid(&mgid, pkey);
	if (vib_group_find(&mgid))
		return 0;
	g = vib_group_new(&mgid);
	if (!g)
		return -ENOMEM;
	g->persistent = true;
	g->rec.qkey = cpu_to_be32(0x0b1b);
	g->rec.mtu = IB_SA_EQ << 6 | vib_mtu_enum(vib_par.mtu);
	g->rec.pkey = cpu_to_be16(pkey | 0x8000);
	g->rec.rate = IB_SA_EQ << 6 | IB_RATE_10_GBPS;
	g->rec.life = IB_SA_EQ << 6 | 18;
	g->rec.scope_join = 2 << 4;
	return 0;
}

/* The groups every partition has from the start. */
int vib_groups_init(void)
{
	int err = 0;
	u32 i;

	for (i = 0; i < vib_partitions && !err; i++)
		err = vib_group_admin(vib_partition[i]);
	return err;
}

static void vib_group_member(struct vib_group *g, u32 swport, u8 state)
{
	g->join[swport] = state;
	vib_mft_set(be16_to_cpu(g->rec.mlid), swport,
		    state & (VIB_JOIN_FULL | VIB_JOIN_NON));
}

static bool vib_group_wanted(struct vib_group *g)
{
	u32 i;

	for (i = 0; i < VIB_SW_PORTS; i++)
		if (g->join[i] & (VIB_JOIN_FULL | VIB_JOIN_SENDONLY_FULL))
			return true;
	return g->persistent;
}

/* The port is gone: so are its memberships. */
void vib_sa_port_gone(struct vib_port *port)
{
	struct hlist_node *n;
	struct vib_group *g;
	u32 b;

	mutex_lock(&vib_sa.mutex);
	vib_for_each_group_safe(b, g, n) {
		vib_group_member(g, port->swport, 0);
		if (!vib_group_wanted(g))
			vib_group_free(g);
	}
	mutex_unlock(&vib_sa.mutex);
}

/* Does @have satisfy what @want (selector and value) asks for? */
static bool vib_select(u8 want, u8 have)
{
	have &= 0x3f;
	switch (want >> 6) {
	case IB_SA_GT:
		return have > (want & 0x3f);
	case IB_SA_LT:
		return have < (want & 0x3f);
	case IB_SA_EQ:
		return have == (want & 0x3f);
	default:
		return true;
	}
}

static bool vib_group_fits(const struct vib_group *g,
			   const struct vib_sa_mcm *want, ib_sa_comp_mask mask)
{
	if ((mask & IB_SA_MCMEMBER_REC_QKEY) && want->qkey != g->rec.qkey)
		return false;
	if ((mask & IB_SA_MCMEMBER_REC_PKEY) &&
	    ((want->pkey ^ g->rec.pkey) & cpu_to_be16(0x7fff)))
		return false;
	if ((mask & IB_SA_MCMEMBER_REC_MTU_SELECTOR) &&
	    (mask & IB_SA_MCMEMBER_REC_MTU) &&
	    !vib_select(want->mtu, g->rec.mtu))
		return false;
	if ((mask & IB_SA_MCMEMBER_REC_RATE_SELECTOR) &&
	    (mask & IB_SA_MCMEMBER_REC_RATE) &&
	    !vib_select(want->rate, g->rec.rate))
		return false;
	if ((mask & IB_SA_MCMEMBER_REC_SL) &&
	    ((want->sl_flow_hop ^ g->rec.sl_flow_hop) & cpu_to_be32(0xfU << 28)))
		return false;
	return true;
}

/* Could there be a group as @want says? That the SA picks an MGID is not known. */
static bool vib_group_possible(const struct vib_sa_mcm *want,
			       ib_sa_comp_mask mask)
{
	u8 mtu = want->mtu & 0x3f;

	return want->mgid.raw[0] == 0xff && want->pkey & cpu_to_be16(0x7fff) &&
	       (!(mask & IB_SA_MCMEMBER_REC_MTU) ||
		(mtu >= IB_MTU_256 && mtu <= IB_MTU_4096));
}

static struct vib_group *vib_group_create(const struct vib_sa_mcm *want,
					  ib_sa_comp_mask mask)
{
	struct vib_group *g = vib_group_new(&want->mgid);
	u8 max = vib_mtu_enum(vib_par.mtu);

	if (!g)
		return NULL;
	g->rec.qkey = want->qkey;
	g->rec.pkey = want->pkey | cpu_to_be16(0x8000);
	g->rec.tclass = want->tclass;
	g->rec.sl_flow_hop = want->sl_flow_hop;
	g->rec.mtu = IB_SA_EQ << 6 | max;
	if (mask & IB_SA_MCMEMBER_REC_MTU)
		g->rec.mtu = IB_SA_EQ << 6 | min_t(u8, want->mtu & 0x3f, max);
	g->rec.rate = IB_SA_EQ << 6 | IB_RATE_10_GBPS;
	if (mask & IB_SA_MCMEMBER_REC_RATE)
		g->rec.rate = IB_SA_EQ << 6 | (want->rate & 0x3f);
	g->rec.life = IB_SA_EQ << 6 | 18;
	g->rec.scope_join = (want->mgid.raw[1] & 0xf) << 4;
	return g;
}

static void vib_mcm_reply(struct vib_sa_mcm *m, const struct vib_group *g,
			  u32 swport)
{
	union ib_gid port_gid = m->port_gid;

	*m = g->rec;
	m->port_gid = port_gid;
	m->scope_join = (g->rec.scope_join & 0xf0) | g->join[swport];
}

static u16 vib_sa_join(struct vib_sa_mcm *m, ib_sa_comp_mask mask, struct vib_port *port)
{
	struct vib_group *g = vib_group_find(&m->mgid);
	u8 join = m->scope_join & 0xf;
	u16 pkey = be16_to_cpu(g ? g->rec.pkey : m->pkey);

	if (!(mask & IB_SA_MCMEMBER_REC_JOIN_STATE) || !join)
		return VIB_SA_INSUFFICIENT;
	if (!g && (mask & VIB_CREATE_MASK) != VIB_CREATE_MASK)
		return VIB_SA_REQ_INVALID;
	if (!g && !(join & VIB_JOIN_FULL) && !(join & VIB_JOIN_SENDONLY_FULL))
		return VIB_SA_REQ_INVALID;
	if (!g && !vib_group_possible(m, mask))
		return VIB_SA_REQ_INVALID;
	if (!vib_port_has_pkey(port, pkey))
		return VIB_SA_REQ_INVALID;
	if (g && !vib_group_fits(g, m, mask))
		return VIB_SA_REQ_INVALID;
	if (g && (g->rec.mtu & 0x3f) > port->active_mtu)
		return VIB_SA_REQ_INVALID;
	if (!g)
		g = vib_group_create(m, mask);
	if (!g)
		return VIB_SA_NO_RESOURCES;
	vib_group_member(g, port->swport, g->join[port->swport] | join);
	vib_mcm_reply(m, g, port->swport);
	return VIB_SA_OK;
}

static u16 vib_sa_leave(struct vib_sa_mcm *m, ib_sa_comp_mask mask, struct vib_port *port)
{
	struct vib_group *g = vib_group_find(&m->mgid);
	u8 join = m->scope_join & 0xf;

	if (!(mask & IB_SA_MCMEMBER_REC_JOIN_STATE))
		return VIB_SA_INSUFFICIENT;
	if (!g || !(g->join[port->swport] & join))
		return VIB_SA_REQ_INVALID;
	vib_group_member(g, port->swport, g->join[port->swport] & ~join);
	vib_mcm_reply(m, g, port->swport);
	if (!vib_group_wanted(g))
		vib_group_free(g);
	return VIB_SA_OK;
}

/* Answer a MCMemberRecord request in place. Process context. */
u16 vib_sa_mcmember(struct ib_sa_mad *mad)
{
	struct vib_sa_mcm *m = (struct vib_sa_mcm *)mad->data;
	ib_sa_comp_mask mask = mad->sa_hdr.comp_mask;
	struct vib_port *port;
	struct vib_group *g;
	u32 swport = 0;
	u16 st;

	if (mad->mad_hdr.method == IB_MGMT_METHOD_GET) {
		if (!(mask & IB_SA_MCMEMBER_REC_MGID))
			return VIB_SA_INSUFFICIENT;
		mutex_lock(&vib_sa.mutex);
		g = vib_group_find(&m->mgid);
		if (g)
			vib_mcm_reply(m, g, 0);
		mutex_unlock(&vib_sa.mutex);
		return g ? VIB_SA_OK : VIB_SA_NO_RECORDS;
	}
	if (!(mask & IB_SA_MCMEMBER_REC_MGID) ||
	    !(mask & IB_SA_MCMEMBER_REC_PORT_GID))
		return VIB_SA_INSUFFICIENT;
	rcu_read_lock();
	port = vib_sm_port_by_gid(&m->port_gid);
	if (port)
		swport = port->swport;
	rcu_read_unlock();
	if (!swport)
		return VIB_SA_INVALID_GID;

	/* A port goes only after its memberships went, under this mutex. */
	mutex_lock(&vib_sa.mutex);
	port = rcu_dereference_protected(vib_fab.port[swport],
					 lockdep_is_held(&vib_sa.mutex));
	if (!port)
		st = VIB_SA_INVALID_GID;
	else if (mad->mad_hdr.method == IB_MGMT_METHOD_SET)
		st = vib_sa_join(m, mask, port);
	else
		st = vib_sa_leave(m, mask, port);
	mutex_unlock(&vib_sa.mutex);
	return st;
}
