"""Connected mode, on any fabric: our driver on side A, any on side B. Modes, sizes, MTUs, changes under traffic."""

import contextlib
import ipaddress
import re
import socket
import struct

import net
import pytest

CONNECTED_MTU = 65520
MODES = ("datagram", "connected")


def set_mode(side, mode):
    """As a user does it; the system call is restarted while somebody else has RTNL."""
    side.run("sh", "-c", f"echo {mode} | tee /sys/class/net/{side.iface}/mode")


def mode(side):
    return side.read(f"/sys/class/net/{side.iface}/mode")


def reachable(a, b):
    net.wait_until("the sides to reach each other", lambda: a.reaches(b.ip4) and b.reaches(a.ip4))


def statistic(side, name):
    found = re.search(rf"^\s*{name}: (\d+)$", side.run("ethtool", "-S", side.iface).stdout, re.MULTILINE)
    return int(found[1])


@pytest.fixture(scope="module")
def datagram_mtu(a):
    return a.mtu


@pytest.fixture(autouse=True)
def clean(a, b, datagram_mtu):
    yield
    for side in (a, b):
        set_mode(side, "datagram")
        side.set_link("mtu", datagram_mtu)
        side.flush_neighbours()
        side.run("ip", "route", "flush", "cache")
        # Those of IPv6 go when the link does.
        side.run("ip", "addr", "replace", f"{side.ip6}/64", "dev", side.iface, "nodad")
    reachable(a, b)


@pytest.fixture
def connected(a, b):
    for side in (a, b):
        set_mode(side, "connected")
        side.set_link("mtu", CONNECTED_MTU)
    net.wait_until("large packets", lambda: a.ping(b.ip4, count=1, size=30000, extra=["-M", "do"]).lost == 0)


@pytest.mark.parametrize("b_mode", MODES)
@pytest.mark.parametrize("a_mode", MODES)
def test_modes(a, b, a_mode, b_mode):
    """Each side sends as its own mode says, and receives both."""
    for side, wanted in ((a, a_mode), (b, b_mode)):
        set_mode(side, wanted)
        assert mode(side) == wanted
        if wanted == "connected":
            side.set_link("mtu", CONNECTED_MTU)
    reachable(a, b)
    for size in (56, 1900, 8000, 60000):
        assert a.ping(b.ip4, count=5, size=size).lost == 0, size
        assert b.ping(a.ip6, count=5, size=size).lost == 0, size
    for server, client, family in ((b, a, 4), (a, b, 6)):
        with net.FlowServer(server) as flows:
            assert flows.run(client, flows=2, octets=2 << 20, both=True, family=family) == "2 flows ok"


def test_mtu_follows_the_mode(a, datagram_mtu):
    set_mode(a, "connected")
    assert a.mtu == CONNECTED_MTU
    a.set_link("mtu", 9000)
    assert a.mtu == 9000
    set_mode(a, "datagram")
    assert a.mtu == datagram_mtu
    set_mode(a, "connected")
    assert a.mtu == CONNECTED_MTU


@pytest.mark.parametrize("size", [0, 300, 352, 353, 356, 357, 2016, 4448, 4449, 8192, 30000, 65491, CONNECTED_MTU - 28])
def test_sizes(a, b, connected, size):
    """Unfragmented, over the borders of the receive buffers' parts."""
    assert a.ping(b.ip4, count=5, size=size, extra=["-M", "do"]).lost == 0
    assert b.ping(a.ip4, count=5, size=size, extra=["-M", "do"]).lost == 0


@pytest.mark.parametrize("family", [4, 6])
def test_contents_survive(a, b, connected, family):
    with net.FlowServer(b) as server:
        assert server.run(a, flows=4, octets=2 << 20, both=True, family=family) == "4 flows ok"


def test_large_packets_go_over_the_connection(a, b, connected):
    before = statistic(a, "connected_tx_packets")
    assert a.ping(b.ip4, count=10, size=20000).lost == 0
    assert statistic(a, "connected_tx_packets") >= before + 10


