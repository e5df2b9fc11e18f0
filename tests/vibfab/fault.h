/* SPDX-License-Identifier: GPL-2.0 */
#ifndef VIBFAB_FAULT_H
#define VIBFAB_FAULT_H

#include <linux/seq_file.h>
#include "vibfab.h"

#define VIB_MAX_RULES	32

enum vib_kind {
	VIB_K_ANY,
	VIB_K_UC,		/* UD to one port, QP0 and QP1 aside */
	VIB_K_MC,		/* UD to a group */
	VIB_K_RC,
	VIB_K_MAD,		/* to QP1 */
	VIB_K_SMP,		/* to QP0 */
	VIB_KINDS
};

enum vib_action {
	VIB_A_DROP,
	VIB_A_DUP,
	VIB_A_DELAY,		/* arg: microseconds */
	VIB_A_REORDER,		/* arg: packets that overtake this one */
	VIB_A_CORRUPT,		/* arg: enum vib_corrupt */
	VIB_A_RNR,		/* RC only: the receiver has no buffer */
	VIB_A_WC,		/* arg: status the send ends with */
	VIB_A_RXERR,		/* arg: status the receive ends with */
	VIB_ACTIONS
};

enum vib_corrupt {
	VIB_C_QKEY,
	VIB_C_PKEY,
	VIB_C_SRCQP,
	VIB_C_LEN,		/* the last 4 bytes are missing */
	VIB_C_PAYLOAD,		/* one bit is wrong */
	VIB_C_SLID,
	VIB_C_NOGRH,
	VIB_CORRUPTS
};

struct vib_rule {
	bool used;
	bool to_err;
	enum vib_kind kind;
	enum vib_action action;
	u32 arg;
	u32 src;		/* switch port it comes from; 0: any */
	u32 dst;		/* switch port it goes to; 0: any */
	u32 sqpn;		/* 0: any */
	u32 dqpn;
	u32 mclass;		/* of a MAD; 0: any */
	u32 method;
	u32 attr;
	u32 minlen;		/* payload of at least so many bytes */
	u32 nth;		/* only the n-th match; 0: all */
	u32 every;		/* only each n-th match; 0: all */
	u32 percent;		/* of the matches; 0: all */
	u32 count;		/* hits before the rule is spent; 0: no end */
	u64 seen;
	u64 hits;
};

extern const char * const vib_kind_name[VIB_KINDS];
extern const char * const vib_action_name[VIB_ACTIONS];
extern const char * const vib_corrupt_name[VIB_CORRUPTS];

int vib_rule_add(const struct vib_rule *rule);
int vib_rule_del(u32 index);
void vib_rules_clear(void);
int vib_rules_show(struct seq_file *s, void *unused);

#endif
