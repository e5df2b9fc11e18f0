// SPDX-License-Identifier: GPL-2.0
/* The verbs device: attributes, ports, small objects, plugging in and out. */

#include <linux/delay.h>
#include <linux/device/faux.h>
#include <linux/dma-mapping.h>
#include <linux/module.h>
#include <linux/platform_device.h>
#include <linux/slab.h>
#include "sma.h"

#define VIB_LKEY	0x5a0001

static int vib_query_device(struct ib_device *ibdev, struct ib_device_attr *a,
			    struct ib_udata *udata)
{
	struct vib_hca *hca = to_vhca(ibdev);

	memset(a, 0, sizeof(*a));
	a->fw_ver = 1ULL << 32;
	a->sys_image_guid = hca->node_guid;
	a->max_mr_size = U64_MAX;
	a->page_size_cap = PAGE_SIZE;
	a->vendor_id = 0x1b1b1b;
	a->vendor_part_id = 0x7ab;
	a->max_qp = 1 << 18;
	a->max_qp_wr = vib_par.max_wr;
	a->device_cap_flags = IB_DEVICE_BAD_PKEY_CNTR |
			      IB_DEVICE_BAD_QKEY_CNTR |
			      IB_DEVICE_RC_RNR_NAK_GEN |
			      IB_DEVICE_PORT_ACTIVE_EVENT |
			      IB_DEVICE_SYS_IMAGE_GUID;
	a->kernel_cap_flags = IBK_LOCAL_DMA_LKEY;
	if (vib_par.csum)
		a->device_cap_flags |= IB_DEVICE_UD_IP_CSUM;
	if (vib_par.tso)
		a->kernel_cap_flags |= IBK_UD_TSO;
	if (vib_par.block_loopback)
		a->kernel_cap_flags |= IBK_BLOCK_MULTICAST_LOOPBACK;
	a->max_send_sge = vib_par.max_send_sge;
	a->max_recv_sge = vib_par.max_recv_sge;
	a->max_cq = 1 << 16;
	a->max_cqe = vib_par.max_cqe;
	a->max_mr = 1 << 16;
	a->max_pd = 1 << 16;
	a->atomic_cap = IB_ATOMIC_NONE;
	a->max_mcast_grp = VIB_MLIDS;
	a->max_mcast_qp_attach = 1024;
	a->max_total_mcast_qp_attach = VIB_MLIDS * 1024;
	a->max_ah = 1 << 20;
	if (vib_par.srq) {
		a->max_srq = 1 << 16;
		a->max_srq_wr = vib_par.max_wr;
		a->max_srq_sge = vib_par.max_srq_sge;
	}
	a->max_pkeys = vib_par.pkeys;
	a->cq_caps.max_cq_moderation_count = U16_MAX;
	a->cq_caps.max_cq_moderation_period = U16_MAX;
	return 0;
}

static int vib_query_port(struct ib_device *ibdev, u32 num,
			  struct ib_port_attr *a)
{
	struct vib_port *port = &to_vhca(ibdev)->port[num - 1];
	unsigned long flags;

	if (vib_fail(VIB_F_QUERY_PORT))
		return -EIO;
	spin_lock_irqsave(&vib_fab.lock, flags);
	a->state = port->state;
	a->max_mtu = vib_mtu_enum(vib_par.mtu);
	a->active_mtu = port->active_mtu;
	a->gid_tbl_len = vib_par.gids;
	a->port_cap_flags = port->cap_mask;
	a->max_msg_sz = VIB_MAX_MSG;
	a->bad_pkey_cntr = port->pkey_viol;
	a->qkey_viol_cntr = port->qkey_viol;
	a->pkey_tbl_len = vib_par.pkeys;
	a->lid = port->lid;
	a->sm_lid = port->sm_lid;
	a->lmc = port->lmc;
	a->max_vl_num = 1;
	a->sm_sl = port->sm_sl;
	a->subnet_timeout = port->subnet_timeout;
	a->active_width = IB_WIDTH_4X;
	a->active_speed = IB_SPEED_QDR;
	a->phys_state = port->link_up ? IB_PORT_PHYS_STATE_LINK_UP :
					IB_PORT_PHYS_STATE_POLLING;
	a->subnet_prefix = port->prefix;
	spin_unlock_irqrestore(&vib_fab.lock, flags);
	return 0;
}

static int vib_modify_port(struct ib_device *ibdev, u32 num, int mask,
			   struct ib_port_modify *m)
{
	struct vib_port *port = &to_vhca(ibdev)->port[num - 1];
	unsigned long flags;

