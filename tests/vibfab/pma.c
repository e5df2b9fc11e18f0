// SPDX-License-Identifier: GPL-2.0
/* The performance management agent of the HCA ports. */

#include <rdma/ib_pma.h>
#include "sma.h"

enum {
	VIB_TX_BYTES, VIB_RX_BYTES, VIB_TX_PKTS, VIB_RX_PKTS, VIB_TX_MC,
	VIB_RX_MC
};

static void vib_pma_sum(struct vib_port *port, u64 *v)
{
	int cpu, i;

	memset(v, 0, 6 * sizeof(*v));
	for_each_possible_cpu(cpu) {
		struct vib_pcpu *c = per_cpu_ptr(port->pcpu, cpu);

		v[VIB_TX_BYTES] += READ_ONCE(c->tx_bytes);
		v[VIB_RX_BYTES] += READ_ONCE(c->rx_bytes);
		v[VIB_TX_PKTS] += READ_ONCE(c->tx_pkts);
		v[VIB_RX_PKTS] += READ_ONCE(c->rx_pkts);
		v[VIB_TX_MC] += READ_ONCE(c->tx_mcast);
		v[VIB_RX_MC] += READ_ONCE(c->rx_mcast);
	}
	for (i = 0; i < 6; i++)
		v[i] -= port->pma_base[i];
}

static __be32 vib_pma32(u64 v)
{
	return cpu_to_be32(min_t(u64, v, U32_MAX));
}

static void vib_pma_counters(struct vib_port *port, void *data)
{
	struct ib_pma_portcounters *c = data;
	u64 v[6];

	vib_pma_sum(port, v);
	memset(data, 0, 192);
	c->port_select = port->num;
	/* data counters go in words of 4 bytes */
	c->port_xmit_data = vib_pma32(v[VIB_TX_BYTES] / 4);
	c->port_rcv_data = vib_pma32(v[VIB_RX_BYTES] / 4);
	c->port_xmit_packets = vib_pma32(v[VIB_TX_PKTS]);
	c->port_rcv_packets = vib_pma32(v[VIB_RX_PKTS]);
}

static void vib_pma_counters_ext(struct vib_port *port, void *data)
{
	struct ib_pma_portcounters_ext *c = data;
	u64 v[6];

	vib_pma_sum(port, v);
	memset(data, 0, 192);
	c->port_select = port->num;
	c->port_xmit_data = cpu_to_be64(v[VIB_TX_BYTES] / 4);
	c->port_rcv_data = cpu_to_be64(v[VIB_RX_BYTES] / 4);
	c->port_xmit_packets = cpu_to_be64(v[VIB_TX_PKTS]);
	c->port_rcv_packets = cpu_to_be64(v[VIB_RX_PKTS]);
	c->port_unicast_xmit_packets =
		cpu_to_be64(v[VIB_TX_PKTS] - v[VIB_TX_MC]);
	c->port_unicast_rcv_packets =
		cpu_to_be64(v[VIB_RX_PKTS] - v[VIB_RX_MC]);
	c->port_multicast_xmit_packets = cpu_to_be64(v[VIB_TX_MC]);
	c->port_multicast_rcv_packets = cpu_to_be64(v[VIB_RX_MC]);
}

static void vib_pma_reset(struct vib_port *port)
{
	u64 v[6];
	int i;

	vib_pma_sum(port, v);
	for (i = 0; i < 6; i++)
		port->pma_base[i] += v[i];
}

int vib_pma(struct vib_port *port, const struct ib_mad *in, struct ib_mad *out)
{
	void *data = (void *)out + 64;
	struct ib_class_port_info *cpi = data;
	bool set = in->mad_hdr.method == IB_MGMT_METHOD_SET;

	*out = *in;
	out->mad_hdr.method = IB_MGMT_METHOD_GET_RESP;
	out->mad_hdr.status = 0;
	switch (in->mad_hdr.attr_id) {
	case IB_PMA_CLASS_PORT_INFO:
		memset(data, 0, 192);
		cpi->base_version = 1;
		cpi->class_version = 1;
		cpi->capability_mask = IB_PMA_CLASS_CAP_EXT_WIDTH;
		cpi->cap_mask2_resp_time = cpu_to_be32(16);
		break;
	case IB_PMA_PORT_COUNTERS:
		if (set)
			vib_pma_reset(port);
		vib_pma_counters(port, data);
		break;
	case IB_PMA_PORT_COUNTERS_EXT:
		if (set)
			vib_pma_reset(port);
		vib_pma_counters_ext(port, data);
		break;
	default:
		out->mad_hdr.status = VIB_SMP_BAD_ATTR;
	}
	return IB_MAD_RESULT_SUCCESS | IB_MAD_RESULT_REPLY;
}
