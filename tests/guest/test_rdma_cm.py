"""A kernel consumer of the RDMA connection manager (tests/vibfab's third module, vibcm) on the interfaces: it finds its
peer by an IP address, and the request finds the interface that it is for (facts CMA-1 to CMA-6)."""

import contextlib
import os
import pathlib

import pytest

import net
import vibfab
from child import Child, children, reach_each_other

MODULE = pathlib.Path("/src/build/stock-vibfab/vibcm.ko")
FILES = pathlib.Path("/sys/kernel/debug/vibcm")
PORT = 7471


@pytest.fixture(scope="module", autouse=True)
def loaded():
    net.run(["modprobe", "rdma_cm"])
    net.run(["insmod", str(MODULE)])
    yield
    net.run(["rmmod", "vibcm"])


@pytest.fixture(autouse=True)
def quiet(a, b):
    net.wait_until("a sound start", lambda: a.reaches(b.ip4))
    yield
    command(a, "stop")
    assert vibfab.strict() == {}


def command(side, *words):
    """One command of vibcm's, in the side's namespace; its failure is an OSError."""
    with net.netns(side.ns):
        vibfab.write(FILES / "run", " ".join(map(str, words)))


def listen(side, family=4, port=PORT):
    command(side, "listen", {4: "0.0.0.0", 6: "::"}[family], port)


def connect(src, address, messages=20, port=PORT):
    command(src, "connect", address, port, messages)
    return {line["role"]: line for line in vibfab.read_lines(FILES / "result")}


def gid(side):
    return side.hwaddr.replace(":", "")[8:]


def check_ends(seen, client, server, pkey):
    """Whether both ends used the interfaces of these sides."""
    for role, side, peer in (("client", client, server), ("server", server, client)):
        assert int(seen[role]["ifindex"]) == side.link()["ifindex"], (role, seen)
        assert seen[role]["pkey"] == pkey, (role, seen)
        assert seen[role]["sgid"].replace(":", "") == gid(side), (role, seen)
        assert seen[role]["dgid"].replace(":", "") == gid(peer), (role, seen)


@pytest.mark.parametrize("family", [4, 6])
def test_connection_by_address(a, b, family):
    """Address and route are resolved, the peer accepts, messages come back whole; in both directions. Not towards our
    interface when ib_ipoib has one on the same port: it was loaded first, so it is asked first whom a request is for,
    and names its only interface there without a look at the address."""
    for src, dst in ((a, b),) if os.environ["GUEST_DRIVER"] == "mixed" else ((a, b), (b, a)):
        listen(dst, family)
        seen = connect(src, dst.address(family), messages=100)
        check_ends(seen, src, dst, 0xffff)
        command(a, "stop")


def test_many_connections(a, b):
    """One after the other; nothing is left of them, and IP goes on."""
    before = net.run(["rdma", "resource", "show"]).stdout
    listen(b)
    for _ in range(30):
        connect(a, b.ip4, messages=2)
    command(a, "stop")
    net.wait_until("the end of them", lambda: net.run(["rdma", "resource", "show"]).stdout == before)
    assert a.ping(b.ip4, count=50, flood=True).lost == 0


def test_refused(a, b):
    """Nobody listens; nobody has the address; the interface is down: an error, and later it works."""
    with pytest.raises(OSError):
        connect(a, b.ip4)
    listen(b)
    with pytest.raises(OSError):
        connect(a, b.ip4, port=PORT + 1)
    b.set_link("down")
    # The neighbour is still known, so that the request goes out.
    with pytest.raises(OSError):
        connect(a, b.ip4)
    b.set_link("up")
    net.wait_until("an answer", lambda: a.reaches(b.ip4))
    check_ends(connect(a, b.ip4), a, b, 0xffff)


def test_child_in_another_partition(a, b):
    """The P_Key of the request tells which interface it is for."""
    with children(a, b, args=("pkey", "0x8001")) as (one, other):
        reach_each_other(one, other)
        listen(other)
        check_ends(connect(one, other.ip4), one, other, 0x8001)
        # Nobody listens in the parent's namespace.
        with pytest.raises(OSError):
            connect(a, b.ip4)
        listen(b)
        check_ends(connect(a, b.ip4), a, b, 0xffff)


def test_several_with_one_pkey(a, b):
    """P_Key and GID are the same: the IP address tells."""
    with contextlib.ExitStack() as stack:
        near = Child(a, host=1)
        stack.callback(near.remove)
        far = [Child(b, host=host) for host in (11, 12)]
        for child in far:
            stack.callback(child.remove)
        stack.callback(command, a, "stop")
        for child in far:
            reach_each_other(near, child)
            listen(child)
        listen(b)
        for child in (*far, *reversed(far)):
            check_ends(connect(near, child.ip4), near, child, 0xffff)
        check_ends(connect(a, b.ip4), a, b, 0xffff)


def test_listener_behind_a_vrf(a, b):
    """An interface in a VRF stays the one that requests are for (B64)."""
    b.run("ip", "link", "add", "vrf0", "type", "vrf", "table", "77")
    try:
        b.run("ip", "link", "set", "vrf0", "up")
        b.run("ip", "link", "set", "dev", b.iface, "master", "vrf0")
        net.wait_until("an answer", lambda: a.reaches(b.ip4))
        listen(b)
        check_ends(connect(a, b.ip4), a, b, 0xffff)
    finally:
        b.run("ip", "link", "set", "dev", b.iface, "nomaster")
        b.run("ip", "link", "del", "vrf0")


def test_across_changes_of_the_subnet(a, b):
    """The subnet manager starts over, the peer gets another LID: connections are made as before."""
    old = vibfab.port("vib1/1")["lid"]
    listen(b)
    for change in ("sm restart", "port vib1/1 lid 77", f"port vib1/1 lid {old}"):
        vibfab.ctl(change)
        net.wait_until("an answer", lambda: a.reaches(b.ip4))
        check_ends(connect(a, b.ip4), a, b, 0xffff)
