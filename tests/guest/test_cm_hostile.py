"""Requests for connections from somebody who means no good, made by hand: whatever they say, the interface lives,
other connections stay, and nothing is left of them."""

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
    """(ends that peers have, requests that were refused)"""
    text = open(f"/sys/kernel/debug/ipoib_rs/{side.iface}", encoding="ascii").read()
    return tuple(map(int, re.search(r"connections of peers: (\d+), (\d+) refused", text).groups()))


class Mallory:
    """Sends from side A's port to side B's."""

    def __init__(self, a, b):
        self.local = vibfab.port(A)["lid"], gid(a)
        self.remote = vibfab.port(B)["lid"], gid(b)
        self.service = qpn(b)
        self.number = 0
        self.sender = cmmad.Sender("vib0", 1)

    def request(self, **fields):
        self.number += 1
        fields = {"service": self.service, "local": self.local, "remote": self.remote, **fields}
        return cmmad.request(self.number, **fields)

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
    ends, refused = counts(b)
    claims = [b"", b"\xff" * 92, cmmad.about(0, 0), cmmad.about(0xFFFFFFFF, 0xFFFFFFFF), cmmad.about(1, 65524),
              cmmad.about(qpn(b), 4), cmmad.about(0x12345, 3), random.Random(8).randbytes(92)]
    for claim in claims:
        mallory.send(mallory.request(private=claim))
    net.wait_until("the ends to be made", lambda: counts(b)[0] > ends or counts(b)[1] > refused)
    net.wait_until("the ends to go", lambda: counts(b)[0] <= ends)
    assert reaches(a, b)
    assert before <= {q["qpn"] for q in live(A)}
