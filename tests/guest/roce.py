"""RoCE v2 frames made by hand, and sent past every check of the sending side: with any source.

Formats: InfiniBand specification volume 1 (BTH 9.2, DETH 9.3, ICRC 7.8) and its annex 17 (RoCE v2).
"""

import ipaddress
import socket
import struct
import zlib

PORT = 4791
UD_SEND_ONLY = 0x64
UD_SEND_ONLY_IMMEDIATE = 0x65
QKEY = 0x0B1B
MULTICAST_QPN = 0xFFFFFF


def checksum(data):
    """The Internet checksum."""
    if len(data) % 2:
        data += b"\0"
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def datagram(payload, src_qpn, dst_qpn, qkey=QKEY, pkey=0xFFFF, psn=0, opcode=UD_SEND_ONLY, pad=None):
    """Base transport header, datagram header, payload and pad, without the ICRC. Unless told, `pad` is what
    makes the payload a multiple of 4."""
    if pad is None:
        pad = -len(payload) % 4
    bth = struct.pack("!BBHII", opcode, pad << 4, pkey, dst_qpn, psn)
    deth = struct.pack("!II", qkey, src_qpn)
    immediate = b"\xde\xad\xbe\xef" if opcode == UD_SEND_ONLY_IMMEDIATE else b""
    return bth + deth + immediate + payload + bytes(-len(payload) % 4)


def packet(src, dst, transport, icrc=None):
    """The IP packet (version 4 or 6, by the addresses) that carries a datagram. Unless given, the ICRC is
    the right one: a CRC over everything that no router changes, the rest taken as ones."""
    src, dst = ipaddress.ip_address(src), ipaddress.ip_address(dst)
    length = 8 + len(transport) + 4
    ports = struct.pack("!HHH", 0xC000, PORT, length)
    masked_bth = transport[:4] + b"\xff" + transport[5:]
    if src.version == 6:
        head = struct.pack("!IHBB", 6 << 28, length, 17, 64) + src.packed + dst.packed
        masked = b"\x6f\xff\xff\xff" + head[4:7] + b"\xff" + head[8:]
    else:
        def v4(tos, ttl, check):
            first = struct.pack("!BBHHHBBH", 0x45, tos, 20 + length, 0, 0x4000, ttl, 17, check)
            return first + src.packed + dst.packed
        head = v4(0, 64, checksum(v4(0, 64, 0)))
        masked = v4(0xFF, 0xFF, 0xFFFF)
    if icrc is None:
        icrc = zlib.crc32(b"\xff" * 8 + masked + ports + b"\xff\xff" + masked_bth)
    body = transport + struct.pack("<I", icrc)
    udp = ports + b"\0\0"
    if src.version == 6:
        pseudo = src.packed + dst.packed + struct.pack("!II", length, 17)
        udp = ports + struct.pack("!H", checksum(pseudo + udp + body) or 0xFFFF)
    return head + udp + body


class Wire:
    """One end of the Ethernet below the fabric, in the first namespace."""

    def __init__(self, name, peer):
        self.name, self.peer = name, peer

    def __enter__(self):
        self.sock = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM)
        with open(f"/sys/class/net/{self.peer}/address") as f:
            self.mac = bytes.fromhex(f.read().strip().replace(":", ""))
        return self

    def __exit__(self, *exc):
        self.sock.close()

    def send(self, ip_packet, mac=None):
        """Sends an IP packet to the peer, or to another MAC address."""
        kind = 0x86DD if ip_packet[0] >> 4 == 6 else 0x0800
        self.sock.sendto(ip_packet, (self.name, kind, 0, 0, mac or self.mac))
