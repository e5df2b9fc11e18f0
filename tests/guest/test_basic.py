"""IP between the two sides: what any interface must do. Runs on the control fabric as well."""

import errno
import os
import select
import socket
import struct
import time

import pytest

import net

FAMILIES = [pytest.param(4, id="ipv4"), pytest.param(6, id="ipv6")]
WAYS = [pytest.param(False, id="a-to-b"), pytest.param(True, id="b-to-a")]
MB = 1 << 20


@pytest.fixture
def way(request, a, b):
    """(from, to) in both directions."""
    return (b, a) if request.param else (a, b)


both_ways = pytest.mark.parametrize("way", WAYS, indirect=True)
both_families = pytest.mark.parametrize("family", FAMILIES)


def skip_v6_below_minimum(side, family):
    """IPv6 does not exist on a link with less than 1280 octets: there that is what must be seen."""
    if family == 6 and side.mtu < 1280:
        assert not side.reaches(side.ip6), "IPv6 address alive below the minimum MTU"
        return True
    return False


def echo_socket(side, family):
    with net.netns(side.ns):
        if family == 4:
            s = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
        else:
            s = socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.getprotobyname("ipv6-icmp"))
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 * MB)
    s.setblocking(False)
    return s


def checksum(data):
    if len(data) % 2:
        data += b"\0"
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def echo(sock, family, dst, ident, seq, payload):
    """One echo request; the payload that came back, or None."""
    request, reply = (8, 0) if family == 4 else (128, 129)
    head = struct.pack("!BBHHH", request, 0, 0, ident, seq)
    if family == 4:
        head = struct.pack("!BBHHH", request, 0, checksum(head + payload), ident, seq)
    sock.sendto(head + payload, (dst, 0))
    deadline = time.monotonic() + net.SECONDS
    while time.monotonic() < deadline:
        if not select.select([sock], [], [], 1)[0]:
            continue
        data = sock.recv(70000)
        if family == 4:
            data = data[(data[0] & 15) * 4:]
        kind, _, _, got_ident, got_seq = struct.unpack("!BBHHH", data[:8])
        if (kind, got_ident, got_seq) == (reply, ident, seq):
            return data[8:]
    return None


@both_families
def test_every_size_to_the_mtu(a, b, family):
    """Echo with every payload size from 0 to a little more than a full frame, contents compared."""
    if skip_v6_below_minimum(a, family):
        return
    pattern = os.urandom(1 << 16)
    largest = a.mtu - (28 if family == 4 else 48)
    with echo_socket(a, family) as s:
        for size in range(0, largest + 17):
            got = echo(s, family, b.address(family), 0x7711, size, pattern[:size])
            assert got is not None, f"no answer to {size} octets"
            assert got == pattern[:size], f"{size} octets came back changed"


@both_families
@both_ways
def test_ping_sizes(way, family):
    """Around the limits and in fragments, both ways, no loss and no duplicates."""
    src, dst = way
    if skip_v6_below_minimum(src, family):
        return
    full = src.mtu - (28 if family == 4 else 48)
    for size in (0, 1, 56, full - 1, full, full + 1, 2 * full, 16000, 65507 if family == 4 else 65000):
        for _ in range(3):
            # One at a time: two of the largest answers do not fit into ping's socket buffer.
            p = src.ping(dst.address(family), count=1, size=size)
            assert (p.received, p.duplicates, p.errors) == (1, 0, 0), f"size {size}: {p.output}"


@both_ways
def test_too_big_with_dont_fragment(way):
    """A packet over the MTU that must not be cut is refused, not lost."""
    src, dst = way
    size = src.mtu - 28
    assert src.ping(dst.ip4, size=size, extra=["-M", "do"]).received == 3
    p = src.run("ping", "-n", "-c", "1", "-W", "2", "-M", "do", "-s", size + 1, dst.ip4, check=False)
    assert p.returncode != 0
    assert "message too long" in (p.stdout + p.stderr).lower()


