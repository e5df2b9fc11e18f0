"""A transmit queue that is really stuck. The kernel's watchdog reports it, which this suite allows."""

import re

import net
from driver import UNDERLAY, Debug, kernel_log
from net import run, wait_until


def test_transmit_timeout(a, b, driver):
    """Soft-RoCE sends nothing more while too many of its packets sit in the queueing discipline below. So the
    ring fills and the watchdog bites: the driver says what it sees, once, resets that one queue without an ifdown,
    counts it, and traffic goes on when the stall is over (B19)."""
    queue = UNDERLAY["A"]
    a.run("sh", "-c", f"for q in /sys/class/net/{a.iface}/queues/tx-*/byte_queue_limits; do"
          " echo 100000000 >$q/limit_min; done")
    before = Debug(a).recovered
    run(["dmesg", "-C"])
    # An octet a second. (netem would not do: what it delays does not count as under way any more.)
    run(["tc", "qdisc", "add", "dev", queue, "root", "tbf", "rate", "8bit", "burst", "20000", "limit", "100000000"])
    flood = a.start("python3", "-B", "/src/tests/guest/flood.py", b.ip4, 7600, 1 << 30)
    try:
        wait_until("the watchdog", lambda: "transmit timeout" in kernel_log(), seconds=300)
        wait_until("the reset", lambda: Debug(a).recovered > before, seconds=300)
    finally:
        flood.kill()
        flood.wait()
        run(["tc", "qdisc", "del", "dev", queue, "root"])
    log = kernel_log()
    assert re.search(rf"{a.iface}: transmit timeout: latency \d+ msecs", log)
    assert re.search(rf"{a.iface}: queue stopped: queue \d+, free \d+ of \d+, queue pair .+; resetting it", log)
    assert "UP" in a.link()["flags"]
    wait_until("an answer", lambda: a.reaches(b.ip4))
    assert a.ping(b.ip4, count=1000, flood=True, seconds=600).lost == 0
    with net.FlowServer(b) as server:
        assert server.run(a, flows=16, octets=1 << 18, both=True) == "16 flows ok"
    assert all(q["running"] for q in Debug(a).queues)
