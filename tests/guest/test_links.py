"""What happens below and beside an interface: link flaps, MTU, addresses, broken queue pairs."""

import errno
import fcntl
import pathlib
import socket
import struct
import time

import pytest

import net
from driver import DEBUGFS, UNDERLAY, Debug, Stream, kernel_log
from mcast import gid_text, group, membership, udp
from net import run, wait_until


def carrier(side):
    # Reading the file of an interface that is down is an error: no carrier either.
    return side.run("cat", f"/sys/class/net/{side.iface}/carrier", check=False).stdout.strip() == "1"


def underlay_mtu(mtu):
    for link in UNDERLAY.values():
        run(["ip", "link", "set", link, "mtu", str(mtu)])


def set_mtu(side, mtu):
    return side.run("ip", "link", "set", "dev", side.iface, "mtu", mtu, check=False)


def assert_rings_whole(src, dst):
    """Packets pass that use every slot of both rings, and no send slot has leaked. (Receive slots that are empty
    are filled with the next poll.)"""
    slots = sum(int(run(["cat", f"/sys/module/ipoib_rs/parameters/{n}_queue_size"]).stdout) for n in ("send", "recv"))
    p = src.ping(dst.ip4, count=2 * slots, size=1000, flood=True, seconds=600)
    # Soft-RoCE itself loses a packet now and then when the machine is short of time.
    assert p.lost <= p.sent / 100, p.output
    wait_until("all send slots to be free", lambda: all(q["free"] == q["of"] for q in Debug(src).queues))


def test_debugfs_file(a, b):
    """The file of an interface names its port, queues, groups and neighbours, and follows no stale state."""
    assert a.ping(b.ip4).received == 3
    d = Debug(a)
    assert d.text.startswith(f"port: {a.port} active")
    assert f"address: {a.hwaddr}" in d.text
    assert len(d.queues) == len(d.recoveries) >= 1
    assert all(q["running"] for q in d.queues)
    peer = gid_text(bytes.fromhex(b.hwaddr.replace(":", ""))[4:])
    assert " ready " in d.neighbours[peer], d.text
    assert any("Broadcast" in line and "member true" in line for line in d.groups.values()), d.text
    assert DEBUGFS.joinpath(a.iface).stat().st_mode & 0o777 in (0o400, 0o444)


@pytest.mark.parametrize("which", ["A", "B"])
def test_underlay_flap(a, b, driver, which):
    """The port goes down and comes up under traffic: the carrier follows (NET-29, EV-4, EV-5), queue pairs
    that the lost link has broken recover by themselves (WEAK-18), no slot leaks, traffic goes on."""
    link = UNDERLAY[which]
    with Stream(a, b) as stream:
        for _ in range(5):
            stream.flows()
            run(["ip", "link", "set", link, "down"])
            # One end of a veth pair takes the other's carrier along.
            for side in (a, b):
                wait_until(f"{side} to lose its carrier", lambda s=side: not carrier(s))
            run(["ip", "link", "set", link, "up"])
            for side in (a, b):
                wait_until(f"the carrier of {side}", lambda s=side: carrier(s))
            stream.flows("traffic after the flap")
    assert_rings_whole(a, b)
    assert_rings_whole(b, a)


def test_queue_pair_error(a, b, driver):
    """Every local failure to send breaks a soft-RoCE queue pair (it goes to ERR). It comes back without an
    ifdown, the recovery is counted, and neither a slot nor the receive side is lost (TX-17, WEAK-18)."""
    before = Debug(a).recovered
    with Stream(a, b) as stream:
        for _ in range(3):
            stream.flows()
            broken = Debug(a).recovered
            # A queue that takes nothing says so, unlike what is lost further on.
            run(["tc", "qdisc", "add", "dev", UNDERLAY["A"], "root", "pfifo", "limit", "0"])
            wait_until("a recovery", lambda n=broken: Debug(a).recovered > n)
            assert carrier(a)
            run(["tc", "qdisc", "del", "dev", UNDERLAY["A"], "root"])
            stream.flows("traffic after the recovery")
    assert Debug(a).recovered >= before + 3
    assert all(q["running"] for q in Debug(a).queues)
    assert a.stats()["tx"]["errors"] > 0
    assert_rings_whole(a, b)
    assert_rings_whole(b, a)


