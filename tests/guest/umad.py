"""Management datagrams to the subnet administrator through /dev/infiniband/umad*, and their answers."""

import fcntl
import os
import pathlib
import select
import struct

# _IOWR(0x1b, 1, struct ib_user_mad_reg_req), _IO(0x1b, 3)
REGISTER, ENABLE_PKEY = 0xC01C1B01, 0x1B03
# struct ib_user_mad_hdr; QPN, Q_Key, LID and flow label in network order
HEAD = struct.Struct("=5I 4s4s2s 6B 16s 4s H6x")
# The common header, RMPP header and SA header; 200 bytes of attribute follow.
MAD = struct.Struct(">4BHHQHHI 4BII QHHQ")
SA_CLASS, SA_VERSION, QP1_QKEY = 3, 2, 0x80010000

GET, SET, DELETE, RESP, GET_TABLE = 1, 2, 0x15, 0x81, 0x12
CLASS_PORT_INFO, NODE_RECORD, PATH, MCMEMBER = 0x01, 0x11, 0x35, 0x38
# Component masks
MGID, PORT_GID, QKEY, MTU_SELECTOR, MTU, TCLASS, PKEY = (1 << n for n in (0, 1, 2, 4, 5, 6, 7))
RATE_SELECTOR, RATE, SL, FLOW, HOP, JOIN = (1 << n for n in (8, 9, 12, 13, 14, 16))
DGID, SGID, PATH_PKEY = 1 << 2, 1 << 3, 1 << 13
# PathRecord: service id, DGID, SGID, DLID, SLID, flow label and hop limit, traffic class, reversible and number,
# P_Key, QoS and SL, MTU, rate, life time, preference
PATH_RECORD = struct.Struct(">Q16s16sHHIBBHHBBBB6x")
# MCMemberRecord: MGID, PortGID, Q_Key, MLID, MTU, traffic class, P_Key, rate, life time, SL, flow label and hop limit,
# scope and join state, proxy
MEMBER = struct.Struct(">16s16sIHBBHBBIBB2x")


class Sa:
    """The SA as the port of one umad device sees it; `classes`: those of an agent for QP0 instead."""

    def __init__(self, device, port, classes=()):
        for d in pathlib.Path("/sys/class/infiniband_mad").glob("umad*"):
            if (d / "ibdev").read_text().strip() == device and int((d / "port").read_text()) == port:
                break
        else:
            raise LookupError(f"no umad device of {device}/{port}")
        self.lid = int(pathlib.Path(f"/sys/class/infiniband/{device}/ports/{port}/sm_lid").read_text(), 0)
        self.fd = os.open(f"/dev/infiniband/{d.name}", os.O_RDWR)
        fcntl.ioctl(self.fd, ENABLE_PKEY)
        self.agent = self.tid = 0
        for c in classes or [SA_CLASS]:
            # id, method mask, QPN, class, version, OUI, RMPP version
            request = struct.pack("=I16s6BBx", 0, b"", 0 if classes else 1, c, 1 if classes else SA_VERSION, 0, 0, 0, 0)
            self.agent = struct.unpack_from("=I", fcntl.ioctl(self.fd, REGISTER, request))[0]

    def close(self):
        os.close(self.fd)

    def send(self, mad, qpn, lid):
        """Any 256 bytes to any LID; an answer is not waited for."""
        head = HEAD.pack(self.agent, 0, 10, 0, 0, struct.pack(">I", qpn), struct.pack(">I", QP1_QKEY if qpn else 0),
                         struct.pack(">H", lid), 0, 0, 0, 0, 0, 0, bytes(16), bytes(4), 0)
        os.write(self.fd, head + mad)

    def ask(self, method, attribute, mask=0, record=b"", timeout_ms=60000):
        """(status, record) of the answer, None when there is none in time."""
        self.tid += 1
        head = HEAD.pack(self.agent, 0, timeout_ms, 0, 0, struct.pack(">I", 1), struct.pack(">I", QP1_QKEY),
                         struct.pack(">H", self.lid), 0, 0, 0, 0, 0, 0, bytes(16), bytes(4), 0)
        mad = MAD.pack(1, SA_CLASS, SA_VERSION, method, 0, 0, self.tid, attribute, *[0] * 11, mask)
        os.write(self.fd, head + mad + record.ljust(200, b"\0"))
        while True:
            assert select.select([self.fd], [], [], 2 * timeout_ms / 1000 + 60)[0], "not even a time-out"
            data = os.read(self.fd, HEAD.size + 256)
            if HEAD.unpack_from(data)[1]:
                return None
            fields = MAD.unpack_from(data, HEAD.size)
            # The upper half of the transaction id is the kernel's.
            if fields[6] & 0xFFFFFFFF == self.tid:
                assert fields[3] == RESP | method & ~SET if method in (GET, SET) else method | 0x80
                return fields[4], data[HEAD.size + MAD.size:]
