"""The control plane against ten thousand peers (fabric vibfab:far=10000), with a subnet administrator of bounded rate.

The figures are in the file `figures` of the run.
"""

import time

import pytest

import far
import net
import vibfab

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
def alone(c):
    """The in-tree driver asks for nothing while ours is looked at."""
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


def test_subnet_manager_restarts_under_traffic(a, known):
    """Memberships are renewed and paths asked for again while a thousand peers are sent to: no packet is lost."""
    bounded()
    for what in ("sm lid 40001", "sm reregister", "sm restart", "sm lid 1"):
        requests = far.Requests()
        lost = known.sweep(range(500))
        vibfab.ctl(what)
        start = time.monotonic()
        for _ in range(20):
            lost += known.sweep(range(1000))
        member = vibfab.port(a.port)["sw"]
        net.wait_until("the membership", lambda m=member: m in vibfab.groups()[BROADCAST]["members"])
        net.wait_until("the last query", lambda: far.queries_done(a), seconds=600, pause=0.5)
        far.say(f"{what}: lost {len(lost)} of 20500, {time.monotonic() - start:.1f} s until the last query, "
                f"{requests()}")
        assert lost == []
        assert each(requests, known) <= EACH
        assert requests()["joins"] <= 20


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
