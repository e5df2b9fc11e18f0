"""Interfaces come and go: down and up, namespaces, devices, the module; always with traffic running."""

import contextlib
import json
import os
import pathlib
import re

from driver import MODULE, Debug, Stream, kernel_log, loaded
from net import run, wait_until

# What the routine run takes on a kernel with checkers is shorter.
SHORT = bool(os.environ.get("SUITE_SHORT"))
CYCLES = 15 if SHORT else 50
DOWN_UPS = 20 if SHORT else 100


def infiniband_links():
    """The IPoIB interfaces of the first namespace."""
    names = []
    for file in pathlib.Path("/sys/class/net").glob("*/type"):
        # An interface that goes at this moment has no type any more.
        with contextlib.suppress(OSError):
            if file.read_text().strip() == "32":
                names.append(file.parent.name)
    return names


def resources_of_ours():
    """What `rdma resource` lists as the module's."""
    out = ""
    for kind in ("qp", "cq", "pd", "mr"):
        out += run(["rdma", "resource", "show", kind]).stdout
    return [line for line in out.splitlines() if MODULE in line]


def memory_in_use():
    """Kernel memory that nothing can take back, in KiB."""
    run(["sh", "-c", "sync; echo 3 >/proc/sys/vm/drop_caches"])
    info = dict(re.findall(r"^(\w+):\s+(\d+)", pathlib.Path("/proc/meminfo").read_text(), re.MULTILINE))
    return int(info["MemTotal"]) - int(info["MemFree"]) - int(info["Cached"]) - int(info["Buffers"]) - int(
        info["AnonPages"])


def gone(side):
    return side.run("ip", "link", "show", "dev", side.iface, check=False).returncode != 0


def reachable(a, b):
    return wait_until("an answer", lambda: a.reaches(b.ip4))


def test_resources_are_named(a, b):
    """`rdma resource` shows the queue pairs, queues and the protection domain under the module's name."""
    lines = resources_of_ours()
    for kind, least in (("lqpn", 2), ("cqn", 4), ("pdn", 2)):
        assert sum(f" {kind} " in f" {line} " for line in lines) >= least, (kind, lines)


def test_down_and_up(a, b, driver):
    """Many times down and up under traffic, each side in turn: stop never hangs (B04), every open works again."""
    with Stream(a, b) as stream:
        for i in range(DOWN_UPS):
            side = (a, b)[i % 2]
            side.set_link("down")
            side.set_link("up")
            if i % 10 == 9:
                stream.flows(f"traffic after {i + 1} times")
        stream.flows()
    assert a.ping(b.ip4, count=200, flood=True).lost == 0
    assert all(q["running"] for s in (a, b) for q in Debug(s).queues)


def test_down_means_down(a, b, driver):
    """A down interface has no carrier, groups or neighbours left, and says so in debugfs; what the stack still
    hands over is dropped and nothing waits (NET-30)."""
    assert a.reaches(b.ip4)
    a.set_link("down")
    d = Debug(a)
    assert "\ndown" in d.text
    assert not d.groups and not d.neighbours and not any(q["running"] for q in d.queues)
    a.set_link("up")
    reachable(a, b)


def test_namespace_deleted(a, b, driver):
    """A namespace is deleted with the interface in it: that one returns to the first namespace (B15) with its
    address, is down, and works again; the log is clean and the module can go."""
    address, name = a.hwaddr, a.iface
    with Stream(b, a) as stream:
        stream.flows()
    run(["ip", "netns", "del", a.ns])
    wait_until("the interface to come back", lambda: name in infiniband_links())
    link = json.loads(run(["ip", "-j", "link", "show", "dev", name]).stdout)[0]
    assert link["address"] == address
    assert "UP" not in link["flags"]
    driver.down()
    wait_until("both interfaces to come back", lambda: len(infiniband_links()) == 2)
    driver.up()
    assert a.hwaddr == address
    assert a.ping(b.ip4).received == 3
    run(["ip", "netns", "del", a.ns])
    run(["ip", "netns", "del", b.ns])
    driver.unload()
    assert not loaded() and not infiniband_links()


def test_same_name_when_coming_back(a, b, driver):
    """Both interfaces come back from deleted namespaces under names that collide: one is renamed, none lost, and
    debugfs follows."""
    for side in (a, b):
        side.set_link("down")
        side.run("ip", "link", "set", "dev", side.iface, "name", "same0")
    for side in (a, b):
        run(["ip", "netns", "del", side.ns])
    wait_until("both interfaces to come back", lambda: len(infiniband_links()) == 2)
    driver.down()
    driver.up()
    assert a.ping(b.ip4).received == 3
    for side in (a, b):
        assert f"address: {side.hwaddr}" in Debug(side).text
    driver.renew()


