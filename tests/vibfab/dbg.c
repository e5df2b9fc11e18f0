// SPDX-License-Identifier: GPL-2.0
/* debugfs: one file takes commands, the others show the state. */

#include <linux/debugfs.h>
#include <linux/module.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include <linux/vmalloc.h>
#include "cmd.h"
#include "fault.h"
#include "ring.h"
#include "sa.h"

static struct dentry *vib_dir;

static ssize_t vib_ctl_write(struct file *f, const char __user *buf,
			     size_t n, loff_t *pos)
{
	char *all, *rest, *line;
	int err = 0;

	if (n > SZ_64K)
		return -E2BIG;
	all = memdup_user_nul(buf, n);
	if (IS_ERR(all))
		return PTR_ERR(all);
	if (strlen(all) != n)
		err = -EINVAL;
	rest = all;
	while (!err && (line = strsep(&rest, "\n;")))
		err = vib_cmd_run(line);
	kfree(all);
	return err ?: n;
}

static const struct file_operations vib_ctl_fops = {
	.owner = THIS_MODULE,
	.open = simple_open,
	.write = vib_ctl_write,
	.llseek = noop_llseek,
};

static void vib_show_port(struct seq_file *s, struct vib_port *port)
{
	struct vib_pcpu sum = {};
	u64 *to = (u64 *)&sum;
	int cpu, i;

	for_each_possible_cpu(cpu) {
		u64 *from = (u64 *)per_cpu_ptr(port->pcpu, cpu);

		for (i = 0; i < sizeof(sum) / sizeof(u64); i++)
			to[i] += READ_ONCE(from[i]);
	}
	seq_printf(s, "port=vib%u/%u sw=%u link=%u state=%u lid=%u lmc=%u sm_lid=%u mtu=%d prefix=0x%016llx guid=0x%016llx cap=0x%08x qp0=%u qp1=%u",
		   port->hca->index, port->num, port->swport, port->link_up,
		   port->state, port->lid, port->lmc, port->sm_lid,
		   ib_mtu_enum_to_int(port->active_mtu), port->prefix,
		   be64_to_cpu(port->guid[0]), port->cap_mask,
		   !!rcu_access_pointer(port->special[0]),
		   !!rcu_access_pointer(port->special[1]));
	seq_printf(s, " tx_pkts=%llu tx_bytes=%llu rx_pkts=%llu rx_bytes=%llu tx_mcast=%llu rx_mcast=%llu pkey_viol=%u qkey_viol=%u pkeys=",
		   sum.tx_pkts, sum.tx_bytes, sum.rx_pkts, sum.rx_bytes,
		   sum.tx_mcast, sum.rx_mcast, port->pkey_viol,
		   port->qkey_viol);
	for (i = 0; i < vib_par.pkeys; i++)
		seq_printf(s, "%s%04x", i ? "," : "", port->pkey[i]);
	for (i = 0; i < VIB_VERDICTS; i++)
		seq_printf(s, " %s=%llu", vib_verdict_name[i], sum.verdict[i]);
	seq_putc(s, '\n');
}

static void vib_show_qps(struct seq_file *s, struct vib_hca *hca)
{
	struct vib_qp *qp;
	struct vib_cq *cq;

	spin_lock_irq(&hca->list_lock);
	list_for_each_entry(qp, &hca->qp_list, list)
		seq_printf(s, "qp=vib%u/0x%x type=%u port=%u state=%u qkey=0x%x pkey_index=%u flags=0x%x sq_out=%d rq_out=%d rq_posted=%u srq=%u dest=0x%x sent=%llu received=%llu scq_cpu=%d rcq_cpu=%d\n",
			   hca->index, qp->qpn, qp->type,
			   qp->port ? qp->port->num : 0, qp->state, qp->qkey,
			   qp->pkey_index, qp->create_flags,
			   atomic_read(&qp->sq_out), atomic_read(&qp->rq.out),
			   qp->rq.head - qp->rq.tail, !!qp->srq,
			   qp->attr.dest_qp_num, qp->sent, qp->received,
			   qp->scq->cpu, qp->rcq->cpu);
	list_for_each_entry(cq, &hca->cq_list, list)
		seq_printf(s, "cq=vib%u size=%u used=%u notify=%u hold=%u overflow=%u cpu=%d mod_count=%u mod_period=%u added=%llu notified=%llu\n",
			   hca->index, cq->size, cq->head - cq->tail,
			   cq->notify, cq->hold, cq->overflow, cq->cpu,
			   cq->mod_count, cq->mod_period, cq->added,
			   cq->notified);
	spin_unlock_irq(&hca->list_lock);
}

