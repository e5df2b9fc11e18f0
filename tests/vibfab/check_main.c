// SPDX-License-Identifier: GPL-2.0
/*
 * The files of vibcheck: one runs a check by its name, one tells how it went,
 * one lists the asynchronous events that clients of the devices were told.
 */

#include <linux/debugfs.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/seq_file.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include "check.h"

#define VC_LOG	64

static DEFINE_MUTEX(vc_mutex);	/* one check at a time; guards vc_result */
static char vc_result[256];
static struct dentry *vc_dir;

static const struct vc_check * const vc_tables[] = {
	vc_ud_checks, vc_cq_checks, vc_rc_checks, vc_misuse_checks,
	vc_device_checks,
};

static struct {
	spinlock_t lock;
	u32 n;			/* events since the last clear */
	char line[VC_LOG][48];
} vc_log = { .lock = __SPIN_LOCK_UNLOCKED(vc_log.lock) };

/* A device that is there. */
struct vc_client {
	struct list_head list;
	struct ib_device *dev;
	struct ib_event_handler handler;
};

static DEFINE_MUTEX(vc_devs_mutex);
static LIST_HEAD(vc_devs);

/* Keep the reason why a check failed. Returns the error it ends with. */
int vc_fail(struct vc *c, const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	vsnprintf(c->text, sizeof(c->text), fmt, args);
	va_end(args);
	return -EPROTO;
}

/* A device by its name, held until ib_device_put(); NULL: there is none. */
struct ib_device *vc_device(const char *name)
{
	struct ib_device *dev = NULL;
	struct vc_client *w;

	mutex_lock(&vc_devs_mutex);
	list_for_each_entry(w, &vc_devs, list)
		if (!strcmp(dev_name(&w->dev->dev), name) &&
		    ib_device_try_get(w->dev))
			dev = w->dev;
	mutex_unlock(&vc_devs_mutex);
	return dev;
}

static const struct vc_check *vc_find(const char *name)
{
	const struct vc_check *k;
	int i;

	for (i = 0; i < ARRAY_SIZE(vc_tables); i++)
		for (k = vc_tables[i]; k->name; k++)
			if (!strcmp(k->name, name))
				return k;
	return NULL;
}

static int vc_run(const char *name, u64 arg)
{
	const struct vc_check *k = vc_find(name);
	struct vc *c;
	int err;

	if (!k)
		return -ENOENT;
	c = kzalloc_obj(*c);
	if (!c)
		return -ENOMEM;
	c->arg = arg;
	err = k->run(c);
	vc_close(&c->x);
	vc_close(&c->b);
	vc_close(&c->a);
	strscpy(vc_result, c->text);
	kfree(c);
	return err;
}

/* "NAME [NUMBER]" runs a check, "events clear" forgets the events. */
static ssize_t vc_run_write(struct file *f, const char __user *buf, size_t n,
			    loff_t *pos)
{
	char text[64], *arg, *name = text;
	u64 v = 0;
	int err;

	if (n >= sizeof(text))
		return -E2BIG;
	if (copy_from_user(text, buf, n))
		return -EFAULT;
	text[n] = 0;
	name = strim(name);
	arg = strchr(name, ' ');
	if (arg)
		*arg++ = 0;
	if (!strcmp(name, "events") && arg && !strcmp(arg, "clear")) {
		spin_lock_irq(&vc_log.lock);
		vc_log.n = 0;
		spin_unlock_irq(&vc_log.lock);
		return n;
	}
	if (arg && kstrtou64(arg, 0, &v))
		return -EINVAL;
	mutex_lock(&vc_mutex);
	vc_result[0] = 0;
	err = vc_run(name, v);
	mutex_unlock(&vc_mutex);
	return err ?: n;
}

static const struct file_operations vc_run_fops = {
	.owner = THIS_MODULE,
	.open = simple_open,
	.write = vc_run_write,
	.llseek = noop_llseek,
};

static int vc_result_show(struct seq_file *s, void *unused)
{
	mutex_lock(&vc_mutex);
	seq_printf(s, "%s\n", vc_result);
	mutex_unlock(&vc_mutex);
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(vc_result);

static int vc_list_show(struct seq_file *s, void *unused)
{
	const struct vc_check *k;
	int i;

	for (i = 0; i < ARRAY_SIZE(vc_tables); i++)
		for (k = vc_tables[i]; k->name; k++)
			seq_printf(s, "%s\n", k->name);
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(vc_list);

static int vc_events_show(struct seq_file *s, void *unused)
{
	u32 i;

	spin_lock_irq(&vc_log.lock);
	for (i = 0; i < min_t(u32, vc_log.n, VC_LOG); i++)
		seq_puts(s, vc_log.line[i]);
	spin_unlock_irq(&vc_log.lock);
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(vc_events);

static void vc_async(struct ib_event_handler *h, struct ib_event *ev)
{
	unsigned long flags;

	spin_lock_irqsave(&vc_log.lock, flags);
	if (vc_log.n < VC_LOG)
		snprintf(vc_log.line[vc_log.n++], sizeof(vc_log.line[0]),
			 "port=%s/%u event=%u\n", dev_name(&ev->device->dev),
			 ev->element.port_num, ev->event);
	spin_unlock_irqrestore(&vc_log.lock, flags);
}

static struct ib_client vc_ib_client;

static int vc_add(struct ib_device *dev)
{
	struct vc_client *w = kzalloc_obj(*w);

	if (!w)
		return -ENOMEM;
	w->dev = dev;
	INIT_IB_EVENT_HANDLER(&w->handler, dev, vc_async);
	ib_set_client_data(dev, &vc_ib_client, w);
	ib_register_event_handler(&w->handler);
	mutex_lock(&vc_devs_mutex);
	list_add_tail(&w->list, &vc_devs);
	mutex_unlock(&vc_devs_mutex);
	return 0;
}

static void vc_remove(struct ib_device *dev, void *data)
{
	struct vc_client *w = data;

	mutex_lock(&vc_devs_mutex);
	list_del(&w->list);
	mutex_unlock(&vc_devs_mutex);
	ib_unregister_event_handler(&w->handler);
	kfree(w);
}

static struct ib_client vc_ib_client = {
	.name = "vibcheck",
	.add = vc_add,
	.remove = vc_remove,
};

static int __init vc_init(void)
{
	int err = ib_register_client(&vc_ib_client);

	if (err)
		return err;
	vc_dir = debugfs_create_dir("vibcheck", NULL);
	debugfs_create_file("run", 0200, vc_dir, NULL, &vc_run_fops);
	debugfs_create_file("result", 0400, vc_dir, NULL, &vc_result_fops);
	debugfs_create_file("list", 0400, vc_dir, NULL, &vc_list_fops);
	debugfs_create_file("events", 0400, vc_dir, NULL, &vc_events_fops);
	return 0;
}

static void __exit vc_exit(void)
{
	debugfs_remove_recursive(vc_dir);
	ib_unregister_client(&vc_ib_client);
}

module_init(vc_init);
module_exit(vc_exit);
MODULE_DESCRIPTION("Checks of verbs on the HCAs of vibfab");
MODULE_AUTHOR("ipoib-rs project");
MODULE_LICENSE("GPL");