@both_families
@both_ways
def test_flood_ping(way, family):
    """A flood without loss; the interface counts what went through, and no error."""
    src, dst = way
    if skip_v6_below_minimum(src, family):
        return
    # From machine to machine, each packet waits for four virtual processors on whatever is there.
    count = 300 if src.remote or dst.remote else 3000
    before, before_dst = src.stats(), dst.stats()
    p = src.ping(dst.address(family), count=count, size=500, flood=True, seconds=600)
    assert (p.lost, p.duplicates) == (0, 0), p.output
    after, after_dst = src.stats(), dst.stats()
    assert after["tx"]["packets"] - before["tx"]["packets"] >= count
    assert after["rx"]["packets"] - before["rx"]["packets"] >= count
    assert after_dst["rx"]["bytes"] - before_dst["rx"]["bytes"] >= count * 500
    for direction in ("rx", "tx"):
        for s, old in ((after, before), (after_dst, before_dst)):
            assert s[direction]["errors"] == old[direction]["errors"]


@both_families
@both_ways
def test_neighbour_resolution(way, family):
    """After a flush the address is found again by ARP or ND, and it is the peer's."""
    src, dst = way
    if skip_v6_below_minimum(src, family):
        return
    for _ in range(5):
        src.flush_neighbours()
        dst.flush_neighbours()
        assert src.ping(dst.address(family), count=1).received == 1
        n = src.neighbours(family)[dst.address(family)]
        assert n["lladdr"] == dst.hwaddr


@both_families
def test_neighbour_gone(a, family):
    """An address that nobody has ends in a failed neighbour, and the interface works on."""
    if skip_v6_below_minimum(a, family):
        return
    nobody = "10.77.0.99" if family == 4 else "fd77::99"
    p = a.ping(nobody, count=1, extra=["-w", "5"])
    assert p.received == 0
    net.wait_until("a failed neighbour", lambda: a.neighbours(family).get(nobody, {}).get("state") == ["FAILED"])


def test_duplicate_address_detection(a, b):
    """A new address passes DAD: our own solicitation, echoed by the fabric, must not count as a rival. One
    that the peer has must fail it."""
    if skip_v6_below_minimum(a, 6):
        return
    a.run("sysctl", "-qw", f"net.ipv6.conf.{a.iface}.accept_dad=1", f"net.ipv6.conf.{a.iface}.dad_transmits=2")

    def flags(address):
        out = a.run("ip", "-6", "-o", "addr", "show", "dev", a.iface).stdout
        return next((line for line in out.splitlines() if f" {address}/" in line), "")

    try:
        for i in range(3):
            fresh = f"fd77::a{i}"
            a.run("ip", "addr", "add", f"{fresh}/64", "dev", a.iface)
            net.wait_until("the end of DAD", lambda: "tentative" not in flags(fresh))
            assert "dadfailed" not in flags(fresh)
            assert b.ping(fresh, count=1).received == 1
            a.run("ip", "addr", "del", f"{fresh}/64", "dev", a.iface)
        taken = "fd77::bb"
        b.run("ip", "addr", "add", f"{taken}/64", "dev", b.iface, "nodad")
        a.run("ip", "addr", "add", f"{taken}/64", "dev", a.iface)
        net.wait_until("DAD to fail", lambda: "dadfailed" in flags(taken))
        a.run("ip", "addr", "del", f"{taken}/64", "dev", a.iface)
        b.run("ip", "addr", "del", f"{taken}/64", "dev", b.iface)
    finally:
        a.run("sysctl", "-qw", f"net.ipv6.conf.{a.iface}.accept_dad=0")


@both_families
@both_ways
def test_tcp(way, family):
    """A TCP stream arrives whole."""
    src, dst = way
    if skip_v6_below_minimum(src, family):
        return
    # What is still on its way when the client is done is not counted: no more than the sockets' buffers hold.
    r = net.Iperf(src, dst, "-n", 16 * MB, "-w", "128K", family=family)
    assert r.received >= 16 * MB - MB


