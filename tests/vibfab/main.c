// SPDX-License-Identifier: GPL-2.0
/* Module parameters, the fabric as a whole, plugging HCAs in and out. */

#include <linux/module.h>
#include <linux/slab.h>
#include <linux/vmalloc.h>
#include "vibfab.h"

struct vib_fabric vib_fab;

const char * const vib_verdict_name[VIB_VERDICTS] = {
	"ok", "no_route", "port_down", "wrong_lid", "bad_pkey", "bad_qkey",
	"no_qp", "bad_state", "no_wqe", "too_long", "no_member", "fault_drop",
	"rnr",
};

const char * const vib_strict_name[VIB_STRICTS] = {
	"overpost_sq", "overpost_rq", "cq_overflow", "double_post",
	"foreign_ah", "bad_state_post", "no_qkey", "too_many_sge", "bad_lkey",
	"dma_addr", "use_after_destroy", "leak",
};

const char * const vib_obj_name[VIB_OBJS] = {
	"pd", "cq", "qp", "srq", "ah", "mr", "mcast",
};

const char * const vib_failop_name[VIB_F_OPS] = {
	"create_ah", "create_qp", "create_cq", "create_srq", "alloc_pd",
	"modify_qp", "post_send", "post_recv", "post_srq_recv",
	"attach_mcast", "req_notify", "query_port", "modify_cq",
};

struct vib_params vib_par = {
	.hcas = 2, .ports = 2, .mtu = 4096, .pkeys = 16, .gids = 8,
	.vectors = 4, .max_send_sge = 20, .max_recv_sge = 20,
	.max_srq_sge = 20, .max_wr = 16384, .max_cqe = 1 << 20, .srq = true,
	.mcast_self = true, .csum_fill = true,
	.strict = 1, .seed = 1,
};

#define VIB_PARAM(par, type, text) \
	module_param_named(par, vib_par.par, type, 0444); \
	MODULE_PARM_DESC(par, text)

VIB_PARAM(hcas, uint, "HCAs on the switch");
VIB_PARAM(ports, uint, "ports of each HCA; at most 64 in all");
VIB_PARAM(mtu, uint, "largest MTU of the ports: 256 to 4096");
VIB_PARAM(pkeys, uint, "P_Key table size of a port, 1 to 128");
VIB_PARAM(gids, uint, "GID table size of a port, 1 to 128");
VIB_PARAM(vectors, uint, "completion vectors of an HCA, 1 to 1024");
VIB_PARAM(max_send_sge, uint, "gather entries of a send, up to 32");
VIB_PARAM(max_recv_sge, uint, "scatter entries of a receive, up to 32");
VIB_PARAM(max_srq_sge, uint, "scatter entries of an SRQ receive, up to 32");
VIB_PARAM(max_wr, uint, "work requests of a queue, 512 to 1048576");
VIB_PARAM(max_cqe, uint, "entries of a completion queue, 2048 to 16777216");
VIB_PARAM(srq, bool, "offer shared receive queues");
VIB_PARAM(csum, bool, "offer UD checksum offload");
VIB_PARAM(tso, bool, "offer UD segmentation (LSO)");
VIB_PARAM(csum_fill, bool, "really compute checksums when offloading them");
VIB_PARAM(block_loopback, bool, "offer to block multicast loopback");
VIB_PARAM(mcast_self, bool, "the sender's QP gets its own multicasts back");
VIB_PARAM(strict, uint, "0: off, 1: cheap checks, 2: also double posting");
VIB_PARAM(strict_len, bool, "a short UD receive buffer is an error completion");
VIB_PARAM(hop_limit, uint, "hop limit in path records, up to 255: not 0 asks for a GRH");
VIB_PARAM(deferred, bool, "carry packets in a work item, not in the sender");
VIB_PARAM(seed, ullong, "GUIDs, QPNs and faults follow from it");

