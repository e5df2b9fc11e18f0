"""Sends UDP datagrams as fast as it can: flood.py ADDRESS PORT COUNT [OCTETS]."""

import contextlib
import socket
import sys

address, port, count, *octets = sys.argv[1:]
data = b"f" * int(octets[0] if octets else 64)
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
    s.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUFFORCE, 1 << 24)
    # A connected socket would stop at each port-unreachable message.
    for _ in range(int(count)):
        with contextlib.suppress(OSError):
            s.sendto(data, (address, int(port)))
