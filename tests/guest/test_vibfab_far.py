"""Thousands of simulated peers (fabric vibfab:far=N)."""

import ipaddress
import socket

import pytest

import net
import vibfab

FIRST = ipaddress.ip_address("10.128.0.1")


@pytest.fixture(autouse=True, scope="module")
def route(a):
    a.run("ip", "addr", "add", "10.128.255.254/16", "dev", a.iface)
    for t in ("gc_thresh1", "gc_thresh2", "gc_thresh3"):
        net.run(["sysctl", "-qw", f"net.ipv4.neigh.default.{t}=32768", f"net.ipv6.neigh.default.{t}=32768"])
    yield
    a.run("ip", "addr", "del", "10.128.255.254/16", "dev", a.iface)


@pytest.fixture
def nodes():
    return int(net.run(["cat", "/sys/module/vibfab/parameters/far"]).stdout)


def address(i):
    return str(FIRST + i)


def test_ping_some(a, nodes):
    for i in (0, 1, 255, nodes - 1):
        assert a.ping(address(i), count=2).lost == 0
    assert not a.reaches(address(nodes))


def test_ping_ipv6(a):
    out = a.run("ip", "neigh", "show", address(0)).stdout.split()
    mac = out[out.index("lladdr") + 1].replace(":", "")
    guid = int(mac[24:], 16)
    raw = b"\xfe\x80" + bytes(6) + guid.to_bytes(8, "big")
    assert a.reaches(f"{ipaddress.ip_address(raw)}%{a.iface}")


def test_udp_echo_from_every_node(a, nodes):
    """One datagram to each; what is lost while paths resolve is sent again."""
    with net.netns(a.ns):
        s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.settimeout(0.5)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
    missing = set(range(nodes))

    def round_trip():
        batch = sorted(missing)
        for at in range(0, len(batch), 64):
            for i in batch[at:at + 64]:
                s.sendto(b"node %d" % i, (address(i), 7000))
            try:
                while True:
                    data, (host, _) = s.recvfrom(100)
                    i = int(ipaddress.ip_address(host)) - int(FIRST)
                    assert data == b"node %d" % i
                    missing.discard(i)
                    if not missing.intersection(batch[at:at + 64]):
                        break
            except TimeoutError:
                pass
        return not missing
    net.wait_until("every node to answer", round_trip, seconds=600)
    neighbours = a.run("ip", "-4", "neigh", "show", "dev", a.iface).stdout
    assert neighbours.count("lladdr") >= nodes
    assert vibfab.strict() == {}
