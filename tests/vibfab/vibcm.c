// SPDX-License-Identifier: GPL-2.0
/*
 * vibcm: a kernel consumer of the RDMA connection manager. It finds its peer
 * by an IP address, as storage and file systems over RDMA do: an echo server,
 * and a client that compares what comes back. In /sys/kernel/debug/vibcm
 *
 *	listen IP PORT		serve there, in the writer's network namespace
 *	connect IP PORT N	connect from there, exchange N messages, disconnect
 *	stop			end all listeners and their connections
 *
 * are written to "run", one a write, which fails when the command does;
 * "result" tells of the last connection. All must be stopped before an HCA goes.
 */

#include <linux/debugfs.h>
#include <linux/inet.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/nsproxy.h>
#include <linux/seq_file.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include <rdma/ib_verbs.h>
#include <rdma/rdma_cm.h>

#define VM_LEN		3000
#define VM_WRS		8
#define VM_LISTENERS	4
#define VM_PATIENCE	msecs_to_jiffies(60000)

struct vm_conn {
	struct list_head list;
	struct rdma_cm_id *id;
	struct ib_pd *pd;
	struct ib_cq *cq;
	struct ib_cqe sent;
	struct ib_cqe received;
	struct completion step;	/* the client's next step is done */
	u8 *buf;		/* received, then to be sent */
	u64 dma;
	int err;
	bool serves;
};

static DEFINE_MUTEX(vm_mutex);	/* one command at a time; guards the next */
static struct rdma_cm_id *vm_listeners[VM_LISTENERS];
static DEFINE_SPINLOCK(vm_lock);
static LIST_HEAD(vm_served);	/* under vm_lock */
static char vm_result[2][160];	/* of the client, of the server; under vm_lock */
static struct dentry *vm_dir;

static void vm_note(struct vm_conn *c)
{
	struct rdma_dev_addr *a = &c->id->route.addr.dev_addr;
	union ib_gid sgid, dgid;

	rdma_addr_get_sgid(a, &sgid);
	rdma_addr_get_dgid(a, &dgid);
	spin_lock(&vm_lock);
	snprintf(vm_result[c->serves], sizeof(vm_result[0]),
		 "role=%s device=%s port=%u pkey=0x%04x ifindex=%d sgid=%pI6 dgid=%pI6",
		 c->serves ? "server" : "client",
		 dev_name(&c->id->device->dev), c->id->port_num,
		 ib_addr_get_pkey(a), a->bound_dev_if, sgid.raw, dgid.raw);
	spin_unlock(&vm_lock);
}

static int vm_post_recv(struct vm_conn *c)
{
	struct ib_sge sge = {
		.addr = c->dma, .length = VM_LEN,
		.lkey = c->pd->local_dma_lkey,
	};
	struct ib_recv_wr wr = {
		.wr_cqe = &c->received, .sg_list = &sge, .num_sge = 1,
	};

	return ib_post_recv(c->id->qp, &wr, NULL);
}

static int vm_post_send(struct vm_conn *c, u32 len)
{
	struct ib_sge sge = {
		.addr = c->dma + VM_LEN, .length = len,
		.lkey = c->pd->local_dma_lkey,
	};
	struct ib_send_wr wr = {
		.wr_cqe = &c->sent, .sg_list = &sge, .num_sge = 1,
		.opcode = IB_WR_SEND, .send_flags = IB_SEND_SIGNALED,
	};

	return ib_post_send(c->id->qp, &wr, NULL);
}

static void vm_sent(struct ib_cq *cq, struct ib_wc *wc)
{
	struct vm_conn *c = cq->cq_context;

	if (wc->status && wc->status != IB_WC_WR_FLUSH_ERR)
		c->err = -EIO;
}

/* The server gives it back; the client has what it waits for. */
static void vm_received(struct ib_cq *cq, struct ib_wc *wc)
{
	struct vm_conn *c = cq->cq_context;

	if (wc->status) {
		c->err = -EIO;
		complete(&c->step);
		return;
	}
	ib_dma_sync_single_for_cpu(c->id->device, c->dma, 2 * VM_LEN,
				   DMA_BIDIRECTIONAL);
	if (!c->serves) {
		c->err = wc->byte_len == VM_LEN ? 0 : -EMSGSIZE;
		complete(&c->step);
		return;
	}
	memcpy(c->buf + VM_LEN, c->buf, VM_LEN);
	ib_dma_sync_single_for_device(c->id->device, c->dma, 2 * VM_LEN,
				      DMA_BIDIRECTIONAL);
	if (vm_post_recv(c) || vm_post_send(c, wc->byte_len))
		rdma_disconnect(c->id);
}

static struct vm_conn *vm_new(bool serves)
{
	struct vm_conn *c = kzalloc_obj(*c);

	if (!c)
		return NULL;
	c->serves = serves;
	c->sent.done = vm_sent;
	c->received.done = vm_received;
	init_completion(&c->step);
	return c;
}

