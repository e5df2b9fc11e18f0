/* SPDX-License-Identifier: GPL-2.0 */
#ifndef PROBE_FAULTS_H
#define PROBE_FAULTS_H

/* Index of the parameter's value; 0 is no fault. */
extern int probe_fault;

/* Returns what it read from memory that it had freed, -1 without memory. May sleep. */
int probe_use_after_free(void);

/* Returns the element behind the last one of an array. */
int probe_bounds(void);

/* Says that it may sleep where sleeping is not allowed. */
void probe_sleep(void);

#endif
