#include "vibfab.h"
DEFINE_STATIC_KEY_FALSE(vib_ring_on);
DEFINE_STATIC_KEY_FALSE(vib_fault_on);
int vib_process_mad(struct ib_device *ibdev, int flags, u32 num,
		    const struct ib_wc *wc, const struct ib_grh *grh,
		    const struct ib_mad *in, struct ib_mad *out,
		    size_t *out_size, u16 *out_pkey_index)
{ return IB_MAD_RESULT_SUCCESS; }
void vib_switch_dr(struct vib_pkt *p) {}
void vib_port0_rx(struct vib_pkt *p) { if (p->dqpn == 1) vib_sa_rx(p); }
void vib_switch_link_change(u32 swport) {}
void vib_far_rx(struct vib_pkt *p) {}
u16 vib_far_lid(const union ib_gid *gid) { return 0; }
int vib_ring_init(void) { return 0; }
void vib_ring_exit(void) {}
void __vib_ring_add(struct vib_pkt *p, u32 out, enum vib_verdict v) {}
int vib_cmd_boot(void) { return 0; }
void vib_dbg_init(void) {}
void vib_dbg_exit(void) {}
void vib_fault_exit(void) {}
enum ib_wc_status __vib_fault_wc(struct vib_pkt *p) { return 0; }
void __vib_fault_transmit(struct vib_pkt *p, struct vib_kicks *k) {}
void __vib_fault_recv(struct vib_pkt *p, struct ib_wc *wc) {}
int __vib_fault_rc(struct vib_pkt *p, u32 *delay) { return 0; }
