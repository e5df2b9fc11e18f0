"""Multicast groups and neighbours, seen from the stack and from debugfs."""

import errno
import os
import time

import pytest

import net
from driver import Debug
from mcast import gid_text, group, group_of, membership, udp
from net import wait_until

FAMILIES = [pytest.param(4, id="ipv4"), pytest.param(6, id="ipv6")]
both_families = pytest.mark.parametrize("family", FAMILIES)
GROUPS = {4: "239.9.8.7", 6: "ff12::9:8:7"}
BURST = 100


def receive(sock, count, seconds=net.SECONDS):
    """The datagrams that arrive, sorted: `count` of them, fewer if they do not come in time, and more if a little
    patience brings some. (A veth pair does not keep the order when its sender moves between CPUs.)"""
    got = []
    deadline = time.monotonic() + seconds
    while True:
        try:
            got.append(sock.recv(9000))
        except TimeoutError:
            if len(got) >= count or time.monotonic() > deadline:
                return sorted(got)


def numbers(count, octets=4):
    """Datagrams that can be told apart."""
    return [i.to_bytes(4, "big").ljust(octets, b"z") for i in range(count)]


def expect(got, want, *sides):
    """Compares, and tells which are missing and what the drivers know about it."""
    if got == want:
        return
    lost = sorted(int.from_bytes(d[:4], "big") for d in set(want) - set(got))
    raise AssertionError(f"{len(got)} of {len(want)} came, missing {lost}\n" + "\n".join(
        f"{side} {side.stats()}\n{Debug(side).text}" for side in sides))


@both_families
def test_join_and_leave(a, b, family):
    """A socket's join makes the interface a full member with an attached queue pair, its leave ends both; the
    mapping is that of FMT-4 and FMT-5, the driver follows the stack's list (MC-18)."""
    address = GROUPS[family]
    assert group(a, address) == ""
    rx, index = udp(a, family)
    with rx:
        for _ in range(3):
            membership(rx, family, address, index)
            wait_until("the membership", lambda: "Full" in group(a, address) and "attached true" in group(a, address))
            membership(rx, family, address, index, join=False)
            wait_until("the leave", lambda: group(a, address) == "")


def test_many_groups(a, b):
    """200 groups at a time over all queues: each is joined, each is heard, all are left (queue choice by MGID)."""
    count = 200
    rx, index = udp(b, 4)
    tx, _ = udp(a, 4)
    addresses = [f"239.20.{i // 250}.{i % 250 + 1}" for i in range(count)]
    b.run("sysctl", "-qw", f"net.ipv4.igmp_max_memberships={count + 20}")
    with rx, tx:
        rx.bind(("", 7401))
        for address in addresses:
            membership(rx, 4, address, index)
        wait_until("all memberships", lambda: sum(
            "239" not in g and "attached true" in line for g, line in Debug(b).groups.items()) >= count)
        want = numbers(count)
        for data, address in zip(want, addresses):
            tx.sendto(data, (address, 7401))
        got = receive(rx, count)
        expect(got, want, a, b)
    wait_until("all leaves", lambda: len(Debug(b).groups) < count / 2)


@both_families
def test_two_receivers_and_no_echo(a, b, family):
    """Sender and receiver may be members both: the peer hears each datagram once, the sender hears its own only
    from its own stack, never back from the fabric (B32)."""
    address, port = GROUPS[family], 7402
    (ra, ia), (rb, ib) = udp(a, family), udp(b, family)
    tx, _ = udp(a, family)
    with ra, rb, tx:
        for rx, index in ((ra, ia), (rb, ib)):
            rx.bind(("", port))
            membership(rx, family, address, index)
        for side in (a, b):
            wait_until("the membership", lambda s=side: "attached true" in group(s, address))
        want = numbers(50)
        for data in want:
            tx.sendto(data, (address, port))
        got = receive(rb, 50)
        expect(got, want, a, b)
        # One copy by the stack's own loop.
        assert receive(ra, 50) == want
    assert Debug(a).drops("rx").get("own_echo", 0) > 0, Debug(a).text


@both_families
def test_send_only(a, b, family):
    """Sending to a group that the sender is no member of: a send-only membership without attachment appears
    (MC-7), the receiver gets everything, the first datagram included (B50)."""
    address, port = ("239.9.9.1" if family == 4 else "ff12::9:9:1"), 7403
    rx, index = udp(b, family)
    tx, _ = udp(a, family)
    with rx, tx:
        rx.bind(("", port))
        membership(rx, family, address, index)
        wait_until("the membership", lambda: "attached true" in group(b, address))
        want = numbers(BURST)
        for data in want:
            tx.sendto(data, (address, port))
        got = receive(rx, BURST)
        expect(got, want, a, b)
        line = group(a, address)
        assert "SendOnly" in line and "attached false" in line and "complete true" in line, line
        # A join makes it a full membership (MC-17), and a leave takes that away.
        own, index = udp(a, family)
        with own:
            membership(own, family, address, index)
            wait_until("the full membership", lambda: "Full" in group(a, address) and
                       "attached true" in group(a, address))
            membership(own, family, address, index, join=False)
            wait_until("the leave", lambda: "Full" not in group(a, address))


def test_allmulti_and_promiscuous(a, b):
    """Both flags are accepted and change nothing (MC-23)."""
    rx, index = udp(b, 4)
    tx, _ = udp(a, 4)
    with rx, tx:
        rx.bind(("", 7404))
        for flag in ("allmulticast", "promisc"):
            b.set_link(flag, "on")
            tx.sendto(b"x", ("239.9.9.77", 7404))
            assert receive(rx, 0) == []
            assert b.ping(a.ip4).received == 3
            b.set_link(flag, "off")