def test_peer_without_connections_gets_datagrams(a, b, connected, datagram_mtu):
    """What is too large for one is answered with the MTU to use, and then fragmented."""
    without = "00" + b.hwaddr[2:]
    a.run("ip", "neigh", "replace", b.ip4, "lladdr", without, "dev", a.iface, "nud", "permanent")
    try:
        assert a.ping(b.ip4, count=3).lost == 0
        out = a.run("ping", "-n", "-c", 3, "-i", 0.3, "-W", 1, "-s", 20000, "-M", "do", b.ip4, check=False).stdout
        assert re.search(rf"[Ff]rag needed.*mtu = {datagram_mtu}|mtu[ =]{datagram_mtu}", out), out
        assert f"mtu {datagram_mtu}" in a.run("ip", "route", "get", b.ip4).stdout
        assert a.ping(b.ip4, count=3, size=20000).lost == 0
    finally:
        a.flush_neighbours()
        a.run("ip", "neigh", "del", b.ip4, "dev", a.iface, check=False)


@pytest.mark.parametrize("target", ["239.7.7.7", "broadcast"])
def test_groups_get_no_more_than_a_datagram(a, b, connected, target):
    """What is longer than the group's MTU never leaves as it is (B39): it comes in fragments, or is dropped and
    counted; shorter ones are not concerned."""
    address = str(ipaddress.ip_interface(f"{a.ip4}/24").network.broadcast_address) if target == "broadcast" else target
    with net.netns(b.ns):
        receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with net.netns(a.ns):
        sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with receiver, sender:
        receiver.bind(("", 7654))
        receiver.settimeout(1)
        sender.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        if target != "broadcast":
            for side, sock in ((a, sender), (b, receiver)):
                which = struct.pack("=4s4si", socket.inet_aton(target), bytes(4), side.link()["ifindex"])
                sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, which)
                sock.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, which)

        def passes(octets):
            """Whether a datagram comes, or its loss is counted."""
            drops = a.stats()["tx"]["dropped"]
            data = bytes(octets)
            with contextlib.suppress(OSError):
                sender.sendto(data, (address, 7654))
            try:
                return "came" if receiver.recv(1 << 16) == data else None
            except TimeoutError:
                return "counted" if a.stats()["tx"]["dropped"] > drops else None
        net.wait_until("short datagrams", lambda: passes(1000) == "came")
        for octets in (9000, 60000):
            net.wait_until("a fate of long ones", lambda n=octets: passes(n))
        net.wait_until("short datagrams", lambda: passes(1000) == "came")
    assert a.ping(b.ip4, count=3, size=20000).lost == 0


# In the namespace, without a process for each step. Says what is wrong, if anything is.
FLIP = """
cd /sys/class/net/$1 || exit
n=0
while [ $n -lt $2 ]; do
    for wanted in "datagram $3" "connected $4"; do
        echo ${wanted% *} >mode || exit
        read -r mode <mode
        read -r mtu <mtu
        [ "$mode $mtu" = "$wanted" ] || { echo "$mode $mtu instead of $wanted"; exit 1; }
    done
    n=$((n + 2))
done
"""


def test_flips_under_traffic(a, b, connected, datagram_mtu):
    """The mode changes again and again while packets of all sizes are under way; nothing is left behind. (How often:
    `cm_flips` on the kernel line.)"""
    flips = net.asked("cm_flips", 20)
    traffic = [src.start("ping", "-q", "-f", "-s", size, dst.ip4) for src, dst in ((a, b), (b, a))
               for size in (100, 20000)]
    try:
        a.run("sh", "-c", FLIP, "sh", a.iface, flips, datagram_mtu, CONNECTED_MTU, timeout=60 + 2 * flips)
        assert all(process.poll() is None for process in traffic)
    finally:
        for process in traffic:
            process.kill()
            process.wait()
    net.wait_until("large packets", lambda: a.ping(b.ip4, count=1, size=30000, extra=["-M", "do"]).lost == 0)
    with net.FlowServer(b) as server:
        assert server.run(a, flows=2, octets=1 << 20) == "2 flows ok"


