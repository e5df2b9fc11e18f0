"""What the interface puts on the wire and makes of what comes, judged by tshark on the Ethernet below and by
a raw peer. "RFC row N" is a row of RFC.md beside this file."""

import contextlib
import ctypes
import ipaddress
import os
import socket
import struct
import subprocess

import pytest

import inject
import judge
import net
import roce

QKEY, PKEY = 0x0B1B, 0xFFFF
BROADCAST = ipaddress.ip_address("ff12:401b:ffff::ffff:ffff")
ETH_P_ALL = 3


@pytest.fixture(scope="module", autouse=True)
def prepared():
    net.run(["modprobe", "ib_uverbs"])
    assert os.access(inject.PROGRAM, os.X_OK), f"{inject.PROGRAM} is not built: scripts/build-inject"


@pytest.fixture(scope="module")
def ends():
    return net.Side("A"), net.Side("B")


def receiver(side, family, group, port):
    """A socket of the side that has joined a group on its interface."""
    kind = socket.AF_INET if family == 4 else socket.AF_INET6
    with net.netns(side.ns):
        s = socket.socket(kind, socket.SOCK_DGRAM)
        index = socket.if_nametoindex(side.iface)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.bind((group, port))
    s.settimeout(1)
    if family == 4:
        member = struct.pack("=4s4si", socket.inet_aton(group), b"\0" * 4, index)
        s.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, member)
    else:
        member = struct.pack("=16si", socket.inet_pton(kind, group), index)
        s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, member)
    return s


def sender(side, family):
    """A socket of the side that sends to groups on its interface."""
    kind = socket.AF_INET if family == 4 else socket.AF_INET6
    with net.netns(side.ns):
        s = socket.socket(kind, socket.SOCK_DGRAM)
        index = socket.if_nametoindex(side.iface)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, side.iface.encode())
    if family == 4:
        s.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, struct.pack("=4s4si", b"", b"", index))
        s.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
    else:
        s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_IF, index)
    return s


def exchange(tx, rx, group, port, text):
    """Sends to a group until the receiver has it."""
    def arrived():
        tx.sendto(text, (group, port))
        try:
            return rx.recv(100) == text
        except TimeoutError:
            return False
    net.wait_until(f"a datagram to {group}", arrived)


# group: (family, the MGID that it maps to)
GROUPS = {
    "239.1.2.3": (4, "ff12:401b:ffff::f01:203"),
    "239.255.255.255": (4, "ff12:401b:ffff::fff:ffff"),
    "224.128.0.9": (4, "ff12:401b:ffff::80:9"),
    "ff15::99": (6, "ff12:601b:ffff::99"),
    # Differs from the one before above the 80 bits that are kept.
    "ff15:1:2::99": (6, "ff12:601b:ffff::99"),
    "ff15::abcd:1:2:3:4": (6, "ff12:601b:ffff:abcd:1:2:3:4"),
}


def kernel_groups():
    """The groups that the IP stack takes in for A's port: what the driver joined, and others."""
    out = net.run(["ip", "-6", "maddr", "show", "dev", "v0"]).stdout
    return {ipaddress.ip_address(line.split()[1]) for line in out.splitlines() if "inet6" in line}


@pytest.fixture(scope="module")
def recorded(prepared, ends):
    """One recording with some of everything in it; most tests look for their part."""
    a, b = ends
    a.flush_neighbours()
    b.flush_neighbours()
    with judge.Capture() as capture, contextlib.ExitStack() as sockets:
        # One by one: of several, ping would not wait for the last one as long as it takes.
        for _ in range(2):
            assert a.ping(b.ip4, count=1).received == 1
            assert a.ping(b.ip6, count=1).received == 1
            assert b.ping(a.ip4, count=1, size=a.mtu - 28, extra=["-M", "do"]).received == 1
        tx = {family: sockets.enter_context(sender(a, family)) for family in (4, 6)}
        for port, (group, (family, _)) in enumerate(GROUPS.items(), 7000):
            rx = sockets.enter_context(receiver(b, family, group, port))
            exchange(tx[family], rx, group, port, f"to {group}".encode())
        tx[4].sendto(b"to everybody", ("255.255.255.255", 7100))
        # Nobody has joined this one.
        tx[4].sendto(b"to nobody", ("239.9.9.9", 7101))
        net.wait_until("the group of a sender", lambda: any("f09:909" in g for g in inject.View(a).groups))
    return capture


