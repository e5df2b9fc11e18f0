"""Children with P_Keys of their own on InfiniBand ports, whose partitions are 0xffff, 0x8001 and 0x8002."""

import contextlib
import re
import time

import pytest

import mcast
import vibfab
from child import Child, children, exchange, reach_each_other, shown_kind, sysfs_read, sysfs_write
from driver import Debug
from net import run, wait_until

# Where the partitions stand in each port's P_Key table.
PLACE = {0xffff: 0, 0x8001: 1, 0x8002: 2}


@pytest.fixture(autouse=True)
def quiet():
    """Tests change the tables: as they were, afterwards."""
    yield
    vibfab.reset()
    for port in ("vib0/1", "vib1/1"):
        for key, place in PLACE.items():
            set_key(port, place, key)
        for place in range(3, 6):
            set_key(port, place, 0)


def set_key(port, place, key, *more):
    vibfab.ctl(" ".join([f"port {port} pkey {place} {key:#x}", *more]))


def carrier_off(child):
    return wait_until("the carrier to go", lambda: not child.carrier())


def test_partition_of_its_own(a, b):
    """Children in another partition reach each other there, in IPv4, IPv6, TCP and UDP, next to their parents; their
    frames carry their P_Key (the fabric delivers no other)."""
    with children(a, b, args=("pkey", "0x8001")) as (one, other):
        reach_each_other(one, other)
        assert one.link()["broadcast"][24:29] == "80:01"
        exchange(one, other)
        assert a.ping(b.ip4, count=100, flood=True).lost == 0
        assert any(re.match("ff12401b8001", g.replace(":", "")) for g in vibfab.groups()), vibfab.groups()
    assert not vibfab.strict()


def test_partitions_are_apart(a, b):
    """Of three children on either side, each reaches the one in its partition and no other."""
    keys = ("0xffff", "0x8001", "0x8002")
    with contextlib.ExitStack() as stack:
        made = {}
        for side, base in ((a, 10), (b, 20)):
            for i, key in enumerate(keys):
                made[side, key] = Child(side, "pkey", key, host=base + i)
                stack.callback(made[side, key].remove)
        for key in keys:
            reach_each_other(made[a, key], made[b, key])
        for mine in keys:
            for other in keys:
                if mine != other:
                    assert not made[a, mine].reaches(made[b, other].ip4), (mine, other)


def test_limited_spelling(a, b):
    """0x0001 is 0x8001 with another name for the same partition (PK-4); both spellings reach each other."""
    with contextlib.ExitStack() as stack:
        one = Child(a, "pkey", "0x0001")
        stack.callback(one.remove)
        other = Child(b, "pkey", "0x8001")
        stack.callback(other.remove)
        assert shown_kind(one, one.iface)[0] == "0x8001"
        reach_each_other(one, other)


def test_child_made_by_sysfs(a, b):
    """Made by create_child on one side and by netlink on the other: same partition, same traffic."""
    assert sysfs_write(a, "create_child", "1\n").returncode == 0
    one = Child(a, name=f"{a.iface}.0001")
    other = Child(b, "pkey", "0x8001")
    try:
        assert sysfs_read(one.run, one.iface, "pkey") == "0x8001"
        reach_each_other(one, other)
        # Deleted from the parent's namespace, wherever it is.
        assert sysfs_write(a, "delete_child", "0x8001\n").returncode == 0
        wait_until("the child to go", lambda: not one.run("ls", "/sys/class/net").stdout.count("ib"))
    finally:
        one.remove()
        other.remove()


def test_siblings_hear_each_other(a, b):
    """Two children of one parent with one P_Key reach each other and the far side, multicast included: no HCA's
    loopback is taken for an echo (B32, B33)."""
    with contextlib.ExitStack() as stack:
        made = [Child(a, host=1), Child(a, host=2), Child(b, host=3)]
        for child in made:
            stack.callback(child.remove)
        for child in made:
            for other in made:
                if child is not other:
                    reach_each_other(child, other)


def test_key_comes_late(a, b):
    """A child whose P_Key the port has not yet comes up by itself with the key: by its event, and also when the event
    was lost and only a reregister came (B43)."""
    for lost in (False, True):
        for port in ("vib0/1", "vib1/1"):
            set_key(port, PLACE[0x8001], 0)
        with children(a, b, args=("pkey", "0x8001")) as (one, other):
            assert "P_Key not found" in Debug(one).text
            assert not one.carrier()
            for port in ("vib0/1", "vib1/1"):
                set_key(port, 4, 0x8001, *(["noevent"] if lost else []))
                if lost:
                    vibfab.ctl(f"port {port} reregister")
            wait_until("carrier", one.carrier)
            reach_each_other(one, other)
        for port in ("vib0/1", "vib1/1"):
            set_key(port, 4, 0)


