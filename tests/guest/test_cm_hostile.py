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
    {"mtu": 0}, {"mtu": 15}, {"rate": 63}],
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
