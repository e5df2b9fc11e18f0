/* SPDX-License-Identifier: GPL-2.0 */
/* Marks around what is measured: no-operations with a displacement that nothing else has. */
#ifndef BENCH_MARKS_H
#define BENCH_MARKS_H

#define MARK_START	0x4950a001
#define MARK_STOP	0x4950a002

#endif
