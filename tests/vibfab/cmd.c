// SPDX-License-Identifier: GPL-2.0
/* Commands: their words, fault rules, and what is not worth a file. */

#include <linux/module.h>
#include <linux/slab.h>
#include <linux/string.h>
#include "cmd.h"
#include "fault.h"
#include "ring.h"

static char *vib_boot_cmd;
module_param_named(cmd, vib_boot_cmd, charp, 0444);
MODULE_PARM_DESC(cmd, "commands to run at load, separated by ';'");

/* Index of @w in @names, -EINVAL when it is not there. */
int vib_word(const char *w, const char * const *names, u32 n)
{
	u32 i;

	for (i = 0; i < n; i++)
		if (names[i] && !strcmp(w, names[i]))
			return i;
	return -EINVAL;
}

/* Is @flag among the words? It is taken out. */
bool vib_cmd_flag(struct vib_cmd *c, const char *flag)
{
	u32 i;

	for (i = 1; i < c->n; i++)
		if (!strcmp(c->w[i], flag)) {
			c->n--;
			memmove(&c->w[i], &c->w[i + 1],
				(c->n - i) * sizeof(c->w[0]));
			return true;
		}
	return false;
}

/* Word @i as a number of at most @max. */
int vib_cmd_u64(struct vib_cmd *c, u32 i, u64 max, u64 *v)
{
	if (i >= c->n || kstrtou64(c->w[i], 0, v) || *v > max)
		return -EINVAL;
	return 0;
}

/* "vib1" or "1" to the index of an HCA, plugged or not. */
int vib_hca_of(const char *w, u32 *index)
{
	if (!strncmp(w, "vib", 3))
		w += 3;
	if (kstrtou32(w, 10, index) || *index >= vib_par.hcas)
		return -EINVAL;
	return 0;
}

/* "vib1/2", and nothing but that, to the index of an HCA and 2. */
static int vib_port_word(const char *w, u32 *index, u32 *num)
{
	const char *slash = strchr(w, '/');
	char hca[16];

	if (!slash || slash - w >= sizeof(hca) || strncmp(w, "vib", 3))
		return -EINVAL;
	strscpy(hca, w, slash - w + 1);
	if (vib_hca_of(hca, index) || kstrtou32(slash + 1, 10, num) || !*num ||
	    *num > vib_par.ports)
		return -EINVAL;
	return 0;
}

/* "vib1/2" to a port. fab.mutex is held, and keeps it. */
int vib_port_of(const char *w, struct vib_port **port)
{
	struct vib_hca *hca;
	u32 index, num;

	if (vib_port_word(w, &index, &num))
		return -EINVAL;
	hca = vib_fab.hca[index];
	if (!hca)
		return -ENODEV;
	*port = &hca->port[num - 1];
	return 0;
}

/* Switch port of "vib1/2", whether or not the HCA is plugged in. */
static int vib_swport_of(const char *w, u32 *swport)
{
	u32 index, num;

	if (vib_port_word(w, &index, &num))
		return -EINVAL;
	*swport = 1 + index * vib_par.ports + num - 1;
	return 0;
}

/* In a rule, 0 stands for a word that was not given: none of these takes it. */
static const struct {
	const char *name;
	size_t offset;
	u32 max;
} vib_rule_keys[] = {
	{ "sqpn", offsetof(struct vib_rule, sqpn), 0xffffff },
	{ "dqpn", offsetof(struct vib_rule, dqpn), 0xffffff },
	{ "class", offsetof(struct vib_rule, mclass), U8_MAX },
	{ "method", offsetof(struct vib_rule, method), U8_MAX },
	{ "attr", offsetof(struct vib_rule, attr), U16_MAX },
	{ "minlen", offsetof(struct vib_rule, minlen), VIB_MAX_MSG },
	{ "nth", offsetof(struct vib_rule, nth), U32_MAX },
	{ "every", offsetof(struct vib_rule, every), U32_MAX },
	{ "percent", offsetof(struct vib_rule, percent), 100 },
	{ "count", offsetof(struct vib_rule, count), U32_MAX },
};

