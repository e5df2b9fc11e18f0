"""Children: further interfaces on a port, by netlink and by sysfs. Soft-RoCE ports have one P_Key, 0xffff, so that
children that carry traffic here have their parent's; others are up without carrier."""

import contextlib
import json
import os
import pathlib
import re
import subprocess
import threading

import pytest

from child import (Child, add_link, children, del_link, exchange, features, in_ns, queues, reach_each_other, shown_kind,
                   sysfs_read, sysfs_write)
from driver import DEBUGFS, MODULE, Debug, Driver, kernel_log
from net import Side, run, wait_until


@pytest.fixture(scope="module", autouse=True)
def as_found():
    """The module's world as it was, once at the end: loading takes seconds."""
    yield
    Driver(Side("A"), Side("B")).renew()


def ipoib_links(where=run):
    """Names of the IPoIB interfaces in a namespace."""
    links = json.loads(where(["ip", "-j", "link"]).stdout)
    return {x["ifname"] for x in links if x["link_type"] == "infiniband"}


def links_in(ns):
    return ipoib_links(lambda cmd: run(["ip", "netns", "exec", ns, *cmd]))


def test_traffic_between_children(a, b):
    """Children with the parent's P_Key, made straight in other namespaces, reach each other by IPv4 and IPv6, and
    so do their parents, all at once; ICMP, TCP and UDP."""
    with children(a, b) as (one, other):
        reach_each_other(one, other)
        exchange(one, other)
        assert a.ping(b.ip4, count=100, flood=True).lost == 0
        rx, tx = one.stats()["rx"]["packets"], one.stats()["tx"]["packets"]
        assert rx > 400 and tx > 400


def test_several_children(a, b):
    """Four children of one parent with one P_Key, each its own station: own address, own QPN, all reachable at
    once from one child on the other side."""
    with contextlib.ExitStack() as stack:
        far = Child(b, host=200)
        stack.callback(far.remove)
        near = []
        for host in range(1, 5):
            near.append(Child(a, host=host))
            stack.callback(near[-1].remove)
        for child in near:
            reach_each_other(child, far)
        numbers = {child.hwaddr[3:11] for child in near} | {a.hwaddr[3:11]}
        assert len(numbers) == 5
        assert {child.hwaddr[12:] for child in near} == {a.hwaddr[12:]}
        for child in near:
            assert far.ping(child.ip4, count=20, flood=True).lost == 0


def test_child_looks_like_its_parent(a, b):
    """Kind and attributes, MTU, queues, features, broadcast address, links to the parent (PK-8, PK-10, NL-2)."""
    with children(a) as (child,):
        wait_until("carrier", child.carrier)
        assert shown_kind(a, a.iface) == shown_kind(child, child.iface) == ("0xffff", "datagram", "0000")
        mine, parents = child.link(), a.link()
        for key in ("mtu", "broadcast", "txqlen", "link_type", "max_mtu", "min_mtu"):
            assert mine[key] == parents[key], key
        index = int(sysfs_read(a.run, a.iface, "ifindex"))
        assert mine["link_index"] == index and "link_netnsid" in mine
        assert int(sysfs_read(child.run, child.iface, "iflink")) == index
        assert int(sysfs_read(a.run, a.iface, "iflink")) == index
        assert queues(child.run, child.iface) == queues(a.run, a.iface)
        assert features(child.run, child.iface) == features(a.run, a.iface)
        assert sysfs_read(child.run, child.iface, "dev_id") == "0x0"
        assert Debug(child).text.startswith("port: ")
    assert not (DEBUGFS / child.iface).exists()


def test_same_by_either_way(a, b):
    """A child is the same whether netlink or sysfs made it: P_Key, queues, features, files, kind, MTU."""
    assert sysfs_write(a, "create_child", "0x8007\n").returncode == 0
    try:
        add_link(a, "twin", "pkey", "0x8007")
        try:
            seen = []
            for name in (f"{a.iface}.8007", "twin"):
                link = json.loads(a.run("ip", "-j", "-d", "link", "show", "dev", name).stdout)[0]
                files = set(a.run("ls", f"/sys/class/net/{name}").stdout.split())
                seen.append({
                    "kind": shown_kind(a, name), "mtu": link["mtu"], "broadcast": link["broadcast"],
                    "queues": queues(a.run, name), "features": features(a.run, name), "files": files,
                    "txqlen": link["txqlen"], "allocated": (link["num_tx_queues"], link["num_rx_queues"]),
                    "link": link["link"], "texts": [sysfs_read(a.run, name, f) for f in ("mode", "pkey", "umcast",
                                                                                         "parent", "dev_id")]})
            assert seen[0] == seen[1]
            assert seen[0]["texts"] == ["datagram", "0x8007", "0", a.iface, "0x0"]
            assert {"mode", "pkey", "umcast", "parent"} <= seen[0]["files"]
            assert "create_child" not in seen[0]["files"]
        finally:
            del_link(a, "twin")
    finally:
        assert sysfs_write(a, "delete_child", "0x8007\n").returncode == 0
    wait_until("the child to go", lambda: f"{a.iface}.8007" not in links_in(a.ns))


