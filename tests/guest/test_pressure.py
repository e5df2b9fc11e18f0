"""Queues under load: all of them, full ones, batches."""

import pathlib
import re
import socket
import subprocess

import net
from driver import Debug, kernel_log
from net import run

MB = 1 << 20


def nstat(side, *names):
    """Protocol counters of the namespace."""
    out = side.run("cat", "/proc/net/snmp").stdout
    found = {}
    for heads, values in re.findall(r"^(\w+: [A-Z].*)\n(\w+: [-\d].*)$", out, re.MULTILINE):
        kind = heads.split(":")[0]
        found.update({kind + k: int(v) for k, v in zip(heads.split()[1:], values.split()[1:])})
    return [found[n] for n in names]


def queue_dir(side, index):
    return pathlib.Path(f"/sys/class/net/{side.iface}/queues/tx-{index}")


def grown(before, after, key):
    return [y[key] - x[key] for x, y in zip(before.queues, after.queues)]


def test_flows_use_all_queues(a, b):
    """64 flows spread over all transmit queues, and the answers come back on all receive queues or on queue 0,
    which is the advertised one."""
    before = Debug(a), Debug(b)
    with net.FlowServer(b) as server:
        assert server.run(a, flows=64, octets=MB // 32) == "64 flows ok"
    after = Debug(a), Debug(b)
    assert len(after[0].queues) >= 2, "one queue only: nothing to see"
    for i in (0, 1):
        assert all(n > 0 for n in grown(before[i], after[i], "tx")), after[i].text
    assert sum(grown(before[1], after[1], "rx")) > 64


def test_receive_merges(a, b):
    """GRO works: a TCP stream's segments reach the stack merged, well above 4 at a time on average (WEAK-1). The
    interface counts packets from the wire, TCP counts what it is handed. GRO gives up a packet that is older than a
    tick of the clock: on a loaded machine without KVM, only a clock that counts instructions shows what merges."""
    b.run("ethtool", "-K", b.iface, "gro", "on")
    with net.FlowServer(b) as server:
        frames, segments = b.stats()["rx"]["packets"], nstat(b, "TcpInSegs")[0]
        assert server.run(a, flows=1, octets=4 * MB) == "1 flows ok"
        frames, segments = b.stats()["rx"]["packets"] - frames, nstat(b, "TcpInSegs")[0] - segments
    merged = frames / segments
    print(f"mean merge size {merged:.1f}")
    assert merged > 4


def test_no_merging_when_off(a, b):
    """With GRO off every frame comes up alone: the counters that the merging is judged by do tell."""
    b.run("ethtool", "-K", b.iface, "gro", "off")
    try:
        with net.FlowServer(b) as server:
            frames, segments = b.stats()["rx"]["packets"], nstat(b, "TcpInSegs")[0]
            assert server.run(a, flows=1, octets=MB) == "1 flows ok"
            frames, segments = b.stats()["rx"]["packets"] - frames, nstat(b, "TcpInSegs")[0] - segments
            assert frames / segments < 1.5
    finally:
        b.run("ethtool", "-K", b.iface, "gro", "on")


def test_doorbells_are_shared(a, b):
    """A train of packets rings the doorbell once: under load there are fewer doorbells than packets."""
    before = Debug(a)
    with net.FlowServer(b) as server:
        assert server.run(a, flows=16, octets=MB // 8) == "16 flows ok"
    after = Debug(a)
    packets, doorbells = sum(grown(before, after, "tx")), sum(grown(before, after, "doorbells"))
    print(f"{packets} packets, {doorbells} doorbells")
    assert 0 < doorbells < packets


def test_byte_queue_limits(a, b):
    """Byte queue limits are at work: they have a limit of their own under load, everything sent is completed
    (nothing in flight in the end), and a tiny limit slows but does not stall (B21)."""
    def files(name):
        out = a.run("sh", "-c", f"cat /sys/class/net/{a.iface}/queues/tx-*/byte_queue_limits/{name}").stdout
        return [int(x) for x in out.split()]

    with net.FlowServer(b) as server:
        assert server.run(a, flows=16, octets=MB // 8) == "16 flows ok"
        assert any(files("limit"))
        net.wait_until("everything to be completed", lambda: not any(files("inflight")))
        limit_max = files("limit_max")[0]
        write = f"for f in /sys/class/net/{a.iface}/queues/tx-*/byte_queue_limits/limit_max; do echo %d >$f; done"
        a.run("sh", "-c", write % 2000)
        try:
            assert server.run(a, flows=16, octets=MB // 16) == "16 flows ok"
        finally:
            a.run("sh", "-c", write % limit_max)
        net.wait_until("everything to be completed", lambda: not any(files("inflight")))


def test_last_packet_is_freed(a, b):
    """What a send uses is given back even when it is the last one: after a single datagram, with nothing sent behind
    it, every slot is free and nothing is in flight."""
    def inflight():
        out = a.run("sh", "-c", f"cat /sys/class/net/{a.iface}/queues/tx-*/byte_queue_limits/inflight").stdout
        return any(int(x) for x in out.split())

    with net.netns(a.ns):
        s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    alone = 0
    with s:
        for _ in range(20):
            before = Debug(a).total("tx")
            s.sendto(b"one", (b.ip4, 9))
            net.wait_until("the slot to come back",
                           lambda: all(q["free"] == q["of"] for q in Debug(a).queues) and not inflight())
            # Something else may have been sent, like a neighbour solicitation.
            alone += Debug(a).total("tx") == before + 1
    assert alone >= 5, "hardly ever was it the only packet"


def test_small_rings(a, b, driver):
    """With the smallest rings the transmit queue stops and wakes all the time and no wake-up is lost (B21), every
    flow comes through whole; the receive side loses packets, and recovers."""
    driver.renew("send_queue_size=2 recv_queue_size=2")
    with net.FlowServer(b) as server:
        assert server.run(a, flows=8, octets=MB // 8) == "8 flows ok"
    driver.renew("send_queue_size=2 recv_queue_size=1024 num_queues=1")
    # Limits would stop the queue before the ring does.
    a.run("sh", "-c", f"for q in /sys/class/net/{a.iface}/queues/tx-*/byte_queue_limits; do"
          " echo 100000000 >$q/limit_min; done")
    stops = 0
    for _ in range(5):
        before = Debug(a)
        senders = [a.command("python3", "-B", "/src/tests/guest/flood.py", b.ip4, 7500 + i, 4000) for i in range(4)]
        processes = [subprocess.Popen(c) for c in senders]
        assert [p.wait(net.SECONDS) for p in processes] == [0] * 4
        stops += sum(grown(before, Debug(a), "stops"))
        assert a.ping(b.ip4, count=20).received == 20
        if stops:
            break
    assert stops > 0, "the ring was never full"
    with net.FlowServer(b) as server:
        assert server.run(a, flows=16, octets=MB // 16, both=True) == "16 flows ok"
    assert "NETDEV WATCHDOG" not in kernel_log()
    assert run(["cat", "/sys/module/ipoib_rs/parameters/send_queue_size"]).stdout.strip() == "128"
