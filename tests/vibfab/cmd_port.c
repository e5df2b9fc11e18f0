// SPDX-License-Identifier: GPL-2.0
/* Commands that change ports, HCAs and queues, each with its event. */

#include "cmd.h"
#include "sa.h"

static const char * const vib_event_name[] = {
	[IB_EVENT_CQ_ERR] = "cq_err",
	[IB_EVENT_QP_FATAL] = "qp_fatal",
	[IB_EVENT_QP_REQ_ERR] = "qp_req_err",
	[IB_EVENT_QP_ACCESS_ERR] = "qp_access_err",
	[IB_EVENT_COMM_EST] = "comm_est",
	[IB_EVENT_DEVICE_FATAL] = "device_fatal",
	[IB_EVENT_PORT_ACTIVE] = "port_active",
	[IB_EVENT_PORT_ERR] = "port_err",
	[IB_EVENT_LID_CHANGE] = "lid_change",
	[IB_EVENT_PKEY_CHANGE] = "pkey_change",
	[IB_EVENT_SM_CHANGE] = "sm_change",
	[IB_EVENT_SRQ_LIMIT_REACHED] = "srq_limit",
	[IB_EVENT_QP_LAST_WQE_REACHED] = "last_wqe",
	[IB_EVENT_CLIENT_REREGISTER] = "client_reregister",
	[IB_EVENT_GID_CHANGE] = "gid_change",
	[IB_EVENT_DEVICE_SPEED_CHANGE] = "speed_change",
};

static const char * const vib_state_name[] = {
	[IB_PORT_DOWN] = "down",
	[IB_PORT_INIT] = "init",
	[IB_PORT_ARMED] = "armed",
	[IB_PORT_ACTIVE] = "active",
};

/* Is @event one of a QP, CQ or SRQ, not of a port or a device? */
static bool vib_of_queue(int event)
{
	return event < IB_EVENT_DEVICE_FATAL ||
	       event == IB_EVENT_SRQ_LIMIT_REACHED ||
	       event == IB_EVENT_QP_LAST_WQE_REACHED;
}

static void vib_cmd_event(struct vib_port *port, bool quiet,
			  enum ib_event_type event)
{
	if (!quiet)
		vib_event(port, event);
}

/*
 * The link goes down or comes up. Under the embedded SM an "up" port is
 * ACTIVE at once; else it stops at INIT, for the SM to bring it up.
 */
static int vib_port_link(struct vib_port *port, bool up, bool quiet)
{
	bool embedded = vib_par.sm == VIB_SM_EMBEDDED;

	if (port->link_up == up)
		return 0;
	if (!up) {
		WRITE_ONCE(port->link_up, false);
		WRITE_ONCE(port->state, IB_PORT_DOWN);
		vib_sm_port_gone(port);
		vib_cmd_event(port, quiet, IB_EVENT_PORT_ERR);
		return 0;
	}
	if (embedded && !vib_sm_lid_free(port, port->lid, port->lmc))
		return -EADDRINUSE;
	WRITE_ONCE(port->link_up, true);
	WRITE_ONCE(port->state, embedded ? IB_PORT_ACTIVE : IB_PORT_INIT);
	if (!embedded) {
		vib_switch_link_change(port->swport);
		return 0;
	}
	vib_sm_set_lid(port, port->lid, port->lmc);
	vib_cmd_event(port, quiet, IB_EVENT_PORT_ACTIVE);
	return 0;
}

static int vib_port_set_pkey(struct vib_cmd *c, struct vib_port *port,
			     bool quiet)
{
	u64 i, v;

	if (c->n != 5 || vib_cmd_u64(c, 3, vib_par.pkeys - 1, &i) ||
	    vib_cmd_u64(c, 4, 0xffff, &v))
		return -EINVAL;
	WRITE_ONCE(port->pkey[i], v);
	vib_cmd_event(port, quiet, IB_EVENT_PKEY_CHANGE);
	return 0;
}

