// SPDX-License-Identifier: GPL-2.0
#include "rdma_helpers.h"

bool ipoib_h_ib_uses_virt_dma(struct ib_device *dev)
{
	return ib_uses_virt_dma(dev);
}

u64 ipoib_h_ib_dma_map_single(struct ib_device *dev, void *cpu_addr, size_t size,
			      enum dma_data_direction direction)
{
	return ib_dma_map_single(dev, cpu_addr, size, direction);
}

void ipoib_h_ib_dma_unmap_single(struct ib_device *dev, u64 addr, size_t size,
				 enum dma_data_direction direction)
{
	ib_dma_unmap_single(dev, addr, size, direction);
}

u64 ipoib_h_ib_dma_map_page(struct ib_device *dev, struct page *page,
			    unsigned long offset, size_t size,
			    enum dma_data_direction direction)
{
	return ib_dma_map_page(dev, page, offset, size, direction);
}

void ipoib_h_ib_dma_unmap_page(struct ib_device *dev, u64 addr, size_t size,
			       enum dma_data_direction direction)
{
	ib_dma_unmap_page(dev, addr, size, direction);
}

int ipoib_h_ib_dma_mapping_error(struct ib_device *dev, u64 dma_addr)
{
	return ib_dma_mapping_error(dev, dma_addr);
}

u32 ipoib_h_rdma_start_port(const struct ib_device *dev)
{
	return rdma_start_port(dev);
}

u32 ipoib_h_rdma_end_port(const struct ib_device *dev)
{
	return rdma_end_port(dev);
}

bool ipoib_h_rdma_protocol_ib(const struct ib_device *dev, u32 port_num)
{
	return rdma_protocol_ib(dev, port_num);
}

bool ipoib_h_rdma_protocol_roce_udp_encap(const struct ib_device *dev, u32 port_num)
{
	return rdma_protocol_roce_udp_encap(dev, port_num);
}

bool ipoib_h_rdma_protocol_roce_eth_encap(const struct ib_device *dev, u32 port_num)
{
	return rdma_protocol_roce_eth_encap(dev, port_num);
}

enum rdma_ah_attr_type ipoib_h_rdma_ah_find_type(struct ib_device *dev, u32 port_num)
{
	return rdma_ah_find_type(dev, port_num);
}

struct net *ipoib_h_rdma_dev_net(struct ib_device *dev)
{
	return rdma_dev_net(dev);
}
