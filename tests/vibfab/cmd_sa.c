// SPDX-License-Identifier: GPL-2.0
/* Commands for the embedded SM and SA. */

#include "cmd.h"
#include "sa.h"

/*
 * sa down|up|slow MS|lose N|busy N|reject N STATUS|attr N|clear
 * sa rate N, sa room N [busy]
 */
int vib_cmd_sa(struct vib_cmd *c)
{
	const char *what;
	u64 v = 0, st = 0;
	bool busy;

	if (c->n < 2)
		return -EINVAL;
	what = c->w[1];
	/* "clear" does no harm, and whoever tidies up need not know */
	if (vib_par.sm != VIB_SM_EMBEDDED && strcmp(what, "clear"))
		return -EINVAL;
	busy = c->n == 4 && !strcmp(what, "room") && !strcmp(c->w[3], "busy");
	if (busy)
		c->n--;
	if (c->n == 2 && !strcmp(what, "down")) {
		WRITE_ONCE(vib_sa.down, true);
		return 0;
	}
	if (c->n == 2 && (!strcmp(what, "up") || !strcmp(what, "clear"))) {
		WRITE_ONCE(vib_sa.down, false);
		if (!strcmp(what, "up"))
			return 0;
		WRITE_ONCE(vib_sa.slow_ms, 0);
		WRITE_ONCE(vib_sa.lose, 0);
		WRITE_ONCE(vib_sa.busy, 0);
		WRITE_ONCE(vib_sa.reject, 0);
		WRITE_ONCE(vib_sa.only_attr, 0);
		WRITE_ONCE(vib_sa.rate, 0);
		WRITE_ONCE(vib_sa.room, 0);
		WRITE_ONCE(vib_sa.room_busy, false);
		vib_sa_hurry();
		return 0;
	}
	if (c->n != (strcmp(what, "reject") ? 3 : 4) ||
	    vib_cmd_u64(c, 2, U32_MAX, &v))
		return -EINVAL;
	if (!strcmp(what, "slow") && v <= 60000) {
		WRITE_ONCE(vib_sa.slow_ms, v);
		if (!v)
			vib_sa_hurry();
	} else if (!strcmp(what, "rate") && v <= USEC_PER_SEC) {
		WRITE_ONCE(vib_sa.rate, v);
		mod_delayed_work(vib_fab.wq, &vib_sa.work, 0);
	} else if (!strcmp(what, "room")) {
		WRITE_ONCE(vib_sa.room, v);
		WRITE_ONCE(vib_sa.room_busy, busy);
	} else if (!strcmp(what, "lose")) {
		WRITE_ONCE(vib_sa.lose, v);
	} else if (!strcmp(what, "busy")) {
		WRITE_ONCE(vib_sa.busy, v);
	} else if (!strcmp(what, "attr") && v <= 0xffff) {
		WRITE_ONCE(vib_sa.only_attr, v);
	} else if (!strcmp(what, "reject") &&
		   !vib_cmd_u64(c, 3, 0xffff, &st) && st) {
		WRITE_ONCE(vib_sa.reject_status, st);
		WRITE_ONCE(vib_sa.reject, v);
	} else {
		return -EINVAL;
	}
	return 0;
}

/* Give the switch, and so the SM, another LID; the ports learn of it. */
static int vib_sm_move(u16 lid, bool quiet)
{
	u32 i, j;

	if (vib_fab.lft[lid] != VIB_NO_PORT)
		return -EADDRINUSE;
	WRITE_ONCE(vib_fab.sw_lid, lid);
	WRITE_ONCE(vib_fab.sw_sm_lid, lid);
	for (i = 0; i < vib_par.hcas; i++)
		for (j = 0; vib_fab.hca[i] && j < vib_par.ports; j++) {
			struct vib_port *port = &vib_fab.hca[i]->port[j];

			WRITE_ONCE(port->sm_lid, lid);
			if (!quiet)
				vib_event(port, IB_EVENT_SM_CHANGE);
		}
	return 0;
}

