"""Queues of our driver in trouble, on the virtual fabric: failed doorbells, broken completion queues, stalls."""

import contextlib
import hashlib
import os
import re
import socket
import threading

import pytest

import net
import vibfab
from driver import Debug, Stream, kernel_log
from net import run, wait_until

A, B = "vib0/1", "vib1/1"


@pytest.fixture(autouse=True)
def quiet(a, b):
    vibfab.reset()
    wait_until("a sound start", lambda: a.reaches(b.ip4))
    yield
    vibfab.reset()
    release(A)
    wait_until("the sides to reach each other again", lambda: a.reaches(b.ip4))
    assert vibfab.strict() == {}


def queue_pairs(port):
    return [f"qp {qp['device']} {qp['qpn']}" for qp in vibfab.qps(port)]


def hold(port, which):
    vibfab.ctl(*(f"{qp} hold {which}" for qp in queue_pairs(port)))


def release(port):
    vibfab.ctl(*(f"{qp} release {which}" for qp in queue_pairs(port) for which in ("send", "recv")))


def counter(side, name):
    """Sum of a counter of ethtool over all queues."""
    out = side.run("ethtool", "-S", side.iface).stdout
    return sum(int(n) for n in re.findall(rf"queue_\d+_{name}: (\d+)", out))


def set_mtu(sides, mtu):
    for side in sides:
        side.run("ip", "link", "set", "dev", side.iface, "mtu", mtu)


def test_failed_doorbell(a, b):
    """The n-th packet from now is refused, in a full chain in the middle of a train or in the rest at its end, on
    either side: the queue is recovered, without waiting for sends that never were, and the TCP streams come through
    whole."""
    # A large segment becomes a train of several chains.
    set_mtu((a, b), 1000)
    run(["dmesg", "-C"])
    try:
        with net.FlowServer(b) as server:
            for nth in (1, 5, 9, 16, 17, 24):
                before = Debug(a).recovered + Debug(b).recovered
                vibfab.ctl(f"fail post_send {nth}")
                assert server.run(a, flows=2, octets=1 << 17) == "2 flows ok"
                wait_until("the recovery", lambda n=before: Debug(a).recovered + Debug(b).recovered > n)
    finally:
        set_mtu((a, b), 4092)
    assert all(q["running"] for side in (a, b) for q in Debug(side).queues)


@pytest.mark.parametrize("what", ["cqerr send", "cqerr recv", "event qp_fatal", "event qp_req_err"])
def test_failure_that_only_the_device_reports(a, b, what):
    """The queue pair looks well and nothing fails, but the device says that it, or one of its completion queues, is
    broken: the queue starts over, each of them."""
    with Stream(a, b) as stream:
        for qp in queue_pairs(A):
            before = Debug(a).recovered
            run(["dmesg", "-C"])
            vibfab.ctl(f"{qp} {what}")
            wait_until("the recovery", lambda n=before: Debug(a).recovered > n)
            assert re.search(rf"{a.iface}: queue \d+: the device reports that it is broken", kernel_log())
            stream.flows("traffic after the recovery")
    assert all(q["running"] for q in Debug(a).queues)


def test_queues_are_closed_together(a, b):
    """No completion comes any more: closing waits for all queues under one limit, since it holds RTNL, and says of
    each what is missing."""
    queues = len(Debug(a).queues)
    assert queues > 1
    run(["dmesg", "-C"])
    hold(A, "recv")
    a.set_link("down")
    stamps = [float(t) for t in re.findall(
        rf"\[ *(\d+\.\d+)\].*{a.iface}: timing out; queue \d+: \d+ sends \d+ receives", kernel_log())]
    assert len(stamps) == queues
    # One limit each would put five seconds between them.
    assert max(stamps) - min(stamps) < 5
    release(A)
    a.set_link("up")
    wait_until("an answer", lambda: a.reaches(b.ip4))
    with net.FlowServer(b) as server:
        assert server.run(a, flows=8, octets=1 << 16, both=True) == "8 flows ok"


def test_stall_is_told_once(a, b):
    """Completions of sends stay away for good. The watchdog bites again after each reset, which is counted, but told
    once (B19); when they come again, so does the traffic."""
    run(["dmesg", "-C"])
    timeouts = counter(a, "timeouts")
    hold(A, "send")
    flood = a.start("python3", "-B", "/src/tests/guest/flood.py", b.ip4, 7600, 1 << 30)
    try:
        wait_until("three timeouts", lambda: counter(a, "timeouts") >= timeouts + 3, seconds=600)
    finally:
        flood.kill()
        flood.wait()
        release(A)
    told = re.findall(rf"{a.iface}: queue stopped: queue (\d+),", kernel_log())
    assert told and len(told) == len(set(told))
    wait_until("an answer", lambda: a.reaches(b.ip4))
    with net.FlowServer(b) as server:
        assert server.run(a, flows=8, octets=1 << 16, both=True) == "8 flows ok"


def test_scattered_packets_are_made_linear(a, b, tmp_path):
    """The device takes two pieces per packet. What is sent from a file lies in a header and two pages mostly: it
    comes through whole, no packet is lost for it."""
    data = os.urandom(1 << 20) * 4
    path = tmp_path / "data"
    path.write_bytes(data)
    got = hashlib.sha256()
    with net.netns(b.ns):
        server = socket.create_server((b.ip4, 0))
    with net.netns(a.ns):
        client = socket.socket()

    def take():
        with server.accept()[0] as s:
            while part := s.recv(1 << 16):
                got.update(part)

    thread = threading.Thread(target=take)
    thread.start()
    with server, client:
        client.settimeout(net.SECONDS)
        client.connect(server.getsockname())
        with open(path, "rb") as f:
            client.sendfile(f)
        client.shutdown(socket.SHUT_WR)
        thread.join(net.SECONDS)
    assert not thread.is_alive()
    assert got.digest() == hashlib.sha256(data).digest()
    with contextlib.suppress(KeyError):
        assert Debug(a).drops("tx")["linearize"] == 0
