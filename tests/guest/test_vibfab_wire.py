"""What goes over the virtual fabric when an IPoIB driver uses it, and what the HCA checks."""

import ipaddress

import pytest

import net
import vibfab

BROADCAST = "ff12:401b:ffff:0000:0000:0000:ffff:ffff"
PORTS = {"A": "vib0/1", "B": "vib1/1"}


@pytest.fixture(autouse=True)
def quiet():
    yield
    vibfab.reset()
    assert vibfab.strict() == {}


@pytest.fixture
def ring():
    vibfab.ctl("ring clear")
    return vibfab.ring


def switch_port(side):
    return vibfab.port(PORTS[side.letter])["sw"]


def test_both_sides_are_members_of_the_broadcast_group(a, b):
    members = vibfab.groups()[BROADCAST]["members"]
    assert {switch_port(a), switch_port(b)} <= set(members)


def test_arp_is_replicated_to_members_but_not_back_to_its_port(a, b, ring):
    a.flush_neighbours()
    net.wait_until("an answer after the flush", lambda: a.reaches(b.ip4))
    port = switch_port(a)
    arps = [p for p in ring() if p["in"] == port and p["dlid"] >= 0xC000 and p["data"][:2] == b"\x08\x06"]
    assert arps
    on_the_wire = {p["out"] for p in arps if p["out"] != port}
    members = set(vibfab.groups()[BROADCAST]["members"])
    assert on_the_wire == members - {port}
    # The sender's own QP gets a copy inside its HCA: one, and with the packet's own source.
    for p in arps:
        assert p["verdict"] == "ok" and p["grh"] == 1 and p["qkey"] == 0x0B1B and p["pkey"] == 0xFFFF


def test_own_multicast_comes_back_and_the_driver_drops_it(a, ring):
    port = switch_port(a)
    qp = vibfab.qps(PORTS["A"])[0]
    before = a.stats()["rx"]["packets"]
    a.run("ping", "-q", "-c", 20, "-i", 0.02, "-W", 1, "-I", a.iface, "224.0.0.1", check=False)
    after = a.stats()["rx"]["packets"]
    echoes = [p for p in ring() if p["in"] == p["out"] == port and p["verdict"] == "ok" and p["dqpn"] > 1]
    # If hosts answer, ping counts their replies and may send fewer.
    assert len(echoes) >= 5
    assert {p["sqpn"] for p in echoes} == {qp["qpn"]}
    # What else arrives meanwhile is a packet or two of the hosts' own.
    others = [p for p in ring() if p["out"] == port and p["in"] != port and p["verdict"] == "ok" and p["dqpn"] > 1]
    assert after - before < len(others) + len(echoes)


def test_unicast_goes_to_the_peers_lid_and_qp(a, b, ring):
    assert a.reaches(b.ip4)
    vibfab.ctl("ring clear")
    assert a.ping(b.ip4, count=5).lost == 0
    echo = [p for p in ring() if p["data"][:2] == b"\x08\x00" and p["in"] == switch_port(a)]
    assert len(echo) == 5
    peer, peer_qp = vibfab.port(PORTS["B"]), vibfab.qps(PORTS["B"])[0]
    for p in echo:
        assert (p["dlid"], p["dqpn"], p["out"]) == (peer["lid"], peer_qp["qpn"], peer["sw"])
        assert p["len"] == 4 + 20 + 8 + 56
        # The path said hop limit 0: no GRH.
        assert p["grh"] == 0
        assert p["data"][:4] == b"\x08\x00\x00\x00"


