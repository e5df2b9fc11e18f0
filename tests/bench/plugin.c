// SPDX-License-Identifier: GPL-2.0
/*
 * QEMU plugin: how many instructions of the guest's kernel run at which address, between two marks that a
 * program in the guest sets (marks.h). For each such window a line "window N", then lines "address count",
 * one for each translation block that ran; address 0 stands for all programs together.
 *
 *   -plugin FILE.so,out=FILE
 */

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "marks.h"

/* What is used of QEMU's plugin interface, version 4, which comes without a header in the build root. */
struct qemu_plugin_tb;
struct qemu_plugin_insn;
struct qemu_plugin_scoreboard;
struct qemu_plugin_u64 {
	struct qemu_plugin_scoreboard *score;
	size_t offset;
};

enum { CB_NO_REGS = 0, INLINE_ADD_U64 = 0 };

typedef void (*tb_trans_cb)(uint64_t id, struct qemu_plugin_tb *tb);
typedef void (*exec_cb)(unsigned int vcpu, void *data);

void qemu_plugin_register_vcpu_tb_trans_cb(uint64_t id, tb_trans_cb cb);
void qemu_plugin_register_vcpu_tb_exec_inline_per_vcpu(struct qemu_plugin_tb *tb, int op,
						       struct qemu_plugin_u64 entry, uint64_t imm);
void qemu_plugin_register_vcpu_insn_exec_cb(struct qemu_plugin_insn *insn, exec_cb cb, int flags,
					    void *data);
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *tb);
uint64_t qemu_plugin_tb_vaddr(const struct qemu_plugin_tb *tb);
struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *tb, size_t index);
size_t qemu_plugin_insn_data(const struct qemu_plugin_insn *insn, void *to, size_t len);
struct qemu_plugin_scoreboard *qemu_plugin_scoreboard_new(size_t size);
uint64_t qemu_plugin_u64_sum(struct qemu_plugin_u64 entry);

#define EXPORT		__attribute__((visibility("default")))
#define SLOTS		(1u << 20)
#define KERNEL		0xffff800000000000ull

EXPORT int qemu_plugin_version = 4;

static struct qemu_plugin_scoreboard *board;
static uint64_t address[SLOTS];	/* by open addressing; slot 0 is for programs */
static uint64_t base[SLOTS];
static unsigned int used;
static unsigned int windows;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static FILE *out;

static struct qemu_plugin_u64 counter(unsigned int slot)
{
	return (struct qemu_plugin_u64) { board, slot * sizeof(uint64_t) };
}

/* A full table would loop for ever: what is new then counts as programs. */
static unsigned int slot_of(uint64_t addr)
{
	unsigned int slot = (addr * 0x9e3779b97f4a7c15ull >> 44) % SLOTS;

	if (addr < KERNEL)
		return 0;
	while (!slot || (address[slot] && address[slot] != addr))
		slot = (slot + 1) % SLOTS;
	if (!address[slot]) {
		if (used >= SLOTS / 2)
			return 0;
		used++;
		address[slot] = addr;
	}
	return slot;
}

static void started(unsigned int vcpu, void *data)
{
	unsigned int i;

	pthread_mutex_lock(&lock);
	for (i = 0; i < SLOTS; i++)
		if (!i || address[i])
			base[i] = qemu_plugin_u64_sum(counter(i));
	pthread_mutex_unlock(&lock);
}

static void stopped(unsigned int vcpu, void *data)
{
	unsigned int i;

	pthread_mutex_lock(&lock);
	fprintf(out, "window %u\n", windows++);
	for (i = 0; i < SLOTS; i++) {
		uint64_t n;

		if (i && !address[i])
			continue;
		n = qemu_plugin_u64_sum(counter(i)) - base[i];
		if (n)
			fprintf(out, "%llx %llu\n", (unsigned long long)address[i],
				(unsigned long long)n);
	}
	fflush(out);
	pthread_mutex_unlock(&lock);
}

static void look_for_mark(struct qemu_plugin_insn *insn)
{
	unsigned char code[7];
	uint32_t value;

	if (qemu_plugin_insn_data(insn, code, sizeof(code)) != sizeof(code) ||
	    memcmp(code, "\x0f\x1f\x80", 3))
		return;
	memcpy(&value, code + 3, sizeof(value));
	if (value == MARK_START)
		qemu_plugin_register_vcpu_insn_exec_cb(insn, started, CB_NO_REGS, NULL);
	else if (value == MARK_STOP)
		qemu_plugin_register_vcpu_insn_exec_cb(insn, stopped, CB_NO_REGS, NULL);
}

static void translated(uint64_t id, struct qemu_plugin_tb *tb)
{
	size_t n = qemu_plugin_tb_n_insns(tb);
	uint64_t addr = qemu_plugin_tb_vaddr(tb);
	unsigned int slot;
	size_t i;

	pthread_mutex_lock(&lock);
	slot = slot_of(addr);
	pthread_mutex_unlock(&lock);
	qemu_plugin_register_vcpu_tb_exec_inline_per_vcpu(tb, INLINE_ADD_U64, counter(slot), n);
	for (i = 0; !slot && i < n; i++)
		look_for_mark(qemu_plugin_tb_get_insn(tb, i));
}

EXPORT int qemu_plugin_install(uint64_t id, const void *info, int argc, char **argv)
{
	int i;

	for (i = 0; i < argc; i++)
		if (!strncmp(argv[i], "out=", 4))
			out = fopen(argv[i] + 4, "w");
	if (!out)
		return 1;
	board = qemu_plugin_scoreboard_new(SLOTS * sizeof(uint64_t));
	qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
	return 0;
}
