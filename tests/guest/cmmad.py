"""Messages of the connection manager, made by hand and sent past the kernel's own through /dev/infiniband/umad*."""

import fcntl
import os
import pathlib
import struct

from umad import ENABLE_PKEY, HEAD, QP1_QKEY, REGISTER

CM_CLASS, CM_VERSION, SEND = 7, 2, 3
REQ, MRA, REJ, REP, RTU, DREQ, DREP, SIDR_REQ, SIDR_REP, LAP, APR = range(0x10, 0x1B)
# Transport service types
RC, UC, RD, XRC = range(4)
# The upper half of the service id of connected mode
SERVICE = 0x10 << 56
# Where the private data of a request begins
PRIVATE = 24 + 140


def head(attribute, tid=1):
    return struct.pack(">4BHHQHHI", 1, CM_CLASS, CM_VERSION, SEND, 0, 0, tid, attribute, 0, 0)


def request(number, service, local, remote, *, qpn=None, private=b"", transport=RC, response=10, retries=1, mtu=5,
            rate=3, pkey=0xFFFF, sl=0, ack=14, rnr=6, psn=0, subnet_local=1, guid=None):
    """A REQ for a connection; `local` and `remote` are (LID, GID) of the ends. `number` makes ids and queue pair
    unique, `response` is the encoded time after which the other side repeats its answer, `retries` how often."""
    qpn = 0x400000 + number if qpn is None else qpn
    guid = 0xBAD0000000000000 if guid is None else guid
    body = struct.pack(">I4xQQ4xI", 0x5EED0000 + number, SERVICE | service, guid, 0)
    body += struct.pack(">III", qpn << 8 | 4, 0, response << 3 | transport << 1)
    body += struct.pack(">IHBB", psn << 8 | response << 3 | 3, pkey, mtu << 4 | rnr, retries << 4)
    body += struct.pack(">HH16s16sI4B", local[0], remote[0], local[1], remote[1], rate, 0, 0,
                        sl << 4 | subnet_local << 3, ack << 3)
    return head(REQ, number) + body.ljust(140, b"\0") + private.ljust(92, b"\0")


def about(qpn, mtu):
    """The private data of connected mode."""
    return struct.pack(">II", qpn, mtu)


class Sender:
    """Sends what it is given from QP1 of a port; answers go to the kernel's connection manager."""

    def __init__(self, device, port):
        for d in pathlib.Path("/sys/class/infiniband_mad").glob("umad*"):
            if (d / "ibdev").read_text().strip() == device and int((d / "port").read_text()) == port:
                break
        else:
            raise LookupError(f"no umad device of {device}/{port}")
        self.fd = os.open(f"/dev/infiniband/{d.name}", os.O_RDWR)
        fcntl.ioctl(self.fd, ENABLE_PKEY)
        # No class: it only sends.
        wish = struct.pack("=I16s6BBx", 0, b"", 1, 0, 0, 0, 0, 0, 0)
        self.sent = 0
        self.agent = struct.unpack_from("=I", fcntl.ioctl(self.fd, REGISTER, wish))[0]

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        os.close(self.fd)

    def send(self, lid, mad):
        assert len(mad) == 256
        # The kernel takes no message for which one with the same transaction id is still on its way.
        self.sent += 1
        mad = mad[:8] + struct.pack(">Q", self.sent) + mad[16:]
        to = HEAD.pack(self.agent, 0, 0, 0, 0, struct.pack(">I", 1), struct.pack(">I", QP1_QKEY),
                       struct.pack(">H", lid), 0, 0, 0, 0, 0, 0, bytes(16), bytes(4), 0)
        os.write(self.fd, to + mad)
