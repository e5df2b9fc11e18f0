"""The control plane against ten thousand peers (fabric vibfab:far=10000), with a subnet administrator of bounded rate.

`--driver both`: ours on side A, and the in-tree driver on side C for comparison. The figures are in the file `figures`
of the run.
"""

import ctypes
import socket
import time

import pytest

import far
import net
import vibfab
from driver import Debug

# As in the simulator's table of the README.
RATE, ROOM = 100, 1000
# Requests for each peer, repetitions included, that are not too many.
EACH = 1.2
BROADCAST = "ff12:401b:ffff:0000:0000:0000:ffff:ffff"


@pytest.fixture(scope="module")
def c():
    return net.Side("C")


@pytest.fixture(autouse=True)
def quiet(a):
    vibfab.reset()
    far.room_for_neighbours(a)
    yield
    vibfab.reset()
    assert vibfab.strict() == {}


@pytest.fixture(autouse=True)
def alone(request, c):
    """The in-tree driver asks for nothing while ours is looked at."""
    if "in_tree" not in request.node.name:
        c.set_link("down")


def anew(side):
    """The side knows nobody."""
    side.set_link("down")
    side.flush_neighbours()
    side.set_link("up")
    net.wait_until("the carrier", side.carrier)


@pytest.fixture
def peers(a):
    found = far.Peers(a, far.nodes())
    yield found
    found.close()


@pytest.fixture
def known(a, peers):
    """All peers are resolved."""
    done, _ = peers.contact(300)
    assert done == peers.count
    net.wait_until("the last query", lambda: far.queries_done(a), seconds=300, pause=0.5)
    return peers


def bounded():
    vibfab.ctl(f"sa rate {RATE}", f"sa room {ROOM}")


def each(requests, peers):
    return requests()["paths"] / peers.count


def test_everybody_at_once(a, peers):
    """All peers are sent to at once: all are resolved, nothing is lost without a reason, and it goes as the simulator
    says. Once they are resolved nothing is lost at all."""
    anew(a)
    bounded()
    requests, ledger = far.Requests(), far.Ledger(peers)
    done, seconds = peers.contact(600)
    count = each(requests, peers)
    drops = ledger.settle()
    resolved, simulated, took = far.predicted("ipoib_rs")
    far.say(f"ipoib_rs, IPv4, SA {RATE}/s: {done} peers in {seconds:.1f} s, {count:.2f} path queries for each; "
            f"dropped {drops}; SA {requests()}")
    far.say(f"simulator: {resolved} peers in {took} s, {simulated} for each")
    assert done == peers.count == resolved
    assert count <= EACH
    # The guest's stack asks for addresses first, and its clock ticks: a quarter more or less.
    assert 0.75 <= seconds / took <= 1.25
    assert 0.8 <= count / simulated <= 1.25
    ledger = far.Ledger(peers)
    assert peers.sweep() == []
    assert ledger.settle() == {}


def test_subnet_manager_restarts_under_traffic(a, known):
    """Memberships are renewed and paths asked for again while a thousand peers are sent to: no packet is lost."""
    bounded()
    for what in ("sm lid 40001", "sm reregister", "sm restart", "sm lid 1"):
        # All thousand are in use: while the last queries were waited for, some were forgotten.
        lost = known.sweep(range(1000))
        requests, ledger = far.Requests(), far.Ledger(known)
        vibfab.ctl(what)
        start = time.monotonic()
        for _ in range(20):
            lost += known.sweep(range(1000))
        member = vibfab.port(a.port)["sw"]
        net.wait_until("the membership", lambda m=member: m in vibfab.groups()[BROADCAST]["members"])
        net.wait_until("the last query", lambda: far.queries_done(a), seconds=600, pause=0.5)
        far.say(f"{what}: lost {len(lost)} of 21000, {time.monotonic() - start:.1f} s until the last query, "
                f"{requests()}; dropped {ledger.settle()}")
        assert lost == []
        assert each(requests, known) <= EACH
        assert requests()["joins"] <= 20