def from_a(frames, a):
    return [f for f in frames if f.source == inject.gid_of(a)]


def test_every_datagram(recorded, a, b):
    """Opcode UD SEND-only, Q_Key 0x0b1b and P_Key 0xffff everywhere (RFC rows 7 and 8, FMT-10); reserved
    half zero (row 11, FMT-2); only types that IPoIB carries (row 12, FMT-8); source a queue pair of the
    interface, from its port's GID; hop limit at least 1."""
    qpns = {inject.gid_of(s): inject.View(s).qpns for s in (a, b)}
    frames = recorded.find("datagram", lambda f: True)
    assert {f.source for f in frames} == set(qpns)
    for f in frames:
        assert (f.number("opcode"), f.number("version"), f.number("udp_port")) == (0x64, 0, 4791)
        assert (f.number("qkey"), f.number("pkey")) == (QKEY, PKEY)
        assert f.number("src_qpn") in qpns[f.source]
        assert f.number("type") in (0x0800, 0x0806, 0x86DD)
        assert f.text("reserved", -1) in ("0000", "00:00")
        assert f.number("hop_limit") >= 1


def test_groups_use_the_multicast_qpn(recorded):
    """A datagram goes to QPN 0xffffff when and only when it goes to a group (FMT-3, FMT-4), and its Ethernet
    address is the one that belongs to the group."""
    for f in recorded.frames:
        group = f.destination.is_multicast
        assert (f.number("dst_qpn") == roce.MULTICAST_QPN) == group
        if group:
            assert f.text("mac") == "33:33:" + ":".join(f"{o:02x}" for o in f.destination.packed[-4:])
            assert f.destination.packed[1] == 0x12, "not transient, or another scope than the broadcast group's"
            assert f.destination.packed[4:6] == b"\xff\xff"


@pytest.mark.parametrize("group", GROUPS)
def test_group_mapping(recorded, a, group):
    """The MGID of a group: signature 0x401b and the low 28 bits, or 0x601b and the low 80 (RFC rows 2, 3, 4,
    FMT-4, FMT-5). Groups that agree in these share an MGID, and yet each is delivered by its own address."""
    family, mgid = GROUPS[group]

    def is_it(f):
        if family == 4:
            return f.text("ip4_dst") == group and f.number("udp_port", 1) is not None
        return f.inner_ip6 is not None and f.inner_ip6[1] == ipaddress.ip_address(group) and f.text("udp_data")
    found = from_a(recorded.find(f"datagram to {group}", is_it), a)
    assert {str(f.destination) for f in found} == {str(ipaddress.ip_address(mgid))}


def test_limited_broadcast(recorded, a):
    """255.255.255.255 goes to the broadcast group ff12:401b:ffff::ffff:ffff (RFC row 5, FMT-3)."""
    found = recorded.find("limited broadcast", lambda f: f.text("ip4_dst") == "255.255.255.255")
    assert {f.destination for f in found} == {BROADCAST}


def test_arp(recorded, a, b):
    """ARP has hardware type 32, address length 20, protocol length 4; the request is broadcast, the reply
    goes to the queue pair of the asker (RFC rows 15 and 16, FMT-6); the flags octet says that we take
    connections (row 32)."""
    packets = recorded.find("ARP", lambda f: f.number("type") == 0x0806)
    for f in packets:
        assert (f.number("arp_hw_type"), f.number("arp_hw_size"), f.number("arp_proto_size")) == (32, 20, 4)
    requests = [f for f in packets if f.number("arp_opcode") == 1 and f.destination.is_multicast]
    assert requests and {f.destination for f in requests} == {BROADCAST}
    replies = [f for f in packets if f.number("arp_opcode") == 2]
    assert replies
    addresses = {s.ip4: s.hwaddr.replace(":", "") for s in (a, b)}
    for f in packets:
        assert f.text("arp_src_hw").replace(":", "") == addresses[f.text("arp_src")]
        assert f.text("arp_src_hw")[:2] == "80"
    for f in replies:
        to = addresses[f.text("arp_dst")]
        assert f.text("arp_dst_hw").replace(":", "") == to
        assert f.number("dst_qpn") == int(to[2:8], 16)
        assert f.destination.packed.hex() == to[8:]


