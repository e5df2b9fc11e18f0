"""The subnet changes under a driver: with the event, without it, and with an SA in trouble."""

import time

import pytest

import net
import vibfab

A, B = "vib0/1", "vib1/1"
BROADCAST = "ff12:401b:ffff:0000:0000:0000:ffff:ffff"


@pytest.fixture(autouse=True)
def quiet(a, b):
    with vibfab.quiet(lambda: a.reaches(b.ip4)):
        yield


def member(port):
    return vibfab.port(port)["sw"] in vibfab.groups()[BROADCAST]["members"]


def recovered(a, b):
    net.wait_until("the sides to reach each other", lambda: a.reaches(b.ip4))


def test_link_down_and_up(a, b):
    vibfab.ctl(f"port {B} down")
    net.wait_until("the carrier to go", lambda: not b.carrier())
    assert not member(B)
    assert not a.reaches(b.ip4)
    vibfab.ctl(f"port {B} up")
    net.wait_until("the carrier", b.carrier)
    recovered(a, b)
    assert member(B)


def test_link_bounce_without_events_is_repaired_by_reregistering(a, b):
    vibfab.ctl(f"port {B} down noevent")
    assert b.carrier() and not a.reaches(b.ip4)
    vibfab.ctl(f"port {B} up noevent")
    assert not member(B)
    vibfab.ctl(f"port {B} reregister")
    recovered(a, b)
    assert member(B)


def test_lid_change(a, b):
    old = vibfab.port(B)["lid"]
    vibfab.ctl(f"port {B} lid 77")
    # The peer still has the old path: its own event tells it to ask again.
    vibfab.ctl(f"port {A} reregister")
    recovered(a, b)
    vibfab.ctl("ring clear")
    assert a.ping(b.ip4, count=2).lost == 0
    assert {p["dlid"] for p in vibfab.ring() if p["in"] == 1 and p["dqpn"] > 1 and p["dlid"] < 0xC000} == {77}
    vibfab.ctl(f"port {B} lid {old}", f"port {A} reregister")
    recovered(a, b)


def test_sm_moves_to_another_lid(a, b):
    vibfab.ctl("sm lid 500")
    vibfab.ctl("sm restart")
    net.wait_until("both to be members again", lambda: member(A) and member(B))
    recovered(a, b)
    vibfab.ctl("sm lid 1", "sm restart")
    net.wait_until("both to be members again", lambda: member(A) and member(B))


def test_sm_restart_forgets_and_clients_come_back(a, b):
    vibfab.ctl("sm restart noevent")
    assert not member(A) and not a.reaches("10.77.0.9")
    vibfab.ctl("sm reregister")
    net.wait_until("both to be members again", lambda: member(A) and member(B))
    recovered(a, b)


def test_prefix_change_changes_the_gid(a, b):
    vibfab.ctl(f"port {A} prefix 0xfec0000000000001")
    gid = "/sys/class/infiniband/vib0/ports/1/gids/0"
    net.wait_until("the GID cache", lambda: a.read(gid).startswith("fec0:0000:0000:0001"))
    vibfab.ctl(f"port {A} prefix 0xfe80000000000000")
    net.wait_until("the GID cache", lambda: a.read(gid).startswith("fe80:"))
    recovered(a, b)


@pytest.mark.parametrize("fault", ["sa busy 2", "sa lose 2", "sa reject 1 0x200", "sa reject 1 0x100", "sa slow 400"])
def test_join_gets_through_a_bad_sa(a, b, fault):
    vibfab.ctl("sa attr 0x38", fault)
    b.set_link("down")
    b.set_link("up")
    net.wait_until("the carrier", b.carrier)
    vibfab.ctl("sa clear")
    recovered(a, b)


def test_silent_sa_keeps_the_carrier_off(a, b):
    vibfab.ctl("sa down")
    b.set_link("down")
    b.set_link("up")
    requests = vibfab.sa()["requests"]
    net.wait_until("some requests", lambda: vibfab.sa()["requests"] >= requests + 3)
    assert not b.carrier()
    vibfab.ctl("sa up")
    net.wait_until("the carrier", b.carrier)
    recovered(a, b)


def test_path_query_refused(a, b):
    vibfab.ctl(f"port {A} reregister")
    vibfab.ctl("sa attr 0x35", "sa reject 1000 0x300")
    a.flush_neighbours()
    vibfab.ctl(f"port {A} event lid_change")
    # A driver may keep the old path in use until it is sure that this is no passing trouble.
    net.wait_until("the path to go", lambda: not a.reaches(b.ip4))
    vibfab.ctl("sa clear")
    recovered(a, b)