def test_underlay_mtu(a, b, driver):
    """The IPoIB MTU follows that of the link below (NET-17 to NET-20; soft-RoCE tells nobody): 4092, 2044,
    1020 and back, full frames pass each time, IPv6 comes back with its minimum."""
    with Stream(a, b) as stream:
        for underlay, mtu in ((1500, 1020), (9000, 4092), (2200, 2044), (1500, 1020), (2200, 2044), (9000, 4092)):
            underlay_mtu(underlay)
            for side in (a, b):
                wait_until(f"MTU {mtu} on {side}", lambda s=side: s.mtu == mtu)
            stream.flows(f"traffic at MTU {mtu}")
            for src, dst in ((a, b), (b, a)):
                # Rings for larger frames are made anew, which may cost a frame.
                wait_until("full frames", lambda s=src, d=dst: s.ping(
                    d.ip4, count=5, size=mtu - 28, extra=["-M", "do"]).received == 5)
                wait_until("fragments", lambda s=src, d=dst: s.ping(d.ip4, count=3, size=3 * mtu).received == 3)


def test_own_mtu_survives_underlay(a, b, driver):
    """An MTU that the administrator chose stays when the port's limit grows; one above a shrinking limit is cut
    (NET-20)."""
    for side in (a, b):
        assert set_mtu(side, 1500).returncode == 0
    underlay_mtu(2200)
    for side in (a, b):
        wait_until("the port's new limit", lambda s=side: "mtu 2048" in Debug(s).text)
        assert side.mtu == 1500
    underlay_mtu(1500)
    for side in (a, b):
        wait_until("the cut MTU", lambda s=side: s.mtu == 1020)
    underlay_mtu(9000)
    assert a.ping(b.ip4, count=3, size=900).received == 3
    for side in (a, b):
        wait_until("the port's limit", lambda s=side: "mtu 4096" in Debug(s).text)
        assert set_mtu(side, 4092).returncode == 0
        wait_until("the full MTU", lambda s=side: s.mtu == 4092)


@pytest.mark.parametrize("up", [True, False], ids=["up", "down"])
def test_mtu_bounds(a, b, driver, up):
    """What lies outside 72 to the port's limit is refused with EINVAL and a reason in the log, up or down (B38,
    NET-18); the MTU stays what it was."""
    if not up:
        a.set_link("down")
    refused = ["-1", 0, 1, 67, 68, 71, 4093, 4096, 65520, 65521, 1 << 31]
    for mtu in refused:
        before = a.mtu
        done = set_mtu(a, mtu)
        assert done.returncode != 0, f"MTU {mtu} was accepted"
        assert a.mtu == before
        assert "Invalid argument" in done.stderr or "invalid" in done.stderr.lower() or "mtu" in done.stderr.lower()
    for mtu in (0, 71, 4093):
        with net.netns(a.ns), pytest.raises(OSError) as e:
            set_mtu_by_ioctl(a.iface, mtu)
        assert e.value.errno == errno.EINVAL, mtu
    assert f"{a.iface}: MTU 71 refused: at least 72 here" in kernel_log()
    assert f"{a.iface}: MTU 4093 refused: at most 4092 here" in kernel_log()
    for mtu in (72, 73, 576, 1279, 1280, 4091, 4092):
        assert set_mtu(a, mtu).returncode == 0, mtu
        assert a.mtu == mtu
    if not up:
        a.set_link("up")
    restore_addresses(a)
    wait_until("an answer", lambda: a.reaches(b.ip4))
    assert a.ping(b.ip4, count=3, size=4000, extra=["-M", "do"]).received == 3


def set_mtu_by_ioctl(name, mtu):
    siocsifmtu = 0x8922
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        fcntl.ioctl(s, siocsifmtu, struct.pack("16si16x", name.encode(), mtu))