def test_neighbour_discovery(recorded, a, b):
    """The link-layer address option has length 3 (RFC row 17, FMT-6). The solicitation goes to the group of
    the address asked for, the advertisement to the asker's queue pair."""
    asked = recorded.find("solicitation", lambda f: f.number("icmp6") == 135 and f.destination.is_multicast)
    for f in asked:
        target = ipaddress.ip_address(f.text("nd_target"))
        solicited = "ff12601bffff" + "00" * 5 + "01ff" + target.packed[-3:].hex()
        assert f.destination.packed.hex() == solicited
    given = recorded.find("advertisement", lambda f: f.number("icmp6") == 136)
    addresses = {inject.gid_of(s): s.hwaddr.replace(":", "") for s in (a, b)}
    options = [f for f in (*asked, *given) if f.all("nd_option")]
    assert options
    for f in options:
        assert f.number("nd_length") == 3
        # What tshark shows as address begins with the two octets of pad.
        assert f.text("nd_address").replace(":", "") == "0000" + addresses[f.source]
    others = {inject.gid_of(a): inject.qpn_of(a.hwaddr), inject.gid_of(b): inject.qpn_of(b.hwaddr)}
    for f in given:
        if not f.destination.is_multicast:
            assert f.number("dst_qpn") == others[f.destination]


def test_unicast_goes_to_the_address(recorded, a, b):
    """Unicast IP goes to the queue pair and the GID of the peer's hardware address (RFC row 15)."""
    sides = {s.ip4: s.hwaddr.replace(":", "") for s in (a, b)}
    found = recorded.find("echo", lambda f: f.number("icmp") in (0, 8))
    assert {f.number("icmp") for f in found} == {0, 8}
    for f in found:
        to = sides[f.text("ip4_dst")]
        assert f.number("dst_qpn") == int(to[2:8], 16)
        assert f.destination.packed.hex() == to[8:]


def test_full_frames_are_one_datagram(recorded, a, b):
    """A packet of exactly the MTU that must not be cut is one datagram; the MTU is what the port takes less
    4 (RFC row 10, FMT-9)."""
    out = net.run(["ibv_devinfo", "-d", a.port.split("/")[0]]).stdout
    active = next(int(line.split()[1]) for line in out.splitlines() if "active_mtu" in line)
    assert a.mtu == b.mtu == active - 4
    size = a.mtu - 28
    src = b.run("ping", "-n", "-c", "1", "-W", "10", "-M", "do", "-s", size + 1, a.ip4, check=False)
    assert src.returncode != 0 and "message too long" in (src.stdout + src.stderr).lower()
    lengths = recorded.find("full frame", lambda f: f.number("icmp") == 8 and f.number("ip_length") == a.mtu)
    assert len(lengths) == 2
    # No fragments: the outer IP packet is whole as well.
    assert {f.number("ip6_length") for f in lengths} == {8 + 12 + 8 + 4 + a.mtu + -a.mtu % 4 + 4}


def test_sender_of_a_group(recorded, a):
    """Sending needs no membership of the sender: the datagram goes out, and the group is joined for sending
    only (RFC row 20)."""
    found = recorded.find("datagram to nobody", lambda f: f.text("ip4_dst") == "239.9.9.9")
    assert {str(f.destination) for f in from_a(found, a)} == {"ff12:401b:ffff::f09:909"}
    assert ipaddress.ip_address("ff12:401b:ffff::f09:909") not in kernel_groups()