	spin_lock_irqsave(&vib_fab.lock, flags);
	port->cap_mask |= m->set_port_cap_mask;
	port->cap_mask &= ~m->clr_port_cap_mask;
	if (mask & IB_PORT_RESET_QKEY_CNTR)
		port->qkey_viol = 0;
	spin_unlock_irqrestore(&vib_fab.lock, flags);
	return 0;
}

static int vib_port_immutable(struct ib_device *ibdev, u32 num,
			      struct ib_port_immutable *im)
{
	im->pkey_tbl_len = vib_par.pkeys;
	im->gid_tbl_len = vib_par.gids;
	im->core_cap_flags = RDMA_CORE_PORT_IBA_IB;
	im->max_mad_size = IB_MGMT_MAD_SIZE;
	return 0;
}

static int vib_query_gid(struct ib_device *ibdev, u32 num, int index,
			 union ib_gid *gid)
{
	struct vib_port *port = &to_vhca(ibdev)->port[num - 1];

	if (index < 0 || index >= vib_par.gids)
		return -EINVAL;
	memset(gid, 0, sizeof(*gid));
	if (!READ_ONCE(port->guid[index]))
		return 0;
	gid->global.subnet_prefix = cpu_to_be64(READ_ONCE(port->prefix));
	gid->global.interface_id = READ_ONCE(port->guid[index]);
	return 0;
}

static uint vib_pkey_delay;
module_param_named(pkey_delay, vib_pkey_delay, uint, 0644);
MODULE_PARM_DESC(pkey_delay, "microseconds that query_pkey takes");

static int vib_query_pkey(struct ib_device *ibdev, u32 num, u16 index,
			  u16 *pkey)
{
	struct vib_port *port = &to_vhca(ibdev)->port[num - 1];
	uint delay = min(READ_ONCE(vib_pkey_delay), 1000000U);

	atomic_inc(&vib_fab.pkey_queries);
	if (delay)
		usleep_range(delay, delay + 1);
	if (index >= vib_par.pkeys)
		return -EINVAL;
	*pkey = READ_ONCE(port->pkey[index]);
	return 0;
}

static int vib_alloc_pd(struct ib_pd *pd, struct ib_udata *udata)
{
	if (vib_fail(VIB_F_ALLOC_PD))
		return -ENOMEM;
	atomic_inc(&to_vhca(pd->device)->live[VIB_O_PD]);
	return 0;
}

static int vib_dealloc_pd(struct ib_pd *pd, struct ib_udata *udata)
{
	atomic_dec(&to_vhca(pd->device)->live[VIB_O_PD]);
	return 0;
}

/* May be called in atomic context. */
static int vib_create_ah(struct ib_ah *ibah, struct rdma_ah_init_attr *init,
			 struct ib_udata *udata)
{
	struct vib_hca *hca = to_vhca(ibah->device);
	const struct rdma_ah_attr *a = init->ah_attr;
	struct vib_ah *ah = to_vah(ibah);

	if (a->type != RDMA_AH_ATTR_TYPE_IB || !a->port_num ||
	    a->port_num > hca->nports)
		return -EINVAL;
	if ((a->ah_flags & IB_AH_GRH) && a->grh.sgid_index >= vib_par.gids)
		return -EINVAL;
	if (vib_fail(VIB_F_CREATE_AH))
		return -ENOMEM;
	ah->attr = *a;
	ah->magic = VIB_MAGIC;
	ah->attr.grh.sgid_attr = NULL;	/* the core holds it: ibah->sgid_attr */
	atomic_inc(&hca->live[VIB_O_AH]);
	return 0;
}

static int vib_query_ah(struct ib_ah *ibah, struct rdma_ah_attr *a)
{
	*a = to_vah(ibah)->attr;
	return 0;
}

static int vib_destroy_ah(struct ib_ah *ibah, u32 flags)
{
	to_vah(ibah)->magic = 0;
	atomic_dec(&to_vhca(ibah->device)->live[VIB_O_AH]);
	return 0;
}

static struct ib_mr *vib_get_dma_mr(struct ib_pd *pd, int access)
{
	struct ib_mr *mr = kzalloc_obj(*mr);

	if (!mr)
		return ERR_PTR(-ENOMEM);
	mr->lkey = VIB_LKEY;
	mr->rkey = VIB_LKEY;
	atomic_inc(&to_vhca(pd->device)->live[VIB_O_MR]);
	return mr;
}

static struct ib_mr *vib_reg_user_mr(struct ib_pd *pd, u64 start, u64 length,
				     u64 virt, int access,
				     struct ib_dmah *dmah,
				     struct ib_udata *udata)
{
	return ERR_PTR(-EOPNOTSUPP);
}

static int vib_dereg_mr(struct ib_mr *mr, struct ib_udata *udata)
{
	atomic_dec(&to_vhca(mr->device)->live[VIB_O_MR]);
	kfree(mr);
	return 0;
}

