"""Both drivers in one kernel (--driver both): ours on the first ports (sides A, B), the in-tree one on the second
(C, D)."""

import contextlib
import threading

import pytest

import net
import vibfab
from child import Child, exchange, reach_each_other, sysfs_write

PORTS = {"A": "vib0/1", "B": "vib1/1", "C": "vib0/2", "D": "vib1/2"}


@pytest.fixture(scope="session")
def c():
    return net.Side("C")


@pytest.fixture(scope="session")
def d():
    return net.Side("D")


@pytest.fixture(autouse=True)
def quiet(a, b, c, d):
    net.wait_until("a sound start", lambda: a.reaches(b.ip4) and c.reaches(d.ip4))
    yield
    vibfab.reset()
    assert vibfab.strict() == {}


def test_each_side_is_its_drivers_on_its_port(a, b, c, d):
    for side, driver in ((a, "ipoib_rs"), (b, "ipoib_rs"), (c, "ib_ipoib"), (d, "ib_ipoib")):
        info = side.run("ethtool", "-i", side.iface).stdout
        assert f"driver: {driver}" in info
        guid = f"{vibfab.port(PORTS[side.letter])['guid']:016x}"
        assert side.hwaddr.replace(":", "").endswith(guid)


@pytest.mark.parametrize("family", [4, 6])
def test_both_pairs_at_once(a, b, c, d, family):
    results = {}

    def work(src, dst):
        with net.FlowServer(dst) as server:
            results[src.letter] = server.run(src, flows=2, octets=2 << 20, both=True, family=family)
    threads = [threading.Thread(target=work, args=pair) for pair in ((a, b), (c, d))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert results == {"A": "2 flows ok", "C": "2 flows ok"}


def test_the_drivers_answer_each_other(a, c):
    """An address of the in-tree driver's network on our interface, and the other way round."""
    a.run("ip", "addr", "add", "10.81.0.1/24", "dev", a.iface)
    c.run("ip", "addr", "add", "10.81.0.3/24", "dev", c.iface)
    assert a.ping("10.81.0.3", count=20, flood=True).lost == 0
    assert c.ping("10.81.0.1", count=20, size=3000, flood=True).lost == 0
    a.run("ip", "addr", "del", "10.81.0.1/24", "dev", a.iface)
    c.run("ip", "addr", "del", "10.81.0.3/24", "dev", c.iface)


def test_a_group_with_members_of_both(a, b, c, d):
    """Everyone's broadcast reaches everyone."""
    sides = (a, b, c, d)
    for i, side in enumerate(sides, 1):
        side.run("ip", "addr", "add", f"10.82.0.{i}/24", "dev", side.iface)
        side.flush_neighbours()
    for src in sides:
        for i, dst in enumerate(sides, 1):
            if dst is not src:
                net.wait_until(f"{dst} to answer {src}", lambda s=src, n=i: s.reaches(f"10.82.0.{n}"))
    for i, side in enumerate(sides, 1):
        side.run("ip", "addr", "del", f"10.82.0.{i}/24", "dev", side.iface)


@contextlib.contextmanager
def children_of_both(sides, pkey):
    """A child of each side's in a partition that the ports get for it. The in-tree driver holds the kind of link, and
    takes an interface of ours for one of its own (TRAP-4): ours are made by sysfs."""
    vibfab.ctl(*(f"port {port} pkey 1 {pkey:#x}" for port in PORTS.values()), f"group {pkey:#x} add noevent")
    with contextlib.ExitStack() as stack:
        stack.callback(vibfab.ctl, f"group {pkey:#x} del", *(f"port {port} pkey 1 0" for port in PORTS.values()))
        made = {}
        for host, side in enumerate(sides, 1):
            if side.letter in "AB":
                assert sysfs_write(side, "create_child", f"{pkey:#x}\n").returncode == 0
                child = made[side.letter] = Child(side, name=f"{side.iface}.{pkey:04x}", host=host)
            else:
                child = made[side.letter] = Child(side, "pkey", f"{pkey:#x}", host=host)
            stack.callback(child.remove)
            if side.letter in "AB":
                stack.callback(sysfs_write, side, "delete_child", f"{pkey:#x}\n")
        yield made


def test_children_of_both_in_a_partition(a, b, c, d):
    """Unicast, multicast, fragments, TCP and UDP, with the P_Key of the partition in every frame; the children follow
    when the subnet manager starts over and when a peer's LID changes."""
    with children_of_both((a, b, c, d), 0x8002) as made:
        for one, other in (("A", "D"), ("B", "C"), ("A", "B"), ("C", "D")):
            reach_each_other(made[one], made[other])
        for ours, theirs in (("A", "D"), ("C", "B")):
            exchange(made[ours], made[theirs])
            vibfab.ctl("ring clear")
            for src, dst in ((ours, theirs), (theirs, ours)):
                assert made[src].ping(made[dst].ip4, count=3, size=10000).lost == 0
                assert made[src].ping(f"ff02::1%{made[src].iface}", count=3).received >= 3
            assert {p["pkey"] for p in vibfab.ring() if p["data"][:2] in (b"\x08\x00", b"\x86\xdd")} == {0x8002}
        for event in ("sm restart", "port vib1/2 lid 77", "port vib1/1 lid 78"):
            vibfab.ctl(event)
            vibfab.ctl("sm reregister")
            for one, other in (("A", "D"), ("B", "C")):
                reach_each_other(made[one], made[other])


def test_a_link_that_goes_concerns_its_own_driver_only(a, b, c, d):
    for port, broken, whole in (("vib1/1", (a, b), (c, d)), ("vib1/2", (c, d), (a, b))):
        vibfab.ctl(f"port {port} down")
        assert not broken[0].reaches(broken[1].ip4)
        assert whole[0].ping(whole[1].ip4, count=5).lost == 0
        vibfab.ctl(f"port {port} up")
        # While paths are being found anew a packet or two may be lost.
        net.wait_until("a sound link", lambda p=broken: p[0].ping(p[1].ip4, count=5).lost == 0)
