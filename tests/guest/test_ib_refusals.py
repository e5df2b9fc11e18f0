"""A device that refuses what it usually does, or does nothing any more, while users change settings and close
interfaces."""

import contextlib
import itertools
import re

import pytest

import net
import vibfab
from child import Child
from driver import Debug, kernel_log

A, B = "vib0/1", "vib1/1"


@pytest.fixture(autouse=True)
def quiet(a, b):
    with vibfab.quiet(lambda: a.reaches(b.ip4)):
        yield


def coalescing(side):
    text = side.run("ethtool", "-c", side.iface).stdout
    return tuple(int(re.search(rf"^{key}:\s+(\d+)", text, re.MULTILINE)[1]) for key in ("rx-usecs", "rx-frames"))


def moderation(device):
    return [(c["mod_count"], c["mod_period"]) for c in vibfab.lines("state", "cq") if c["cq"] == device]


def test_coalescing_is_all_or_nothing(a):
    """Whichever queue's moderation the device refuses, all stay as they were, and so does what is shown; the answer
    says why, as it does for what is out of range (ETH-2)."""
    queues = len(Debug(a).queues)
    assert queues > 1
    a.run("ethtool", "-C", a.iface, "rx-usecs", 16, "rx-frames", 8)
    try:
        before = moderation("vib0")
        assert before.count((8, 16)) == queues
        for nth in range(1, queues + 1):
            vibfab.ctl(f"fail modify_cq {nth}")
            done = a.run("ethtool", "-C", a.iface, "rx-usecs", 99, "rx-frames", 77, check=False)
            assert done.returncode != 0 and "nothing has changed" in done.stderr, done.stderr
            assert not vibfab.lines("state", "fail")
            assert moderation("vib0") == before and coalescing(a) == (16, 8)
        done = a.run("ethtool", "-C", a.iface, "rx-usecs", 65536, check=False)
        assert done.returncode != 0 and "at most 65535" in done.stderr, done.stderr
        assert moderation("vib0") == before and coalescing(a) == (16, 8)
    finally:
        vibfab.ctl("fail modify_cq 0")
        a.run("ethtool", "-C", a.iface, "rx-usecs", 0, "rx-frames", 0)


def test_change_of_a_queue_is_refused_at_down(a, b):
    """One by one, each change of state of a queue pair is refused while the interface goes down: it goes down, and the
    next time that it is to go up it does."""
    for nth in itertools.count(1):
        vibfab.ctl(f"fail modify_qp {nth}")
        a.set_link("down")
        if vibfab.lines("state", "fail"):
            break
        assert {q["type"] for q in vibfab.qps(A) if q["state"] == vibfab.RTS} <= {vibfab.RC}
        a.set_link("up")
        net.wait_until("an answer", lambda: a.reaches(b.ip4))
    vibfab.ctl("fail modify_qp 0")
    # To ERR and to RESET, each.
    assert nth > 2 * len(Debug(b).queues)
    a.set_link("up")
    net.wait_until("an answer", lambda: a.reaches(b.ip4))


@pytest.mark.parametrize("told", [True, False])
def test_dead_device_is_not_waited_for_by_each(a, b, told):
    """Nothing comes from a device any more when interfaces are closed, which it has said or not: not each of the
    interfaces on it waits for long, since all that holds RTNL."""
    with contextlib.ExitStack() as stack:
        made = [Child(b, host=100 + i) for i in range(4)]
        for child in made:
            stack.callback(child.remove)
        for child in made:
            net.wait_until("the carrier", child.carrier)
        net.run(["dmesg", "-C"])
        names = {b.iface, *(child.iface for child in made)}
        queue_pairs = [f"qp {q['device']} {q['qpn']}" for q in vibfab.qps(B)]
        vibfab.ctl(*(f"{qp} hold recv" for qp in queue_pairs))
        if told:
            vibfab.ctl(f"port {B} event device_fatal")
            net.wait_until("the carrier to go", lambda: not b.carrier())
        b.set_link("down")
        for child in made:
            net.wait_until("the child to follow", lambda c=child: "UP" not in c.link()["flags"])
        lines = re.findall(r"\[ *(\d+\.\d+)\] (?:\S+ )*?(\S+): timing out; queue", kernel_log())
        first = {name: float(t) for t, name in reversed(lines)}
        assert set(first) == names
        ends = sorted(first.values())
        assert all(later - earlier < 5 for earlier, later in itertools.pairwise(ends)), first
        vibfab.ctl(*(f"{qp} release recv" for qp in queue_pairs), f"port {B} event port_active")
        b.set_link("up")
        net.wait_until("an answer", lambda: a.reaches(b.ip4))
        for child in made:
            net.wait_until("the carrier", child.carrier)
