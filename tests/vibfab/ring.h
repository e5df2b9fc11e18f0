/* SPDX-License-Identifier: GPL-2.0 */
#ifndef VIBFAB_RING_H
#define VIBFAB_RING_H

#include <linux/seq_file.h>
#include "vibfab.h"

/* A packet seen at an egress of the switch, or where it was dropped. */
struct vib_rec {
	u64 ns;			/* real time */
	u32 out;		/* egress port */
	u32 snap;		/* bytes of payload kept */
	enum vib_verdict verdict;
	struct vib_pkt pkt;	/* its pointers are dead */
	u8 data[];
};

void vib_ring_clear(void);
void vib_ring_enable(bool on);
int vib_ring_show(struct seq_file *s, void *unused);
void *vib_ring_pcap(size_t *size);

#endif
