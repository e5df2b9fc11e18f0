"""What our driver does on an InfiniBand link when the subnet changes; facts EV-*, PK-*, SA-*, MC-*."""

import re
import threading

import pytest

import net
import vibfab
from child import children, reach_each_other
from driver import Debug

A, B = "vib0/1", "vib1/1"
BROADCAST = "ff12:401b:ffff:0000:0000:0000:ffff:ffff"
PATH_QUERY = ("kind=mad", "class=3", "method=1", "attr=0x35")
JOIN = ("kind=mad", "class=3", "method=2", "attr=0x38")


@pytest.fixture(autouse=True)
def quiet(a, b):
    with vibfab.quiet(lambda: a.reaches(b.ip4)):
        yield


def is_up(side):
    return "UP" in side.link()["flags"]


def recovered(a, b):
    net.wait_until("the sides to reach each other", lambda: a.reaches(b.ip4) and b.reaches(a.ip4))


def unicast_lids(switch_port):
    """Destinations of the unicast datagrams that a port has sent since the ring was cleared."""
    return {p["dlid"] for p in vibfab.ring() if p["in"] == switch_port and p["dqpn"] > 1 and p["dlid"] < 0xC000}


def counted(*words):
    """A rule that changes nothing and counts what matches."""
    return vibfab.rule(*words, "delay=1")


def test_one_query_per_peer(a, b):
    """However many packets wait for a path, it is asked for once."""
    a.set_link("down")
    a.set_link("up")
    net.wait_until("the carrier", a.carrier)
    vibfab.ctl("sa attr 0x35", "sa slow 500", "ring clear")
    with counted(*PATH_QUERY) as rule:
        before = rule()["seen"]
        a.run("ip", "neigh", "replace", b.ip4, "lladdr", b.hwaddr, "dev", a.iface, "nud", "permanent")
        done = a.ping(b.ip4, count=100, flood=True, extra=("-l", "50"))
        a.run("ip", "neigh", "del", b.ip4, "dev", a.iface)
        # The answer is slower than the MAD layer's patience of 100 ms: it repeats the one request.
        tids = {p["data"][8:16] for p in vibfab.ring() if p["dqpn"] == 1 and p["data"][16:18] == b"\x00\x35"
                and p["in"] == vibfab.port(A)["sw"]}
        assert rule()["seen"] > before
    vibfab.ctl("sa clear")
    assert done.lost == 0
    assert len(tids) == 1
    recovered(a, b)


def test_refused_path_is_not_asked_for_again_at_once(a, b):
    """Negative results are cached (WEAK-17): a stream of packets makes few queries."""
    vibfab.ctl("sa attr 0x35", "sa reject 1000 0x300")
    a.set_link("down")
    a.set_link("up")
    net.wait_until("the carrier", a.carrier)
    a.run("ip", "neigh", "replace", b.ip4, "lladdr", b.hwaddr, "dev", a.iface, "nud", "permanent")
    with counted(*PATH_QUERY) as rule:
        a.run("ping", "-q", "-c", 200, "-i", 0.01, "-W", 1, b.ip4, check=False)
        queries = rule()["seen"]
    # Two seconds and more of packets every 10 ms; tries come after 1 s, 2 s, 4 s and so on.
    assert 1 <= queries <= 20
    vibfab.ctl("sa clear")
    a.run("ip", "neigh", "del", b.ip4, "dev", a.iface)
    recovered(a, b)


def test_peer_with_a_new_lid_is_found_without_any_event_here(a, b):
    """The peer announces itself, and we notice that its frames come from elsewhere than we send to."""
    old = vibfab.port(B)["lid"]
    for lid in (77, old):
        vibfab.ctl("ring clear", f"port {B} lid {lid}")
        recovered(a, b)
        vibfab.ctl("ring clear")
        assert a.ping(b.ip4, count=3).lost == 0
        assert unicast_lids(vibfab.port(A)["sw"]) == {lid}


