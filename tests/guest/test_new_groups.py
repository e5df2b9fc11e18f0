"""What a group is like that a driver has the subnet administrator create: RFC 4391 wants it to take after the broadcast
group (rows 6 and 22 of RFC.md). The same file runs on the in-tree driver (suite catalogue-in-tree)."""

import contextlib
import ipaddress

import pytest

import mcast
import net
import umad
import vibfab

A, B = "vib0/1", "vib1/1"
# Octets 0 to 5 of the broadcast address, with the scope.
BRD = "00:ff:ff:ff:ff:1{:x}:40:1b:ff:ff:00:00:00:00:00:00:ff:ff:ff:ff"
CREATE = (umad.MGID | umad.PORT_GID | umad.JOIN | umad.QKEY | umad.TCLASS | umad.PKEY | umad.SL | umad.FLOW
          | umad.MTU_SELECTOR | umad.MTU | umad.RATE_SELECTOR | umad.RATE | umad.HOP)
EQUAL, FULL = 2 << 6, 1
QKEY, MTU, TCLASS, RATE, SL, FLOW, HOP = 0x80001234, 4, 0x1C, 2, 3, 0x12345, 7


@pytest.fixture(autouse=True)
def quiet(a, b):
    with vibfab.quiet(lambda: a.reaches(b.ip4)):
        yield


@contextlib.contextmanager
def unusual_broadcast_group(a, b, scope):
    """Both sides are in a broadcast group of that scope in which nothing is as usual."""
    mgid = ipaddress.ip_address(f"ff1{scope:x}:401b:ffff::ffff:ffff")
    p = vibfab.port(A)
    gid = (p["prefix"] << 64 | p["guid"]).to_bytes(16, "big")
    record = umad.MEMBER.pack(mgid.packed, gid, QKEY, 0, EQUAL | MTU, TCLASS, 0xFFFF, EQUAL | RATE, 0,
                              SL << 28 | FLOW << 8 | HOP, FULL, 0)

    def move(to):
        for side in (a, b):
            side.set_link("down")
            side.set_link("broadcast", BRD.format(to))
            side.set_link("up")
            # They went with the link.
            side.run("ip", "addr", "replace", f"{side.ip6}/64", "dev", side.iface, "nodad")
        net.wait_until("the sides to reach each other", lambda: a.reaches(b.ip4) and b.reaches(a.ip4))

    with contextlib.closing(umad.Sa("vib0", 1)) as sa:
        assert sa.ask(umad.SET, umad.MCMEMBER, CREATE, record)[0] == 0
        try:
            move(scope)
            yield sa
        finally:
            move(2)
            leave = umad.MEMBER.pack(mgid.packed, gid, 0, 0, 0, 0, 0, 0, 0, 0, FULL, 0)
            sa.ask(umad.DELETE, umad.MCMEMBER, umad.MGID | umad.PORT_GID | umad.JOIN, leave)
    assert mgid.exploded not in vibfab.groups()


def record_of(sa, mgid):
    """What the administrator holds of a group, but the life time, which nobody gave."""
    status, found = sa.ask(umad.GET, umad.MCMEMBER, umad.MGID, umad.MEMBER.pack(mgid.packed, bytes(16), *[0] * 10))
    assert status == 0
    (_, _, qkey, mlid, mtu, tclass, pkey, rate, _, sl_flow_hop, scope_join, _) = umad.MEMBER.unpack_from(found)
    return mlid, {"qkey": qkey, "mtu": mtu & 0x3F, "tclass": tclass, "pkey": pkey, "rate": rate & 0x3F,
                  "sl": sl_flow_hop >> 28, "flow": sl_flow_hop >> 8 & 0xFFFFF, "hop": sl_flow_hop & 0xFF,
                  "scope": scope_join >> 4}


@pytest.mark.parametrize("scope", [5, 0xE])
def test_new_groups_take_after_the_broadcast_group(a, b, scope):
    """The record of a group that listening creates, and of one that sending does, is that of the broadcast group: keys,
    MTU, rate, SL, traffic class, flow label, hop limit and scope; and so are the datagrams to it."""
    groups = {("239.1.2.3", 4): f"ff1{scope:x}:401b:ffff::f01:203", ("ff15::99", 6): f"ff1{scope:x}:601b:ffff::99"}
    sent = {("239.9.9.9", 4): f"ff1{scope:x}:401b:ffff::f09:909", ("ff15::77", 6): f"ff1{scope:x}:601b:ffff::77"}
    wanted = {"qkey": QKEY, "mtu": MTU, "tclass": TCLASS, "pkey": 0xFFFF, "rate": RATE, "sl": SL, "flow": FLOW,
              "hop": HOP, "scope": scope}
    with unusual_broadcast_group(a, b, scope) as sa, contextlib.ExitStack() as sockets:
        net.wait_until("the group's MTU", lambda: a.mtu == b.mtu == 2044)
        vibfab.ctl("ring clear")
        for (address, family) in groups:
            rx, index = mcast.udp(b, family)
            sockets.enter_context(rx)
            rx.bind(("", 7000 + family))
            mcast.membership(rx, family, address, index)
            tx, _ = mcast.udp(a, family)
            sockets.enter_context(tx)

            def arrives(tx=tx, rx=rx, to=(address, 7000 + family)):
                tx.sendto(b"to listeners", to)
                with contextlib.suppress(TimeoutError):
                    return rx.recv(100) == b"to listeners"
            net.wait_until(f"a datagram to {address}", arrives)
        for (address, family), mgid in sent.items():
            tx, _ = mcast.udp(a, family)
            sockets.enter_context(tx)
            tx.sendto(b"to nobody", (address, 7100))
            net.wait_until(f"the group {mgid}", lambda m=mgid: ipaddress.ip_address(m).exploded in vibfab.groups())
        mgids = [ipaddress.ip_address(m) for m in (*groups.values(), *sent.values())]
        lids = set()
        for mgid in mgids:
            mlid, found = record_of(sa, mgid)
            assert found == wanted, mgid
            lids.add(mlid)
        # They were asked for so, not completed by the administrator: the mask of each request that could create.
        asked = [int.from_bytes(p["data"][48:56], "big") for p in vibfab.ring()
                 if p["dqpn"] == 1 and p["data"][3] == umad.SET and p["data"][16:18] == b"\x00\x38"]
        assert len(asked) >= len(mgids) and all(mask & CREATE == CREATE for mask in asked)
        assert all(g.startswith(f"ff1{scope:x}:") for g, line in vibfab.groups().items()
                   if line["members"] and g[5:9] in ("401b", "601b") and line["qkey"] == QKEY)
        fields = ["infiniband.lrh.dlid", "infiniband.lrh.sl", "infiniband.grh.tclass", "infiniband.grh.flowlabel",
                  "infiniband.grh.hoplmt", "infiniband.deth.q_key", "infiniband.bth.p_key", "infiniband.grh.dgid"]
        shown = vibfab.tshark("-T", "fields", *(w for f in fields for w in ("-e", f)))
        seen = set()
        for line in shown.splitlines():
            *numbers, dgid = line.split("\t")
            if dgid and ipaddress.ip_address(dgid) in mgids:
                dlid, *numbers = (int(n, 0) for n in numbers)
                assert dlid in lids and numbers == [SL, TCLASS, FLOW, HOP, QKEY, 0xFFFF], line
                seen.add(dgid)
        assert len(seen) == len(mgids), shown
