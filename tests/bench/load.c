// SPDX-License-Identifier: GPL-2.0
/*
 * Traffic between two network namespaces, with marks around the part that is measured (marks.h).
 *
 *   load WORKLOAD NAMESPACE ADDRESS NAMESPACE ADDRESS SIZE AMOUNT [FLOWS]
 *
 * udp, tcp        from the first side to the second, SIZE octets a send; AMOUNT sends of all flows together
 * udp-rr, tcp-rr  SIZE octets there and back, AMOUNT times
 *     One thread has both ends and takes what it has sent before it sends on: nothing is lost, nothing waits, and
 *     with a clock that counts instructions each run is like the other.
 * udp-threads, tcp-threads
 *     a thread at each end of each flow, for AMOUNT milliseconds
 *
 * Prints JSON: units and octets that arrived, nanoseconds, frames that both interfaces took in, and of round
 * trips the median and the 99th percentile in nanoseconds.
 */

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <err.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
#include "marks.h"

#define BATCH		32
#define MAX_FLOWS	64
#define WARM_UP		64
#define PORT		7000


static inline void mark_start(void)
{
	asm volatile(".byte 0x0f, 0x1f, 0x80\n\t.long %c0" : : "i"(MARK_START) : "memory");
}

static inline void mark_stop(void)
{
	asm volatile(".byte 0x0f, 0x1f, 0x80\n\t.long %c0" : : "i"(MARK_STOP) : "memory");
}

union address {
	struct sockaddr any;
	struct sockaddr_in v4;
	struct sockaddr_in6 v6;
};

struct side {
	const char *ns;
	const char *ip;
};

struct flow {
	int from, to;		/* sockets */
	pthread_t sender, receiver;
	uint64_t units, octets;	/* that arrived while it was measured */
};

static struct side side[2];
static struct flow flow[MAX_FLOWS];
static char data[1 << 16];
static size_t size;
static bool tcp;
static atomic_bool measured, over;

static uint64_t now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ull + t.tv_nsec;
}

static void enter(const struct side *s)
{
	char path[64];
	int fd;

	snprintf(path, sizeof(path), "/run/netns/%s", s->ns);
	fd = open(path, O_RDONLY);
	if (fd < 0 || setns(fd, CLONE_NEWNET))
		err(1, "%s", path);
	close(fd);
}

/* Frames that the side's interfaces have taken in. */
static uint64_t frames(const struct side *s)
{
	unsigned long long packets, sum = 0;
	char line[512], name[32];
	FILE *f;

	enter(s);
	f = fopen("/proc/thread-self/net/dev", "r");
	if (!f)
		err(1, "net/dev");
	while (fgets(line, sizeof(line), f))
		if (sscanf(line, " %31[^:]: %*u %llu", name, &packets) == 2 && strcmp(name, "lo"))
			sum += packets;
	fclose(f);
	return sum;
}

static socklen_t fill(union address *a, const char *ip, uint16_t port)
{
	memset(a, 0, sizeof(*a));
	if (inet_pton(AF_INET, ip, &a->v4.sin_addr) == 1) {
		a->v4.sin_family = AF_INET;
		a->v4.sin_port = htons(port);
		return sizeof(a->v4);
	}
	if (inet_pton(AF_INET6, ip, &a->v6.sin6_addr) != 1)
		errx(1, "no address: %s", ip);
	a->v6.sin6_family = AF_INET6;
	a->v6.sin6_port = htons(port);
	return sizeof(a->v6);
}

static int open_socket(const struct side *s, uint16_t port)
{
	struct timeval limit = { .tv_sec = 2 };
	int room = 1 << 20, on = 1, fd;
	union address a;
	socklen_t len = fill(&a, s->ip, port);

	enter(s);
	fd = socket(a.any.sa_family, tcp ? SOCK_STREAM : SOCK_DGRAM, 0);
	if (fd < 0)
		err(1, "socket");
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
	setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &room, sizeof(room));
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
	if (tcp)
		setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	if (bind(fd, &a.any, len))
		err(1, "bind %s", s->ip);
	return fd;
}

static void open_flow(struct flow *f, int i)
{
	union address a;
	socklen_t len;
	int fd;

	f->from = open_socket(&side[0], PORT + i);
	f->to = open_socket(&side[1], PORT + i);
	if (tcp && listen(f->to, 1))
		err(1, "listen");
	len = fill(&a, side[1].ip, PORT + i);
	if (connect(f->from, &a.any, len))
		err(1, "connect");
	if (tcp) {
		fd = accept(f->to, NULL, NULL);
		if (fd < 0)
			err(1, "accept");
		close(f->to);
		f->to = fd;
	} else {
		len = fill(&a, side[0].ip, PORT + i);
		if (connect(f->to, &a.any, len))
			err(1, "connect");
	}
}

/* Sends `n` datagrams and takes those that arrive. */
static void datagrams(struct flow *f, int n)
{
	static struct mmsghdr out[BATCH], in[BATCH];
	static char room[BATCH][1 << 13];
	static struct iovec ov, iv[BATCH];
	int i, got, all = 0;

	ov = (struct iovec) { data, size };
	for (i = 0; i < BATCH; i++) {
		iv[i] = (struct iovec) { room[i], sizeof(room[i]) };
		out[i].msg_hdr = (struct msghdr) { .msg_iov = &ov, .msg_iovlen = 1 };
		in[i].msg_hdr = (struct msghdr) { .msg_iov = &iv[i], .msg_iovlen = 1 };
	}
	if (sendmmsg(f->from, out, n, 0) != n)
		err(1, "sendmmsg");
	while (all < n) {
		got = recvmmsg(f->to, in, n - all, MSG_WAITFORONE, NULL);
		if (got <= 0)
			break;
		for (i = 0; i < got; i++)
			f->octets += in[i].msg_len;
		all += got;
	}
	f->units += all;
}