static void vib_sm_all(enum ib_event_type event)
{
	u32 i, j;

	for (i = 0; i < vib_par.hcas; i++)
		for (j = 0; vib_fab.hca[i] && j < vib_par.ports; j++)
			vib_event(&vib_fab.hca[i]->port[j], event);
}

/*
 * sm lid N [noevent]
 * sm restart [noevent]: all memberships are forgotten; clients reregister
 * sm reregister
 */
int vib_cmd_sm(struct vib_cmd *c)
{
	bool quiet = vib_cmd_flag(c, "noevent");
	int err = -EINVAL;
	u64 lid;

	if (c->n < 2 || vib_par.sm != VIB_SM_EMBEDDED)
		return err;
	mutex_lock(&vib_fab.mutex);
	if (!strcmp(c->w[1], "lid") && c->n == 3 &&
	    !vib_cmd_u64(c, 2, VIB_LIDS - 1, &lid) && lid) {
		err = vib_sm_move(lid, quiet);
	} else if (c->n == 2 && !strcmp(c->w[1], "restart")) {
		mutex_lock(&vib_sa.mutex);
		vib_groups_free(false);
		mutex_unlock(&vib_sa.mutex);
		if (!quiet)
			vib_sm_all(IB_EVENT_CLIENT_REREGISTER);
		err = 0;
	} else if (c->n == 2 && !strcmp(c->w[1], "reregister")) {
		vib_sm_all(IB_EVENT_CLIENT_REREGISTER);
		err = 0;
	}
	mutex_unlock(&vib_fab.mutex);
	return err;
}

/*
 * group P_KEY mtu|qkey|rate|sl N: the IPv4 broadcast group of a partition
 * changes, its members are forgotten and clients reregister (unless noevent).
 * group P_KEY add|del
 */
int vib_cmd_group(struct vib_cmd *c)
{
	bool quiet = vib_cmd_flag(c, "noevent");
	struct vib_group *g;
	union ib_gid mgid;
	bool plain;
	int err = 0;
	u64 pkey, v = 0;

	if (c->n < 3 || vib_cmd_u64(c, 1, 0xffff, &pkey) ||
	    !(pkey & 0x7fff) || vib_par.sm != VIB_SM_EMBEDDED)
		return -EINVAL;
	plain = !strcmp(c->w[2], "add") || !strcmp(c->w[2], "del");
	if (c->n != (plain ? 3 : 4) ||
	    (!plain && vib_cmd_u64(c, 3, U32_MAX, &v)))
		return -EINVAL;
	vib_ipoib_mgid(&mgid, pkey);
	mutex_lock(&vib_fab.mutex);
	mutex_lock(&vib_sa.mutex);
	g = vib_group_find(&mgid);
	if (!strcmp(c->w[2], "add")) {
		err = g ? -EEXIST : vib_group_admin(pkey);
	} else if (!g) {
		err = -ENOENT;
	} else if (!strcmp(c->w[2], "del")) {
		vib_group_free(g);
	} else if (!strcmp(c->w[2], "mtu") &&
		   ib_mtu_enum_to_int(vib_mtu_enum(v)) == v) {
		g->rec.mtu = (g->rec.mtu & 0xc0) | vib_mtu_enum(v);
	} else if (!strcmp(c->w[2], "qkey")) {
		g->rec.qkey = cpu_to_be32(v);
	} else if (!strcmp(c->w[2], "rate") && v && v < 64) {
		g->rec.rate = (g->rec.rate & 0xc0) | v;
	} else if (!strcmp(c->w[2], "sl") && v < 16) {
		g->rec.sl_flow_hop = cpu_to_be32(v << 28);
	} else {
		err = -EINVAL;
	}
	if (!err)
		vib_groups_free(false);
	mutex_unlock(&vib_sa.mutex);
	if (!err && !quiet)
		vib_sm_all(IB_EVENT_CLIENT_REREGISTER);
	mutex_unlock(&vib_fab.mutex);
	return err;
}
