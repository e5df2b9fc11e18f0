"""Allocations that fail: at load, at open, at an MTU change. Each may be refused, none may leave anything half-done."""

import errno
import os
import pathlib
import sys

from driver import MODULE, Debug, loaded
from net import run
from test_lifecycle import infiniband_links, reachable, resources_of_ours

PAGE = 4096
# More than any step needs: one that is still refused with this has another trouble.
ENOUGH = 64 << 20
SCARCE = [sys.executable, "-B", str(pathlib.Path(__file__).with_name("scarce.py"))]


def scarce(octets, *args, side=None):
    """(errno, how often the limit was hit) of one call with so much memory left."""
    cmd = [*SCARCE, str(octets), *(str(a) for a in args)]
    done = side.run(*cmd) if side else run(cmd)
    number, hits = done.stdout.split()
    return int(number), int(hits)


def until_unharmed(attempt):
    """Calls `attempt(octets)`, which returns (errno, hits), with ever more memory until the limit is not hit; returns
    how many times it was. The step grows: what fails late fails with much memory."""
    octets, harmed = 0, 0
    while octets <= ENOUGH:
        number, hits = attempt(octets)
        assert number in (0, errno.ENOMEM), os.strerror(number)
        if not hits:
            assert number == 0, f"{os.strerror(number)} with {octets} octets left and the limit not hit"
            return harmed
        harmed += 1
        octets += max(PAGE, octets // 4 // PAGE * PAGE)
    raise AssertionError("the limit is hit with all the memory that a step could need")


def test_load(a, b, driver):
    """The module is loaded with too little memory for its interfaces: it loads or says ENOMEM, has as many interfaces
    as it could make, and goes without a trace. With enough memory everything is there."""
    driver.down()
    driver.unload()
    interfaces = []

    def attempt(octets):
        result = scarce(octets, "load", os.environ["MODULE"], os.environ.get("FABRIC_PARAMS", ""))
        interfaces.append(len(infiniband_links()))
        assert loaded() == (result[0] == 0)
        if loaded():
            run(["rmmod", MODULE])
        assert not infiniband_links() and not resources_of_ours()
        assert not pathlib.Path("/sys/kernel/debug", MODULE).exists()
        return result

    assert until_unharmed(attempt) > 0
    assert min(interfaces) < 2, "no failure reached the making of an interface"
    assert interfaces[-1] == 2
    driver.load()
    driver.up()
    assert a.ping(b.ip4).received == 3


def test_open_and_mtu(a, b, driver):
    """Up, down and another MTU with too little memory: done or refused, and done when there is memory again."""
    for what, *args in (("down",), ("up",), ("mtu", 2044), ("mtu", 4092)):
        until_unharmed(lambda octets, w=what, r=args: scarce(octets, w, a.iface, *r, side=a))
    a.set_link("down")
    a.set_link("up")
    reachable(a, b)
    assert all(q["running"] for q in Debug(a).queues)
    assert a.ping(b.ip4, count=100, flood=True).lost == 0