def test_one_name_in_two_namespaces(a, b, driver):
    """Interfaces of one name in two namespaces have a debugfs file each; a name that is free again is used again."""
    files = pathlib.Path("/sys/kernel/debug/ipoib_rs")
    old = {side.letter: side.iface for side in (a, b)}
    for side in (a, b):
        side.set_link("down")
        side.run("ip", "link", "set", "dev", side.iface, "name", "same0")
    try:
        assert sorted(f.name for f in files.iterdir()) == ["same0", "same0.1"]
        for side, file in ((a, "same0"), (b, "same0.1")):
            address = side.run("cat", "/sys/class/net/same0/address").stdout.strip()
            assert f"address: {address}" in (files / file).read_text()
        a.run("ip", "link", "set", "dev", "same0", "name", "other0")
        assert sorted(f.name for f in files.iterdir()) == ["other0", "same0.1"]
        a.run("ip", "link", "set", "dev", "other0", "name", "same0")
        assert sorted(f.name for f in files.iterdir()) == ["same0", "same0.1"]
    finally:
        for side in (a, b):
            side.run("ip", "link", "set", "dev", "same0", "name", old[side.letter], check=False)
            side.forget_iface(old[side.letter])
            side.set_link("up")
    reachable(a, b)


def test_renamed_interface(a, b, driver):
    """The debugfs file follows the interface's name."""
    old = a.iface
    a.run("ip", "link", "set", "dev", old, "down")
    a.run("ip", "link", "set", "dev", old, "name", "renamed0")
    a.forget_iface("renamed0")
    try:
        assert Debug(a).text.startswith("port:")
        assert not pathlib.Path("/sys/kernel/debug/ipoib_rs", old).exists()
        assert a.link()["ifname"] == "renamed0"
    finally:
        a.run("ip", "link", "set", "dev", "renamed0", "name", old)
        a.forget_iface(old)
        a.set_link("up")
    reachable(a, b)


def test_device_removed(a, b, driver):
    """`rdma link delete` under traffic takes the interface away at once, also from its namespace; made again it
    comes back and works. The other side stays usable throughout."""
    name, link = a.port.split("/")[0], "v0"
    for _ in range(5):
        with Stream(a, b) as stream:
            stream.flows()
            run(["timeout", "120", "rdma", "link", "delete", name])
            wait_until("the interface to go", lambda: gone(a))
            assert all(f"dev {name} " not in f"{line} " for line in resources_of_ours())
            assert Debug(b).text.startswith("port:")
            run(["rdma", "link", "add", name, "type", "rxe", "netdev", link])
            driver.up_side(a)
            stream.flows("traffic over the new device")
    assert a.ping(b.ip4, count=100, flood=True).lost == 0


def test_underlay_deleted(a, b, driver):
    """The network device below goes away: so do both interfaces, without a trace in the log."""
    with Stream(a, b) as stream:
        stream.flows()
        run(["ip", "link", "del", "v0"])
        for side in (a, b):
            wait_until("the interface to go", lambda s=side: gone(s))
    driver.down()
    driver.step("fabric-up")
    driver.up()
    assert a.ping(b.ip4).received == 3


def test_underlay_in_deleted_namespace(a, b, driver):
    """The network device below lives in a namespace that is deleted: the clean-up, which has namespaces locked, takes
    the RDMA device and our interface away, and the machine can make namespaces afterwards."""
    name = a.port.split("/")[0]
    driver.down()
    for _ in range(3):
        run(["ip", "netns", "add", "below"])
        run(["rdma", "link", "delete", name])
        run(["ip", "link", "set", "v0", "netns", "below"])
        run(["ip", "netns", "exec", "below", "ip", "link", "set", "v0", "up"])
        run(["ip", "netns", "exec", "below", "rdma", "link", "add", name, "type", "rxe", "netdev", "v0"])
        wait_until("the interface", lambda: len(infiniband_links()) == 2)
        run(["ip", "netns", "del", "below"])
        wait_until("both ports' devices to go", lambda: not infiniband_links())
        # Stays stuck when the clean-up is.
        run(["timeout", "100", "ip", "netns", "add", "after"])
        run(["timeout", "100", "ip", "netns", "del", "after"])
        driver.step("fabric-up")
        wait_until("the interfaces", lambda: len(infiniband_links()) == 2)
    driver.up()
    assert a.ping(b.ip4).received == 3


def test_module_cycles_under_traffic(a, b, driver):
    """Many times rmmod and insmod with packets in flight. Afterwards nothing of ours is left (rdma resource),
    and memory is where it was after the first cycles: of 50, what leaks with a cycle would show 40 times."""
    start = 0
    for i in range(CYCLES):
        with Stream(a, b) as stream:
            stream.flows(f"traffic in cycle {i}")
            run(["timeout", "120", "rmmod", MODULE])
        if i == 9:
            start = memory_in_use()
        if i == CYCLES - 1:
            assert not resources_of_ours()
            assert not infiniband_links()
            # One receive ring is 256 buffers of a page and more: lost each time, it would be 40 MiB and more. What
            # the allocator keeps for each processor comes and goes by 12 MiB on a loaded machine.
            end = memory_in_use()
            print(f"memory in use: {start} KiB after 10 cycles, {end} KiB after {CYCLES}")
            assert end - start < 20480, f"{end - start} KiB more after {CYCLES - 10} cycles"
        driver.insert()
    assert not re.search(r"ipoib_rs.*(timing out|cannot reset)", kernel_log())
