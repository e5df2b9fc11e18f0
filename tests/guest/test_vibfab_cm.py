"""Connected mode over the fabric: RC queue pairs, shared receive queues, their errors."""

import pytest

import net
import vibfab

A, B = "vib0/1", "vib1/1"


@pytest.fixture(autouse=True, scope="module")
def connected(a, b):
    for side in (a, b):
        side.run("sh", "-c", f"echo connected >/sys/class/net/{side.iface}/mode")
        side.set_link("mtu", 65520)
    net.wait_until("an answer in connected mode", lambda: a.reaches(b.ip4))
    yield
    for side in (a, b):
        side.run("sh", "-c", f"echo datagram >/sys/class/net/{side.iface}/mode")


@pytest.fixture(autouse=True)
def quiet(a, b):
    with vibfab.quiet(lambda: a.reaches(b.ip4)):
        yield


def live(port):
    return [q for q in vibfab.qps(port, vibfab.RC) if q["state"] == vibfab.RTS]


def connection(a, b):
    """Has a connection made, if there is none: those that nobody uses go. Returns its queue pairs on side A."""
    net.wait_until("a connection", lambda: a.ping(b.ip4, count=1, size=20000).lost == 0 and live(A))
    return {q["qpn"] for q in live(A)}


def test_connections_are_up_and_carry_big_packets(a, b):
    sent = sum(q["sent"] for q in live(A))
    assert a.ping(b.ip4, count=3, size=65000).lost == 0
    assert sum(q["sent"] for q in live(A)) >= sent + 3
    assert {q["dest"] for q in live(A)} <= {q["qpn"] for q in live(B)}


@pytest.mark.parametrize("family", [4, 6])
def test_bulk_both_ways(a, b, family):
    assert net.Iperf(a, b, "-n", "20M", "--bidir", family=family).received > 0


def test_flood_with_sizes(a, b):
    for size in (0, 200, 255, 256, 5000, 65000):
        assert a.ping(b.ip4, count=50, size=size, flood=True).lost == 0, size


def test_receiver_not_ready_ends_the_connection_and_it_comes_back(a, b):
    """However often the sender tries again."""
    before = connection(a, b)
    with vibfab.rule("kind=rc", f"src={A}", "rnr") as r:
        a.ping(b.ip4, count=1, extra=["-W", "1"])
        net.wait_until("the end of the connection", lambda: not before & {q["qpn"] for q in live(A)})
        assert r()["hits"] >= 1
    net.wait_until("an answer", lambda: a.reaches(b.ip4))
    assert connection(a, b) - before


def test_lost_message_is_retried_or_ends_the_connection(a, b):
    connection(a, b)
    with vibfab.rule("kind=rc", f"src={A}", "oneshot", "drop") as r:
        a.ping(b.ip4, count=1, extra=["-W", "5"])
        assert r()["hits"] == 1
    net.wait_until("an answer", lambda: a.reaches(b.ip4))


def test_delay_keeps_the_order(a, b):
    with vibfab.rule("kind=rc", f"src={A}", "percent=20", "delay=3000"):
        assert a.ping(b.ip4, count=100, size=1000, extra=["-i", "0.01"]).lost == 0
        with net.FlowServer(b) as server:
            assert server.run(a, flows=2, octets=1 << 20) == "2 flows ok"


def test_qp_killed_by_the_device(a, b):
    for side in (A, B):
        vibfab.break_qps(live(side))
    net.wait_until("an answer over new connections", lambda: a.reaches(b.ip4))


def test_peer_interface_restarts(a, b):
    b.set_link("down")
    assert not a.reaches(b.ip4)
    b.set_link("up")
    net.wait_until("an answer", lambda: a.reaches(b.ip4))
    assert a.ping(b.ip4, count=3, size=60000).lost == 0


def test_link_down_during_traffic(a, b):
    process = a.start("ping", "-q", "-f", "-s", 20000, b.ip4)
    net.wait_until("traffic", lambda: any(q["sent"] > 50 for q in live(A)))
    vibfab.ctl(f"port {B} down")
    net.wait_until("the carrier to go", lambda: b.read(f"/sys/class/net/{b.iface}/carrier") == "0")
    vibfab.ctl(f"port {B} up")
    process.kill()
    process.wait()
    net.wait_until("an answer", lambda: a.reaches(b.ip4))
