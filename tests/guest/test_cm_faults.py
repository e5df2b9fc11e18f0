"""Connections of our driver in trouble, on the virtual fabric: stalls, broken queues, receivers that are not ready."""

import re
import threading

import pytest

import net
import vibfab

A, B = "vib0/1", "vib1/1"
# Another address of side B, which says that it takes no connections.
PLAIN = "10.77.0.99"


def live(port):
    return [q for q in vibfab.qps(port, vibfab.RC) if q["state"] == vibfab.RTS]


def commands(port):
    return [f"qp {q['device']} {q['qpn']}" for q in live(port)]


def connection(a, b):
    """Has a connection made, if there is none; the queue pairs of side A's connections."""
    net.wait_until("a connection", lambda: a.ping(b.ip4, count=1, size=20000).lost == 0 and live(A))
    return {q["qpn"] for q in live(A)}


def counter(side, name):
    out = side.run("ethtool", "-S", side.iface).stdout
    return sum(int(n) for n in re.findall(rf"^ *{name}: (\d+)$", out, re.MULTILINE))


def plain_peer(a, b):
    """Has side A think that PLAIN takes no connections; it forgets with the link."""
    without = "00" + b.hwaddr[2:]
    a.run("ip", "neigh", "replace", PLAIN, "lladdr", without, "dev", a.iface, "nud", "permanent")


@pytest.fixture(autouse=True, scope="module")
def connected(a, b):
    b.run("ip", "addr", "add", f"{PLAIN}/24", "dev", b.iface)
    plain_peer(a, b)
    for side in (a, b):
        side.run("sh", "-c", f"echo connected | tee /sys/class/net/{side.iface}/mode")
    yield
    a.run("ip", "neigh", "del", PLAIN, "dev", a.iface)
    b.run("ip", "addr", "del", f"{PLAIN}/24", "dev", b.iface)
    for side in (a, b):
        side.run("sh", "-c", f"echo datagram | tee /sys/class/net/{side.iface}/mode")


@pytest.fixture(autouse=True)
def quiet(a, b):
    with vibfab.quiet(lambda: a.reaches(b.ip4)):
        connection(a, b)
        yield


def carries(a, b):
    """Large packets go over connections, both ways, whole."""
    connection(a, b)
    with net.FlowServer(b) as server:
        assert server.run(a, flows=2, octets=1 << 20, both=True) == "2 flows ok"


def test_receiver_not_ready_is_tried_again(a, b):
    before = connection(a, b)
    with vibfab.rule("kind=rc", f"src={A}", "oneshot", "rnr") as r:
        assert a.ping(b.ip4, count=1, size=20000).lost == 0
        assert r()["hits"] == 1
    assert before <= {q["qpn"] for q in live(A)}


def test_stalled_connection_holds_up_nobody_else(a, b):
    """Nothing that is sent over connections completes any more: other peers are reached all the same, the watchdog of
    the transmit queues has nothing to say, and the connection is given up and made again."""
    stops, ended = counter(a, "connected_stops"), counter(a, "connected_timeouts")
    blamed = counter(a, r"queue_\d+_timeouts")
    for command in commands(A):
        vibfab.ctl(f"{command} hold send")
    flood = a.start("python3", "-B", "/src/tests/guest/flood.py", b.ip4, 7700, 1 << 30)
    try:
        net.wait_until("a stop", lambda: counter(a, "connected_stops") > stops)
        net.wait_until("an answer by datagrams", lambda: a.reaches(PLAIN))
        assert counter(a, "connected_timeouts") == ended, "not while the connection holds"
        net.wait_until("the end of the connection", lambda: counter(a, "connected_timeouts") > ended)
        net.wait_until("another answer by datagrams", lambda: a.reaches(PLAIN))
    finally:
        flood.kill()
        flood.wait()
        for command in commands(A):
            vibfab.ctl(f"{command} release send")
    carries(a, b)
    assert counter(a, r"queue_\d+_timeouts") == blamed
    assert vibfab.kernel_log(f"{a.iface}: nothing is sent over the connection")


def test_late_completions(a, b):
    """They are held for a while, so that the ring fills and queues stop; all goes on when they come."""
    for _ in range(3):
        ended = counter(a, "connected_timeouts")
        for command in commands(A):
            vibfab.ctl(f"{command} hold send")
        stops = counter(a, "connected_stops")
        flood = a.start("python3", "-B", "/src/tests/guest/flood.py", b.ip4, 7700, 1 << 30)
        try:
            net.wait_until("a stop", lambda before=stops: counter(a, "connected_stops") > before)
        finally:
            for command in commands(A):
                vibfab.ctl(f"{command} release send")
            flood.kill()
            flood.wait()
        carries(a, b)
        assert counter(a, "connected_timeouts") == ended