def restore_addresses(side):
    """The stack takes the IPv6 addresses away when the MTU falls below 1280 or the interface goes down."""
    side.run("sysctl", "-qw", f"net.ipv6.conf.{side.iface}.accept_dad=0")
    side.run("ip", "addr", "replace", f"{side.ip6}/64", "dev", side.iface, "nodad")


def test_mtu_change_under_traffic(a, b, driver):
    """The MTU changes again and again while packets of all sizes pass: no crash, no error, and traffic flows
    at every step."""
    with Stream(a, b) as stream:
        for mtu in (72, 576, 1280, 2044, 4092) * 2:
            for side in (a, b):
                assert set_mtu(side, mtu).returncode == 0
            stream.flows(f"traffic at MTU {mtu}")
    for side in (a, b):
        restore_addresses(side)
    assert a.ping(b.ip4, count=5, size=4064, extra=["-M", "do"]).received == 5


def test_gid_change(a, b, driver):
    """The port gets another GID (here by a new MAC below): octets 4 to 19 of the address and its announcement
    follow, the QPN stays, peers learn it and traffic goes on (EV-8, EV-14, and no ifdown)."""
    link = UNDERLAY["A"]
    old_mac = run(["cat", f"/sys/class/net/{link}/address"]).stdout.strip()
    qpn = a.hwaddr[:11]
    with Stream(a, b) as stream:
        for mac in ("02:11:22:33:44:55", "02:66:77:88:99:aa", old_mac):
            stream.flows()
            old = a.hwaddr
            run(["ip", "link", "set", link, "down"])
            run(["ip", "link", "set", link, "address", mac])
            run(["ip", "link", "set", link, "up"])
            wait_until("the new address", lambda o=old: a.hwaddr != o)
            gid = run(["cat", f"/sys/class/infiniband/{a.port.split('/')[0]}/ports/1/gids/0"]).stdout.strip()
            wait_until("the GID in the address", lambda g=gid: gid_in(a) == g.replace(":", ""))
            assert a.hwaddr[:11] == qpn
            stream.flows("traffic from the new address")
            wait_until("the peer's neighbour entry", lambda: b.neighbours()[a.ip4].get("lladdr") == a.hwaddr)
            assert b.ping(a.ip4, count=3).received == 3


def link_local(mac):
    """The link-local address that belongs to a MAC."""
    octets = bytes.fromhex(mac.replace(":", ""))
    raw = bytes([0xFE, 0x80] + [0] * 6 + [octets[0] ^ 2]) + octets[1:3] + b"\xff\xfe" + octets[3:]
    return socket.inet_ntop(socket.AF_INET6, raw)


def gid_in(side):
    return side.hwaddr[12:].replace(":", "")


def test_gid_lost_and_found(a, b, driver):
    """The MAC below changes while the link is up. The core takes the GID away, and gives none instead as long as
    anybody uses the old one: the interface lets go of it (no carrier, nothing left in use), and takes the new one
    with the next event. Groups are joined again, own multicast is told from that of others by the new GID."""
    link = UNDERLAY["A"]
    old_mac = run(["cat", f"/sys/class/net/{link}/address"]).stdout.strip()
    address = "239.1.2.3"
    member, index = udp(a, 4)
    with member, Stream(a, b) as stream:
        membership(member, 4, address, index)
        for mac in ("02:11:22:33:44:66", old_mac):
            stream.flows()
            gid = socket.inet_pton(socket.AF_INET6, link_local(mac)).hex()
            run(["ip", "link", "set", link, "address", mac])
            wait_until("the GID to be let go or exchanged", lambda g=gid: not carrier(a) or gid_in(a) == g)
            run(["ip", "link", "set", link, "down"])
            run(["ip", "link", "set", link, "up"])
            wait_until("the GID in the address", lambda g=gid: gid_in(a) == g)
            wait_until("all groups", lambda: "member true joining false attached true" in
                       group(a, address) and carrier(a))
            stream.flows("traffic from the new address")
            echoes = Debug(a).drops("rx").get("own_echo", 0)
            a.flush_neighbours()
            wait_until("an answer", lambda: a.reaches(b.ip4))
            wait_until("our own request to be dropped", lambda n=echoes: Debug(a).drops("rx").get("own_echo", 0) > n)