/* Moving the device to another netns insists on this one. */
static void vib_disassociate_ucontext(struct ib_ucontext *ctx)
{
}

static void vib_fw_str(struct ib_device *ibdev, char *str)
{
	strscpy(str, "1.0.0", IB_FW_VERSION_NAME_MAX);
}

/*
 * The core is about to add the clients. An SM may find the ports while that
 * goes on: what it changes has to be told from here on, not only at the end.
 */
static int vib_enable(struct ib_device *ibdev)
{
	WRITE_ONCE(to_vhca(ibdev)->announced, true);
	return 0;
}

static const struct ib_device_ops vib_dev_ops = {
	.owner = THIS_MODULE,
	.alloc_pd = vib_alloc_pd,
	.attach_mcast = vib_attach_mcast,
	.create_ah = vib_create_ah,
	.create_cq = vib_create_cq,
	.create_qp = vib_create_qp,
	.create_srq = vib_create_srq,
	.dealloc_pd = vib_dealloc_pd,
	.dereg_mr = vib_dereg_mr,
	.destroy_ah = vib_destroy_ah,
	.destroy_cq = vib_destroy_cq,
	.destroy_qp = vib_destroy_qp,
	.destroy_srq = vib_destroy_srq,
	.detach_mcast = vib_detach_mcast,
	.disassociate_ucontext = vib_disassociate_ucontext,
	.enable_driver = vib_enable,
	.get_dev_fw_str = vib_fw_str,
	.get_dma_mr = vib_get_dma_mr,
	.get_port_immutable = vib_port_immutable,
	.modify_cq = vib_modify_cq,
	.modify_port = vib_modify_port,
	.modify_qp = vib_modify_qp,
	.modify_srq = vib_modify_srq,
	.poll_cq = vib_poll_cq,
	.post_recv = vib_post_recv,
	.post_send = vib_post_send,
	.post_srq_recv = vib_post_srq_recv,
	.process_mad = vib_process_mad,
	.query_ah = vib_query_ah,
	.query_device = vib_query_device,
	.query_gid = vib_query_gid,
	.query_pkey = vib_query_pkey,
	.query_port = vib_query_port,
	.query_qp = vib_query_qp,
	.query_srq = vib_query_srq,
	.reg_user_mr = vib_reg_user_mr,
	.req_notify_cq = vib_req_notify_cq,

	INIT_RDMA_OBJ_SIZE(ib_ah, vib_ah, ibah),
	INIT_RDMA_OBJ_SIZE(ib_cq, vib_cq, ibcq),
	INIT_RDMA_OBJ_SIZE(ib_pd, vib_pd, ibpd),
	INIT_RDMA_OBJ_SIZE(ib_qp, vib_qp, ibqp),
	INIT_RDMA_OBJ_SIZE(ib_srq, vib_srq, ibsrq),
};

static int vib_parent_create(struct vib_hca *hca)
{
	char name[32];

	snprintf(name, sizeof(name), "vibfab%u", hca->index);
	if (vib_par.dma_direct) {
		struct platform_device_info info = {
			.name = name,
			.id = PLATFORM_DEVID_NONE,
			.dma_mask = DMA_BIT_MASK(64),
		};
		struct platform_device *pdev;

		pdev = platform_device_register_full(&info);
		if (IS_ERR(pdev))
			return PTR_ERR(pdev);
		dma_set_max_seg_size(&pdev->dev, UINT_MAX);
		hca->parent = &pdev->dev;
	} else {
		struct faux_device *f = faux_device_create(name, NULL, NULL);

		if (!f)
			return -ENODEV;
		hca->parent = &f->dev;
	}
	return 0;
}

static void vib_parent_destroy(struct vib_hca *hca)
{
	if (!hca->parent)
		return;
	if (vib_par.dma_direct)
		platform_device_unregister(to_platform_device(hca->parent));
	else
		faux_device_destroy(to_faux_device(hca->parent));
}

static int vib_ports_init(struct vib_hca *hca, u32 first)
{
	u32 i;

	hca->port = kvcalloc(hca->nports, sizeof(*hca->port), GFP_KERNEL);
	if (!hca->port)
		return -ENOMEM;
	for (i = 0; i < hca->nports; i++) {
		struct vib_port *port = &hca->port[i];

		port->hca = hca;
		port->num = i + 1;
		port->swport = first + i;
		spin_lock_init(&port->mc_lock);
		port->pcpu = alloc_percpu(struct vib_pcpu);
		if (!port->pcpu)
			return -ENOMEM;
		/* an SM that runs must not see it before it can answer */
		port->link_up = vib_par.sm == VIB_SM_EMBEDDED;
		port->state = port->link_up ? IB_PORT_INIT : IB_PORT_DOWN;
		port->active_mtu = vib_mtu_enum(vib_par.mtu);
		port->prefix = 0xfe80000000000000ULL;
		port->subnet_timeout = 18;
		port->cap_mask = IB_PORT_AUTO_MIGR_SUP |
				 IB_PORT_SYS_IMAGE_GUID_SUP;
		port->guid[0] = cpu_to_be64(be64_to_cpu(hca->node_guid) + i + 1);
		port->pkey[0] = IB_DEFAULT_PKEY_FULL;
	}
	return 0;
}