static int vib_rule_number(struct vib_rule *r, u32 key, const char *arg)
{
	u32 *to = (void *)r + vib_rule_keys[key].offset;

	if (kstrtou32(arg, 0, to) || !*to || *to > vib_rule_keys[key].max)
		return -EINVAL;
	return 0;
}

static int vib_rule_action(struct vib_rule *r, const char *name,
			   const char *arg)
{
	int i = vib_word(name, vib_action_name, VIB_ACTIONS);

	if (i < 0)
		return i;
	r->action = i;
	switch (i) {
	case VIB_A_DELAY:
	case VIB_A_REORDER:
		return kstrtou32(arg ?: "", 0, &r->arg) ||
		       r->arg > 60 * USEC_PER_SEC ? -EINVAL : 0;
	case VIB_A_WC:
	case VIB_A_RXERR:
		return kstrtou32(arg ?: "", 0, &r->arg) || !r->arg ||
		       r->arg > IB_WC_GENERAL_ERR ? -EINVAL : 0;
	case VIB_A_CORRUPT:
		i = vib_word(arg ?: "", vib_corrupt_name, VIB_CORRUPTS);
		r->arg = i;
		return i < 0 ? i : 0;
	}
	return arg ? -EINVAL : 0;
}

static int vib_rule_word(struct vib_rule *r, char *w, bool *has_action)
{
	char *arg = strchr(w, '=');
	u32 i;
	int k;

	if (arg)
		*arg++ = 0;
	if (!strcmp(w, "kind") && arg) {
		k = vib_word(arg, vib_kind_name, VIB_KINDS);
		r->kind = k;
		return k < 0 ? k : 0;
	}
	if (!strcmp(w, "src") && arg)
		return vib_swport_of(arg, &r->src);
	if (!strcmp(w, "dst") && arg)
		return vib_swport_of(arg, &r->dst);
	if (!strcmp(w, "to") && arg) {
		r->to_err = !strcmp(arg, "err");
		return r->to_err || !strcmp(arg, "sqe") ? 0 : -EINVAL;
	}
	if (!strcmp(w, "oneshot") && !arg) {
		r->count = 1;
		return 0;
	}
	for (i = 0; i < ARRAY_SIZE(vib_rule_keys) && arg; i++)
		if (!strcmp(w, vib_rule_keys[i].name))
			return vib_rule_number(r, i, arg);
	if (*has_action)
		return -EINVAL;
	*has_action = true;
	return vib_rule_action(r, w, arg);
}

static int __vib_cmd_rule(struct vib_cmd *c)
{
	struct vib_rule r = {};
	bool has_action = false;
	u64 index;
	u32 i;
	int err;

	if (c->n < 2)
		return -EINVAL;
	if (!strcmp(c->w[1], "clear") && c->n == 2) {
		vib_rules_clear();
		return 0;
	}
	if (!strcmp(c->w[1], "del") && c->n == 3)
		return vib_cmd_u64(c, 2, VIB_MAX_RULES, &index) ?:
		       vib_rule_del(index);
	if (strcmp(c->w[1], "add"))
		return -EINVAL;
	for (i = 2; i < c->n; i++) {
		err = vib_rule_word(&r, c->w[i], &has_action);
		if (err)
			return err;
	}
	if (!has_action || (r.to_err && r.action != VIB_A_WC))
		return -EINVAL;
	err = vib_rule_add(&r);
	return err < 0 ? err : 0;
}

/*
 * One at a time: what one clears another must not be adding. Not fab.mutex:
 * an HCA that is being unplugged may wait for a rule to go.
 */
static int vib_cmd_rule(struct vib_cmd *c)
{
	static DEFINE_MUTEX(rules);
	int err;

	mutex_lock(&rules);
	err = __vib_cmd_rule(c);
	mutex_unlock(&rules);
	return err;
}