def test_group_mtu_change(a, b):
    vibfab.ctl("group 0xffff mtu 2048")
    net.wait_until("the new MTU", lambda: a.mtu == 2044 and b.mtu == 2044)
    recovered(a, b)
    assert a.ping(b.ip4, count=2, size=10000).lost == 0
    vibfab.ctl("group 0xffff mtu 4096")
    recovered(a, b)


def test_group_qkey_change(a, b):
    vibfab.ctl("group 0xffff qkey 0x1234")
    net.wait_until("the new Q_Key", lambda: {q["qkey"] for q in vibfab.qps(A) + vibfab.qps(B) if q["port"]} == {0x1234})
    recovered(a, b)
    vibfab.ctl("group 0xffff qkey 0x0b1b")
    recovered(a, b)


def test_device_fatal_under_traffic(a, b):
    """A dead device carries nothing, whatever is on its way; after its recovery all goes on."""
    flood = a.start("ping", "-q", "-f", "-s", 1500, b.ip4)
    net.wait_until("traffic", lambda seen=vibfab.port(B)["rx_pkts"]: vibfab.port(B)["rx_pkts"] > seen + 100)
    vibfab.ctl("hca vib1 fatal")
    assert vibfab.hca("vib1")["fatal"] == 1
    carried = vibfab.port(B)["rx_pkts"]
    assert not a.reaches(b.ip4)
    assert vibfab.port(B)["rx_pkts"] == carried
    vibfab.ctl("hca vib1 recover")
    recovered(a, b)
    net.wait_until("traffic", lambda: vibfab.port(B)["rx_pkts"] > carried + 100)
    assert flood.poll() is None
    flood.kill()
    flood.wait()


def test_queue_error_event_reaches_the_driver(a, b):
    qp = vibfab.qps(A)[0]
    vibfab.ctl(f"qp {qp['device']} {qp['qpn']} cqerr send")
    net.wait_until("the log line", lambda: vibfab.kernel_log("completion queue overflow"))
    recovered(a, b)


@pytest.mark.parametrize("op", ["create_ah", "attach_mcast", "modify_qp", "req_notify"])
def test_a_verb_that_fails_once(a, b, op):
    """It does no lasting harm: the next time the interface comes up all is well."""
    a.set_link("down")
    vibfab.ctl(f"fail {op} 1")
    a.run("ip", "link", "set", a.iface, "up", check=False)
    time.sleep(1)
    vibfab.ctl(f"fail {op} 0")
    a.run("ip", "link", "set", a.iface, "down", check=False)
    a.set_link("up")
    recovered(a, b)


def test_child_interface_of_a_second_partition(a, b):
    """A P_Key that the SM adds later, its broadcast group, and two children that talk in it."""
    for port in (A, B):
        vibfab.ctl(f"port {port} pkey 1 0x8002")
    vibfab.ctl("group 0x8002 add noevent")
    for i, side in enumerate((a, b), 1):
        side.run("ip", "link", "add", "link", side.iface, "name", "child", "type", "ipoib", "pkey", "0x8002")
        side.run("ip", "addr", "add", f"10.79.0.{i}/24", "dev", "child")
        side.run("ip", "link", "set", "child", "up")
    net.wait_until("an answer between the children", lambda: a.reaches("10.79.0.2"))
    vibfab.ctl("ring clear")
    assert a.ping("10.79.0.2", count=2).lost == 0
    assert 0x8002 in {p["pkey"] for p in vibfab.ring() if p["data"][:2] == b"\x08\x00"}
    for side in (a, b):
        side.run("ip", "link", "del", "child")
    vibfab.ctl("group 0x8002 del", f"port {A} pkey 1 0", f"port {B} pkey 1 0")
    recovered(a, b)


def test_sending_with_a_zero_qkey_is_noticed(a, b):
    vibfab.ctl("group 0xffff qkey 0")
    net.wait_until("the strict counter", lambda: a.reaches(b.ip4) and vibfab.strict().get("no_qkey"))
    vibfab.ctl("group 0xffff qkey 0x0b1b")
    net.wait_until("the Q_Key", lambda: {q["qkey"] for q in vibfab.qps(A) + vibfab.qps(B) if q["port"]} == {0x0B1B})
    recovered(a, b)
    vibfab.ctl("strict clear")