static void vib_hca_free(struct vib_hca *hca)
{
	u32 i;

	for (i = 0; hca->port && i < hca->nports; i++)
		free_percpu(hca->port[i].pcpu);
	kvfree(hca->port);
	hca->port = NULL;
	vib_parent_destroy(hca);
	xa_destroy(&hca->qps);
	ib_dealloc_device(&hca->ibdev);
}

/* Plug HCA @index in: its ports appear on the switch, clients are told. */
int vib_hca_add(u32 index)
{
	u32 first = 1 + index * vib_par.ports;
	struct vib_hca *hca;
	char name[16];
	u32 i;
	int err;

	hca = ib_alloc_device(vib_hca, ibdev);
	if (!hca)
		return -ENOMEM;
	hca->index = index;
	hca->nports = vib_par.ports;
	hca->node_guid = vib_guid(index + 1, 0);
	xa_init_flags(&hca->qps, XA_FLAGS_ALLOC);
	hca->next_qpn = vib_hash(0x51, index) % 0xf00000 + 0x40;
	spin_lock_init(&hca->list_lock);
	INIT_LIST_HEAD(&hca->qp_list);
	INIT_LIST_HEAD(&hca->cq_list);
	err = vib_ports_init(hca, first);
	if (!err)
		err = vib_parent_create(hca);
	if (err)
		goto err_free;

	hca->ibdev.node_type = RDMA_NODE_IB_CA;
	hca->ibdev.phys_port_cnt = hca->nports;
	hca->ibdev.num_comp_vectors = vib_par.vectors;
	hca->ibdev.node_guid = hca->node_guid;
	hca->ibdev.local_dma_lkey = VIB_LKEY;
	hca->ibdev.dev.parent = hca->parent;
	snprintf(hca->ibdev.node_desc, sizeof(hca->ibdev.node_desc),
		 "vibfab HCA-%u", index);
	ib_set_device_ops(&hca->ibdev, &vib_dev_ops);

	for (i = 0; i < hca->nports; i++) {
		rcu_assign_pointer(vib_fab.port[first + i], &hca->port[i]);
		vib_sm_port_plugged(&hca->port[i]);
	}
	/* by index, so that a port keeps its name whatever is plugged when */
	snprintf(name, sizeof(name), "vib%u", index);
	err = ib_register_device(&hca->ibdev, name,
				 vib_par.dma_direct ? hca->parent : NULL);
	if (err)
		goto err_unplug;
	vib_fab.hca[index] = hca;
	for (i = 0; i < hca->nports; i++)
		vib_port_phys(&hca->port[i], VIB_PHYS_POLLING);
	return 0;

err_unplug:
	for (i = 0; i < hca->nports; i++) {
		RCU_INIT_POINTER(vib_fab.port[first + i], NULL);
		vib_sm_port_gone(&hca->port[i]);
	}
	synchronize_rcu();
err_free:
	vib_hca_free(hca);
	return err;
}

/* Unplug an HCA. Clients go first, while its ports still work. */
void vib_hca_remove(struct vib_hca *hca)
{
	bool leak = false;
	u32 i;

	vib_fab.hca[hca->index] = NULL;
	WRITE_ONCE(hca->announced, false);
	ib_unregister_device(&hca->ibdev);
	for (i = 0; i < hca->nports; i++) {
		/* in this order: the SA must not find it when it is gone */
		RCU_INIT_POINTER(vib_fab.port[hca->port[i].swport], NULL);
		vib_sm_port_gone(&hca->port[i]);
	}
	synchronize_rcu();
	for (i = 0; i < VIB_OBJS; i++) {
		int n = atomic_read(&hca->live[i]);

		if (!n)
			continue;
		leak = true;
		if (!vib_par.strict)
			continue;
		pr_err("vibfab: leak: %d %s left on HCA %u\n", n,
		       vib_obj_name[i], hca->index);
		atomic_add(n, &vib_fab.strict[VIB_S_LEAK]);
	}
	/* What was leaked still points here: keep it rather than crash. */
	if (!leak)
		vib_hca_free(hca);
	else
		vib_fab.lost[hca->index] = true;
}
