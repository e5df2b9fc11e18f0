"""Connected mode with hundreds of peers: simulated nodes that take connections (fabric vibfab:far=N,far_cm=1) and, on
command, answer with nonsense."""

import ipaddress
import re
import socket
import threading

import pytest

import net
import vibfab

A = "vib0/1"
FIRST = ipaddress.ip_address("10.128.0.1")
OWN = "10.128.255.254"
PORT = 7000


def address(i):
    return str(FIRST + i)


def far():
    return vibfab.lines("state", "far")[0]


def queries():
    return vibfab.lines("state", "queries")[0]["n"]


@pytest.fixture(scope="module", autouse=True)
def route(a):
    a.run("ip", "addr", "add", f"{OWN}/16", "dev", a.iface)
    for t in ("gc_thresh1", "gc_thresh2", "gc_thresh3"):
        net.run(["sysctl", "-qw", f"net.ipv4.neigh.default.{t}=32768"])
    yield
    a.run("ip", "addr", "del", f"{OWN}/16", "dev", a.iface)


def connect(a, wanted):
    a.run("sh", "-c", f"echo {wanted} | tee /sys/class/net/{a.iface}/mode")


@pytest.fixture(autouse=True)
def connected(a, b):
    with vibfab.quiet(lambda: a.reaches(b.ip4)):
        connect(a, "connected")
        yield
        vibfab.ctl("far mtu 65524", "far reject 0", "far fuzz 0", "far lose 0")
        # All connections go.
        connect(a, "datagram")
        net.wait_until("the end of all connections", lambda: not vibfab.qps(A, vibfab.RC))
        a.flush_neighbours()


def up(a):
    """(peers with a connection, peers without)"""
    text = open(f"/sys/kernel/debug/ipoib_rs/{a.iface}", encoding="ascii").read()
    states = re.findall(r"^connection \S+: (\w+)", text, re.MULTILINE)
    return states.count("Up"), len(states) - states.count("Up")


class Talk:
    """Datagrams to many nodes and back; those that get lost are sent again."""

    def __init__(self, a):
        with net.netns(a.ns):
            self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.settimeout(0.3)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.socket.close()

    def once(self, nodes):
        """One datagram to each of the nodes; those that have answered."""
        for i in nodes:
            self.socket.sendto(b"node %d" % i, (address(i), PORT))
        answered, waiting = set(), set(nodes)
        try:
            while waiting:
                data, (host, _) = self.socket.recvfrom(100)
                i = int(ipaddress.ip_address(host)) - int(FIRST)
                # One that is late is of an earlier round.
                assert data == b"node %d" % i
                answered.add(i)
                waiting.discard(i)
        except TimeoutError:
            pass
        return answered


def everyone(a, nodes):
    """Has all nodes answer and a connection to each."""
    nodes = list(nodes)
    with Talk(a) as talk:
        def complete():
            return len(talk.once(nodes)) >= len(nodes) and up(a)[0] >= len(nodes)
        net.wait_until("a connection to everyone", complete, seconds=600)


def test_two_hundred_at_once(a):
    """Setting up connections asks the device nothing: a slow P_Key query could delay none of them."""
    nodes = list(range(200))
    with Talk(a) as talk:
        # Addresses and paths first, by datagram.
        connect(a, "datagram")
        net.wait_until("all nodes", lambda: len(talk.once(nodes)) == len(nodes), seconds=600)
        connect(a, "connected")
        before, messages = queries(), far()["messages"]
        everyone(a, nodes)
        assert queries() == before
        net.wait_until("datagrams over connections", lambda: len(talk.once(nodes)) == len(nodes))
    assert far()["messages"] > messages


def queues():
    return [q for q in vibfab.lines("state", "cq") if q["cq"] == A.split("/", maxsplit=1)[0]]


def test_completion_queues_are_shared(a):
    """B26: however many connections there are, there are no more completion queues than before, and no more interrupts
    than completions."""
    before = queues()
    everyone(a, range(200))
    after = queues()
    assert len(after) == len(before)

    def total(which, name):
        return sum(q[name] for q in which)
    assert total(after, "notified") - total(before, "notified") < total(after, "added") - total(before, "added")


