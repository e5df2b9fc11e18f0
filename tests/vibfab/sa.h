/* SPDX-License-Identifier: GPL-2.0 */
/* The embedded subnet administrator: records, groups, faults. */
#ifndef VIBFAB_SA_H
#define VIBFAB_SA_H

#include "vibfab.h"

#define VIB_SA_ATTR_CPI		cpu_to_be16(0x0001)
#define VIB_SA_ATTR_PATH	cpu_to_be16(0x0035)
#define VIB_SA_ATTR_MCMEMBER	cpu_to_be16(0x0038)

/* Statuses of class SubnAdm (IBA 15.4.1) and the common ones we use. */
#define VIB_SA_OK		0x0000
#define VIB_SA_BUSY		0x0001
#define VIB_SA_UNSUP_ATTR	0x000c
#define VIB_SA_NO_RESOURCES	0x0100
#define VIB_SA_REQ_INVALID	0x0200
#define VIB_SA_NO_RECORDS	0x0300
#define VIB_SA_INVALID_GID	0x0500
#define VIB_SA_INSUFFICIENT	0x0600

/* Join states */
#define VIB_JOIN_FULL		1
#define VIB_JOIN_NON		2
#define VIB_JOIN_SENDONLY	4
#define VIB_JOIN_SENDONLY_FULL	8

struct vib_sa_path {
	__be64 service_id;
	union ib_gid dgid;
	union ib_gid sgid;
	__be16 dlid;
	__be16 slid;
	__be32 flow_hop;	/* raw 1, resv 3, flow label 20, hop limit 8 */
	u8 tclass;
	u8 rev_numb;		/* reversible 1, number of paths 7 */
	__be16 pkey;
	__be16 qos_sl;		/* QoS class 12, SL 4 */
	u8 mtu;			/* selector 2, value 6; so the next two */
	u8 rate;
	u8 life;
	u8 preference;
	u8 resv[6];
} __packed;

struct vib_sa_mcm {
	union ib_gid mgid;
	union ib_gid port_gid;
	__be32 qkey;
	__be16 mlid;
	u8 mtu;			/* selector 2, value 6 */
	u8 tclass;
	__be16 pkey;
	u8 rate;
	u8 life;
	__be32 sl_flow_hop;	/* SL 4, flow label 20, hop limit 8 */
	u8 scope_join;		/* scope 4, join state 4 */
	u8 proxy;
	u8 resv[2];
} __packed;

#define VIB_GROUP_HASH	1024

/* A multicast group. Guarded by vib_sa.mutex. */
struct vib_group {
	struct hlist_node node;
	struct vib_sa_mcm rec;
	bool persistent;	/* made by the administrator, never goes away */
	u8 join[VIB_SW_PORTS];	/* join states of the member at that port */
};

/* What came in, guarded by vib_sa.lock. A request that is repeated counts again. */
struct vib_sa_counts {
	u64 paths;		/* PathRecord */
	u64 joins;		/* MCMemberRecord Set */
	u64 leaves;		/* MCMemberRecord Delete */
	u64 others;
	u64 full;		/* of these: found no room */
	u32 queued_max;
};

struct vib_sa {
	struct mutex mutex;	/* groups and their members */
	struct hlist_head groups[VIB_GROUP_HASH];
	DECLARE_BITMAP(mlids, VIB_MLIDS);
	spinlock_t lock;	/* the queue of requests */
	struct list_head queue;
	struct list_head refused;	/* what found no room, to be told BUSY */
	u32 queued;
	u32 refusals;		/* entries of @refused */
	u64 idle_since;		/* ns: when the last request was done with */
	struct delayed_work work;
	/* faults, changed by commands; read without a lock */
	bool down;		/* requests vanish */
	u32 slow_ms;
	u32 lose;		/* so many requests vanish */
	u32 busy;		/* so many are answered BUSY */
	u32 reject;		/* so many are answered with reject_status */
	u16 reject_status;
	u16 only_attr;		/* the faults hit this attribute only; 0: all */
	/* its capacity, likewise */
	u32 rate;		/* requests a second it works off; 0: at once */
	u32 room;		/* so many may wait; 0: VIB_SA_QUEUE_MAX */
	bool room_busy;		/* what finds no room is answered BUSY */
	u64 requests;
	u64 replies;
	struct vib_sa_counts counts;
};

extern struct vib_sa vib_sa;

/* With vib_sa.mutex held; the body may free the group. */
#define vib_for_each_group_safe(b, g, n) \
	for ((b) = 0; (b) < VIB_GROUP_HASH; (b)++) \
		hlist_for_each_entry_safe(g, n, &vib_sa.groups[b], node)

/* sm.c */
extern u16 vib_partition[VIB_MAX_PKEYS];
extern u32 vib_partitions;
struct vib_port *vib_sm_port_by_gid(const union ib_gid *gid);
struct vib_port *vib_sm_port_by_lid(u16 lid);
bool vib_port_has_pkey(struct vib_port *port, u16 pkey);
bool vib_sm_lid_free(struct vib_port *port, u16 lid, u8 lmc);
void vib_sm_set_lid(struct vib_port *port, u16 lid, u8 lmc);
void vib_sa_hurry(void);

/* mcm.c */
u16 vib_sa_mcmember(struct ib_sa_mad *mad);
int vib_groups_init(void);
int vib_group_admin(u16 pkey);
void vib_group_free(struct vib_group *g);
void vib_groups_free(bool all);
struct vib_group *vib_group_find(const union ib_gid *mgid);
void vib_ipoib_mgid(union ib_gid *mgid, u16 pkey);

#endif
