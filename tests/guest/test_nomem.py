"""Each allocation on the way fails once: no crash, no leak, the right error or a later success, and the next
attempt works. What leaks shows at the end of the boot (kmemleak); for kernels with fault injection."""

import os
import pathlib

import pytest

from driver import MODULE, loaded
from faults import KINDS, module_text, modules_area, sweep
from mcast import group, membership, udp
from net import run, wait_until
from test_lifecycle import gone, infiniband_links

NO_MEMORY = "Cannot allocate memory"
# One test makes thousands of attempts.
pytestmark = pytest.mark.timeout(3600)
kinds = pytest.mark.parametrize("kind", KINDS)


def settle(side, other, fired):
    """Waits until the sides reach each other or the failure has been."""
    wait_until("an answer or the failure", lambda: side.reaches(other.ip4) or fired())


def failed_for_memory(done):
    """Whether a command failed; then the reason must be the right one."""
    if done.returncode:
        assert NO_MEMORY in done.stderr, done.stderr
    return done.returncode != 0


@kinds
def test_open(a, b, driver, kind):
    """Interface up: either that fails, and works the next time, or the traffic starts without anybody's help."""
    a.set_link("down")

    def attempt(fired):
        done = a.run("ip", "link", "set", "dev", a.iface, "up", check=False)
        if done.returncode == 0:
            settle(a, b, fired)
        return done

    def repair(done):
        if failed_for_memory(done):
            a.set_link("up")
        wait_until("an answer", lambda: a.reaches(b.ip4))
        a.set_link("down")

    print(sweep(kind, module_text, attempt, repair), "allocations")
    a.set_link("up")


@kinds
def test_mtu_change(a, b, driver, kind):
    """MTU changes of an interface that is up: a refused one leaves the old MTU and working rings."""
    mtus = iter([2044, 4092] * 10000)

    def attempt(fired):
        before, mtu = a.mtu, next(mtus)
        done = a.run("ip", "link", "set", "dev", a.iface, "mtu", mtu, check=False)
        assert a.mtu == (before if done.returncode else mtu)
        settle(a, b, fired)
        return done

    def repair(done):
        failed_for_memory(done)
        wait_until("an answer", lambda: a.reaches(b.ip4))
        wait_until("full frames", lambda: a.ping(b.ip4, count=3, size=a.mtu - 28, extra=["-M", "do"]).received == 3)

    print(sweep(kind, module_text, attempt, repair), "allocations")


@kinds
def test_path_resolution(a, b, driver, kind):
    """Neighbours that must be found again, on both sides."""

    def attempt(fired):
        for side in (a, b):
            side.flush_neighbours()
        settle(a, b, fired)

    def repair(_):
        wait_until("an answer", lambda: a.reaches(b.ip4) and b.reaches(a.ip4))

    print(sweep(kind, module_text, attempt, repair), "allocations")


def test_join(a, b, driver):
    """Sockets join a group and leave it."""
    address = "239.9.8.7"
    sock, index = udp(a, 4)

    def member():
        return "member true joining false attached true" in group(a, address)

    def attempt(fired):
        try:
            membership(sock, 4, address, index)
        except OSError as e:
            assert "memory" in e.strerror or "buffer" in e.strerror, e
            return e
        wait_until("the membership or the failure", lambda: member() or fired())
        return None

    def repair(error):
        if error:
            membership(sock, 4, address, index)
        wait_until("the membership", member)
        membership(sock, 4, address, index, join=False)
        wait_until("the leave", lambda: group(a, address) == "")

    with sock:
        print(sweep("failslab", module_text, attempt, repair), "allocations")


@kinds
def test_device_added(a, b, driver, kind):
    """A device appears: with the interface, or without it and with one when it appears the next time."""
    name = a.port.split("/")[0]

    def delete():
        run(["timeout", "120", "rdma", "link", "delete", name])
        wait_until("the interface to go", lambda: gone(a))

    def add(check):
        return run(["rdma", "link", "add", name, "type", "rxe", "netdev", "v0"], check=check)

    def attempt(fired):
        return add(check=False)

    def repair(done):
        if done.returncode or len(infiniband_links()) != 1:
            if done.returncode == 0:
                run(["rdma", "link", "delete", name])
            add(check=True)
        driver.up_side(a)
        wait_until("an answer", lambda: a.reaches(b.ip4))
        delete()

    delete()
    print(sweep(kind, module_text, attempt, repair), "allocations")
    add(check=True)
    driver.up_side(a)


@kinds
def test_module_load(a, b, driver, kind):
    """The module is loaded, with two devices there: without memory for the first it does not load, or loads without
    an interface; the next time all is there."""
    driver.down()
    driver.unload()
    command = ["insmod", os.environ["MODULE"], *os.environ.get("FABRIC_PARAMS", "").split()]

    def attempt(fired):
        return run(command, check=False)

    def repair(done):
        if failed_for_memory(done):
            assert not loaded() and not infiniband_links()
        else:
            run(["rmmod", MODULE])
        assert not pathlib.Path("/sys/kernel/debug", MODULE).exists()
        run(command)
        assert len(infiniband_links()) == 2
        run(["rmmod", MODULE])

    print(sweep(kind, modules_area, attempt, repair), "allocations")
    driver.load()
    driver.up()