def test_join_and_leave(a, b):
    """A listener's group is joined at the port, and left when the listener goes (RFC rows 2 and 23). The
    broadcast group is always there while the interface is up (row 9)."""
    groups = {"239.44.55.66": "ff12:401b:ffff::f2c:3742", "ff15::4455": "ff12:601b:ffff::4455"}
    assert BROADCAST in kernel_groups()
    for group, mgid in groups.items():
        mgid = ipaddress.ip_address(mgid)
        assert mgid not in kernel_groups()
        with receiver(a, 4 if "." in group else 6, group, 7200):
            net.wait_until(f"joining {group}", lambda: mgid in kernel_groups())
        net.wait_until(f"leaving {group}", lambda: mgid not in kernel_groups())
    ours = [g for g in kernel_groups() if g.packed[2:4] in (b"\x40\x1b", b"\x60\x1b")]
    assert len(ours) > 1 and all(g.packed[0] == 0xFF and g.packed[1] >> 4 == 1 for g in ours)
    a.set_link("down")
    try:
        net.wait_until("leaving the broadcast group", lambda: BROADCAST not in kernel_groups())
    finally:
        a.set_link("up")
        a.run("ip", "addr", "replace", f"{a.ip6}/64", "dev", a.iface, "nodad")
    net.wait_until("joining the broadcast group", lambda: BROADCAST in kernel_groups())
    net.wait_until("the peer", lambda: a.reaches(b.ip4))


def test_hardware_address(a, b):
    """The address is 0x80 (we take connections), the QPN of the first queue, the port's GID (RFC row 14, FMT-1);
    the broadcast address that of FMT-3; the link-local IPv6 address is the GUID with the bit 0x02 set (RFC row 18,
    FMT-7)."""
    for side in (a, b):
        octets = bytes.fromhex(side.hwaddr.replace(":", ""))
        assert len(octets) == 20 and octets[0] == 0x80
        assert int.from_bytes(octets[1:4], "big") == inject.View(side).qpns[0]
        assert octets[4:] == inject.gid_of(side).packed
        link = side.link()
        assert (link["link_type"], link["broadcast"].replace(":", "")) == (
            "infiniband", "00ffffff" + BROADCAST.packed.hex())
        interface_id = bytes([octets[12] | 2]) + octets[13:]
        out = side.run("ip", "-6", "-o", "addr", "show", "dev", side.iface, "scope", "link").stdout
        assert str(ipaddress.ip_address(b"\xfe\x80" + bytes(6) + interface_id)) in out


@pytest.mark.parametrize("what,options", [
    ("echo4", ["--reserved", "0xffff"]),
    ("echo6", ["--reserved", "0x8001"]),
    ("arp", ["--reserved", "0xffff"]),
    ("nd", ["--reserved", "0xffff"]),
    ("nd", ["--pad", "0xffff"]),
    ("arp", ["--flags", "0x3f"]),
    ("nd", ["--flags", "0xff"]),
], ids=lambda v: v if isinstance(v, str) else "-".join(v).strip("-"))
def test_reserved_bits_are_ignored(a, b, what, options):
    """Reserved bits of the encapsulation header (RFC row 11), the flags octet of a hardware address (rows 14,
    33) and the pad of a link-layer address option (row 17) may be anything: the question is answered, to
    the right place, with all of these zero in the answer."""
    injector = inject.Injector(a, b)
    qpn, sgid, dgid, octets = injector.ask(what, *options)
    assert qpn in inject.View(a).qpns
    assert (sgid, dgid) == (inject.gid_of(a), inject.gid_of(b))
    assert octets[2:4] == b"\0\0"
    hwaddr = bytes.fromhex(a.hwaddr.replace(":", ""))
    if what == "arp":
        assert octets[:12] == bytes.fromhex("08060000" "0020080014040002") and octets[12:32] == hwaddr
    if what == "nd":
        # The advertisement's option: target link-layer address, length 3, pad, address.
        assert octets[4 + 40 + 24:] == bytes.fromhex("02030000") + hwaddr