def test_all_lids_change(a, known):
    """Every peer moves, and the subnet manager has everybody register again: all are found. What goes to the old LIDs
    until the answer comes is lost in the fabric, without our knowledge."""
    bounded()
    for lid in (20000, 0x1000):
        requests = far.Requests()
        vibfab.ctl(f"far lid {lid}", "sm reregister")
        done, seconds = known.contact(600)
        net.wait_until("the last query", lambda: far.queries_done(a), seconds=600, pause=0.5)
        count = each(requests, known)
        far.say(f"all LIDs change: {done} peers again in {seconds:.1f} s, {count:.2f} path queries for each")
        assert done == known.count
        assert count <= EACH
        assert known.sweep() == []


def test_pkey_changes(a, known):
    """The P_Key goes and comes back under traffic to all peers."""
    bounded()
    ledger = far.Ledger(known)
    vibfab.ctl(f"port {a.port} pkey 0 0")
    net.wait_until("the carrier to go", lambda: not a.carrier())
    vibfab.ctl(f"port {a.port} pkey 0 0xffff")
    requests = far.Requests()
    done, seconds = known.contact(600)
    far.say(f"P_Key goes and comes: {done} peers again in {seconds:.1f} s, {each(requests, known):.2f} path queries "
            f"for each; dropped {ledger.settle()}")
    assert done == known.count
    assert each(requests, known) <= EACH
    assert known.sweep() == []


def test_memory_comes_back(a, peers):
    """What a peer costs, and that unused ones go with all they had."""
    anew(a)
    a.reaches(peers.addresses[0][0])
    time.sleep(2)
    empty, before = far.tables(a), far.slab()
    assert peers.contact(300)[0] == peers.count
    a.flush_neighbours()
    time.sleep(2)
    full, octets = far.tables(a), far.slab()
    assert full["neighbours"] >= peers.count and full["paths"] >= peers.count
    start = time.monotonic()
    net.wait_until("the unused to go", lambda: far.tables(a)["paths"] <= empty["paths"] + 1, seconds=600, pause=1)
    aged = time.monotonic() - start
    time.sleep(2)
    left = far.slab() - before
    far.say(f"memory: {(octets - before) / peers.count:.0f} octets for each of {peers.count} peers with the device's "
            f"address handle; all gone after {aged:.0f} s, {left} octets more than before; {full} then {far.tables(a)}")
    assert far.tables(a)["neighbours"] <= empty["neighbours"] + 1
    assert left < (octets - before) / 20


def test_everybody_at_once_ipv6(a):
    """The same by neighbour discovery, which wants a group for each peer besides: two requests for each."""
    anew(a)
    peers = far.Peers(a, far.nodes(), family=6)
    bounded()
    requests = far.Requests()
    # The stack gives an address up after three seconds, and drops what waits for it without our knowledge. Sending more
    # often to thousands that wait would only measure how fast the stack does so.
    done, seconds = peers.contact(900, every=4)
    count = each(requests, peers)
    total = requests()
    far.say(f"ipoib_rs, IPv6, SA {RATE}/s: {done} peers in {seconds:.1f} s, {count:.2f} path queries for each; "
            f"dropped {Debug(a).drops('tx')}; SA {total}")
    assert done == peers.count
    assert count <= EACH and total["joins"] <= EACH * peers.count
    # The administrator was never idle: two requests for each, and a quarter for what the stack's own retries cost.
    assert seconds <= 1.25 * 2 * peers.count / RATE
    assert peers.sweep() == []
    peers.close()