static int vib_port_set_guid(struct vib_cmd *c, struct vib_port *port,
			     bool quiet)
{
	u64 i, v;

	if (c->n != 5 || vib_cmd_u64(c, 3, vib_par.gids - 1, &i) ||
	    vib_cmd_u64(c, 4, U64_MAX, &v) || (!i && !v))
		return -EINVAL;
	WRITE_ONCE(port->guid[i], cpu_to_be64(v));
	/* GID_CHANGE alone refreshes the cache but is not passed to clients */
	vib_cmd_event(port, quiet, IB_EVENT_GID_CHANGE);
	vib_cmd_event(port, quiet, IB_EVENT_CLIENT_REREGISTER);
	return 0;
}

static int vib_port_set(struct vib_cmd *c, struct vib_port *port, bool quiet)
{
	const char *what = c->w[2];
	u64 v, lmc = port->lmc;

	if (!strcmp(what, "pkey"))
		return vib_port_set_pkey(c, port, quiet);
	if (!strcmp(what, "guid"))
		return vib_port_set_guid(c, port, quiet);
	if (vib_cmd_u64(c, 3, U64_MAX, &v))
		return -EINVAL;
	if (!strcmp(what, "lid")) {
		if (c->n > 5 || !v || v >= VIB_LIDS ||
		    (c->n > 4 && vib_cmd_u64(c, 4, VIB_MAX_LMC, &lmc)))
			return -EINVAL;
		if (!vib_sm_lid_free(port, v, lmc))
			return -EADDRINUSE;
		vib_sm_set_lid(port, v, lmc);
		vib_cmd_event(port, quiet, IB_EVENT_LID_CHANGE);
	} else if (c->n != 4) {
		return -EINVAL;
	} else if (!strcmp(what, "prefix")) {
		WRITE_ONCE(port->prefix, v);
		vib_cmd_event(port, quiet, IB_EVENT_GID_CHANGE);
		vib_cmd_event(port, quiet, IB_EVENT_CLIENT_REREGISTER);
	} else if (!strcmp(what, "mtu")) {
		if (ib_mtu_enum_to_int(vib_mtu_enum(v)) != v ||
		    v > vib_par.mtu)
			return -EINVAL;
		WRITE_ONCE(port->active_mtu, vib_mtu_enum(v));
	} else if (!strcmp(what, "smlid")) {
		if (v >= VIB_LIDS)
			return -EINVAL;
		WRITE_ONCE(port->sm_lid, v);
		vib_cmd_event(port, quiet, IB_EVENT_SM_CHANGE);
	} else if (!strcmp(what, "smsl")) {
		if (v > 15)
			return -EINVAL;
		WRITE_ONCE(port->sm_sl, v);
		vib_cmd_event(port, quiet, IB_EVENT_SM_CHANGE);
	} else {
		return -EINVAL;
	}
	return 0;
}

static int vib_port_cmd(struct vib_cmd *c, bool quiet)
{
	struct vib_port *port;
	int i, err;

	err = vib_port_of(c->w[1], &port);
	if (err)
		return err;
	if (!strcmp(c->w[2], "down") && c->n == 3)
		return vib_port_link(port, false, quiet);
	if (!strcmp(c->w[2], "up") && c->n == 3)
		return vib_port_link(port, true, quiet);
	if (!strcmp(c->w[2], "reregister") && c->n == 3) {
		vib_event(port, IB_EVENT_CLIENT_REREGISTER);
		return 0;
	}
	if (!strcmp(c->w[2], "event") && c->n == 4) {
		i = vib_word(c->w[3], vib_event_name,
			     ARRAY_SIZE(vib_event_name));
		if (i < IB_EVENT_DEVICE_FATAL || vib_of_queue(i))
			return -EINVAL;
		vib_event(port, i);
		return 0;
	}
	if (!strcmp(c->w[2], "state") && c->n == 4) {
		i = vib_word(c->w[3], vib_state_name,
			     ARRAY_SIZE(vib_state_name));
		if (i < 0)
			return i;
		WRITE_ONCE(port->state, i);
		vib_cmd_event(port, quiet, i == IB_PORT_ACTIVE ?
			      IB_EVENT_PORT_ACTIVE : IB_EVENT_PORT_ERR);
		return 0;
	}
	return vib_port_set(c, port, quiet);
}

/* port vibH/P down|up|reregister|state S|lid N [LMC]|... [noevent] */
int vib_cmd_port(struct vib_cmd *c)
{
	bool quiet = vib_cmd_flag(c, "noevent");
	int err;

	if (c->n < 3)
		return -EINVAL;
	mutex_lock(&vib_fab.mutex);
	err = vib_port_cmd(c, quiet);
	mutex_unlock(&vib_fab.mutex);
	return err;
}

