"""Peers that go and come back, and peers that never were: what the tables make of them."""

import contextlib
import os
import re
import struct
import subprocess

import pytest

import inject
import net
from driver import UNDERLAY, Debug
from mcast import gid_text
from net import run, wait_until

ARP = bytes.fromhex("08060000" "0020" "0800" "14" "04" "0001")


@contextlib.contextmanager
def silence(side):
    """Nothing that the side's port sends arrives, and nobody finds a port's MAC address; links stay up."""
    run(["nft", "add table inet peers"])
    run(["nft", "add chain inet peers out { type filter hook output priority 0; }"])
    run(["nft", "add rule inet peers out icmpv6 type nd-neighbor-solicit drop"])
    run(["nft", "add rule inet peers out oifname", UNDERLAY[side.letter], "udp dport 4791 drop"])
    try:
        for link in UNDERLAY.values():
            run(["ip", "-6", "neigh", "flush", "dev", link])
        yield
    finally:
        run(["nft", "delete table inet peers"])


def octets(side):
    """The hardware address."""
    return bytes.fromhex(side.hwaddr.replace(":", ""))


def gid(side):
    """The interface's GID as debugfs shows it."""
    return gid_text(octets(side)[4:])


def tables(side):
    """How full the tables are: {"neighbours": (entries, limit), ...}."""
    found = re.findall(r"^table (\w+): (\d+) of (\d+)$", Debug(side).text, re.M)
    return {name: (int(count), int(limit)) for name, count, limit in found}


def failures(side, peer):
    line = Debug(side).paths.get(gid(peer), "")
    found = re.search(r"BackedOff\(.*, (\d+) failures", line)
    return int(found[1]) if found else 0


@pytest.fixture
def fresh(a, b):
    """Side A knows nobody, and what the stack is told of B's address stays."""
    a.set_link("down")
    a.set_link("up")
    wait_until("the carrier", lambda: a.link()["operstate"] == "UP")
    a.run("ip", "addr", "replace", f"{a.ip6}/64", "dev", a.iface, "nodad")
    yield
    a.run("ip", "neigh", "del", b.ip4, "dev", a.iface, check=False)
    for side in (a, b):
        side.flush_neighbours()
    wait_until("the ways back", lambda: a.reaches(b.ip4) and b.reaches(a.ip4))


def test_a_peer_that_comes_back_is_answered_at_once(a, b, fresh):
    """A peer was gone until asking for its path had slowed down to the longest back-off. Then it is back and asks
    for our address: it gets its answer, and the first echo request too, instead of silence until the back-off
    ends. What it sent is the proof that it is there."""
    with silence(b):
        a.run("ip", "neigh", "replace", b.ip4, "lladdr", b.hwaddr, "dev", a.iface, "nud", "permanent")
        known = {0}

        def backed_off():
            a.reaches(b.ip4)
            known.add(failures(a, b))
            return max(known) >= 5
        wait_until("a long back-off", backed_off, seconds=600)
        last = failures(a, b)
        # The longest way from the next try: just after the one before.

        def failed_again():
            a.reaches(b.ip4)
            return failures(a, b) > last
        wait_until("another failure", failed_again, seconds=600)
        b.flush_neighbours()
        refused = Debug(a).drops("tx").get("unreachable", 0)
    p = b.ping(a.ip4, count=1)
    after = Debug(a)
    assert (p.received, p.errors) == (1, 0), p.output + after.text
    assert after.drops("tx").get("unreachable", 0) == refused, after.text
    assert " Ready, 0 failures, no error, handle mac " in after.paths[gid(b)], after.paths[gid(b)]