def test_no_gid_when_loading(a, b, driver):
    """The module is loaded while the port has no GID: the interface is there without carrier, and takes the GID when
    it comes."""
    link = UNDERLAY["A"]
    old_mac = run(["cat", f"/sys/class/net/{link}/address"]).stdout.strip()
    table = pathlib.Path("/sys/class/infiniband", a.port.split("/")[0], "ports/1/gids/0")
    try:
        # The core takes the GID away, and gives none instead as long as handles of ours use it.
        run(["ip", "link", "set", link, "address", "02:11:22:33:44:88"])
        wait_until("the carrier to go", lambda: not carrier(a))
        driver.down()
        driver.unload()
        assert not table.read_text().strip().strip("0:"), "the port has a GID already"
        driver.load()
        without = [d for d in pathlib.Path("/sys/class/net").iterdir()
                   if (d / "type").read_text().strip() == "32"
                   and (d / "address").read_text().strip().endswith(":00" * 16)]
        assert len(without) == 1
        run(["ip", "link", "set", without[0].name, "up"])
        assert (without[0] / "carrier").read_text().strip() == "0"
        for state in ("down", "up"):
            run(["ip", "link", "set", link, state])
        gid = socket.inet_pton(socket.AF_INET6, link_local("02:11:22:33:44:88")).hex()
        wait_until("the GID in the address",
                   lambda: (without[0] / "address").read_text().strip().replace(":", "").endswith(gid))
        driver.up()
        assert a.ping(b.ip4).received == 3
    finally:
        run(["ip", "link", "set", link, "down"])
        run(["ip", "link", "set", link, "address", old_mac])
        run(["ip", "link", "set", link, "up"])
        driver.renew()


def test_port_changes_while_down(a, b, driver):
    """MTU and GID of the port change while the interface is down: both are followed all the same."""
    link = UNDERLAY["A"]
    old_mac = run(["cat", f"/sys/class/net/{link}/address"]).stdout.strip()
    for side in (a, b):
        side.set_link("down")
    for mac, underlay, mtu in (("02:11:22:33:44:77", 2200, 2044), (old_mac, 9000, 4092)):
        run(["ip", "link", "set", link, "down"])
        run(["ip", "link", "set", link, "address", mac])
        run(["ip", "link", "set", link, "up"])
        underlay_mtu(underlay)
        gid = socket.inet_pton(socket.AF_INET6, link_local(mac)).hex()
        wait_until("the address while down", lambda g=gid: gid_in(a) == g)
        if mtu < a.mtu:
            # A larger one is for the broadcast group to allow, which is joined when up.
            for side in (a, b):
                wait_until("the MTU while down", lambda s=side, m=mtu: s.mtu == m)
        assert set_mtu(a, mtu + 1).returncode != 0
        for side in (a, b):
            side.set_link("up")
            wait_until("the MTU", lambda s=side, m=mtu: s.mtu == m)
        wait_until("an answer", lambda: a.reaches(b.ip4))
        assert a.ping(b.ip4, count=3, size=mtu - 28, extra=["-M", "do"]).received == 3
        for side in (a, b):
            side.set_link("down")
    for side in (a, b):
        side.set_link("up")
        restore_addresses(side)
    wait_until("an answer", lambda: a.reaches(b.ip4))


def test_underlay_address_removed(a, b, driver):
    """The link-local address below goes away under traffic, so nothing can be sent; once it is back, so is the
    traffic. Nobody has to touch the interface."""
    link = UNDERLAY["A"]
    out = run(["ip", "-6", "-o", "addr", "show", "dev", link, "scope", "link"]).stdout
    address = out.split()[3]
    with Stream(a, b) as stream:
        for _ in range(2):
            stream.flows()
            run(["ip", "addr", "del", address, "dev", link])
            seen = Debug(a).total("rx")
            time.sleep(1)
            run(["ip", "addr", "add", address, "dev", link, "nodad"])
            stream.flows("traffic after the address came back")
            assert Debug(a).total("rx") > seen
    assert_rings_whole(a, b)
