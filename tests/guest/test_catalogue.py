"""Failures from the field (tests/BUGS.md) that need more than one interface on a side, or nothing but users' tools. The
same file runs on the in-tree driver (suite catalogue-in-tree), for the comparison in BUGS.md."""

import contextlib
import pathlib

import pytest

import net
import vibfab
from child import Child, sysfs_write
from net import run, wait_until

SECOND = "vib0/2"


@pytest.fixture(autouse=True)
def quiet(a, b):
    with vibfab.quiet(lambda: a.reaches(b.ip4)):
        yield


def iface_of(port):
    """The interface of a port in the first namespace."""
    device, number = port.split("/")
    gid = pathlib.Path(f"/sys/class/infiniband/{device}/ports/{number}/gids/0").read_text().strip().replace(":", "")
    for dev in pathlib.Path("/sys/class/net").iterdir():
        if (dev / "type").read_text().strip() == "32" and (dev / "address").read_text().replace(":", "")[8:40] == gid:
            return dev.name
    return None


@contextlib.contextmanager
def bond(side):
    """An active-backup bond of both ports of a side, in a namespace of its own: (run, name)."""
    ns, other = "bonded", iface_of(SECOND)
    run(["ip", "netns", "add", ns])

    def inside(*cmd, **kwargs):
        return run(["ip", "netns", "exec", ns, *map(str, cmd)], **kwargs)

    try:
        side.run("ip", "link", "set", "dev", side.iface, "down")
        side.run("ip", "link", "set", "dev", side.iface, "netns", ns)
        run(["ip", "link", "set", "dev", other, "netns", ns])
        inside("ip", "link", "add", "bond0", "type", "bond", "mode", "active-backup", "miimon", "50", "fail_over_mac",
               "active", "num_grat_arp", "3")
        for slave in (side.iface, other):
            inside("ip", "link", "set", "dev", slave, "master", "bond0")
        inside("ip", "addr", "add", f"{side.ip4}/24", "dev", "bond0")
        inside("ip", "link", "set", "bond0", "up")
        yield inside, other
    finally:
        inside("ip", "link", "del", "bond0", check=False)
        inside("ip", "link", "set", "dev", other, "netns", "1")
        inside("ip", "link", "set", "dev", side.iface, "netns", "1")
        run(["ip", "link", "set", "dev", side.iface, "netns", side.ns])
        run(["ip", "netns", "del", ns])
        side.run("ip", "addr", "replace", f"{side.ip4}/24", "dev", side.iface)
        side.run("ip", "addr", "replace", f"{side.ip6}/64", "dev", side.iface, "nodad")
        side.set_link("up")


def test_active_backup_bond(a, b):
    """B71: a bond of two ports takes the type of its first slave, moves to the other port and back, and the peer
    hears of it by gratuitous ARP."""
    run(["modprobe", "bonding", "max_bonds=0"])
    with bond(a) as (inside, other):
        def reaches():
            return inside("ping", "-q", "-c", "1", "-W", "1", b.ip4, check=False).returncode == 0

        def slave():
            return inside("cat", "/sys/class/net/bond0/bonding/active_slave").stdout.strip()

        assert inside("cat", "/sys/class/net/bond0/type").stdout.strip() == "32"
        wait_until("the bond to reach the peer", reaches)
        # It starts with the port whose carrier it saw first.
        there = [(a.port, a.iface), (SECOND, other)]
        if slave() == other:
            there.reverse()
        for (port, name), (_, then) in (there, reversed(there)):
            vibfab.ctl(f"port {port} down")
            wait_until("the fail-over", lambda t=then: slave() == t)
            own = inside("cat", f"/sys/class/net/{then}/address").stdout.strip()
            assert inside("cat", "/sys/class/net/bond0/address").stdout.strip() == own
            wait_until("the peer to have the new address",
                       lambda o=own: b.neighbours().get(a.ip4, {}).get("lladdr") == o)
            wait_until("the bond to reach the peer", reaches)
            vibfab.ctl(f"port {port} up")
            wait_until("the port", lambda p=port: vibfab.port(p)["state"] == vibfab.ACTIVE)
            wait_until("the slave", lambda n=name: "up" in inside(
                "cat", f"/sys/class/net/{n}/bonding_slave/mii_status").stdout)


@pytest.mark.parametrize("mode", ["balance-rr", "balance-xor", "broadcast", "802.3ad", "balance-tlb", "balance-alb"])
def test_other_bonds_are_refused(a, b, mode):
    """B71: of the bonding modes only active-backup takes an IPoIB interface; the others say no and harm nothing."""
    run(["modprobe", "bonding", "max_bonds=0"])
    other = iface_of(SECOND)
    run(["ip", "link", "add", "bond1", "type", "bond", "mode", mode])
    try:
        refused = run(["ip", "link", "set", "dev", other, "master", "bond1"], check=False)
        assert refused.returncode != 0 and refused.stderr.strip()
    finally:
        run(["ip", "link", "del", "bond1"])
    assert a.reaches(b.ip4)


