/* SPDX-License-Identifier: GPL-2.0 */
/* Subnet management agents of the HCA ports and of the switch. */
#ifndef VIBFAB_SMA_H
#define VIBFAB_SMA_H

#include "vibfab.h"

#define VIB_SMP_BAD_ATTR	cpu_to_be16(0x000c)
#define VIB_SMP_BAD_VALUE	cpu_to_be16(0x001c)
#define VIB_SPEEDS		0x7	/* SDR, DDR, QDR */
#define VIB_WIDTHS		0x3	/* 1X, 4X */
#define VIB_PHYS_POLLING	2
#define VIB_PHYS_DISABLED	3
#define VIB_PHYS_LINK_UP	5

/* What the PortInfo of HCA ports and of switch ports have in common. */
void vib_port_info_common(struct ib_port_info *pi, u8 state, bool link,
			  u8 active_mtu);
/* Bring up or take down the link of @port as an SMP asked for it. */
void vib_port_phys(struct vib_port *port, u8 phys);
/* Answer @smp in place for the port @num of @hca. */
void vib_sma_hca(struct vib_hca *hca, u32 num, struct ib_smp *smp);
/* Answer @smp in place for the switch; it came in at port @in. */
void vib_sma_switch(u32 in, struct ib_smp *smp);
int vib_pma(struct vib_port *port, const struct ib_mad *in,
	    struct ib_mad *out);

#endif
