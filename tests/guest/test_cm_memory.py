"""What connected mode takes of the kernel's memory, by interface and by peer: ours (side A) must stay below half of
what the in-tree driver (side C) takes on the same device (--driver both, fabric with far=N,far_cm=1)."""

import os
import pathlib
import socket
import struct
import time

import pytest

import net
import vibfab
from test_lifecycle import memory_in_use

FIRST = int.from_bytes(socket.inet_aton("10.128.0.1"), "big")
PEERS = 350
PORTS = {"A": "vib0/1", "C": "vib0/2"}


def address(i):
    return socket.inet_ntoa((FIRST + i).to_bytes(4, "big"))


@pytest.fixture(scope="module")
def c():
    return net.Side("C")


@pytest.fixture(scope="module", autouse=True)
def room(a):
    for t in ("gc_thresh1", "gc_thresh2", "gc_thresh3"):
        net.run(["sysctl", "-qw", f"net.ipv4.neigh.default.{t}=32768"])


def tell(line):
    print(line)
    with open(pathlib.Path(os.environ.get("GUEST_JOB", "/tmp")) / "memory", "a", encoding="ascii") as f:
        f.write(line + "\n")


def settled():
    """Memory in use in KiB, the least of some looks: what is freed late is not counted."""
    def look():
        time.sleep(0.2)
        return memory_in_use()
    return min(look() for _ in range(15))


def parts():
    """What the kernel's memory is used for, in octets: slab caches by name, and what is mapped by vmalloc."""
    found = {}
    with open("/proc/slabinfo", encoding="ascii") as f:
        for line in list(f)[2:]:
            name, _, objects, size = line.split()[:4]
            found[name] = int(objects) * int(size)
    with open("/proc/meminfo", encoding="ascii") as f:
        found["vmalloc"] = next(int(line.split()[1]) << 10 for line in f if line.startswith("VmallocUsed"))
    return found


def tell_growth(title, before, after, peers):
    grown = {name: (after[name] - before.get(name, 0)) // peers for name in after}
    top = sorted((n, name) for name, n in grown.items() if n >= 256)
    tell(f"{title}, octets for each peer: " + ", ".join(f"{name} {n}" for n, name in reversed(top)))


def talk(side, nodes):
    """One datagram to each node and back, until all have answered."""
    missing = set(nodes)
    with net.netns(side.ns), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.settimeout(0.5)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)

        def complete():
            for i in sorted(missing):
                sock.sendto(struct.pack("!I", i), (address(i), 7000))
            try:
                while missing:
                    missing.discard(struct.unpack("!I", sock.recv(100))[0])
            except TimeoutError:
                pass
            return not missing
        net.wait_until("all nodes", complete, seconds=600)


def senders(port):
    return [q for q in vibfab.qps(port, vibfab.RC) if q["state"] == vibfab.RTS]


def measure(side, name):
    """(KiB of an interface that is up in connected mode, KiB of each peer that it sends to)"""
    port = PORTS[side.letter]
    side.run("ip", "addr", "add", "10.128.255.254/16", "dev", side.iface)

    def mode(wanted):
        side.run("sh", "-c", f"echo {wanted} | tee /sys/class/net/{side.iface}/mode")
    # The first time is for what stays with the kernel.
    for _ in range(2):
        side.set_link("down")
        mode("datagram")
        down = settled()
        side.set_link("up")
        net.wait_until("carrier", side.carrier)
        mode("connected")
        up = settled()
    nodes = range(PEERS)
    # Everything but the connections: addresses, paths, neighbours.
    mode("datagram")
    talk(side, nodes)
    before, before_parts = settled(), parts()
    mode("connected")

    def everyone():
        talk(side, nodes)
        return len(senders(port)) >= PEERS
    net.wait_until("a connection to everyone", everyone, seconds=600)
    after = settled()
    tell_growth(name, before_parts, parts(), PEERS)
    mode("datagram")
    side.run("ip", "addr", "del", "10.128.255.254/16", "dev", side.iface)
    net.wait_until("the end of them", lambda: not vibfab.qps(port, vibfab.RC), seconds=300)
    return up - down, (after - before) / PEERS


def test_below_half_of_the_in_tree_driver(a, c):
    figures = {}
    for side, name in ((a, "ipoib_rs"), (c, "ib_ipoib")):
        figures[name] = measure(side, name)
        tell(f"{name}: interface {figures[name][0]} KiB, peer {figures[name][1]:.1f} KiB")
    ours, theirs = figures["ipoib_rs"], figures["ib_ipoib"]
    assert ours[0] < theirs[0] / 2
    assert ours[1] < theirs[1] / 2
