"""Multicast: sockets that join, the MGIDs of groups, and what debugfs says of them."""

import socket
import struct

import net
from driver import Debug


def udp(side, family):
    with net.netns(side.ns):
        s = socket.socket(socket.AF_INET if family == 4 else socket.AF_INET6, socket.SOCK_DGRAM)
        index = socket.if_nametoindex(side.iface)
    if family == 4:
        s.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, struct.pack("=4s4si", b"\0" * 4, b"\0" * 4, index))
    else:
        s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_IF, index)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUFFORCE, 1 << 23)
    # What waits for a path counts as unsent.
    s.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUFFORCE, 1 << 25)
    s.settimeout(0.5)
    return s, index


def membership(sock, family, group, index, join=True):
    if family == 4:
        request = struct.pack("=4s4si", socket.inet_aton(group), b"\0" * 4, index)
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP if join else socket.IP_DROP_MEMBERSHIP, request)
    else:
        request = struct.pack("=16si", socket.inet_pton(socket.AF_INET6, group), index)
        what = socket.IPV6_JOIN_GROUP if join else socket.IPV6_LEAVE_GROUP
        sock.setsockopt(socket.IPPROTO_IPV6, what, request)


def group(side, address):
    """The group's line in debugfs, or an empty string."""
    return Debug(side).groups.get(gid_text(group_of(address)), "")


def gid_text(octets):
    """A GID as debugfs shows it: eight groups of digits, without leading zeros (DBG-2)."""
    return ":".join(f"{int.from_bytes(octets[i:i + 2], 'big'):x}" for i in range(0, 16, 2))


def group_of(address):
    """The MGID (octets) of an IP multicast address, default P_Key, link-local scope (FMT-4, FMT-5)."""
    if ":" in address:
        raw = socket.inet_pton(socket.AF_INET6, address)
        return bytes.fromhex("ff12601bffff") + raw[6:]
    low = int.from_bytes(socket.inet_aton(address), "big") & 0x0FFFFFFF
    return bytes.fromhex("ff12401bffff") + low.to_bytes(10, "big")