@pytest.mark.parametrize("state", ["up", "down"])
def test_waiting_for_a_key_is_quiet(a, state):
    """Interfaces whose P_Key is not there look for it now and then, not all the time: each look is a command to the
    device for every place of the table."""
    def looks():
        return vibfab.lines("state", "queries")[0]["n"]

    with children(a, a, a, args=("pkey", "0x8003")) as made:
        vibfab.ctl(f"port vib0/1 {state}")
        for child in made:
            assert "P_Key not found" in Debug(child).text
        before = looks()
        time.sleep(5)
        # A round is 16 for each of them, and comes once in five seconds, or when something happens.
        assert looks() - before < 1000
        vibfab.ctl("port vib0/1 up")
        set_key("vib0/1", 4, 0x8003)
        for child in made:
            wait_until("the key", lambda c=child: "P_Key not found" not in Debug(c).text)
        set_key("vib0/1", 4, 0)


def test_key_moves_and_goes(a, b):
    """A P_Key that moves in the table is followed; one that goes takes the carrier along, and the parent does not
    notice; back at its old place or at index 0 it works again (PK-13 to PK-15)."""
    with children(a, b, args=("pkey", "0x8001")) as (one, other):
        reach_each_other(one, other)
        changes = one.read(f"/sys/class/net/{one.iface}/carrier_down_count")
        set_key("vib0/1", 5, 0x8001)
        set_key("vib0/1", PLACE[0x8001], 0)
        reach_each_other(one, other)
        assert int(one.read(f"/sys/class/net/{one.iface}/carrier_down_count")) - int(changes) <= 1
        set_key("vib0/1", 5, 0)
        carrier_off(one)
        assert a.ping(b.ip4, count=50, flood=True).lost == 0
        assert "UP" in one.link()["flags"]
        set_key("vib0/1", PLACE[0x8001], 0x8001)
        wait_until("carrier", one.carrier)
        reach_each_other(one, other)


def test_limited_membership(a, b):
    """A port with the limited key only is found too (PK-1): a limited and a full member talk."""
    set_key("vib0/1", PLACE[0x8002], 0x0002)
    with children(a, b, args=("pkey", "0x8002")) as (one, other):
        assert shown_kind(one, one.iface)[0] == "0x8002"
        reach_each_other(one, other)


def test_events_reach_children(a, b):
    """LID change, port down and up, SM restart and reregister: children recover as their parents do."""
    with children(a, b, args=("pkey", "0x8001")) as (one, other):
        reach_each_other(one, other)
        for event in ("port vib1/1 lid 77", "sm restart", "port vib0/1 reregister"):
            vibfab.ctl(event)
            for family in (4, 6):
                wait_until(f"an answer after {event}", lambda f=family: one.reaches(other.address(f)))
            wait_until("the parents", lambda: a.reaches(b.ip4))
        vibfab.ctl("port vib0/1 down")
        carrier_off(one)
        vibfab.ctl("port vib0/1 up")
        wait_until("carrier", one.carrier)
        reach_each_other(one, other)


def test_device_unplugged(a, b, driver):
    """The HCA is unplugged with children in namespaces, and plugged in again."""
    with children(a, b, args=("pkey", "0x8001")) as (one, other):
        reach_each_other(one, other)
        assert sysfs_write(a, "create_child", "0x8002\n").returncode == 0
        vibfab.ctl("hca vib0 remove")
        assert one.iface not in one.run("ls", "/sys/class/net").stdout
        vibfab.ctl("hca vib0 add")
    driver.renew()
    with children(a, b, args=("pkey", "0x8001")) as (one, other):
        reach_each_other(one, other)


def test_failing_verbs(a, b):
    """Each verb that a child needs fails once while one is made (B12): the request is refused, nothing is left, and
    the next one works."""
    for verb in ("alloc_pd", "create_cq", "create_qp"):
        for nth in (1, 2):
            before = run(["rdma", "resource", "show"]).stdout
            vibfab.ctl(f"fail {verb} {nth}")
            done = a.run("ip", "link", "add", "link", a.iface, "name", "child0", "type", "ipoib", check=False)
            if done.returncode == 0:
                # With one queue there is no second protection domain.
                assert verb == "alloc_pd" and nth == 2, (verb, nth)
                vibfab.ctl(f"fail {verb} 0")
                a.run("ip", "link", "del", "dev", "child0")
            else:
                assert "emory" in done.stderr or "failed" in done.stderr or "rror" in done.stderr, done.stderr
            assert "child0" not in a.run("ls", "/sys/class/net").stdout
            assert run(["rdma", "resource", "show"]).stdout == before
    with children(a, b) as (one, other):
        reach_each_other(one, other)


def test_umcast(a, b):
    """With umcast set, a group that somebody else on the port has joined is left to him (MC-20): here the parent,
    who has the same P_Key. Cleared, the child joins by itself."""
    theirs, ours = "239.5.6.7", "239.5.6.8"

    def listen(side, group):
        side.run("ip", "addr", "add", group, "dev", side.iface, "autojoin")

    with children(a, args=("umcast", "1")) as (child,):
        wait_until("carrier", child.carrier)
        listen(a, theirs)
        try:
            wait_until("the parent to join", lambda: "complete true" in mcast.group(a, theirs))
            listen(child, theirs)
            listen(child, ours)
            wait_until("another group", lambda: "complete true" in mcast.group(child, ours))
            assert not mcast.group(child, theirs)
            assert sysfs_write(child, "umcast", "0\n").returncode == 0
            wait_until("the child to join", lambda: "complete true" in mcast.group(child, theirs))
        finally:
            a.run("ip", "addr", "del", theirs, "dev", a.iface)
