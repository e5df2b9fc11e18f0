"""Connections that are open when something else goes: the module, the device, the address of the port."""

import pytest

import net
import vibfab
from driver import loaded

A, B = "vib0/1", "vib1/1"
SIZE = 20000


def open_both_ways(a, b):
    for side in (a, b):
        side.run("sh", "-c", f"echo connected | tee /sys/class/net/{side.iface}/mode")
    whole(a, b)


def whole(a, b):
    def large(src, dst):
        # While there was no connection the stack may have learned the datagram's MTU.
        src.run("ip", "route", "flush", "cache")
        return src.ping(dst.ip4, count=1, size=SIZE, extra=["-M", "do"]).lost == 0
    net.wait_until("large packets both ways", lambda: large(a, b) and large(b, a))


@pytest.fixture(autouse=True)
def connected(a, b, driver):
    with vibfab.quiet(lambda: a.reaches(b.ip4)):
        open_both_ways(a, b)
        floods = [src.start("ping", "-q", "-f", "-s", size, dst.ip4) for src, dst in ((a, b), (b, a))
                  for size in (100, SIZE)]
        yield
        for flood in floods:
            flood.kill()
            flood.wait()


def test_module_goes(a, b, driver):
    """Under traffic; nothing of it is left at the device, and it comes back."""
    for _ in range(3):
        net.run(["rmmod", "ipoib_rs"])
        assert not loaded()
        for port in (A, B):
            assert not vibfab.qps(port, vibfab.RC) and not vibfab.qps(port, vibfab.UD)
        assert vibfab.strict() == {}
        driver.insert()
        net.wait_until("an answer", lambda: a.reaches(b.ip4))
        open_both_ways(a, b)


def test_device_goes(a, b, driver):
    """The HCA of one side is unplugged; the other one's connections end, and start anew when it is back."""
    for _ in range(3):
        vibfab.ctl("hca vib1 remove")
        assert vibfab.strict() == {}
        vibfab.ctl("hca vib1 add")
        driver.up_side(b)
        net.wait_until("an answer", lambda: a.reaches(b.ip4))
        open_both_ways(a, b)


@pytest.mark.parametrize("port", [A, B])
def test_lid_changes(a, b, port):
    """Connections to the former LID break."""
    former = vibfab.port(port)["lid"]
    for lid in (77, former):
        vibfab.ctl(f"port {port} lid {lid}")
        whole(a, b)


def test_subnet_manager_starts_over(a, b):
    for _ in range(3):
        vibfab.ctl("sm restart")
        whole(a, b)


def test_partition_goes_and_comes(a, b):
    """What is sent over connections that are made later completes, also where no peer has asked for one."""
    b.run("sh", "-c", f"echo datagram | tee /sys/class/net/{b.iface}/mode")
    for _ in range(2):
        vibfab.ctl(f"port {A} pkey 0 0")
        net.wait_until("the end of all connections", lambda: not vibfab.qps(A, vibfab.RC))
        vibfab.ctl(f"port {A} pkey 0 0xffff")

        def large():
            a.run("ip", "route", "flush", "cache")
            return a.ping(b.ip4, count=1, size=SIZE, extra=["-M", "do"]).lost == 0
        net.wait_until("large packets", large)
        # More than a ring has slots.
        assert a.ping(b.ip4, count=200, size=SIZE, flood=True).lost == 0