@both_families
def test_burst_to_a_fresh_neighbour(a, b, family):
    """100 datagrams to a peer that is not resolved yet arrive all (B50)."""
    port = 7405
    rx, _ = udp(b, family)
    tx, _ = udp(a, family)
    # The stack's own queue for an unresolved neighbour must not be what limits.
    kind = "ipv4" if family == 4 else "ipv6"
    a.run("sysctl", "-qw", f"net.{kind}.neigh.{a.iface}.unres_qlen_bytes={1 << 22}")
    with rx, tx:
        rx.bind(("", port))
        for _ in range(5):
            a.flush_neighbours()
            want = numbers(BURST, 500)
            for data in want:
                tx.sendto(data, (b.address(family), port))
            got = receive(rx, BURST)
            expect(got, want, a, b)


def test_burst_to_a_fresh_path(a, b):
    """The same when the driver has to resolve the path as well: after down and up it knows nobody, and the
    peer's link-layer address is given, so that no ARP goes before (B50)."""
    rx, _ = udp(b, 4)
    with rx:
        rx.bind(("", 7406))
        for _ in range(3):
            a.set_link("down")
            a.set_link("up")
            wait_until("the carrier", lambda: a.link()["operstate"] == "UP")
            a.run("ip", "neigh", "replace", b.ip4, "lladdr", b.hwaddr, "dev", a.iface, "nud", "permanent")
            tx, _ = udp(a, 4)
            with tx:
                want = numbers(BURST, 500)
                for data in want:
                    tx.sendto(data, (b.ip4, 7406))
            got = receive(rx, BURST)
            expect(got, want, a, b)
            a.run("ip", "neigh", "del", b.ip4, "dev", a.iface)
    a.run("sysctl", "-qw", f"net.ipv6.conf.{a.iface}.accept_dad=0")
    a.run("ip", "addr", "replace", f"{a.ip6}/64", "dev", a.iface, "nodad")


def test_unreachable_peer(a, b):
    """A peer whose GID nobody has: what is sent to it waits for a bounded time, is dropped and counted by reason,
    and debugfs says which path fails (B51); everyone else is served meanwhile."""
    nobody, lladdr = "10.77.0.66", "00:00:00:99:fe:80:00:00:00:00:00:00:02:00:00:ff:fe:00:00:99"
    gid = "fe80:0:0:0:200:ff:fe00:99"
    before = Debug(a)
    dropped = a.stats()["tx"]["dropped"]
    a.run("ip", "neigh", "replace", nobody, "lladdr", lladdr, "dev", a.iface, "nud", "permanent")
    tx, _ = udp(a, 4)
    sent = 20
    with tx:
        for i in range(sent):
            tx.sendto(b"lost", (nobody, 7407))
            assert a.reaches(b.ip4)
        wait_until("the drops to be counted", lambda: a.stats()["tx"]["dropped"] - dropped >= sent)
    after = Debug(a)
    reasons = {k: n - before.drops("tx").get(k, 0) for k, n in after.drops("tx").items()}
    assert sum(reasons.get(k, 0) for k in ("no_path", "unreachable", "expired")) >= sent, (reasons, after.text)
    assert gid in after.paths, after.text
    # On RoCE nobody answers; on InfiniBand the subnet administrator knows no such port.
    error = "EINVAL" if os.environ["GUEST_FABRIC"].startswith("vibfab") else "ETIMEDOUT"
    assert " 0 failures" not in after.paths[gid] and f"last error {error}" in after.paths[gid], after.paths[gid]
    a.run("ip", "neigh", "del", nobody, "dev", a.iface)
    assert a.ping(b.ip4).received == 3


def test_no_bound_is_passed_while_waiting(a, b):
    """Far more than the pending queue holds, to a peer that never answers: the surplus is dropped and counted at
    once, the rest when it expires, and nothing stays waiting (B50: bounded by packets and octets)."""
    nobody, lladdr = "10.77.0.67", "00:00:00:99:fe:80:00:00:00:00:00:00:02:00:00:ff:fe:00:00:98"
    dropped = a.stats()["tx"]["dropped"]
    a.run("ip", "neigh", "replace", nobody, "lladdr", lladdr, "dev", a.iface, "nud", "permanent")
    tx, _ = udp(a, 4)
    sent = 0
    with tx:
        for _ in range(3000):
            try:
                tx.sendto(b"y" * 3000, (nobody, 7408))
                sent += 1
            except OSError as e:
                assert e.errno == errno.ENOBUFS
    wait_until("the drops to be counted", lambda: a.stats()["tx"]["dropped"] - dropped >= sent)
    assert Debug(a).drops("tx").get("queue_full", 0) > 0, Debug(a).text
    wait_until("nothing to wait", lambda: all(" waiting 0 " in n for n in Debug(a).neighbours.values()))
    a.run("ip", "neigh", "del", nobody, "dev", a.iface)


def test_groups_and_neighbours_expire(a, b):
    """Send-only groups and neighbours that nobody uses any more go (NB-4, NB-8, WEAK-20); the broadcast group and
    joined groups stay. Runs last: it waits for the ageing."""
    address = "239.9.9.200"
    tx, _ = udp(a, 4)
    with tx:
        tx.sendto(b"once", (address, 7409))
    wait_until("the send-only group", lambda: "SendOnly" in group(a, address))
    mgid = gid_text(group_of(address))
    wait_until("the group to expire", lambda: mgid not in Debug(a).groups, seconds=600, pause=1)
    d = Debug(a)
    assert mgid not in d.neighbours, d.text
    assert any("Broadcast" in line and "member true" in line for line in d.groups.values())
    assert any("Full" in line and "member true" in line for line in d.groups.values())
    assert a.ping(b.ip4).received == 3