/* All but the identifier and what its handlers look at. */
static void vm_close(struct vm_conn *c)
{
	if (c->id->qp) {
		/*
		 * Only handlers of receives use the queue pair. Sends are
		 * drained with RDMA writes, which vibfab has not.
		 */
		ib_drain_rq(c->id->qp);
		rdma_destroy_qp(c->id);
	}
	if (c->dma)
		ib_dma_unmap_single(c->id->device, c->dma, 2 * VM_LEN,
				    DMA_BIDIRECTIONAL);
	if (!IS_ERR_OR_NULL(c->cq))
		ib_free_cq(c->cq);
	if (!IS_ERR_OR_NULL(c->pd))
		ib_dealloc_pd(c->pd);
	kfree(c->buf);
}

/* A queue pair with one receive, for an identifier that has its device. */
static int vm_open(struct vm_conn *c)
{
	struct ib_device *dev = c->id->device;
	struct ib_qp_init_attr attr = {
		.qp_type = IB_QPT_RC,
		.sq_sig_type = IB_SIGNAL_REQ_WR,
		.cap = {
			.max_send_wr = VM_WRS, .max_recv_wr = VM_WRS,
			.max_send_sge = 1, .max_recv_sge = 1,
		},
	};
	u64 dma;
	int err;

	c->buf = kzalloc(2 * VM_LEN, GFP_KERNEL);
	if (!c->buf)
		return -ENOMEM;
	dma = ib_dma_map_single(dev, c->buf, 2 * VM_LEN, DMA_BIDIRECTIONAL);
	if (ib_dma_mapping_error(dev, dma))
		return -ENOMEM;
	c->dma = dma;
	c->pd = ib_alloc_pd(dev, 0);
	if (IS_ERR(c->pd))
		return PTR_ERR(c->pd);
	c->cq = ib_alloc_cq(dev, c, 4 * VM_WRS, 0, IB_POLL_WORKQUEUE);
	if (IS_ERR(c->cq))
		return PTR_ERR(c->cq);
	attr.send_cq = c->cq;
	attr.recv_cq = c->cq;
	err = rdma_create_qp(c->id, c->pd, &attr);
	return err ?: vm_post_recv(c);
}

/* An error makes the connection manager destroy the identifier. */
static int vm_requested(struct rdma_cm_id *id)
{
	struct rdma_conn_param param = { .rnr_retry_count = 7 };
	struct vm_conn *c = vm_new(true);
	int err;

	if (!c)
		return -ENOMEM;
	c->id = id;
	id->context = c;
	err = vm_open(c) ?: rdma_accept(id, &param);
	if (err) {
		id->context = NULL;
		vm_close(c);
		kfree(c);
		return err;
	}
	vm_note(c);
	spin_lock(&vm_lock);
	list_add_tail(&c->list, &vm_served);
	spin_unlock(&vm_lock);
	return 0;
}

static int vm_event(struct rdma_cm_id *id, struct rdma_cm_event *ev)
{
	struct vm_conn *c = id->context;

	if (ev->event == RDMA_CM_EVENT_CONNECT_REQUEST)
		return vm_requested(id);
	if (!c || c->serves)
		return 0;
	switch (ev->event) {
	case RDMA_CM_EVENT_ADDR_RESOLVED:
	case RDMA_CM_EVENT_ROUTE_RESOLVED:
	case RDMA_CM_EVENT_ESTABLISHED:
		c->err = 0;
		break;
	case RDMA_CM_EVENT_DISCONNECTED:
	case RDMA_CM_EVENT_TIMEWAIT_EXIT:
		return 0;
	default:
		c->err = ev->status < 0 ? ev->status : -ECONNREFUSED;
	}
	complete(&c->step);
	return 0;
}

static int vm_wait(struct vm_conn *c)
{
	if (!wait_for_completion_timeout(&c->step, VM_PATIENCE))
		return -ETIMEDOUT;
	return c->err;
}

static int vm_exchange(struct vm_conn *c, u32 n)
{
	struct ib_device *dev = c->id->device;
	int err;
	u32 i, k;

	for (i = 0; i < n; i++) {
		ib_dma_sync_single_for_cpu(dev, c->dma, 2 * VM_LEN,
					   DMA_BIDIRECTIONAL);
		memset(c->buf, 0, VM_LEN);
		for (k = 0; k < VM_LEN; k++)
			c->buf[VM_LEN + k] = i * 31 + k * 7;
		ib_dma_sync_single_for_device(dev, c->dma, 2 * VM_LEN,
					      DMA_BIDIRECTIONAL);
		err = vm_post_send(c, VM_LEN) ?: vm_wait(c);
		if (err)
			return err;
		if (memcmp(c->buf, c->buf + VM_LEN, VM_LEN))
			return -EBADMSG;
		err = vm_post_recv(c);
		if (err)
			return err;
	}
	return 0;
}