/* Sends `n` pieces of a stream and takes what has arrived; what is on its way still comes with the next. */
static void stream(struct flow *f, int n, bool wait)
{
	static char room[1 << 18];
	static uint64_t owed[MAX_FLOWS];
	uint64_t *due = &owed[f - flow];
	ssize_t got;

	while (n-- > 0) {
		got = send(f->from, data, size, MSG_DONTWAIT | MSG_NOSIGNAL);
		if (got > 0)
			*due += got;
	}
	while (*due) {
		got = recv(f->to, room, sizeof(room), wait ? 0 : MSG_DONTWAIT);
		if (got <= 0)
			break;
		*due -= got;
		f->octets += got;
	}
	f->units = f->octets / size;
}

static void round_trip(struct flow *f)
{
	static char room[1 << 16];

	if (send(f->from, data, size, 0) != (ssize_t)size ||
	    recv(f->to, room, size, MSG_WAITALL) != (ssize_t)size ||
	    send(f->to, room, size, 0) != (ssize_t)size ||
	    recv(f->from, room, size, MSG_WAITALL) != (ssize_t)size)
		return;
	f->units++;
	f->octets += 2 * size;
}

static int by_value(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

static void alone(const char *what, int flows, uint64_t amount, uint64_t *trips)
{
	uint64_t i, start;

	if (strstr(what, "-rr")) {
		for (i = 0; i < amount; i++) {
			start = now();
			round_trip(&flow[i % flows]);
			trips[i] = now() - start;
		}
		return;
	}
	for (i = 0; i < amount; i += tcp ? 1 : BATCH) {
		struct flow *f = &flow[i / (tcp ? 1 : BATCH) % flows];

		if (tcp)
			stream(f, 1, false);
		else
			datagrams(f, BATCH);
	}
	for (i = 0; tcp && i < (uint64_t)flows; i++)
		stream(&flow[i], 0, true);
}

static void *sends(void *arg)
{
	struct flow *f = arg;

	while (!over)
		if (send(f->from, data, size, MSG_NOSIGNAL) < 0 && tcp)
			break;
	shutdown(f->from, SHUT_WR);
	return NULL;
}

static void *receives(void *arg)
{
	struct flow *f = arg;
	char room[1 << 16];

	while (!over) {
		ssize_t got = recv(f->to, room, sizeof(room), 0);

		if (got <= 0)
			continue;
		if (measured) {
			f->units++;
			f->octets += got;
		}
	}
	shutdown(f->to, SHUT_RD);
	return NULL;
}

static void run_threads(int flows, uint64_t ms, uint64_t *ns, uint64_t *taken)
{
	uint64_t start;
	int i;

	for (i = 0; i < flows; i++)
		if (pthread_create(&flow[i].receiver, NULL, receives, &flow[i]) ||
		    pthread_create(&flow[i].sender, NULL, sends, &flow[i]))
			errx(1, "no thread");
	usleep(200000);
	*taken = frames(&side[0]) + frames(&side[1]);
	mark_start();
	start = now();
	measured = true;
	usleep(ms * 1000);
	measured = false;
	*ns = now() - start;
	mark_stop();
	*taken = frames(&side[0]) + frames(&side[1]) - *taken;
	over = true;
	for (i = 0; i < flows; i++) {
		pthread_join(flow[i].sender, NULL);
		pthread_join(flow[i].receiver, NULL);
	}
}

int main(int argc, char **argv)
{
	uint64_t amount, taken, ns, units = 0, octets = 0, *trips;
	int flows, i;

	if (argc < 8)
		errx(2, "load WORKLOAD NS IP NS IP SIZE AMOUNT [FLOWS]");
	side[0] = (struct side) { argv[2], argv[3] };
	side[1] = (struct side) { argv[4], argv[5] };
	tcp = !strncmp(argv[1], "tcp", 3);
	size = strtoul(argv[6], NULL, 10);
	amount = strtoull(argv[7], NULL, 10);
	flows = argc > 8 ? atoi(argv[8]) : 1;
	trips = calloc(amount + WARM_UP, sizeof(*trips));
	if (flows < 1 || flows > MAX_FLOWS || !size || size > sizeof(data) || !trips)
		errx(2, "out of range");
	for (i = 0; i < flows; i++)
		open_flow(&flow[i], i);
	if (strstr(argv[1], "-threads")) {
		run_threads(flows, amount, &ns, &taken);
	} else {
		alone(argv[1], flows, WARM_UP * flows, calloc(WARM_UP * flows, sizeof(*trips)));
		for (i = 0; i < flows; i++)
			flow[i].units = flow[i].octets = 0;
		taken = frames(&side[0]) + frames(&side[1]);
		mark_start();
		ns = now();
		alone(argv[1], flows, amount, trips);
		ns = now() - ns;
		mark_stop();
		taken = frames(&side[0]) + frames(&side[1]) - taken;
	}
	for (i = 0; i < flows; i++) {
		units += flow[i].units;
		octets += flow[i].octets;
	}
	printf("{\"units\": %llu, \"octets\": %llu, \"ns\": %llu, \"frames\": %llu",
	       (unsigned long long)units, (unsigned long long)octets, (unsigned long long)ns,
	       (unsigned long long)taken);
	if (strstr(argv[1], "-rr")) {
		qsort(trips, amount, sizeof(*trips), by_value);
		printf(", \"median\": %llu, \"p99\": %llu", (unsigned long long)trips[amount / 2],
		       (unsigned long long)trips[amount * 99 / 100]);
	}
	printf("}\n");
	return 0;
}