REFUSED = {
    "no link": (["--"], "", "a child needs a parent"),
    "another driver's": (["--"], "lo", "no interface of this driver"),
    "P_Key 0": (["--", "pkey", "0"], None, "P_Key must be"),
    "P_Key 0x8000": (["--", "pkey", "0x8000"], None, "P_Key must be"),
    "long address": (["address", ":".join(["02"] * 21), "--"], None, "address must have 20 octets"),
    "MTU too small": (["mtu", "71", "--"], None, "MTU is out of the range"),
    "MTU too large": (["mtu", "60000", "--"], None, "MTU is out of the range"),
    "MTU far too large": (["mtu", "70000", "--"], None, "mtu greater than device maximum"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refused_with_reason(a, what):
    """Each refusal by netlink says why, and leaves nothing behind (B12)."""
    args, lower, reason = REFUSED[what]
    before = links_in(a.ns)
    done = add_link(a, "refused0", *args, lower=lower, check=False)
    assert done.returncode != 0
    assert reason in done.stderr, done.stderr
    assert links_in(a.ns) == before


def test_no_child_of_a_child(a):
    """As the facts say: -EINVAL, with a reason (PK-7)."""
    add_link(a, "child0")
    try:
        done = add_link(a, "grandchild0", lower="child0", check=False)
        assert done.returncode != 0 and "disallowed" in done.stderr, done.stderr
        assert "grandchild0" not in links_in(a.ns)
        assert sysfs_write(a, "create_child", "1\n", iface="child0").returncode != 0
    finally:
        del_link(a, "child0")


def test_address_and_mtu_asked_for(a, b):
    """An MTU is taken over. An address cannot be: the visible one is the true one, and the answer says so (B56)."""
    wanted = "80:00:00:00:fe:80:00:00:00:00:00:00:00:11:22:33:44:55:66:77"
    done = add_link(a, "child0", "mtu", "1500", "address", wanted, "--")
    try:
        assert "address not taken over" in done.stderr, done.stderr
        link = json.loads(a.run("ip", "-j", "link", "show", "dev", "child0").stdout)[0]
        assert link["mtu"] == 1500
        assert link["address"][12:] == a.hwaddr[12:] and link["address"] != a.hwaddr
        done = add_link(a, "child1", "address", link["address"], "--")
        assert "address not taken over" in done.stderr, "another queue pair, another address"
        del_link(a, "child1")
    finally:
        del_link(a, "child0")


def test_queue_counts_asked_for(a, b):
    """More queues than the device has are allocated but not used, fewer are obeyed (B22); traffic runs over both,
    multicast and IPv6 included."""
    most = queues(a.run, a.iface)
    for count, expected in ((64, most), (1, ["rx-0", "tx-0"])):
        one = Child(a, "numtxqueues", count, "numrxqueues", count, "--")
        other = Child(b)
        try:
            assert queues(one.run, one.iface) == expected
            reach_each_other(one, other)
            assert one.ping(other.ip4, count=50, flood=True).lost == 0
            assert one.ping(f"ff02::1%{one.iface}", count=3).received >= 1
        finally:
            one.remove()
            other.remove()


def test_change_link(a):
    """Changes by netlink (NL-3): mode and umcast, for parents and children; the P_Key stays, as the answer says."""
    add_link(a, "child0")
    try:
        for name in (a.iface, "child0"):
            set_kind = ["ip", "link", "set", "dev", name, "type", "ipoib"]
            a.run(*set_kind, "umcast", "1")
            assert shown_kind(a, name) == ("0xffff", "datagram", "0001")
            assert sysfs_read(a.run, name, "umcast") == "1"
            a.run(*set_kind, "umcast", "0", "mode", "datagram")
            assert shown_kind(a, name) == ("0xffff", "datagram", "0000")
            a.run(*set_kind, "mode", "connected")
            assert shown_kind(a, name) == ("0xffff", "connected", "0000")
            a.run(*set_kind, "mode", "datagram")
    finally:
        del_link(a, "child0")


def test_deleting_a_parent_does_nothing(a, b):
    """`ip link del` of a port's own interface reports success and changes nothing (NL-9)."""
    assert del_link(a, a.iface).returncode == 0
    assert a.iface in links_in(a.ns)
    assert a.reaches(b.ip4)


def test_up_and_down_with_the_parent(a, b, driver):
    """Children follow their parent down and up (PK-11), in other namespaces too; a child may be up on its own, and
    then works: no false UP (B54)."""
    with children(a, b) as (one, other):
        reach_each_other(one, other)

        def up():
            return "UP" in one.link()["flags"]

        a.set_link("down")
        wait_until("the child to go down", lambda: not up())
        one.set_link("up")
        wait_until("carrier", one.carrier)
        reach_each_other(one, other)
        assert "UP" not in a.link()["flags"]
        one.set_link("down")
        a.set_link("up")
        wait_until("the child to come up", up)
        reach_each_other(one, other)
        wait_until("the parent", lambda: a.reaches(b.ip4))


def test_absent_key(a, b):
    """A P_Key that the port has not: the child comes up without carrier and says why, in log and debugfs; queues
    and traffic of the others are not disturbed (NET-26, B43)."""
    run(["dmesg", "-C"])
    with children(a, args=("pkey", "0x8007")) as (child,):
        assert shown_kind(child, child.iface)[0] == "0x8007"
        assert re.search(rf"{child.iface}: P_Key 0x8007 is not found", kernel_log())
        debug = Debug(child)
        assert "pkey: 0x8007" in debug.text and "P_Key not found" in debug.text
        assert not any(q["running"] for q in debug.queues)
        assert child.link()["broadcast"][24:29] == "80:07"
        assert child.link()["operstate"] != "UP" and not child.carrier()
        assert a.ping(b.ip4, count=20, flood=True).lost == 0
        assert not child.carrier()
        child.set_link("down")
        child.set_link("up")
        assert not child.carrier()


def test_create_child_rules(a):
    """What create_child and delete_child take and refuse, with which error (PK-3 to PK-6), and the names."""

    def write(file, text, error=None):
        done = sysfs_write(a, file, text)
        if error is None:
            assert done.returncode == 0, (file, text, done.stderr)
        else:
            assert done.returncode != 0 and error in done.stderr, (file, text, done.stderr)

    unique, device, invalid = "not unique", "No such device", "nvalid argument"
    for text in ("0", "0x8000", "65536", "-1", "x", "", "0x8007 0x8008"):
        write("create_child", text + "\n", invalid)
    write("create_child", "0xffff\n", unique)
    # Without the membership bit it is the parent's all the same.
    write("create_child", "0x7fff\n", unique)
    name = f"{a.iface}.0007"
    write("create_child", "7\n")
    try:
        assert name in links_in(a.ns)
        assert sysfs_read(a.run, name, "pkey") == "0x8007"
        assert sysfs_read(a.run, name, "parent") == a.iface
        write("create_child", "0x8007\n", unique)
        write("create_child", "7\n", unique)
        write("delete_child", "7\n", device)
        write("delete_child", "0\n", device)
        write("delete_child", "seven\n", invalid)
        # Those of netlink are not for delete_child, and do not keep create_child from working.
        add_link(a, "twin", "pkey", "0x8008")
        write("delete_child", "0x8008\n", device)
        write("create_child", "0x8008\n")
        write("delete_child", "0x8008\n")
        del_link(a, "twin")
    finally:
        write("delete_child", "0x8007\n")
    write("delete_child", "0x8007\n", device)
    wait_until("the child to go", lambda: name not in links_in(a.ns))


def test_create_and_delete_at_once(a):
    """The same P_Key is deleted and made again without a pause, by two writers against each other: no error but the
    expected ones, no hang, nothing left."""
    errors = []
    expected = ("not unique", "No such device")

    def churn():
        for _ in range(15):
            for file in ("create_child", "delete_child"):
                done = sysfs_write(a, file, "0x8009\n")
                if done.returncode != 0 and not any(e in done.stderr for e in expected):
                    errors.append((file, done.stderr))

    threads = [threading.Thread(target=churn) for _ in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not errors
    sysfs_write(a, "delete_child", "0x8009\n")
    wait_until("the child to go", lambda: f"{a.iface}.8009" not in links_in(a.ns))
    for _ in range(10):
        for file in ("create_child", "delete_child"):
            done = sysfs_write(a, file, "0x8009\n")
            assert done.returncode == 0, (file, done.stderr)
    wait_until("the child to go", lambda: f"{a.iface}.8009" not in links_in(a.ns))


def test_child_namespace_deleted(a, b):
    """A namespace goes with a child in it: the child returns to the first namespace (PK-16), can be used from
    there, and can be deleted."""
    child = Child(a)
    reach = Child(b)
    try:
        reach_each_other(child, reach)
        run(["ip", "netns", "del", child.ns])
        wait_until("the child to come back", lambda: child.iface in ipoib_links())
        run(["ip", "addr", "add", "10.88.0.1/24", "dev", child.iface])
        run(["ip", "link", "set", "dev", child.iface, "up"])
        wait_until("an answer", lambda: run(["ping", "-q", "-c1", "-W1", reach.ip4], check=False).returncode == 0)
        run(["ip", "link", "del", "dev", child.iface])
        assert child.iface not in ipoib_links()
    finally:
        child.remove()
        reach.remove()


def test_parent_namespace_deleted(a, b, driver):
    """A namespace goes with a parent in it, while its children are elsewhere: the parent returns to the first
    namespace, the child stays where it is and goes on working once it is up again."""
    with children(a, b) as (one, other):
        reach_each_other(one, other)
        parent = a.iface
        run(["ip", "netns", "del", a.ns])
        wait_until("the parent to come back", lambda: parent in ipoib_links())
        wait_until("the child to follow it down", lambda: "UP" not in one.link()["flags"])
        one.set_link("up")
        reach_each_other(one, other)
    driver.renew()


def test_device_removed_with_children(a, b, driver):
    """`rdma link delete` with children of both kinds in several namespaces, under traffic: all go, at once, and the
    device comes back and can have children again."""
    name = a.port.split("/")[0]
    for _ in range(2):
        with children(a, a, b) as (one, two, other):
            assert sysfs_write(a, "create_child", "0x8007\n").returncode == 0
            reach_each_other(one, other)
            flood = other.start("ping", "-f", "-q", one.ip4)
            try:
                run(["timeout", "120", "rdma", "link", "delete", name])
                for child in (one, two):
                    assert not links_in(child.ns)
                assert not links_in(a.ns)
            finally:
                flood.kill()
                flood.wait(60)
        run(["rdma", "link", "add", name, "type", "rxe", "netdev", "v0"])
        driver.up_side(a)
    with children(a, b) as (one, other):
        reach_each_other(one, other)


def test_module_removed_with_children(a, b, driver):
    """rmmod with children of both kinds, some in namespaces of their own, under traffic; four times."""
    for _ in range(4):
        with children(a, b) as (one, other):
            assert sysfs_write(a, "create_child", "0x8007\n").returncode == 0
            reach_each_other(one, other)
            flood = other.start("ping", "-f", "-q", one.ip4)
            try:
                run(["timeout", "120", "rmmod", MODULE])
                assert not any(links_in(s.ns) for s in (a, b, one, other))
                assert not ipoib_links()
            finally:
                flood.kill()
                flood.wait(60)
            driver.insert()


def test_removal_against_makers(a, b, driver):
    """The RDMA device goes while children are made and deleted by netlink and by sysfs as fast as it goes, and while
    their parent is taken up and down (B02): nothing hangs, nothing is left."""
    device = a.port.split("/")[0]
    stop = threading.Event()
    made = [0]

    def by_netlink():
        # One goes when the next is there, so that the removal always finds one.
        names = ["racer0", "racer1"]
        while not stop.is_set():
            if add_link(a, names[0], check=False).returncode == 0:
                made[0] += 1
                a.run("ip", "link", "set", "dev", names[0], "up", check=False)
            names.reverse()
            del_link(a, names[0], check=False)

    def by_sysfs():
        while not stop.is_set():
            for file in ("create_child", "delete_child"):
                sysfs_write(a, file, "0x8009\n")

    def up_and_down():
        while not stop.is_set():
            for state in ("down", "up"):
                a.run("ip", "link", "set", "dev", a.iface, state, check=False)

    for _ in range(3):
        stop.clear()
        before = made[0]
        threads = [threading.Thread(target=t) for t in (by_netlink, by_sysfs, up_and_down)]
        for t in threads:
            t.start()
        try:
            wait_until("some children", lambda n=before: made[0] > n + 3)
            run(["timeout", "120", "rdma", "link", "delete", device])
        finally:
            stop.set()
            for t in threads:
                t.join()
        assert not links_in(a.ns)
        run(["rdma", "link", "add", device, "type", "rxe", "netdev", "v0"])
        driver.up_side(a)
        wait_until("an answer", lambda: a.reaches(b.ip4))


def test_same_groups_left_and_joined(a, b, driver):
    """Interfaces with one P_Key on one port, and so with the same groups, go up and down as they like, so that the
    last attachment to a group goes just as another comes. All work afterwards, and all can be removed."""
    names = [f"twin{i}" for i in range(3)]
    for name in names:
        add_link(a, name)
    # It would keep the groups alive.
    a.set_link("down")
    batch = "".join(f"link set dev {{0}} {state}\n" for state in ("up", "down")) * 100
    running = [a.start("ip", "-batch", "-", stdin=subprocess.PIPE, text=True) for _ in names]
    try:
        for name, process in zip(names, running):
            process.stdin.write(batch.format(name))
            process.stdin.close()
        assert [process.wait(300) for process in running] == [0] * len(names)
    finally:
        for process in running:
            process.kill()
            process.wait(60)
    for name in names:
        del_link(a, name)
    driver.renew()
    assert a.reaches(b.ip4)
    log = kernel_log()
    assert "cannot leave a multicast group" not in log, log


def load_with_kind(driver, kind):
    driver.down()
    driver.unload()
    run(["dmesg", "-C"])
    driver.load(f"link_kind={kind}")
    driver.up()


def test_kind_taken(a, b, driver):
    """Somebody else has the kind of link: one clear line, `ip -d link` shows none, and all else works, children by
    sysfs included."""
    load_with_kind(driver, "veth")
    assert re.search(r"ipoib_rs: link kind 'veth' is taken", kernel_log())
    assert shown_kind(a, a.iface) is None
    assert a.ping(b.ip4).received == 3
    done = add_link(a, "child0", check=False)
    assert done.returncode != 0
    assert sysfs_write(a, "create_child", "0x8007\n").returncode == 0
    assert sysfs_read(a.run, f"{a.iface}.8007", "pkey") == "0x8007"
    # With that child present.
    driver.unload()
    # The kind's owner is none the worse.
    run(["ip", "link", "add", "veth8", "type", "veth", "peer", "name", "veth9"])
    run(["ip", "link", "del", "veth8"])
    driver.load()
    driver.up()
    assert shown_kind(a, a.iface) is not None


def test_kind_by_parameter(a, b, driver):
    """Another name for the kind; no kind at all; names that are none are refused."""
    load_with_kind(driver, "ipoib2")
    parameter = pathlib.Path("/sys/module", MODULE, "parameters/link_kind")
    assert parameter.read_text().strip() == "ipoib2"
    a.run("ip", "link", "add", "link", a.iface, "name", "child0", "type", "ipoib2")
    assert re.search(r"\bipoib2\b", a.run("ip", "-d", "link", "show", "dev", "child0").stdout)
    del_link(a, "child0")
    load_with_kind(driver, "")
    assert "no kind of link" in kernel_log()
    assert shown_kind(a, a.iface) is None
    assert a.ping(b.ip4).received == 3
    driver.down()
    driver.unload()
    for bad in ("x" * 56, '"two words"'):
        done = run(["insmod", os.environ["MODULE"], f"link_kind={bad}"], check=False)
        assert done.returncode != 0
    driver.load()
    driver.up()


def test_nothing_is_left_open(a, b, driver):
    """After all of that no address handle, queue pair or debugfs file of a child is left."""
    names = {a.iface, b.iface}
    assert {p.name for p in DEBUGFS.iterdir()} == names
    per_port = len(Debug(a).queues)
    lines = run(["rdma", "resource", "show", "qp"]).stdout.splitlines()
    assert sum(MODULE in line for line in lines) == 2 * per_port
    assert not [ns for ns in run(["ip", "netns", "list"]).stdout.split() if re.fullmatch(r"c\d+[ab]", ns)]


def test_helpers_see_what_is_there(a):
    """The checks above can fail: a namespace without interfaces has none, one with a parent has it."""
    run(["ip", "netns", "add", "empty"])
    try:
        assert links_in("empty") == set()
        assert in_ns("empty")("ls", "/sys/class/net").stdout.split() == ["lo"]
        assert a.iface in links_in(a.ns)
    finally:
        run(["ip", "netns", "del", "empty"])