static int vib_state_show(struct seq_file *s, void *unused)
{
	struct vib_hca *hca;
	u32 i, j;

	mutex_lock(&vib_fab.mutex);
	seq_printf(s, "fabric hcas=%u ports=%u sm=%s sw_lid=%u seed=%llu\n",
		   vib_par.hcas, vib_par.ports,
		   vib_par.sm == VIB_SM_EMBEDDED ? "embedded" : "external",
		   vib_fab.sw_lid, vib_par.seed);
	for (i = 0; i < VIB_F_OPS; i++)
		if (atomic_read(&vib_fab.fail_in[i]) > 0)
			seq_printf(s, "fail=%s in=%d\n", vib_failop_name[i],
				   atomic_read(&vib_fab.fail_in[i]));
	vib_farcm_show(s);
	seq_printf(s, "queries=pkey n=%d\n", atomic_read(&vib_fab.pkey_queries));
	for (i = 0; i < vib_par.hcas; i++) {
		hca = vib_fab.hca[i];
		if (!hca)
			continue;
		seq_printf(s, "hca=vib%u name=%s node_guid=0x%016llx fatal=%u",
			   i, dev_name(&hca->ibdev.dev),
			   be64_to_cpu(hca->node_guid), hca->fatal);
		for (j = 0; j < VIB_OBJS; j++)
			seq_printf(s, " %s=%d", vib_obj_name[j],
				   atomic_read(&hca->live[j]));
		seq_putc(s, '\n');
		for (j = 0; j < hca->nports; j++)
			vib_show_port(s, &hca->port[j]);
		vib_show_qps(s, hca);
	}
	mutex_unlock(&vib_fab.mutex);
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(vib_state);

static int vib_groups_show(struct seq_file *s, void *unused)
{
	struct vib_sa_counts c;
	struct hlist_node *n;
	struct vib_group *g;
	u32 b, i, queued;

	mutex_lock(&vib_sa.mutex);
	spin_lock_irq(&vib_sa.lock);
	c = vib_sa.counts;
	queued = vib_sa.queued;
	spin_unlock_irq(&vib_sa.lock);
	seq_printf(s, "sa requests=%llu replies=%llu down=%u slow_ms=%u lose=%u busy=%u reject=%u",
		   vib_sa.requests, vib_sa.replies, vib_sa.down,
		   vib_sa.slow_ms, vib_sa.lose, vib_sa.busy, vib_sa.reject);
	seq_printf(s, " rate=%u room=%u queued=%u queued_max=%u paths=%llu joins=%llu leaves=%llu others=%llu full=%llu\n",
		   vib_sa.rate, vib_sa.room, queued, c.queued_max, c.paths,
		   c.joins, c.leaves, c.others, c.full);
	vib_for_each_group_safe(b, g, n) {
		seq_printf(s, "group mgid=%pI6 mlid=0x%04x qkey=0x%x mtu=%d pkey=0x%04x rate=%u persistent=%u members=",
			   g->rec.mgid.raw, be16_to_cpu(g->rec.mlid),
			   be32_to_cpu(g->rec.qkey),
			   ib_mtu_enum_to_int(g->rec.mtu & 0x3f),
			   be16_to_cpu(g->rec.pkey), g->rec.rate & 0x3f,
			   g->persistent);
		for (i = 0; i < VIB_SW_PORTS; i++)
			if (g->join[i])
				seq_printf(s, "%u:%u,", i, g->join[i]);
		seq_putc(s, '\n');
	}
	mutex_unlock(&vib_sa.mutex);
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(vib_groups);

static int vib_strict_show(struct seq_file *s, void *unused)
{
	u32 i;

	for (i = 0; i < VIB_STRICTS; i++)
		seq_printf(s, "%s=%d\n", vib_strict_name[i],
			   atomic_read(&vib_fab.strict[i]));
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(vib_strict);

static int vib_bench_show(struct seq_file *s, void *unused)
{
	seq_puts(s, vib_bench_text());
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(vib_bench);
DEFINE_SHOW_ATTRIBUTE(vib_rules);
DEFINE_SHOW_ATTRIBUTE(vib_ring);

struct vib_pcap {
	size_t size;
	void *data;
};

static int vib_pcap_open(struct inode *inode, struct file *f)
{
	struct vib_pcap *p = kzalloc_obj(*p);

	if (!p)
		return -ENOMEM;
	p->data = vib_ring_pcap(&p->size);
	if (!p->data) {
		kfree(p);
		return -ENOMEM;
	}
	f->private_data = p;
	return 0;
}

static ssize_t vib_pcap_read(struct file *f, char __user *buf, size_t n,
			     loff_t *pos)
{
	struct vib_pcap *p = f->private_data;

	return simple_read_from_buffer(buf, n, pos, p->data, p->size);
}

static int vib_pcap_release(struct inode *inode, struct file *f)
{
	struct vib_pcap *p = f->private_data;

	vfree(p->data);
	kfree(p);
	return 0;
}

static const struct file_operations vib_pcap_fops = {
	.owner = THIS_MODULE,
	.open = vib_pcap_open,
	.read = vib_pcap_read,
	.release = vib_pcap_release,
	.llseek = default_llseek,
};

void vib_dbg_init(void)
{
	vib_dir = debugfs_create_dir("vibfab", NULL);
	debugfs_create_file("ctl", 0200, vib_dir, NULL, &vib_ctl_fops);
	debugfs_create_file("state", 0400, vib_dir, NULL, &vib_state_fops);
	debugfs_create_file("groups", 0400, vib_dir, NULL, &vib_groups_fops);
	debugfs_create_file("rules", 0400, vib_dir, NULL, &vib_rules_fops);
	debugfs_create_file("strict", 0400, vib_dir, NULL, &vib_strict_fops);
	debugfs_create_file("ring", 0400, vib_dir, NULL, &vib_ring_fops);
	debugfs_create_file("bench", 0400, vib_dir, NULL, &vib_bench_fops);
	debugfs_create_file("pcap", 0400, vib_dir, NULL, &vib_pcap_fops);
}

void vib_dbg_exit(void)
{
	debugfs_remove_recursive(vib_dir);
}
