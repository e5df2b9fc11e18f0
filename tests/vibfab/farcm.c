// SPDX-License-Identifier: GPL-2.0
/*
 * Connections to nodes of the far end (parameter far_cm). Each request is
 * accepted; what comes over the connection is handled like a datagram from
 * the requester's datagram queue pair, and answered by datagram. The nodes ask
 * for no connections of their own. On command they are hostile: with wrong
 * private data, refusals, and messages in which octets are random.
 */

#include <linux/atomic.h>
#include <linux/module.h>
#include <linux/prandom.h>
#include <linux/unaligned.h>
#include <linux/xarray.h>
#include <rdma/ib_cm.h>
#include <rdma/ib_pack.h>
#include <rdma/ibta_vol1_c12.h>
#include "cmd.h"

#define VIB_FARCM_QPN		0x200000	/* of the first connection */
#define VIB_FARCM_QPNS		0x200000
#define VIB_FARCM_MTU		65524
#define VIB_FARCM_MAD		256
#define VIB_IPOIB_QKEY		0x0b1b

static bool vib_far_cm;
module_param_named(far_cm, vib_far_cm, bool, 0444);
MODULE_PARM_DESC(far_cm, "far-end nodes take reliable connections");

static struct {
	struct xarray conns;	/* QPN of ours: the requester's datagram QPN */
	atomic_t next;
	atomic_t open;
	atomic_t requests;
	atomic_t messages;
	u32 mtu;		/* in the private data */
	u32 reject;		/* reason, 0: accept */
	u32 fuzz;		/* random octets in each message */
	u32 lose;		/* of the next messages */
	struct rnd_state dice;
} vib_fc;

/* The flags of the nodes' hardware addresses. */
u32 vib_farcm_flags(void)
{
	return vib_far_cm ? 0x80000000 : 0;
}

static void vib_farcm_send(const struct vib_pkt *to, u16 lid, u8 *mad)
{
	struct vib_pkt p = {
		.in_port = VIB_FAR_PORT,
		.opcode = IB_OPCODE_UD_SEND_ONLY,
		.slid = lid,
		.dlid = to->slid,
		.pkey = to->pkey | 0x8000,
		.sqpn = 1,
		.dqpn = 1,
		.qkey = IB_QP1_QKEY,
		.len = VIB_FARCM_MAD,
		.hdr = mad,
		.hlen = VIB_FARCM_MAD,
	};

	vib_switch_inject(&p, VIB_NO_PORT);
}

static void vib_farcm_head(u8 *mad, const struct ib_mad_hdr *req, __be16 attr)
{
	struct ib_mad_hdr *h = (struct ib_mad_hdr *)mad;

	memset(mad, 0, VIB_FARCM_MAD);
	h->base_version = IB_MGMT_BASE_VERSION;
	h->mgmt_class = IB_MGMT_CLASS_CM;
	h->class_version = 2;
	h->method = IB_MGMT_METHOD_SEND;
	h->tid = req->tid;
	h->attr_id = attr;
}

static void vib_farcm_req(u8 *mad, struct cm_req_msg *req, u64 guid)
{
	u32 n = atomic_inc_return(&vib_fc.next) % VIB_FARCM_QPNS;
	u8 *theirs = IBA_GET_MEM_PTR(CM_REQ_PRIVATE_DATA, req);
	struct cm_rej_msg *rej = (struct cm_rej_msg *)mad;
	struct cm_rep_msg *rep = (struct cm_rep_msg *)mad;
	__be32 private[2];
	u32 qpn;

	atomic_inc(&vib_fc.requests);
	if (READ_ONCE(vib_fc.reject)) {
		vib_farcm_head(mad, &req->hdr, CM_REJ_ATTR_ID);
		IBA_SET(CM_REJ_REMOTE_COMM_ID, rej,
			IBA_GET(CM_REQ_LOCAL_COMM_ID, req));
		IBA_SET(CM_REJ_REASON, rej, READ_ONCE(vib_fc.reject));
		return;
	}
	qpn = get_unaligned_be32(theirs) & 0xffffff;
	if (xa_is_err(xa_store(&vib_fc.conns, VIB_FARCM_QPN + n,
			       xa_mk_value(qpn), GFP_KERNEL)))
		return;
	atomic_inc(&vib_fc.open);
	vib_farcm_head(mad, &req->hdr, CM_REP_ATTR_ID);
	/* the message id, too, tells which connection is meant */
	IBA_SET(CM_REP_LOCAL_COMM_ID, rep, VIB_FARCM_QPN + n);
	IBA_SET(CM_REP_REMOTE_COMM_ID, rep, IBA_GET(CM_REQ_LOCAL_COMM_ID, req));
	IBA_SET(CM_REP_LOCAL_QPN, rep, VIB_FARCM_QPN + n);
	IBA_SET(CM_REP_RNR_RETRY_COUNT, rep, 6);
	IBA_SET(CM_REP_SRQ, rep, 1);
	IBA_SET(CM_REP_LOCAL_CA_GUID, rep, guid);
	private[0] = cpu_to_be32(qpn);
	private[1] = cpu_to_be32(READ_ONCE(vib_fc.mtu));
	memcpy(IBA_GET_MEM_PTR(CM_REP_PRIVATE_DATA, rep), private,
	       sizeof(private));
}