static char *comp = "bh";
module_param(comp, charp, 0444);
MODULE_PARM_DESC(comp, "completion handlers run in: bh, direct, wq");
static char *dma = "virt";
module_param(dma, charp, 0444);
MODULE_PARM_DESC(dma, "virt: kernel addresses; direct: bus addresses");
static char *sm = "embedded";
module_param(sm, charp, 0444);
MODULE_PARM_DESC(sm, "embedded, or external: opensm brings the fabric up");

/* A well mixed number out of the seed and two more. */
u64 vib_hash(u64 a, u64 b)
{
	u64 x = vib_par.seed * 0x9e3779b97f4a7c15ULL + a;

	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL + b;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
	return x ^ (x >> 31);
}

/* GUID of node @node (0: the switch), plus @port. */
__be64 vib_guid(u32 node, u32 port)
{
	/* locally administered; 0x02 would make service ids that the CM reserves */
	u64 oui = 0x0afab0ULL << 40;

	return cpu_to_be64(oui | (vib_hash(0x6d, 0) & 0xffff) << 24 |
			   (u64)(node & 0xffff) << 8 | port);
}

enum ib_mtu vib_mtu_enum(u32 bytes)
{
	switch (bytes) {
	case 256:
		return IB_MTU_256;
	case 512:
		return IB_MTU_512;
	case 1024:
		return IB_MTU_1024;
	case 2048:
		return IB_MTU_2048;
	default:
		return IB_MTU_4096;
	}
}

/* Tell the clients of the device of @port. Any context. */
void vib_event(struct vib_port *port, enum ib_event_type event)
{
	struct ib_event ev = {
		.device = &port->hca->ibdev,
		.element.port_num = port->num,
		.event = event,
	};

	if (READ_ONCE(port->hca->announced))
		ib_dispatch_event(&ev);
}

/* Slow part of vib_fail(): count down, true on the call that was asked for. */
bool __vib_fail(enum vib_failop op)
{
	return atomic_dec_if_positive(&vib_fab.fail_in[op]) == 0;
}

/* Plug in HCA @index, which must be out. Process context. */
int vib_hca_plug(u32 index)
{
	int err = -EINVAL;

	mutex_lock(&vib_fab.mutex);
	if (index < vib_par.hcas && vib_fab.lost[index])
		err = -EBUSY;	/* its name is taken for good */
	else if (index < vib_par.hcas)
		err = vib_fab.hca[index] ? -EEXIST : vib_hca_add(index);
	mutex_unlock(&vib_fab.mutex);
	return err;
}

int vib_hca_unplug(u32 index)
{
	int err = -EINVAL;

	mutex_lock(&vib_fab.mutex);
	if (index < vib_par.hcas && vib_fab.hca[index]) {
		vib_hca_remove(vib_fab.hca[index]);
		err = 0;
	}
	mutex_unlock(&vib_fab.mutex);
	return err;
}

static int vib_check_params(void)
{
	if (!strcmp(comp, "direct"))
		vib_par.comp = VIB_COMP_DIRECT;
	else if (!strcmp(comp, "wq"))
		vib_par.comp = VIB_COMP_WQ;
	else if (strcmp(comp, "bh"))
		return -EINVAL;
	if (!strcmp(dma, "direct"))
		vib_par.dma_direct = true;
	else if (strcmp(dma, "virt"))
		return -EINVAL;
	if (!strcmp(sm, "external"))
		vib_par.sm = VIB_SM_EXTERNAL;
	else if (strcmp(sm, "embedded"))
		return -EINVAL;
	if (!vib_par.hcas || !vib_par.ports || vib_par.hcas > VIB_MAX_PORTS ||
	    vib_par.ports > VIB_MAX_PORTS ||
	    vib_par.hcas * vib_par.ports > VIB_MAX_PORTS)
		return -EINVAL;
	if (ib_mtu_enum_to_int(vib_mtu_enum(vib_par.mtu)) != vib_par.mtu)
		return -EINVAL;
	if (!vib_par.pkeys || vib_par.pkeys > VIB_MAX_PKEYS ||
	    !vib_par.gids || vib_par.gids > VIB_MAX_GIDS)
		return -EINVAL;
	if (!vib_par.max_send_sge || vib_par.max_send_sge > VIB_MAX_SGE ||
	    !vib_par.max_recv_sge || vib_par.max_recv_sge > VIB_MAX_SGE ||
	    !vib_par.max_srq_sge || vib_par.max_srq_sge > VIB_MAX_SGE)
		return -EINVAL;
	if (!vib_par.vectors || vib_par.vectors > VIB_MAX_VECTORS ||
	    vib_par.max_wr < 512 || vib_par.max_wr > VIB_MAX_WR ||
	    vib_par.max_cqe < 2048 || vib_par.max_cqe > VIB_MAX_CQE)
		return -EINVAL;
	if (vib_par.strict > 2 || vib_par.hop_limit > 255)
		return -EINVAL;
	return vib_sm_check() ?: vib_far_check() ?: vib_ring_check();
}

