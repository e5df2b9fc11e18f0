"""tshark as an independent judge of what goes over the Ethernet below the fabric.

tcpdump only writes the file; tshark alone takes it apart.
"""

import dataclasses
import ipaddress
import itertools
import os
import signal
import socket
import subprocess
import tempfile

import net

FIELDS = {
    "mac": "eth.dst",
    "ip_src": "ipv6.src",
    "ip_dst": "ipv6.dst",
    "hop_limit": "ipv6.hlim",
    "udp_port": "udp.dstport",
    "opcode": "infiniband.bth.opcode",
    "pkey": "infiniband.bth.p_key",
    "dst_qpn": "infiniband.bth.destqp",
    "version": "infiniband.bth.tver",
    "qkey": "infiniband.deth.q_key",
    "src_qpn": "infiniband.deth.srcqp",
    "type": "infiniband.rwh.etype",
    "reserved": "infiniband.reserved",
    "ip4_src": "ip.src",
    "ip4_dst": "ip.dst",
    "ip_length": "ip.len",
    "ip6_length": "ipv6.plen",
    "arp_hw_type": "arp.hw.type",
    "arp_hw_size": "arp.hw.size",
    "arp_proto_size": "arp.proto.size",
    "arp_opcode": "arp.opcode",
    "arp_src_hw": "arp.src.hw",
    "arp_src": "arp.src.proto_ipv4",
    "arp_dst_hw": "arp.dst.hw",
    "arp_dst": "arp.dst.proto_ipv4",
    "icmp": "icmp.type",
    "icmp6": "icmpv6.type",
    "nd_target": "icmpv6.nd.ns.target_address",
    "na_target": "icmpv6.nd.na.target_address",
    "nd_option": "icmpv6.opt.type",
    "nd_length": "icmpv6.opt.length",
    "nd_address": "icmpv6.opt.linkaddr",
    "udp_data": "data.data",
    "dhcp": "dhcp.option.dhcp",
    "dhcp_htype": "dhcp.hw.type",
    "dhcp_hlen": "dhcp.hw.len",
    "dhcp_broadcast": "dhcp.flags.bc",
}


@dataclasses.dataclass
class Frame:
    """One frame that was on the Ethernet; every field as tshark shows it, the outermost first."""
    fields: dict

    def all(self, name):
        value = self.fields[name]
        return value.split(",") if value else []

    def text(self, name, which=0):
        values = self.all(name)
        return values[which] if values else None

    def number(self, name, which=0):
        value = self.text(name, which)
        return None if value is None else int(value, 0)

    @property
    def source(self):
        return ipaddress.ip_address(self.text("ip_src"))

    @property
    def destination(self):
        """Where the datagram went: a port's GID, or that of a group."""
        return ipaddress.ip_address(self.text("ip_dst"))

    @property
    def inner_ip6(self):
        """(source, destination) of the IPv6 packet that was carried, or None."""
        sources, destinations = self.all("ip_src"), self.all("ip_dst")
        if len(destinations) < 2:
            return None
        return ipaddress.ip_address(sources[1]), ipaddress.ip_address(destinations[1])

    @property
    def is_datagram(self):
        """Whether it is a RoCE datagram, and none that carries management."""
        return self.number("opcode") is not None and self.number("dst_qpn") != 1


class Capture:
    """Records an Ethernet interface of the first namespace while the `with` block runs; `frames` after it."""

    marks = itertools.count()

    def __init__(self, interface="v0"):
        self.interface = interface
        self.path = os.path.join(tempfile.mkdtemp(prefix="capture-"), "frames.pcap")
        self._frames = None

    def __enter__(self):
        # As large a buffer as can be: under emulation the writer lags behind.
        self.process = subprocess.Popen(
            ["tcpdump", "-i", self.interface, "-U", "-n", "-B", "16384", "-s", "0", "-Z", "root", "-w", self.path],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        for line in self.process.stderr:
            if "listening on" in line:
                return self
        raise AssertionError("tcpdump does not run")

    def __exit__(self, *exc):
        # What was sent before this frame is in the file when this frame is.
        mark = b"end of capture %d" % next(self.marks)
        with socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM) as s:
            s.sendto(mark, (self.interface, 0x88B5, 0, 0, bytes(6)))
        net.wait_until("the capture", lambda: mark in self._octets())
        self.process.send_signal(signal.SIGINT)
        rest = self.process.stderr.read()
        self.process.wait(net.SECONDS)
        self.process.stderr.close()
        if exc == (None, None, None):
            assert "\n0 packets dropped by kernel" in rest, rest

    def _octets(self):
        with open(self.path, "rb") as f:
            return f.read()

    @property
    def frames(self):
        """The RoCE datagrams in the order in which they went by."""
        if self._frames is None:
            cmd = ["tshark", "-n", "-r", self.path, "-T", "fields", "-E", "separator=/t", "-E", "occurrence=a"]
            cmd += ["-E", "aggregator=,"]
            for field in FIELDS.values():
                cmd += ["-e", field]
            out = net.run(cmd, timeout=600).stdout
            rows = (Frame(dict(zip(FIELDS, line.split("\t")))) for line in out.splitlines())
            self._frames = [f for f in rows if f.is_datagram]
        return self._frames

    def find(self, what, predicate):
        """The frames for which the predicate holds; there must be some."""
        found = [f for f in self.frames if predicate(f)]
        assert found, f"no {what} among {len(self.frames)} datagrams"
        return found