def test_tshark_decodes_everything(a, b):
    a.flush_neighbours()
    a.run("ip", "-6", "neigh", "flush", "dev", a.iface)
    vibfab.ctl("ring clear")
    net.wait_until("answers after the flush", lambda: a.reaches(b.ip4) and a.reaches(b.ip6))
    # A join and a leave for the SA to answer.
    a.run("python3", "-c", "import socket,struct\n"
          "s=socket.socket(socket.AF_INET,socket.SOCK_DGRAM)\n"
          f"s.setsockopt(0,35,socket.inet_aton('239.9.9.9')+socket.inet_aton('{a.ip4}'))\n"
          "import time;time.sleep(2)")
    text = vibfab.tshark("-V")
    assert "Malformed" not in text
    brief = vibfab.tshark()
    assert "Unknown" not in brief
    for want in ("ARP", "Neighbor Solicitation", "Echo (ping) reply", "SubnAdmSet(MCMemberRecord)",
                 "SubnAdmGetResp(MCMemberRecord)", "SubnAdmDelete(MCMemberRecord)"):
        assert want in brief, f"no {want} in\n{brief}"
    group = ipaddress.ip_address("239.9.9.9").packed
    assert f"ff12:401b:ffff::{(group[0] & 15) << 8 | group[1]:x}:{group[2] << 8 | group[3]:x}" in text


def test_path_query_is_answered_with_lids(a, b):
    # A reregister makes the driver forget its paths: the next packet asks again.
    vibfab.ctl("ring clear", f"port {PORTS['A']} reregister")
    a.flush_neighbours()
    net.wait_until("an answer after the reregister", lambda: a.reaches(b.ip4))
    paths = [p for p in vibfab.ring() if p["dqpn"] == 1 and p["data"][16:18] == b"\x00\x35"]
    assert paths
    for p in paths:
        assert 1 in (p["slid"], p["dlid"])


def test_pkey_mismatch_is_dropped_and_counted(a, b):
    before = vibfab.port(PORTS["B"])
    vibfab.ctl(f"port {PORTS['B']} pkey 0 0x9234 noevent")
    assert not a.reaches(b.ip4)
    after = vibfab.port(PORTS["B"])
    vibfab.ctl(f"port {PORTS['B']} pkey 0 0xffff noevent")
    assert after["pkey_viol"] > before["pkey_viol"] and after["bad_pkey"] > before["bad_pkey"]
    net.wait_until("an answer with the key back", lambda: a.reaches(b.ip4))


def test_two_limited_members_do_not_talk(a, b):
    for side in "AB":
        vibfab.ctl(f"port {PORTS[side]} pkey 0 0x7fff noevent")
    assert not a.reaches(b.ip4)
    vibfab.ctl(f"port {PORTS['A']} pkey 0 0xffff noevent")
    net.wait_until("a full and a limited member to talk", lambda: a.reaches(b.ip4))
    vibfab.ctl(f"port {PORTS['B']} pkey 0 0xffff noevent")


def test_wrong_qkey_is_dropped_and_counted(a, b):
    assert a.reaches(b.ip4)
    before = vibfab.port(PORTS["B"])
    with vibfab.rule("kind=uc", f"src={PORTS['A']}", "corrupt=qkey"):
        assert not a.reaches(b.ip4)
    after = vibfab.port(PORTS["B"])
    assert after["qkey_viol"] > before["qkey_viol"] and after["bad_qkey"] > before["bad_qkey"]


def test_big_and_odd_sizes(a, b):
    for size in (0, 1, 3, 4063, 4064, 30000, 60001):
        assert a.ping(b.ip4, count=2, size=size).lost == 0, size


def test_completion_moderation_is_honoured(a, b):
    a.run("ethtool", "-C", a.iface, "rx-usecs", 500, "rx-frames", 8)
    mod = [c for c in vibfab.lines("state", "cq") if c["mod_count"] == 8]
    assert mod and mod[0]["mod_period"] == 500
    assert a.ping(b.ip4, count=200, flood=True).lost == 0
    now = next(c for c in vibfab.lines("state", "cq") if c["mod_count"] == 8)
    assert now["added"] > mod[0]["added"]
    a.run("ethtool", "-C", a.iface, "rx-usecs", 0, "rx-frames", 0)
