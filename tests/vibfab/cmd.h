/* SPDX-License-Identifier: GPL-2.0 */
#ifndef VIBFAB_CMD_H
#define VIBFAB_CMD_H

#include "vibfab.h"

#define VIB_MAX_WORDS	24

/* A command, cut into words. */
struct vib_cmd {
	char *w[VIB_MAX_WORDS];
	u32 n;
};

int vib_cmd_run(char *line);
int vib_word(const char *w, const char * const *names, u32 n);
bool vib_cmd_flag(struct vib_cmd *c, const char *flag);
int vib_cmd_u64(struct vib_cmd *c, u32 i, u64 max, u64 *v);
int vib_port_of(const char *w, struct vib_port **port);
int vib_hca_of(const char *w, u32 *index);

/* cmd_port.c */
int vib_cmd_port(struct vib_cmd *c);
int vib_cmd_hca(struct vib_cmd *c);
int vib_cmd_qp(struct vib_cmd *c);

/* bench.c */
int vib_cmd_bench(struct vib_cmd *c);
const char *vib_bench_text(void);

/* far.c */
int vib_cmd_far(struct vib_cmd *c);

/* farcm.c */
int vib_farcm_cmd(struct vib_cmd *c);

/* cmd_sa.c */
int vib_cmd_sa(struct vib_cmd *c);
int vib_cmd_sm(struct vib_cmd *c);
int vib_cmd_group(struct vib_cmd *c);

#endif
