// SPDX-License-Identifier: GPL-2.0
/*
 * The C half of the test module: its parameter, and faults in C code.
 */
#include <linux/delay.h>
#include <linux/module.h>
#include <linux/moduleparam.h>
#include <linux/slab.h>
#include <linux/string.h>

#include "faults.h"

/* The order is that of the match in probe.rs. */
static const char * const faults[] = {
	"none", "use-after-free", "leak", "lock-order", "overflow",
	"use-after-free-c", "bounds-c", "sleep-c",
};

int probe_fault;

static int set_fault(const char *value, const struct kernel_param *kp)
{
	int n = sysfs_match_string(faults, value);

	if (n < 0)
		return n;
	probe_fault = n;
	return 0;
}

static const struct kernel_param_ops fault_ops = { .set = set_fault };
module_param_cb(fault, &fault_ops, NULL, 0);
MODULE_PARM_DESC(fault, "Which fault to commit while loading (default: none)");

noinline int probe_use_after_free(void)
{
	int *p = kmalloc(64, GFP_KERNEL);

	if (!p)
		return -1;
	*p = 7;
	OPTIMIZER_HIDE_VAR(p);
	kfree(p);
	return READ_ONCE(*p);
}

noinline int probe_bounds(void)
{
	/* What follows is part of the same object: nothing but the bounds check can tell. */
	static struct {
		int few[4];
		int more[4];
	} numbers = { { 1, 2, 3, 4 }, { 5, 6, 7, 8 } };
	int index = 5;

	OPTIMIZER_HIDE_VAR(index);
	return numbers.few[index];
}

noinline void probe_sleep(void)
{
	preempt_disable();
	might_sleep();
	preempt_enable();
}