def test_a_peer_that_stops_answering_is_asked_for_anew(a, b, fresh):
    """The stack repeats a request to a peer's address: the way to it may have changed, and is asked for again."""
    assert a.reaches(b.ip4)

    def started():
        return int(re.search(r"queries: .*, (\d+) started", Debug(a).text)[1])
    before = started()
    a.ping(b.ip4)
    assert started() == before
    with silence(b):
        a.run("ip", "neigh", "replace", b.ip4, "lladdr", b.hwaddr, "dev", a.iface, "nud", "stale")
        a.reaches(b.ip4)
        wait_until("another query", lambda: started() > before)
        # What is in use stays in use, whatever becomes of the query.
        assert re.search(r"Ready|Refreshing", Debug(a).paths[gid(b)])


def forged(target, senders):
    """ARP requests for `target`, each in the name of another one of `senders` (hardware addresses)."""
    to = bytes(map(int, target.ip4.split(".")))
    return [ARP + hw + bytes([10, 77, 0, 100 + i % 8]) + bytes(20) + to for i, hw in enumerate(senders)]


@pytest.fixture
def injector(a, b):
    run(["modprobe", "ib_uverbs"])
    assert os.access(inject.PROGRAM, os.X_OK), f"{inject.PROGRAM} is not built: scripts/build-inject"
    return inject.Injector(a, b)


def test_many_queue_pairs_of_one_gid(a, b, injector):
    """However many queue pairs a GID claims to have, it has one entry: there is one way to all of them."""
    assert a.reaches(b.ip4)
    before = tables(a)
    own = octets(b)[4:]
    senders = [struct.pack("!I", 0x1000 + i) + own for i in range(2000)]
    assert injector.send("frames", frames=forged(a, senders))["whole"] == len(senders)
    after = tables(a)
    assert after["neighbours"][0] <= before["neighbours"][0] + 2, Debug(a).text
    assert a.ping(b.ip4).received == b.ping(a.ip4).received == 3


def test_groups_that_claim_to_be_senders(a, b, injector):
    """An ARP request in the name of a multicast group makes us join nothing: an answer to it goes to no one."""
    before = tables(a)
    senders = [bytes.fromhex("00ffffff" "ff12401bffff0000") + struct.pack("!Q", 0x77000000 + i) for i in range(500)]
    assert injector.send("frames", frames=forged(a, senders))["whole"] == len(senders)
    after = tables(a)
    assert after["groups"][0] <= before["groups"][0] + 2, Debug(a).text
    assert Debug(a).drops("tx").get("no_group", 0) >= len(senders) // 2
    assert a.ping(b.ip4).received == b.ping(a.ip4).received == 3


def test_tables_are_bounded(a, b, injector):
    """More forged senders than the table of neighbours holds: it fills up to its bound and no further, those that
    never answered go first, and the traffic of real peers goes on meanwhile and afterwards."""
    limit = tables(a)["neighbours"][1]
    count = limit + limit // 4
    # Half of them look like peers of the link, half are nowhere.
    prefixes = (bytes.fromhex("fe80000000000000"), bytes.fromhex("20010db800000000"))
    senders = [struct.pack("!I", 0x500) + prefixes[i % 2] + struct.pack("!Q", 1 << 40 | i) for i in range(count)]
    frames = forged(a, senders)
    step = limit // 8
    with net.FlowServer(a) as server:
        flow = subprocess.Popen(server.command(b, 2, 1 << 20), stdout=subprocess.PIPE, text=True)
        for i in range(0, count, step):
            injector.send("frames", frames=frames[i:i + step])
            assert all(n <= most for n, most in tables(a).values()), tables(a)
        out, _ = flow.communicate(timeout=600)
    assert out.strip() == "2 flows ok"
    for side, other in ((a, b), (b, a)):
        side.flush_neighbours()
        assert side.ping(other.ip4).received == side.ping(other.ip6).received == 3
    # Nobody waits for an answer to a question that cannot be of use any more.
    wait_until("the queries to end", lambda: "queries: 0 waiting, 0 out" in Debug(a).text, seconds=600)
    # A flood ends: what is left of it goes with the next ageing.
    most = limit // 100
    wait_until("the forged to go", lambda: tables(a)["neighbours"][0] <= most, seconds=600, pause=1)
    assert tables(a)["paths"][0] <= most