def test_ports_exchange_lids(a, b):
    """A peer that has got our former LID, and whose queue pair has the number of ours, is not taken for ourselves:
    without a routing header the LID is all that tells (RX-8, TRAP-44)."""
    ours, theirs = (vibfab.port(p)["lid"] for p in (A, B))
    vibfab.ctl("hca vib0 qpn 0x7000", "hca vib1 qpn 0x7000")
    with children(a, b) as (one, other):
        assert one.hwaddr[:12] == other.hwaddr[:12]
        reach_each_other(one, other)
        for mine, peers in ((theirs, ours), (ours, theirs)):
            vibfab.ctl(f"port {A} lid 90", f"port {B} lid {peers}", f"port {A} lid {mine}")
            reach_each_other(one, other)
            assert one.ping(other.ip4, count=50, flood=True).lost == 0
    recovered(a, b)


def test_refused_qkey_comes_all_the_same(a, b):
    """When the device does not take the Q_Key that the group has got, the queue is reset: with the old one it would
    be deaf, with a carrier."""
    def queue_pairs():
        return [q for q in vibfab.qps(A) + vibfab.qps(B) if q["port"]]

    n = len(queue_pairs())
    for qkey in (0x1234, 0x0B1B):
        vibfab.ctl("fail modify_qp 1", f"group 0xffff qkey {qkey:#x}")
        try:
            net.wait_until("the new Q_Key", lambda k=qkey: [q["qkey"] for q in queue_pairs()] == [k] * n)
        finally:
            vibfab.ctl("fail modify_qp 0")
        recovered(a, b)


def test_harmless_sm_change(a, b):
    """The subnet manager moves: no packet is lost, the carrier stays, no group is left."""
    changes = a.carrier_changes(), b.carrier_changes()
    result = {}
    thread = threading.Thread(target=lambda: result.update(pings=a.ping(b.ip4, count=300, extra=("-i", "0.01"))))
    with counted(*JOIN) as joins:
        before = joins()["seen"]
        thread.start()
        for lid in (500, 501, 1):
            vibfab.ctl(f"sm lid {lid}")
        thread.join()
        assert joins()["seen"] == before
    assert result["pings"].lost == 0
    assert (a.carrier_changes(), b.carrier_changes()) == changes


def test_reregister_under_traffic(a, b):
    """All memberships are renewed; unicast goes on without loss and the carrier stays."""
    changes = a.carrier_changes(), b.carrier_changes()
    result = {}
    thread = threading.Thread(target=lambda: result.update(pings=a.ping(b.ip4, count=300, extra=("-i", "0.01"))))
    thread.start()
    vibfab.ctl("sm restart")
    thread.join()
    members = {vibfab.port(A)["sw"], vibfab.port(B)["sw"]}
    net.wait_until("both to be members again", lambda: members <= set(vibfab.groups()[BROADCAST]["members"]))
    assert result["pings"].lost == 0
    assert (a.carrier_changes(), b.carrier_changes()) == changes


@pytest.mark.parametrize("event", ["event", "noevent"])
def test_pkey_goes_and_comes(a, b, event):
    """Without its P_Key the interface is up without carrier; it comes back by itself, if only a reregister
    tells that the P_Key is there again (NET-26, PK-14)."""
    silent = " noevent" if event == "noevent" else ""
    vibfab.ctl(f"port {B} pkey 0 0")
    net.wait_until("the carrier to go", lambda: not b.carrier())
    assert is_up(b)
    vibfab.ctl(f"port {B} pkey 0 0xffff{silent}")
    if silent:
        assert not b.carrier()
        vibfab.ctl(f"port {B} reregister")
    net.wait_until("the carrier", b.carrier)
    recovered(a, b)


def test_pkey_is_there_only_after_open(a, b):
    b.set_link("down")
    vibfab.ctl(f"port {B} pkey 0 0")
    b.set_link("up")
    assert is_up(b) and not b.carrier()
    vibfab.ctl(f"port {B} pkey 0 0xffff")
    net.wait_until("the carrier", b.carrier)
    recovered(a, b)


def test_pkey_moves_in_the_table(a, b):
    vibfab.ctl(f"port {B} pkey 3 0xffff noevent", f"port {B} pkey 0 0")
    net.wait_until("the queues to follow", lambda: "pkey: 0xffff index 3" in Debug(b).text)
    recovered(a, b)
    assert {q["pkey_index"] for q in vibfab.qps(B) if q["port"]} == {3}
    vibfab.ctl(f"port {B} pkey 0 0xffff noevent", f"port {B} pkey 3 0")
    net.wait_until("the queues to follow", lambda: "pkey: 0xffff index 0" in Debug(b).text)
    recovered(a, b)