@pytest.mark.parametrize("kind", ["macvlan", "ipvlan", "vlan", "bridge"])
def test_what_needs_ethernet_is_refused(a, b, kind):
    """B74: what cannot be on an IPoIB interface is refused, and the interface goes on as it was."""
    modules = {"vlan": "8021q"}
    run(["modprobe", modules.get(kind, kind)])
    before = a.link()
    if kind == "bridge":
        a.run("ip", "link", "add", "br0", "type", "bridge")
        refused = a.run("ip", "link", "set", "dev", a.iface, "master", "br0", check=False)
        a.run("ip", "link", "del", "br0")
    else:
        words = {"vlan": ["id", "5"]}.get(kind, [])
        refused = a.run("ip", "link", "add", "link", a.iface, "name", "upper", "type", kind, *words, check=False)
        if kind == "ipvlan" and refused.returncode == 0:
            # Works on addresses of the network layer: not Ethernet's alone.
            a.run("ip", "link", "del", "upper")
            refused = None
    assert refused is None or (refused.returncode != 0 and refused.stderr.strip())
    after = a.link()
    assert (after["flags"], after["address"], after["mtu"]) == (before["flags"], before["address"], before["mtu"])
    assert a.reaches(b.ip4)


def test_identity_stays(a, b):
    """B67: what DHCP takes for a client's identity, the last eight octets of the address, is the port's GUID whatever
    happens to the interface."""
    guid = f"{vibfab.port(a.port)['guid']:016x}"

    def check():
        assert a.hwaddr.replace(":", "")[-16:] == guid

    check()
    for mode in ("connected\n", "datagram\n"):
        assert sysfs_write(a, "mode", mode).returncode == 0
        check()
    for state in ("down", "up"):
        a.set_link(state)
        check()
    wait_until("the peer", lambda: a.reaches(b.ip4))


def test_vectors_are_spread(a):
    """B30: completion queues of many interfaces do not end up on the same few vectors."""
    made = [Child(a, host=100 + i) for i in range(4)]
    try:
        used = {}
        for q in vibfab.qps(a.port):
            used[q["rcq_cpu"]] = used.get(q["rcq_cpu"], 0) + 1
        assert len(used) > 1 and max(used.values()) - min(used.values()) <= 1, used
    finally:
        for child in made:
            child.remove()


def test_all_queues_meet_a_fresh_peer(a, b):
    """B06: packets of several processors that all are the first for a peer make one neighbour, and none is lost."""
    with net.FlowServer(b) as server:
        for _ in range(20):
            a.flush_neighbours()
            a.set_link("down")
            a.set_link("up")
            wait_until("the carrier", a.carrier)
            a.run("ip", "neigh", "replace", b.ip4, "lladdr", b.hwaddr, "dev", a.iface, "nud", "permanent")
            assert server.run(a, 8, 5000) == "8 flows ok"
            a.run("ip", "neigh", "del", b.ip4, "dev", a.iface)


def test_bond_and_mode(a, b):
    """B42: the MTU of a bond can be that of connected mode when its ports are in it; a port that leaves the mode has
    its own MTU at once, and what is too long for it is answered with that."""
    run(["modprobe", "bonding", "max_bonds=0"])
    datagram = a.mtu
    b.run("sh", "-c", f"echo connected >/sys/class/net/{b.iface}/mode")
    try:
        with bond(a) as (inside, other):
            def mtu(name):
                return int(inside("cat", f"/sys/class/net/{name}/mtu").stdout)

            def set_modes(mode):
                for name in (a.iface, other):
                    inside("sh", "-c", f"echo {mode} >/sys/class/net/{name}/mode")

            def passes(*options):
                return inside("ping", "-q", "-c", "1", "-W", "1", "-s", "30000", *options, b.ip4,
                              check=False).returncode == 0

            # The ports follow their bond, which was made in datagram mode.
            given = mtu("bond0")
            assert mtu(a.iface) == mtu(other) == given <= datagram
            set_modes("connected")
            inside("ip", "link", "set", "bond0", "mtu", "65520")
            assert mtu(a.iface) == mtu(other) == 65520
            wait_until("large packets", lambda: passes("-M", "do"))
            set_modes("datagram")
            # That of the bond is what it was; the ports have what they had in this mode.
            assert mtu("bond0") == 65520 and mtu(a.iface) == mtu(other) == given
            wait_until("fragments", passes)
            assert not passes("-M", "do")
            inside("ip", "link", "set", "bond0", "mtu", datagram)
            assert mtu(a.iface) == mtu(other) == datagram
            wait_until("fragments", passes)
    finally:
        b.run("sh", "-c", f"echo datagram >/sys/class/net/{b.iface}/mode")
        a.set_link("mtu", datagram)