static void vib_fabric_free(void)
{
	if (vib_fab.wq)
		destroy_workqueue(vib_fab.wq);
	if (vib_fab.bh_wq)
		destroy_workqueue(vib_fab.bh_wq);
	vfree(vib_fab.lft);
	kvfree(vib_fab.mft);
}

static int vib_fabric_init(void)
{
	mutex_init(&vib_fab.mutex);
	spin_lock_init(&vib_fab.lock);
	vib_fab.nports = vib_par.hcas * vib_par.ports;
	vib_fab.sw_guid = vib_guid(0, 0);
	vib_fab.lft = vmalloc(VIB_LIDS);
	vib_fab.mft = kvcalloc(VIB_MLIDS, sizeof(*vib_fab.mft), GFP_KERNEL);
	vib_fab.wq = alloc_workqueue("vibfab", WQ_PERCPU, 0);
	vib_fab.bh_wq = alloc_workqueue("vibfab_bh", WQ_BH | WQ_PERCPU, 0);
	if (!vib_fab.lft || !vib_fab.mft || !vib_fab.wq || !vib_fab.bh_wq) {
		vib_fabric_free();
		return -ENOMEM;
	}
	memset(vib_fab.lft, VIB_NO_PORT, VIB_LIDS);
	return 0;
}

static void vib_hcas_remove(void)
{
	u32 i;

	for (i = 0; i < vib_par.hcas; i++)
		vib_hca_unplug(i);
}

static int __init vib_init(void)
{
	u32 i;
	int err;

	err = vib_check_params();
	if (err) {
		pr_err("vibfab: parameter out of range\n");
		return err;
	}
	err = vib_fabric_init();
	if (err)
		return err;
	vib_fault_init();
	vib_switch_init();
	err = vib_far_init();
	if (!err)
		err = vib_ring_init();
	if (err)
		goto err_fabric;
	err = vib_sa_init();
	if (err)
		goto err_ring;
	for (i = 0; i < vib_par.hcas; i++) {
		err = vib_hca_plug(i);
		if (err)
			goto err_hcas;
	}
	err = vib_cmd_boot();
	if (err)
		goto err_hcas;
	/* last: a command may do anything to the HCAs that are there */
	vib_dbg_init();
	return 0;

err_hcas:
	vib_hcas_remove();
	vib_fault_exit();
	vib_far_exit();
	vib_switch_exit();
	vib_sa_exit();
err_ring:
	vib_ring_exit();
err_fabric:
	vib_fabric_free();
	return err;
}

static void __exit vib_exit(void)
{
	u32 i;
	int n;

	vib_dbg_exit();
	vib_hcas_remove();
	vib_fault_exit();
	vib_far_exit();
	vib_switch_exit();
	vib_sa_exit();
	vib_ring_exit();
	for (i = 0; i < VIB_STRICTS; i++) {
		n = atomic_read(&vib_fab.strict[i]);
		if (n)
			pr_err("vibfab: STRICT: %s %d\n", vib_strict_name[i],
			       n);
	}
	vib_fabric_free();
	rcu_barrier();
}

module_init(vib_init);
module_exit(vib_exit);
MODULE_DESCRIPTION("Virtual InfiniBand HCAs and switch for tests");
MODULE_AUTHOR("ipoib-rs project");
MODULE_LICENSE("GPL");