@pytest.mark.parametrize("flags", ["00", "3f", "80"])
def test_data_follows_the_advertised_queue_pair(a, b, flags):
    """Data goes to the QPN in the peer's hardware address, whatever its flags octet (RFC rows 14, 15, 33);
    when that changes, data follows."""
    seen = []
    for _ in range(2):
        listener = subprocess.Popen(
            [inject.PROGRAM, "--device", b.port.split("/")[0], "receive", "1"], stdout=subprocess.PIPE, text=True)
        try:
            _, qpn, _, gid = listener.stdout.readline().split()
            seen.append(qpn)
            address = f"{int(qpn):06x}" + ipaddress.ip_address(gid).packed.hex()
            lladdr = ":".join([flags] + [address[i:i + 2] for i in range(0, len(address), 2)])
            a.run("ip", "neigh", "replace", "10.77.0.201", "lladdr", lladdr, "nud", "permanent", "dev", a.iface)
            p = a.start("ping", "-n", "-c", "100", "-i", "0.2", "10.77.0.201")
            out, _ = listener.communicate(timeout=net.SECONDS)
            p.kill()
            p.wait(net.SECONDS)
            assert f" {inject.gid_of(a)} to {gid}: 08000000" in out, out
            # What came is what the ping sent: an IPv4 packet to the address of the neighbour.
            assert "0a4d0001" + "0a4d00c9" in out
        finally:
            listener.kill()
            listener.wait(net.SECONDS)
            a.run("ip", "neigh", "del", "10.77.0.201", "dev", a.iface, check=False)
    assert len(set(seen)) == 2


def packet_socket(side, kind):
    """A packet socket bound to the side's interface."""
    with net.netns(side.ns):
        s = socket.socket(socket.AF_PACKET, kind, socket.htons(ETH_P_ALL))
        s.bind((side.iface, ETH_P_ALL))
    return s


def send_to(sock, side, ethertype, hwaddr, payload):
    """sendto() with a 20-octet link-layer address, which Python's own does not take."""
    with net.netns(side.ns):
        index = socket.if_nametoindex(side.iface)
    name = struct.pack("=HHiHBB", socket.AF_PACKET, socket.htons(ethertype), index, 0, 0, len(hwaddr)) + hwaddr
    libc = ctypes.CDLL(None, use_errno=True)
    n = libc.sendto(sock.fileno(), payload, len(payload), 0, name, len(name))
    if n < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def test_unknown_type_is_not_sent(a, b):
    """A packet of a type that IPoIB does not carry is dropped and counted, and nothing goes out (RFC row 12,
    FMT-8, TX-5)."""
    broadcast = bytes.fromhex("00ffffff") + BROADCAST.packed
    unicast = bytes.fromhex(b.hwaddr.replace(":", ""))
    before = inject.Counters.of(a)
    with judge.Capture() as capture, packet_socket(a, socket.SOCK_DGRAM) as s:
        for n in range(10):
            send_to(s, a, 0x88B5, broadcast if n % 2 else unicast, b"of no known type")
        net.wait_until("the drops", lambda: inject.Counters.of(a).since(before).tx_drops.get("ethertype", 0) == 10)
    assert inject.Counters.of(a).since(before).tx["dropped"] == 10
    assert not [f for f in capture.frames if f.number("type") == 0x88B5]


def test_unknown_type_is_received(a, b):
    """A received packet of a type that the stack does not know is there for packet sockets, and breaks
    nothing (RFC row 12, RX-10)."""
    with packet_socket(a, socket.SOCK_DGRAM) as s:
        s.settimeout(net.SECONDS)
        inject.Injector(a, b).send("frames", frames=[b"\x12\x34\0\0whatever this is"])
        while True:
            data, address = s.recvfrom(2000)
            if address[1] == 0x1234:
                break
        assert data == b"whatever this is"
        assert address[3] == 32


