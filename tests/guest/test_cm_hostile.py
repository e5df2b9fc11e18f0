"""Requests for connections from somebody who means no good, made by hand: whatever they say, the interface lives,
other connections stay, and nothing is left of them."""

import itertools
import random
import re

import pytest

import cmmad
import net
import vibfab

A, B = "vib0/1", "vib1/1"
SIZE = 20000


def live(port):
    return [q for q in vibfab.qps(port, vibfab.RC) if q["state"] == vibfab.RTS]


def reaches(a, b):
    return a.ping(b.ip4, count=1, size=SIZE, extra=["-M", "do"]).lost == 0


def gid(side):
    return bytes.fromhex(side.hwaddr.replace(":", ""))[4:]


def qpn(side):
    return int(side.hwaddr.replace(":", "")[2:8], 16)


def counts(side):
    """(ends that peers have, requests that were refused, requests that were accepted)"""
    text = open(f"/sys/kernel/debug/ipoib_rs/{side.iface}", encoding="ascii").read()
    return tuple(map(int, re.search(r"connections of peers: (\d+), (\d+) refused, (\d+) accepted", text).groups()))


def ends(side):
    return counts(side)[0]


def answered(side):
    """Requests that were looked at, whatever became of them."""
    return sum(counts(side)[1:])


# No two requests are of the same connection.
NUMBERS = itertools.count(1)


class Mallory:
    """Sends from side A's port to side B's."""

    def __init__(self, a, b):
        self.local = vibfab.port(A)["lid"], gid(a)
        self.remote = vibfab.port(B)["lid"], gid(b)
        self.service = qpn(b)
        self.sender = cmmad.Sender("vib0", 1)

    def request(self, **fields):
        fields = {"service": self.service, "local": self.local, "remote": self.remote, **fields}
        return cmmad.request(next(NUMBERS), **fields)

    def send(self, mad):
        self.sender.send(self.remote[0], mad)


@pytest.fixture(scope="module", autouse=True)
def connected(a, b):
    for side in (a, b):
        side.run("sh", "-c", f"echo connected | tee /sys/class/net/{side.iface}/mode")
    yield
    for side in (a, b):
        side.run("sh", "-c", f"echo datagram | tee /sys/class/net/{side.iface}/mode")


@pytest.fixture
def mallory(a, b):
    with vibfab.quiet(lambda: reaches(a, b)):
        one = Mallory(a, b)
        with one.sender:
            yield one


def assert_nothing_left(a, b):
    """No end outlives the interface, and then all is as ever."""
    b.set_link("down")
    net.wait_until("the end of all connections", lambda: not vibfab.qps(B, vibfab.RC))
    b.set_link("up")
    net.wait_until("large packets", lambda: reaches(a, b) and reaches(b, a))


def test_private_data(a, b, mallory):
    """It is a claim: ends are made, given up when nobody confirms, and other connections do not notice."""
    before = {q["qpn"] for q in live(A)}
    former, seen = ends(b), answered(b)
    claims = [b"", b"\xff" * 92, cmmad.about(0, 0), cmmad.about(0xFFFFFFFF, 0xFFFFFFFF), cmmad.about(1, 65524),
              cmmad.about(qpn(b), 4), cmmad.about(0x12345, 3), random.Random(8).randbytes(92)]
    for claim in claims:
        mallory.send(mallory.request(private=claim))
    net.wait_until("answers to all", lambda: answered(b) >= seen + len(claims))
    net.wait_until("the ends to go", lambda: ends(b) <= former)
    assert reaches(a, b)
    assert before <= {q["qpn"] for q in live(A)}


@pytest.mark.parametrize("fields", [
    {"transport": cmmad.UC}, {"transport": cmmad.RD}, {"transport": cmmad.XRC}, {"qpn": 0}, {"qpn": 0xFFFFFF},
    {"mtu": 0}, {"mtu": 15}, {"rate": 63}, {"pkey": 0}, {"pkey": 0x1234}, {"sl": 15}, {"ack": 31}, {"rnr": 7},
    {"psn": 0xFFFFFF}, {"subnet_local": 0}, {"guid": 0}, {"local": (0, bytes(16))}, {"local": (0xFFFF, b"\xff" * 16)},
    {"remote": (0xC000, b"\xff" * 16)}, {"local": (0xBFFF, b"\xfe\x80" + bytes(13) + b"\1")}],
    ids=lambda fields: ",".join(fields))
def test_field(a, b, mallory, fields):
    before = {q["qpn"] for q in live(A)}
    former = ends(b)
    private = cmmad.about(0x222222, 65524)
    mad = mallory.request(private=private, **fields)
    for _ in range(3):
        mallory.send(mad)
    assert reaches(a, b)
    # The same as it should be, so that the former have been looked at when this one's end is there.
    seen = counts(b)[2]
    mallory.send(mallory.request(private=cmmad.about(0x333333, 65524)))
    net.wait_until("a sound request to be accepted", lambda: counts(b)[2] > seen)
    net.wait_until("the ends to go", lambda: ends(b) <= former)
    assert before <= {q["qpn"] for q in live(A)}


def test_malformed_messages(a, b, mallory):
    """Octets of requests are random, as are messages of all kinds; some keep their ends for hours."""
    dice = random.Random(4755)
    for i in range(400):
        mad = bytearray(mallory.request(private=cmmad.about(dice.getrandbits(24), 65524)))
        for _ in range(dice.randrange(1, 12)):
            mad[dice.randrange(24, 256)] = dice.randrange(256)
        if i % 2:
            # The service is found.
            mad[32:40] = (cmmad.SERVICE | mallory.service).to_bytes(8, "big")
        mallory.send(bytes(mad))
        mallory.send(cmmad.head(dice.randrange(0x10, 0x1B), i) + dice.randbytes(232))
        if i % 100 == 99:
            assert reaches(a, b)
    assert reaches(a, b) and reaches(b, a)
    assert_nothing_left(a, b)


def test_requests_that_nobody_confirms(a, b, mallory):
    """More of them than there are ends, each to be kept for hours: peers that mean it still get theirs."""
    shared = net.run(["cat", "/sys/module/vibfab/parameters/srq"]).stdout.strip() == "Y"
    most = (4096 if shared else 128) // 2
    before, former, seen = {q["qpn"] for q in live(A)}, ends(b), answered(b)
    # Side A's connection manager knows nothing of them, and would say so.
    with vibfab.rule("kind=mad", "class=7", f"src={B}", "drop"):
        for i in range(most + most // 4):
            # Each for somebody else: one that asks twice loses the former end.
            private = cmmad.about(0x500000 + i, 65524)
            mallory.send(mallory.request(private=private, response=31, retries=15))
            if i % 50 == 49:
                # No more than what may wait.
                net.wait_until("the requests to be looked at", lambda n=i: answered(b) > seen + n)
    net.wait_until("old ends to make room", lambda: ends(b) <= most + former)
    assert ends(b) >= most // 2
    assert before <= {q["qpn"] for q in live(A)}
    vibfab.break_qps(live(A))
    net.wait_until("another connection", lambda: reaches(a, b) and live(A))
    assert_nothing_left(a, b)