@pytest.mark.parametrize("what", ["cqerr send", "cqerr recv", "event qp_fatal", "event qp_req_err"])
@pytest.mark.parametrize("side", [A, B])
def test_failure_that_only_the_device_reports(a, b, side, what):
    """Whichever end it is said of, new connections are made."""
    before = {q["qpn"] for q in live(side)}
    # All ends of an interface share their completion queues.
    for command in commands(side)[:1] if "cqerr" in what else commands(side):
        vibfab.ctl(f"{command} {what}")
    net.wait_until("the ends to go", lambda: not before & {q["qpn"] for q in live(side)})
    carries(a, b)


@pytest.mark.parametrize("what", ["send", "recv"])
def test_completion_queue_that_stays_dead(a, b, what):
    """What fails never tells of a completion again: others are made in its place, more than once."""
    for _ in range(2):
        connection(a, b)
        before = {q["qpn"] for q in live(A)}
        command = commands(A)[0]
        vibfab.ctl(f"{command} hold {what}", f"{command} cqerr {what}")
        net.wait_until("the ends to go", lambda old=before: not old & {q["qpn"] for q in live(A)})
        carries(a, b)


def test_completion_queues_that_cannot_be_made_at_once(a, b):
    connection(a, b)
    before = {q["qpn"] for q in live(A)}
    vibfab.ctl("fail create_cq 1")
    vibfab.ctl(f"{commands(A)[0]} cqerr send")
    net.wait_until("the ends to go", lambda: not before & {q["qpn"] for q in live(A)})
    carries(a, b)
    vibfab.ctl("fail create_cq 0")


# In one process: others are tried again after a second.
RESTART = """
cd /sys/kernel/debug/vibfab
echo 'fail create_cq 1' >ctl
echo "$1 hold $4" >ctl
echo "$1 cqerr $4" >ctl
n=0
while grep -q '^fail=' state; do
    n=$((n + 1))
    [ $n -lt 3000 ] || exit
done
ip -n $2 link set $3 down
ip -n $2 link set $3 up
"""


def test_interface_restarts_without_completion_queues(a, b):
    """It goes down when they have failed and others could not be made: it does not come up with those that failed."""
    for what in ("send", "recv"):
        connection(a, b)
        net.run(["sh", "-c", RESTART, "sh", commands(A)[0], a.ns, a.iface, what])
        assert vibfab.lines("state", "fail") == []
        plain_peer(a, b)
        net.wait_until("an answer", lambda: a.reaches(b.ip4))
        carries(a, b)
        # More than a ring has slots.
        assert a.ping(b.ip4, count=200, size=20000, flood=True).lost == 0
        assert not [q for q in vibfab.lines("state", "cq") if q["overflow"]]


@pytest.mark.parametrize("verb", ["post_send", "create_qp", "modify_qp", "post_srq_recv", "post_recv"])
def test_failed_verb(a, b, verb):
    """The next use of a verb fails, while a connection is used or made."""
    for nth in (1, 2, 3):
        vibfab.ctl(f"fail {verb} {nth}")
        vibfab.break_qps(live(A))
        net.wait_until("an answer", lambda: a.reaches(b.ip4))
        carries(a, b)
    vibfab.ctl(f"fail {verb} 0")


def test_connections_die_while_neighbours_are_flushed(a, b):
    """B08: sends fail while the entries that lead to their connections are taken away."""
    stop = threading.Event()

    def flush():
        while not stop.wait(0.005):
            a.flush_neighbours()
    flusher = threading.Thread(target=flush)
    floods = [a.start("ping", "-q", "-f", "-s", size, b.ip4) for size in (100, 20000)]
    flusher.start()
    try:
        for _ in range(20):
            net.wait_until("a connection", lambda: a.reaches(b.ip4) and live(A))
            vibfab.break_qps(live(A))
        assert all(flood.poll() is None for flood in floods)
    finally:
        stop.set()
        flusher.join()
        for flood in floods:
            flood.kill()
            flood.wait()
    carries(a, b)


def test_dead_receiving_end_is_told(a, b):
    """The device breaks nothing but the receiving end, and nobody sends: the sender hears of it all the same."""
    before = connection(a, b)
    ends = {q["dest"] for q in live(A)}
    vibfab.break_qps([q for q in live(B) if q["qpn"] in ends])
    net.wait_until("the sender to let go", lambda: not before & {q["qpn"] for q in live(A)})
    carries(a, b)