def test_packet_socket_without_address(a, b):
    """A packet socket may send without saying where to: refused, no crash (TX-2)."""
    with packet_socket(a, socket.SOCK_DGRAM) as s:
        with pytest.raises(OSError):
            s.send(b"to whom?")
    assert a.reaches(b.ip4)


def test_raw_packets(a, b):
    """A raw sender brings its own 24 octets of header (TX-3): a whole one is sent as it says, a short one is
    dropped and counted."""
    before = inject.Counters.of(a)
    arp = struct.pack("!HHBBH", 32, 0x0800, 20, 4, 1) + bytes.fromhex(a.hwaddr.replace(":", ""))
    arp += socket.inet_aton(a.ip4) + bytes(20) + socket.inet_aton(b.ip4)
    with judge.Capture() as capture, packet_socket(a, socket.SOCK_RAW) as s:
        refused = 0
        for n in (1, 4, 19, 20, 23):
            try:
                s.send(bytes(n))
            except OSError:
                refused += 1

        def dropped():
            return inject.Counters.of(a).since(before).tx_drops.get("short", 0) + refused == 5
        net.wait_until("the short ones", dropped)
        head = bytes.fromhex(b.hwaddr.replace(":", "")) + bytes.fromhex("08060000")
        s.send(head + arp)
        net.wait_until("the answer", lambda: answered(s, b))
    found = capture.find("raw request", lambda f: f.number("arp_opcode") == 1 and f.source == inject.gid_of(a))
    assert {f.number("dst_qpn") for f in found} == {inject.qpn_of(b.hwaddr)}


def answered(sock, b):
    """Whether an ARP reply of B's comes out of a raw packet socket; what is received has no header but the
    encapsulation's, or also the pseudo header, in front."""
    sock.settimeout(1)
    try:
        data = sock.recv(2000)
    except TimeoutError:
        return False
    return bytes.fromhex("0020080014040002" + b.hwaddr.replace(":", "")) in data


def discover():
    """A DHCPDISCOVER as RFC 4390 wants it: hardware type 32, length 0, no address, client identifier,
    broadcast flag."""
    fixed = struct.pack("!BBBBIHH", 1, 32, 0, 0, 0x1B1B1B1B, 0, 0x8000) + bytes(4 * 4 + 16 + 64 + 128)
    identifier = b"\xff" + bytes.fromhex("00000001" "0003" "0020") + bytes(8)
    return fixed + b"\x63\x82\x53\x63" + b"\x35\x01\x01" + bytes([61, len(identifier)]) + identifier + b"\xff"


def test_dhcp(a, b):
    """DHCP needs broadcasts both ways: DISCOVER and OFFER go to the broadcast group (RFC 4390)."""
    with net.netns(a.ns):
        client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, a.iface.encode())
    client.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
    client.bind(("", 68))
    client.settimeout(5)
    server = b.start(
        "dnsmasq", "--keep-in-foreground", "--port=0", "--conf-file=/dev/null", "--user=root", "--bind-interfaces",
        f"--interface={b.iface}", "--except-interface=lo", "--dhcp-authoritative", "--no-ping",
        "--dhcp-range=10.77.0.100,10.77.0.110,2m", "--dhcp-leasefile=/tmp/leases", "--pid-file=")

    def offered():
        client.sendto(discover(), ("255.255.255.255", 67))
        with contextlib.suppress(TimeoutError):
            return client.recv(2000)[:1] == b"\x02"
        return False
    try:
        with judge.Capture() as capture, client:
            net.wait_until("an offer", offered)
    finally:
        server.kill()
        server.wait(net.SECONDS)
    asked = capture.find("DISCOVER", lambda f: f.text("dhcp") == "1")
    offers = capture.find("OFFER", lambda f: f.text("dhcp") == "2")
    assert {f.destination for f in (*asked, *offers)} == {BROADCAST}
    assert {f.source for f in asked} == {inject.gid_of(a)} and {f.source for f in offers} == {inject.gid_of(b)}
    for f in (*asked, *offers):
        assert (f.number("dhcp_htype"), f.number("dhcp_hlen")) == (32, 0)