static int vib_cmd_fail(struct vib_cmd *c)
{
	u64 n;
	int op;

	if (c->n != 3)
		return -EINVAL;
	op = vib_word(c->w[1], vib_failop_name, VIB_F_OPS);
	if (op < 0 || vib_cmd_u64(c, 2, INT_MAX, &n))
		return -EINVAL;
	atomic_set(&vib_fab.fail_in[op], n);
	return 0;
}

/* Creation flags of queue pairs that are refused from now on. */
static int vib_cmd_refuse(struct vib_cmd *c)
{
	static const char * const names[] = { "none", "loopback", "lso", "both" };
	static const u32 flags[] = {
		0, IB_QP_CREATE_BLOCK_MULTICAST_LOOPBACK,
		IB_QP_CREATE_IPOIB_UD_LSO,
		IB_QP_CREATE_BLOCK_MULTICAST_LOOPBACK | IB_QP_CREATE_IPOIB_UD_LSO,
	};
	int which;

	if (c->n != 2)
		return -EINVAL;
	which = vib_word(c->w[1], names, ARRAY_SIZE(names));
	if (which < 0)
		return -EINVAL;
	WRITE_ONCE(vib_fab.refused_flags, flags[which]);
	return 0;
}

static int vib_cmd_ring(struct vib_cmd *c)
{
	if (c->n != 2)
		return -EINVAL;
	if (!strcmp(c->w[1], "clear"))
		vib_ring_clear();
	else if (!strcmp(c->w[1], "on"))
		vib_ring_enable(true);
	else if (!strcmp(c->w[1], "off"))
		vib_ring_enable(false);
	else
		return -EINVAL;
	return 0;
}

static int vib_cmd_strict(struct vib_cmd *c)
{
	u32 i;

	if (c->n != 2 || strcmp(c->w[1], "clear"))
		return -EINVAL;
	for (i = 0; i < VIB_STRICTS; i++)
		atomic_set(&vib_fab.strict[i], 0);
	return 0;
}

static const struct {
	const char *name;
	int (*run)(struct vib_cmd *c);
} vib_cmds[] = {
	{ "rule", vib_cmd_rule },
	{ "port", vib_cmd_port },
	{ "hca", vib_cmd_hca },
	{ "qp", vib_cmd_qp },
	{ "sa", vib_cmd_sa },
	{ "sm", vib_cmd_sm },
	{ "group", vib_cmd_group },
	{ "fail", vib_cmd_fail },
	{ "refuse", vib_cmd_refuse },
	{ "far", vib_cmd_far },
	{ "ring", vib_cmd_ring },
	{ "strict", vib_cmd_strict },
	{ "bench", vib_cmd_bench },
};

/* Run one command. @line is cut to pieces. Process context. */
int vib_cmd_run(char *line)
{
	struct vib_cmd c = {};
	char *w;
	u32 i;

	while ((w = strsep(&line, " \t\n"))) {
		if (!*w)
			continue;
		if (c.n == VIB_MAX_WORDS)
			return -E2BIG;
		c.w[c.n++] = w;
	}
	if (!c.n)
		return 0;
	for (i = 0; i < ARRAY_SIZE(vib_cmds); i++)
		if (!strcmp(c.w[0], vib_cmds[i].name))
			return vib_cmds[i].run(&c);
	return -EINVAL;
}

/* The commands of the module parameter. */
int vib_cmd_boot(void)
{
	char *all, *rest, *line;
	int err = 0;

	if (!vib_boot_cmd)
		return 0;
	all = kstrdup(vib_boot_cmd, GFP_KERNEL);
	if (!all)
		return -ENOMEM;
	rest = all;
	while (!err && (line = strsep(&rest, ";")))
		err = vib_cmd_run(line);
	kfree(all);
	if (err)
		pr_err("vibfab: a command of cmd= failed: %d\n", err);
	return err;
}