def test_the_in_tree_driver(a, c):
    """For comparison: it is the simulator's model of it that is judged."""
    a.set_link("down")
    far.room_for_neighbours(c)
    c.set_link("up")
    net.wait_until("the carrier", c.carrier)
    peers = far.Peers(c, far.nodes())
    bounded()
    requests = far.Requests()
    done, seconds = peers.contact(120)
    total = requests()
    resolved, simulated, _ = far.predicted("in-tree, as of 6.14")
    far.say(f"ib_ipoib, IPv4, SA {RATE}/s: {done} peers in 120 s, the last after {seconds:.1f} s, "
            f"{total['paths'] / max(1, done):.2f} path queries for each; SA {total}")
    far.say(f"simulator of its policy: {resolved} peers in 120 s, {simulated} for each")
    peers.close()
    c.set_link("down")
    vibfab.ctl("sa clear")
    net.wait_until("an empty queue", lambda: vibfab.sa()["queued"] == 0, seconds=300)
    a.set_link("up")
    c.set_link("up")
    assert 0.75 <= done / resolved <= 1.25
    assert 0.75 <= total["paths"] / done / simulated <= 1.25


class Message(ctypes.Structure):
    """struct mmsghdr; its own length is behind the padding of the structure in it"""
    _fields_ = [("name", ctypes.c_void_p), ("namelen", ctypes.c_uint), ("iov", ctypes.c_void_p),
                ("iovlen", ctypes.c_size_t), ("control", ctypes.c_void_p), ("controllen", ctypes.c_size_t),
                ("flags", ctypes.c_size_t), ("len", ctypes.c_size_t)]


class Vector(ctypes.Structure):
    """struct iovec"""
    _fields_ = [("base", ctypes.c_void_p), ("len", ctypes.c_size_t)]


def packet_cost(side, addresses, count=10000):
    """Instructions for each packet of an IP protocol that nobody answers, sent to the addresses in turn."""
    # An address of the family, a port of no meaning, the address, eight octets of nothing.
    names = [socket.AF_INET.to_bytes(2, "little") + bytes(2) + socket.inet_aton(address) + bytes(8)
             for address, _ in addresses]
    table = ctypes.create_string_buffer(b"".join(names), 16 * len(names))
    data = ctypes.create_string_buffer(64)
    vector = Vector(ctypes.addressof(data), 64)
    first, gather = ctypes.addressof(table), ctypes.addressof(vector)
    messages = (Message * count)(*(Message(first + 16 * (i % len(names)), 16, gather, 1) for i in range(count)))
    libc = ctypes.CDLL(None, use_errno=True)
    with net.netns(side.ns):
        s = socket.socket(socket.AF_INET, socket.SOCK_RAW, 253)
    s.setsockopt(socket.SOL_SOCKET, far.SO_SNDBUFFORCE, 1 << 26)
    costs = []
    for _ in range(4):
        start = time.monotonic_ns()
        at = 0
        while at < count:
            part = ctypes.byref(messages, at * ctypes.sizeof(Message))
            done = libc.sendmmsg(s.fileno(), part, min(1000, count - at), 0)
            assert done > 0, ctypes.get_errno()
            at += done
        costs.append((time.monotonic_ns() - start) / count)
    s.close()
    return min(costs)


def test_cost_of_a_look_up(a, peers):
    """A packet costs the same whether it goes to one of ten peers or to one of ten thousand."""
    anew(a)
    few = far.Peers(a, 10)
    assert few.contact(60)[0] == 10
    little = packet_cost(a, few.addresses)
    few.close()
    assert peers.contact(300)[0] == peers.count
    assert peers.sweep() == []
    assert far.queries_done(a)
    middle = Debug(a).drops("tx")
    much = packet_cost(a, peers.addresses)
    after = Debug(a).drops("tx")
    far.say(f"instructions for each packet: {little:.0f} with 10 peers, {much:.0f} with {peers.count}, "
            f"{100 * much / little - 100:+.1f} %")
    assert after == middle, "what is dropped costs less"
    assert far.tables(a)["neighbours"] >= peers.count
    assert much <= 1.15 * little