static int vm_run_client(struct vm_conn *c, struct sockaddr_storage *to, u32 n)
{
	struct rdma_conn_param param = {
		.retry_count = 7, .rnr_retry_count = 7,
	};
	int err;

	err = rdma_resolve_addr(c->id, NULL, (struct sockaddr *)to, 5000) ?:
	      vm_wait(c);
	if (err)
		return err;
	err = rdma_resolve_route(c->id, 5000) ?: vm_wait(c);
	if (err)
		return err;
	vm_note(c);
	err = vm_open(c);
	if (err)
		return err;
	err = rdma_connect(c->id, &param) ?: vm_wait(c);
	if (err)
		return err;
	err = vm_exchange(c, n);
	rdma_disconnect(c->id);
	return err;
}

static int vm_connect(struct sockaddr_storage *to, u32 n)
{
	struct vm_conn *c = vm_new(false);
	struct rdma_cm_id *id;
	int err;

	if (!c)
		return -ENOMEM;
	id = rdma_create_id(current->nsproxy->net_ns, vm_event, c, RDMA_PS_TCP,
			    IB_QPT_RC);
	if (IS_ERR(id)) {
		kfree(c);
		return PTR_ERR(id);
	}
	c->id = id;
	err = vm_run_client(c, to, n);
	vm_close(c);
	rdma_destroy_id(id);
	kfree(c);
	return err;
}

static int vm_listen(struct sockaddr_storage *at)
{
	struct rdma_cm_id *id;
	int err, i;

	for (i = 0; i < VM_LISTENERS && vm_listeners[i]; i++)
		;
	if (i == VM_LISTENERS)
		return -ENOSPC;
	id = rdma_create_id(current->nsproxy->net_ns, vm_event, NULL,
			    RDMA_PS_TCP, IB_QPT_RC);
	if (IS_ERR(id))
		return PTR_ERR(id);
	err = rdma_bind_addr(id, (struct sockaddr *)at) ?: rdma_listen(id, 8);
	if (err)
		rdma_destroy_id(id);
	else
		vm_listeners[i] = id;
	return err;
}

static void vm_stop(void)
{
	struct vm_conn *c;
	struct rdma_cm_id *id;
	int i;

	for (i = 0; i < VM_LISTENERS; i++) {
		if (vm_listeners[i])
			rdma_destroy_id(vm_listeners[i]);
		vm_listeners[i] = NULL;
	}
	/* Nothing is added any more: destroying waits for handlers. */
	for (;;) {
		spin_lock(&vm_lock);
		c = list_first_entry_or_null(&vm_served, struct vm_conn, list);
		if (c)
			list_del(&c->list);
		spin_unlock(&vm_lock);
		if (!c)
			return;
		id = c->id;
		rdma_disconnect(id);
		vm_close(c);
		rdma_destroy_id(id);
		kfree(c);
	}
}

static int vm_command(char *text)
{
	char *word[4] = {}, *w;
	struct sockaddr_storage addr;
	u32 n = 0;
	int err, i = 0;

	while ((w = strsep(&text, " ")) && i < ARRAY_SIZE(word))
		word[i++] = w;
	if (i == 1 && !strcmp(word[0], "stop")) {
		vm_stop();
		return 0;
	}
	if (i < 3)
		return -EINVAL;
	err = inet_pton_with_scope(current->nsproxy->net_ns, AF_UNSPEC, word[1],
				   word[2], &addr);
	if (err)
		return err;
	if (i == 3 && !strcmp(word[0], "listen"))
		return vm_listen(&addr);
	if (i == 4 && !strcmp(word[0], "connect"))
		return kstrtou32(word[3], 0, &n) ?: vm_connect(&addr, n);
	return -EINVAL;
}

static ssize_t vm_run_write(struct file *f, const char __user *buf, size_t n,
			    loff_t *pos)
{
	char text[96];
	int err;

	if (n >= sizeof(text))
		return -E2BIG;
	if (copy_from_user(text, buf, n))
		return -EFAULT;
	text[n] = 0;
	mutex_lock(&vm_mutex);
	err = vm_command(strim(text));
	mutex_unlock(&vm_mutex);
	return err ?: n;
}

static const struct file_operations vm_run_fops = {
	.owner = THIS_MODULE,
	.open = simple_open,
	.write = vm_run_write,
	.llseek = noop_llseek,
};

static int vm_result_show(struct seq_file *s, void *unused)
{
	spin_lock(&vm_lock);
	seq_printf(s, "%s\n%s\n", vm_result[0], vm_result[1]);
	spin_unlock(&vm_lock);
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(vm_result);

static int __init vm_init(void)
{
	vm_dir = debugfs_create_dir("vibcm", NULL);
	debugfs_create_file("run", 0200, vm_dir, NULL, &vm_run_fops);
	debugfs_create_file("result", 0400, vm_dir, NULL, &vm_result_fops);
	return 0;
}

static void __exit vm_exit(void)
{
	debugfs_remove_recursive(vm_dir);
	vm_stop();
}

module_init(vm_init);
module_exit(vm_exit);
MODULE_DESCRIPTION("Echo over the RDMA connection manager");
MODULE_AUTHOR("ipoib-rs project");
MODULE_LICENSE("GPL");