@both_families
@both_ways
def test_udp(way, family):
    """Datagrams of all sizes, a few under way at a time: none is lost or changed."""
    src, dst = way
    if skip_v6_below_minimum(src, family):
        return
    with net.FlowServer(dst) as server:
        assert server.datagrams(src, count=1500, family=family) == "1500 datagrams ok"


@both_ways
def test_iperf_udp(way):
    """iperf3's UDP test runs and moves data; how much depends on the machine."""
    src, dst = way
    r = net.Iperf(src, dst, "-u", "-b", "2M", "-l", 900, "-n", MB // 2)
    assert r.end["sum"]["packets"] >= MB // 2 // 900
    assert r.lost_percent < 100, r.end["sum"]


def test_iperf_bidirectional(a, b):
    """iperf3 with both directions at once."""
    r = net.Iperf(a, b, "--bidir", "-n", 8 * MB)
    assert r.received > 4 * MB
    assert r.received_reverse > 0


@both_ways
def test_tcp_bidirectional(way):
    """Streams both ways at once, contents compared."""
    src, dst = way
    with net.FlowServer(dst) as server:
        assert server.run(src, flows=2, octets=4 * MB, both=True) == "2 flows ok"


@both_ways
def test_parallel_flows(way):
    """64 flows at once, every one of them whole."""
    src, dst = way
    with net.FlowServer(dst) as server:
        assert server.run(src, flows=64, octets=MB // 4) == "64 flows ok"


@both_families
def test_multicast(a, b, family):
    """A receiver that joined gets the group's datagrams, one that left does not."""
    if skip_v6_below_minimum(a, family):
        return
    group = "239.7.7.7" if family == 4 else "ff15::7777"
    kind = socket.AF_INET if family == 4 else socket.AF_INET6
    if b.remote:
        receiver, sender = a, None
    else:
        receiver, sender = a, b
    with net.netns(receiver.ns):
        rx = socket.socket(kind, socket.SOCK_DGRAM)
        index = socket.if_nametoindex(receiver.iface)
    rx.bind(("", 7777))
    rx.settimeout(1)
    if family == 4:
        member = struct.pack("=4s4si", socket.inet_aton(group), b"\0" * 4, index)
        join, leave, level = socket.IP_ADD_MEMBERSHIP, socket.IP_DROP_MEMBERSHIP, socket.IPPROTO_IP
    else:
        member = struct.pack("=16si", socket.inet_pton(kind, group), index)
        join, leave, level = socket.IPV6_JOIN_GROUP, socket.IPV6_LEAVE_GROUP, socket.IPPROTO_IPV6

    def send(text):
        if sender is None:
            target = f"UDP{family}-DATAGRAM:" + (group if family == 4 else f"[{group}]") + ":7777"
            extra = f",ip-multicast-if={b.ip4}" if family == 4 else f",bindtodevice={b.iface}"
            b.run("socat", "-", target + extra, input=text)
            return
        with net.netns(sender.ns):
            tx = socket.socket(kind, socket.SOCK_DGRAM)
            if family == 4:
                tx.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(sender.ip4))
            else:
                tx.setsockopt(level, socket.IPV6_MULTICAST_IF, socket.if_nametoindex(sender.iface))
        with tx:
            tx.sendto(text.encode(), (group, 7777))

    def arrives(text):
        send(text)
        try:
            return rx.recv(100) == text.encode()
        except TimeoutError:
            return False
        except OSError as e:
            assert e.errno == errno.EAGAIN
            return False

    with rx:
        rx.setsockopt(level, join, member)
        net.wait_until("a datagram of the group", lambda: arrives("hello"))
        rx.setsockopt(level, leave, member)
        for _ in range(3):
            with net.netns(receiver.ns):
                assert not arrives("gone")
        rx.setsockopt(level, join, member)
        net.wait_until("a datagram after joining again", lambda: arrives("again"))