def test_five_hundred_while_neighbours_are_flushed(a, b):
    """Entries of neighbours come and go under the connections that are being made, and under their packets; some
    messages of the connection manager are lost or late (B10)."""
    nodes = range(min(500, net.asked("cm_peers", 500)))
    stop = threading.Event()

    def flush():
        while not stop.wait(0.005):
            a.flush_neighbours()
    flusher = threading.Thread(target=flush)
    flusher.start()
    try:
        with Talk(a) as talk, vibfab.rule("kind=mad", "class=7", "percent=20", "delay=20000"), \
                vibfab.rule("kind=mad", "class=7", "percent=5", "drop"):
            seen = set()

            def complete():
                seen.update(talk.once([i for i in nodes if i not in seen]))
                return len(seen) == len(nodes)
            net.wait_until("an answer of everyone", complete, seconds=600)
    finally:
        stop.set()
        flusher.join()
    everyone(a, nodes)
    assert a.ping(b.ip4, count=20, flood=True).lost == 0
    # Withdrawn all at once, and made again.
    a.set_link("down")
    assert not vibfab.qps(A, vibfab.RC)
    a.set_link("up")
    net.wait_until("an answer", lambda: a.reaches(b.ip4))
    everyone(a, nodes)


@pytest.mark.parametrize("mtu", [0, 3, 4])
def test_peer_that_takes_nothing(a, mtu):
    """It says that it takes connections, and then that it takes no packet over them: it gets datagrams."""
    vibfab.ctl(f"far mtu {mtu}")
    requests = far()["requests"]
    net.wait_until("the refusal to be final", lambda: not a.reaches(address(0)) or far()["requests"] > requests + 1)
    assert a.ping(address(0), count=5).lost == 0
    out = a.run("ping", "-n", "-c", 3, "-i", 0.3, "-W", 1, "-s", 9000, "-M", "do", address(0), check=False).stdout
    assert "rag needed" in out or "mtu" in out, out
    assert up(a)[0] == 0


@pytest.mark.parametrize("mtu", [5, 100, 576, 0x7FFFFFFF, 0xFFFFFFFF])
def test_strange_mtu_of_a_peer(a, b, mtu):
    """What is longer than a peer takes does not go, whatever number it says; nobody else notices."""
    vibfab.ctl(f"far mtu {mtu}")
    a.reaches(address(1))
    net.wait_until("a connection", lambda: a.reaches(address(1)) or up(a)[0])
    for size in (1, 500, 3000, 60000):
        a.run("ping", "-q", "-n", "-c", 2, "-i", 0.2, "-W", 1, "-s", size, address(1), check=False)
    assert a.ping(b.ip4, count=5, size=1000).lost == 0


def test_refusals_of_all_kinds(a):
    """A refused peer is reached by datagram."""
    for reason in (1, 2, 5, 6, 8, 9, 10, 24, 28, 99, 65535):
        vibfab.ctl(f"far reject {reason}")
        requests = far()["requests"]
        i = 10 + reason % 97
        net.wait_until("a request", lambda n=i, r=requests: a.reaches(address(n)) and far()["requests"] > r)
        assert a.ping(address(i), count=3).lost == 0, reason
    assert up(a)[0] == 0
    vibfab.ctl("far reject 0")
    # Asked again in time.
    everyone(a, range(10))


@pytest.mark.parametrize("octets", [1, 4, 40])
def test_malformed_answers(a, b, octets):
    """Answers with random octets, each behind another message with the same ids: nodes that are sound again later
    have connections, and nothing is left of the rest."""
    vibfab.ctl(f"far fuzz {octets}")
    with Talk(a) as talk:
        for _ in range(15):
            talk.once(range(100))
        assert a.ping(b.ip4, count=5).lost == 0
        vibfab.ctl("far fuzz 0")
    everyone(a, range(100))