static void vib_farcm_dreq(u8 *mad, struct cm_dreq_msg *req)
{
	struct cm_drep_msg *rep = (struct cm_drep_msg *)mad;
	u32 id = IBA_GET(CM_DREQ_REMOTE_COMM_ID, req);

	if (xa_erase(&vib_fc.conns, id))
		atomic_dec(&vib_fc.open);
	vib_farcm_head(mad, &req->hdr, CM_DREP_ATTR_ID);
	IBA_SET(CM_DREP_LOCAL_COMM_ID, rep, id);
	IBA_SET(CM_DREP_REMOTE_COMM_ID, rep,
		IBA_GET(CM_DREQ_LOCAL_COMM_ID, req));
}

/* A few octets behind the transaction id become random. */
static void vib_farcm_spoil(u8 *mad, u32 n)
{
	u32 r;

	while (n--) {
		r = prandom_u32_state(&vib_fc.dice);
		mad[16 + (r >> 8) % (VIB_FARCM_MAD - 16)] = r;
	}
}

/* A MAD for the node with that LID. From one work item. */
void vib_farcm_mad(struct vib_pkt *p, u8 *data, u64 guid)
{
	struct ib_mad_hdr *h = (struct ib_mad_hdr *)data;
	u32 fuzz = READ_ONCE(vib_fc.fuzz);
	u8 mad[VIB_FARCM_MAD] __aligned(8);

	if (!vib_far_cm || p->len != VIB_FARCM_MAD || p->dqpn != 1 ||
	    h->mgmt_class != IB_MGMT_CLASS_CM ||
	    h->method != IB_MGMT_METHOD_SEND)
		return;
	if (vib_fc.lose) {
		vib_fc.lose--;
		return;
	}
	mad[0] = 0;
	if (h->attr_id == CM_REQ_ATTR_ID)
		vib_farcm_req(mad, (struct cm_req_msg *)data, guid);
	else if (h->attr_id == CM_DREQ_ATTR_ID)
		vib_farcm_dreq(mad, (struct cm_dreq_msg *)data);
	if (!mad[0])
		return;
	if (fuzz) {
		u8 other[VIB_FARCM_MAD] __aligned(8);
		u32 r = prandom_u32_state(&vib_fc.dice);

		/* the same ids in a message of another kind comes first */
		memcpy(other, mad, sizeof(other));
		((struct ib_mad_hdr *)other)->attr_id =
			cpu_to_be16(0x10 + r % 11);
		vib_farcm_spoil(other, fuzz);
		vib_farcm_send(p, p->dlid, other);
		vib_farcm_spoil(mad, fuzz);
	}
	vib_farcm_send(p, p->dlid, mad);
}

/*
 * A message over a connection. Returns whether there is one; then @p is the
 * datagram that it amounts to, but for the number of the node's queue pair.
 */
bool vib_farcm_data(struct vib_pkt *p)
{
	void *entry = vib_far_cm ? xa_load(&vib_fc.conns, p->dqpn) : NULL;

	if (!entry)
		return false;
	atomic_inc(&vib_fc.messages);
	p->opcode = IB_OPCODE_UD_SEND_ONLY;
	p->sqpn = xa_to_value(entry);
	p->qkey = VIB_IPOIB_QKEY;
	return true;
}

/* far mtu|reject|fuzz|lose N */
int vib_farcm_cmd(struct vib_cmd *c)
{
	u64 v;

	if (!vib_far_cm || c->n != 3 || vib_cmd_u64(c, 2, U32_MAX, &v))
		return -EINVAL;
	if (!strcmp(c->w[1], "mtu"))
		WRITE_ONCE(vib_fc.mtu, v);
	else if (!strcmp(c->w[1], "reject") && v <= U16_MAX)
		WRITE_ONCE(vib_fc.reject, v);
	else if (!strcmp(c->w[1], "fuzz") && v <= VIB_FARCM_MAD)
		WRITE_ONCE(vib_fc.fuzz, v);
	else if (!strcmp(c->w[1], "lose"))
		WRITE_ONCE(vib_fc.lose, v);
	else
		return -EINVAL;
	return 0;
}

void vib_farcm_show(struct seq_file *s)
{
	seq_printf(s, "far=%u cm=%u open=%d requests=%d messages=%d\n",
		   vib_far_nodes(), vib_far_cm, atomic_read(&vib_fc.open),
		   atomic_read(&vib_fc.requests),
		   atomic_read(&vib_fc.messages));
}

void vib_farcm_init(void)
{
	xa_init(&vib_fc.conns);
	vib_fc.mtu = VIB_FARCM_MTU;
	prandom_seed_state(&vib_fc.dice, vib_par.seed);
}

void vib_farcm_exit(void)
{
	xa_destroy(&vib_fc.conns);
}