def test_limited_member_talks_to_a_full_one(a, b):
    vibfab.ctl(f"port {B} pkey 0 0x7fff")
    recovered(a, b)
    vibfab.ctl(f"port {B} pkey 0 0xffff")
    recovered(a, b)


def test_prefix_change_changes_the_address(a, b):
    """Octets 4 to 19 of the address follow the GID, and peers learn it (EV-14)."""
    gid = f"/sys/class/infiniband/{A.split('/')[0]}/ports/1/gids/0"
    for prefix in ("0xfec0000000000001", "0xfe80000000000000"):
        vibfab.ctl(f"port {A} prefix {prefix}")
        want = f"{int(prefix, 16):016x}"
        net.wait_until("the GID", lambda w=want: a.read(gid).replace(":", "").startswith(w))
        net.wait_until("the address", lambda: a.hwaddr.replace(":", "")[8:] == a.read(gid).replace(":", ""))
        recovered(a, b)


@pytest.mark.parametrize("told", [True, False])
def test_dead_device_has_no_carrier(a, b, told):
    vibfab.ctl("hca vib1 fatal")
    net.wait_until("the carrier to go", lambda: not b.carrier())
    vibfab.ctl("hca vib1 recover", *([f"port {B} event port_active"] if told else []))
    net.wait_until("the carrier", b.carrier)
    recovered(a, b)


def test_group_status_is_readable(b):
    """The last word of the subnet administrator on each group stands in debugfs."""
    vibfab.ctl("sa attr 0x38", "sa reject 1000 0x200")
    b.run("ip", "maddr", "show", "dev", b.iface)
    b.run("ip", "addr", "add", "10.78.0.1/24", "dev", b.iface)
    with open("/dev/null") as null:
        listener = b.start("python3", "-c", (
            "import socket, struct, time; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM);"
            "s.setsockopt(0, 35, struct.pack('4s4si', socket.inet_aton('239.9.9.9'), bytes(4),"
            f" socket.if_nametoindex('{b.iface}'))); time.sleep(600)"), stdout=null)
    group = "ff12:401b:ffff:0:0:0:f09:909"
    net.wait_until("the refusal", lambda: "status -22" in Debug(b).groups.get(group, ""))
    vibfab.ctl("sa clear")
    net.wait_until("the membership", lambda: "status 0" in Debug(b).groups.get(group, "")
                   and "member true" in Debug(b).groups[group])
    listener.kill()
    listener.wait(net.SECONDS)
    b.run("ip", "addr", "del", "10.78.0.1/24", "dev", b.iface)


def test_port_comes_up_unheard(a, b):
    """When the core cannot read a port for its own cache, which is the first call after the event, it tells nobody of
    the change: a port that is not active is read again all the same."""
    vibfab.ctl(f"port {B} down")
    net.wait_until("the carrier to go", lambda: not b.carrier())
    try:
        vibfab.ctl("fail query_port 1", f"port {B} up")
        net.wait_until("the carrier", b.carrier)
    finally:
        vibfab.ctl("fail query_port 0", f"port {B} event port_active")
    recovered(a, b)


def test_port_is_read_again(a, b):
    """A change is told of but once: when the port cannot be read just then, it is read again. At a change of speed
    nobody reads it but the driver; the new GID is what shows that it did."""
    gid = f"/sys/class/infiniband/{B.split('/')[0]}/ports/1/gids/0"
    before = b.hwaddr
    try:
        vibfab.ctl(f"port {B} prefix 0xfec0000000000002 noevent", f"port {B} event gid_change")
        net.wait_until("the GID", lambda: b.read(gid).startswith("fec0:"))
        assert b.hwaddr == before
        vibfab.ctl("fail query_port 1", f"port {B} event speed_change")
        net.wait_until("the address", lambda: b.hwaddr.replace(":", "")[8:] == b.read(gid).replace(":", ""))
        assert all(line["fail"] != "query_port" for line in vibfab.lines("state", "fail"))
        # By number where the kernel has no names of errors.
        assert re.search(r"cannot read the port \((EIO|Error\(5\))\)", net.run(["dmesg"]).stdout)
    finally:
        vibfab.ctl("fail query_port 0", f"port {B} prefix 0xfe80000000000000")
    net.wait_until("the old address", lambda: b.hwaddr == before)
    recovered(a, b)