/* hca vibH remove|add|fatal [noevent]|recover|qpn N */
int vib_cmd_hca(struct vib_cmd *c)
{
	bool quiet = vib_cmd_flag(c, "noevent");
	struct vib_hca *hca;
	u64 qpn = 0;
	int err = 0;
	u32 index;

	if (c->n < 3 || vib_hca_of(c->w[1], &index))
		return -EINVAL;
	if (!strcmp(c->w[2], "qpn")) {
		if (vib_cmd_u64(c, 3, VIB_QPN_MAX, &qpn) || qpn < VIB_QPN_MIN)
			return -EINVAL;
	}
	if (c->n != (qpn ? 4 : 3))
		return -EINVAL;
	if (!strcmp(c->w[2], "remove"))
		return vib_hca_unplug(index);
	if (!strcmp(c->w[2], "add"))
		return vib_hca_plug(index);
	mutex_lock(&vib_fab.mutex);
	hca = vib_fab.hca[index];
	if (!hca) {
		err = -ENODEV;
	} else if (qpn) {
		/* Of the next queue pair; a race with its maker costs a number. */
		WRITE_ONCE(hca->next_qpn, qpn);
	} else if (!strcmp(c->w[2], "fatal")) {
		WRITE_ONCE(hca->fatal, true);
		vib_cmd_event(&hca->port[0], quiet, IB_EVENT_DEVICE_FATAL);
	} else if (!strcmp(c->w[2], "recover")) {
		WRITE_ONCE(hca->fatal, false);
	} else {
		err = -EINVAL;
	}
	mutex_unlock(&vib_fab.mutex);
	return err;
}

static int vib_qp_raise(struct vib_qp *qp, const char *name)
{
	int i = vib_word(name, vib_event_name, ARRAY_SIZE(vib_event_name));

	if (i < 0)
		return i;
	if (!vib_of_queue(i) || i == IB_EVENT_CQ_ERR ||
	    i == IB_EVENT_SRQ_LIMIT_REACHED)
		return -EINVAL;
	vib_qp_event(qp, i);
	return 0;
}

/* With RCU held: act on one QP. */
static int vib_qp_cmd(struct vib_cmd *c, struct vib_qp *qp)
{
	struct vib_cq *cq = NULL;

	if (c->n == 5 && !strcmp(c->w[4], "send"))
		cq = qp->scq;
	else if (c->n == 5 && !strcmp(c->w[4], "recv"))
		cq = qp->rcq;
	if (cq && !strcmp(c->w[3], "hold"))
		vib_cq_hold(cq, true);
	else if (cq && !strcmp(c->w[3], "release"))
		vib_cq_hold(cq, false);
	else if (cq && !strcmp(c->w[3], "cqerr"))
		vib_cq_force_overflow(cq);
	else if (c->n == 4 && !strcmp(c->w[3], "err"))
		return vib_qp_to_err(qp) ? 0 : -EINVAL;
	else if (c->n == 4 && !strcmp(c->w[3], "sqe"))
		/* a connection has no such state */
		return !qp->rc && vib_qp_set_state(qp, IB_QPS_SQE) ? 0 : -EINVAL;
	else if (c->n == 5 && !strcmp(c->w[3], "event"))
		return vib_qp_raise(qp, c->w[4]);
	else
		return -EINVAL;
	return 0;
}

/* qp vibH QPN hold|release|cqerr send|recv; qp vibH QPN err|sqe|event NAME */
int vib_cmd_qp(struct vib_cmd *c)
{
	struct vib_qp *qp;
	struct vib_hca *hca;
	int err = -ENOENT;
	u32 index;
	u64 qpn;

	if (c->n < 4 || vib_hca_of(c->w[1], &index) ||
	    vib_cmd_u64(c, 2, 0xffffff, &qpn))
		return -EINVAL;
	mutex_lock(&vib_fab.mutex);
	hca = vib_fab.hca[index];
	if (hca) {
		rcu_read_lock();
		qp = xa_load(&hca->qps, qpn);
		if (qp)
			err = vib_qp_cmd(c, qp);
		rcu_read_unlock();
	}
	mutex_unlock(&vib_fab.mutex);
	return err;
}