@pytest.fixture
def host(a, b):
    """A host behind side A, which forwards for it; its name is that of its namespace."""
    net.run(["ip", "netns", "add", "host"])
    a.run("ip", "link", "add", "fwd0", "mtu", CONNECTED_MTU, "type", "veth", "peer", "name", "up0", "mtu",
          CONNECTED_MTU, "netns", "host")
    inside = ["ip", "-n", "host"]
    try:
        for ours, theirs, options in (("10.99.0.1/24", "10.99.0.2/24", []), ("fd99::1/64", "fd99::2/64", ["nodad"])):
            a.run("ip", "addr", "add", ours, "dev", "fwd0", *options)
            net.run([*inside, "addr", "add", theirs, "dev", "up0", *options])
        a.run("ip", "link", "set", "fwd0", "up")
        net.run([*inside, "link", "set", "up0", "up"])
        net.run([*inside, "link", "set", "lo", "up"])
        net.run([*inside, "route", "add", "default", "via", "10.99.0.1"])
        net.run([*inside, "route", "add", "default", "via", "fd99::1"])
        a.run("sysctl", "-qw", "net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1")
        b.run("ip", "route", "add", "10.99.0.0/24", "via", a.ip4)
        b.run("ip", "route", "add", "fd99::/64", "via", a.ip6)
        yield "host"
    finally:
        a.run("sysctl", "-qw", "net.ipv4.ip_forward=0", "net.ipv6.conf.all.forwarding=0")
        b.run("ip", "route", "del", "10.99.0.0/24", check=False)
        b.run("ip", "route", "del", "fd99::/64", check=False)
        a.run("ip", "link", "del", "fwd0", check=False)
        net.run(["ip", "netns", "del", "host"])


@pytest.mark.parametrize("family", [4, 6])
def test_forwarded_packet_is_too_big(a, b, connected, datagram_mtu, host, family):
    """A host behind us hears how large packets may be for a peer that takes no connections, and for one that does."""
    def ping(size, *args):
        cmd = ["ip", "netns", "exec", host, "ping", "-n", "-c", "3", "-i", "0.3", "-W", "5", "-s", str(size), *args]
        return net.run([*cmd, b.address(family)], check=False).stdout
    net.wait_until("an answer", lambda: "bytes from" in ping(56))
    net.wait_until("large packets", lambda: "bytes from" in ping(30000, "-M", "do"))
    without = "00" + b.hwaddr[2:]
    a.run("ip", "neigh", "replace", b.address(family), "lladdr", without, "dev", a.iface, "nud", "permanent")
    try:
        out = ping(20000, "-M", "do")
        found = re.search(r"(?:[Ff]rag needed|[Pp]acket too big).*?mtu ?= ?(\d+)", out)
        assert found and int(found[1]) == datagram_mtu, out
        # Now the host itself cuts them.
        assert " 0% packet loss" in ping(20000), "fragments"
    finally:
        a.run("ip", "neigh", "del", b.address(family), "dev", a.iface, check=False)
        a.flush_neighbours()


def test_peer_restart(a, b, connected):
    for _ in range(3):
        b.set_link("down")
        b.set_link("up")
        reachable(a, b)
        net.wait_until("large packets", lambda: a.ping(b.ip4, count=1, size=30000, extra=["-M", "do"]).lost == 0)


def test_netlink(a, b, connected):
    shown = a.link()["linkinfo"]["info_data"]["mode"]
    assert shown == "connected"
    a.set_link("type", "ipoib", "mode", "datagram")
    assert mode(a) == "datagram"
    a.set_link("type", "ipoib", "mode", "connected")
    assert mode(a) == "connected" and a.mtu == CONNECTED_MTU


def test_down_and_up_with_connections(a, b, connected):
    for side in (a, b, a):
        process = a.start("ping", "-q", "-f", "-s", 20000, b.ip4)
        side.set_link("down")
        side.set_link("up")
        process.kill()
        process.wait()
        reachable(a, b)
