"""Which broadcast group an interface follows: the key that stands first in the port's table (PK-1, PK-13) and the scope
of the broadcast address (NL-8)."""

import contextlib
import ipaddress

import pytest

import net
import umad
import vibfab
from driver import Debug

A, B = "vib0/1", "vib1/1"
OTHER = 0x8002
# Octets 0 to 5 of the broadcast address, with the scope.
BRD = "00:ff:ff:ff:ff:{:02x}:40:1b:ff:ff:00:00:00:00:00:00:ff:ff:ff:ff"
SITE = ipaddress.ip_address("ff15:401b:ffff::ffff:ffff")
CREATE = (umad.MGID | umad.PORT_GID | umad.JOIN | umad.QKEY | umad.TCLASS | umad.PKEY | umad.SL | umad.FLOW
          | umad.MTU_SELECTOR | umad.MTU | umad.RATE_SELECTOR | umad.RATE)
LISTENER = ("import socket, struct, sys, time; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM);"
            "s.setsockopt(0, 35, struct.pack('4s4si', socket.inet_aton('239.7.7.7'), bytes(4),"
            " socket.if_nametoindex(sys.argv[1]))); time.sleep(600)")


@pytest.fixture(autouse=True)
def quiet(a, b):
    with vibfab.quiet(lambda: a.reaches(b.ip4)):
        yield


def recovered(a, b):
    net.wait_until("the sides to reach each other", lambda: a.reaches(b.ip4) and b.reaches(a.ip4))


def first_key(key, *ports):
    """Puts `key` first into the tables of ports, the other one second, as the option indx0 of opensm does."""
    other = 0xFFFF if key == OTHER else OTHER
    for port in ports:
        vibfab.ctl(f"port {port} pkey 1 {other:#x} noevent", f"port {port} pkey 0 {key:#x}")


@contextlib.contextmanager
def other_first(a, b):
    vibfab.ctl(f"group {OTHER:#x} add")
    first_key(OTHER, A, B)
    try:
        yield
    finally:
        first_key(0xFFFF, A, B)
    net.wait_until("the old key", lambda: all("pkey: 0xffff index 0" in Debug(s).text for s in (a, b)))
    recovered(a, b)
    for port in (A, B):
        vibfab.ctl(f"port {port} pkey 1 0")
    vibfab.ctl(f"group {OTHER:#x} del")


def groups_of(side):
    return [g for g, line in Debug(side).groups.items() if "member true" in line]


def test_first_key_is_followed(a, b):
    """Everything moves to the other partition: address, groups, traffic; and back."""
    with open("/dev/null") as null:
        listener = b.start("python3", "-c", LISTENER, b.iface, stdout=null)
    group = "ff12:401b:{:x}:0:0:0:f07:707"
    net.wait_until("the group", lambda: group.format(0xFFFF) in groups_of(b))
    with other_first(a, b):
        for side in (a, b):
            net.wait_until("the other key", lambda s=side: f"pkey: {OTHER:#06x} index 0" in Debug(s).text)
            assert side.link()["broadcast"][24:29] == "80:02"
            assert side.read(f"/sys/class/net/{side.iface}/pkey").strip() == f"{OTHER:#06x}"
        recovered(a, b)
        net.wait_until("the group", lambda: group.format(OTHER) in groups_of(b))
        assert not [g for g in groups_of(a) + groups_of(b) if ":ffff:0:" in g], "nothing is left in the old partition"
        assert {q["pkey_index"] for p in (A, B) for q in vibfab.qps(p)} == {0}
        vibfab.ctl("ring clear")
        assert a.reaches(b.ip4)
        assert {p["pkey"] for p in vibfab.ring() if p["data"][:2] in (b"\x08\x00", b"\x08\x06")} == {OTHER}
    net.wait_until("the group", lambda: group.format(0xFFFF) in groups_of(b))
    listener.kill()
    listener.wait(net.SECONDS)


def test_first_key_changes_while_down(a, b):
    for side in (a, b):
        side.set_link("down")
    with other_first(a, b):
        for side in (a, b):
            net.wait_until("the other key", lambda s=side: s.link()["broadcast"][24:29] == "80:02")
            side.set_link("up")
        recovered(a, b)


def test_empty_place_is_no_key(a, b):
    """A table that is empty in front, or for a while, is no reason to leave; the key may stand further on."""
    vibfab.ctl(f"port {B} pkey 2 0xffff noevent", f"port {B} pkey 0 0")
    net.wait_until("the queues to follow", lambda: "pkey: 0xffff index 2" in Debug(b).text)
    recovered(a, b)
    vibfab.ctl(f"port {B} pkey 0 0xffff noevent", f"port {B} pkey 2 0")
    net.wait_until("the queues to follow", lambda: "pkey: 0xffff index 0" in Debug(b).text)


def test_scope_of_the_broadcast_address(a, b):
    """The broadcast group has the scope that the administrator gives the broadcast address."""
    for side in (a, b):
        side.run("ip", "link", "set", "dev", side.iface, "broadcast", BRD.format(0x15))
    net.wait_until("the carrier to go", lambda: not a.carrier() and not b.carrier())
    with contextlib.closing(umad.Sa("vib0", 1)) as sa:
        p = vibfab.port(A)
        gid = (p["prefix"] << 64 | p["guid"]).to_bytes(16, "big")
        record = umad.MEMBER.pack(SITE.packed, gid, 0x0B1B, 0, 0x85, 0, 0xFFFF, 0x83, 0, 0, 1, 0)
        assert sa.ask(umad.SET, umad.MCMEMBER, CREATE, record)[0] == 0
        recovered(a, b)
        assert a.carrier() and SITE.exploded in vibfab.groups()
        assert all(g.startswith("ff15:") for g in groups_of(a) + groups_of(b))
        for side in (a, b):
            side.run("ip", "link", "set", "dev", side.iface, "broadcast", BRD.format(0x12))
        recovered(a, b)
        net.wait_until("the usual scope", lambda: all(g.startswith("ff12:") for g in groups_of(a) + groups_of(b)))
