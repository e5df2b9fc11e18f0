"""Module parameters: bad ones are refused as a whole with errno and reason, good ones take effect."""

import errno
import os
import pathlib
import re

import pytest

import net
from driver import MODULE, Debug, kernel_log, loaded
from net import run

MB = 1 << 20
PARAMETERS = pathlib.Path("/sys/module", MODULE, "parameters")
FABRIC = os.environ.get("FABRIC_PARAMS", "")


def insmod(params):
    return run(["insmod", os.environ["MODULE"], *FABRIC.split(), *params.split()], check=False)


@pytest.fixture(scope="module", autouse=True)
def put_back():
    """Once at the end, not after each test: loading takes seconds."""
    yield
    from driver import Driver
    Driver(net.Side("A"), net.Side("B")).renew()


@pytest.fixture
def unloaded():
    if loaded():
        run(["guest-setup", "down"], timeout=600)
        run(["guest-setup", "unload", MODULE], timeout=600)


RANGES = {"send_queue_size": "2 to 8192", "recv_queue_size": "2 to 8192"}


@pytest.mark.parametrize("params", [
    f"{name}={value}" for name in RANGES for value in (-1, 0, 1, 8193, 2147483647, -2147483648)
] + [f"num_queues={value}" for value in (-1, 65, 2147483647)])
def test_out_of_range(unloaded, params):
    """EINVAL, a line that names parameter, value and range, and nothing is left behind (MOD-2 to MOD-4)."""
    run(["dmesg", "-C"])
    done = insmod(params)
    assert done.returncode != 0
    assert os.strerror(errno.EINVAL) in done.stderr or "nvalid" in done.stderr, done.stderr
    name = params.split("=")[0]
    limits = RANGES.get(name, "0 (automatic) or 1 to 64")
    assert f"ipoib_rs: {params} is out of range: {limits}" in kernel_log()
    assert not loaded()
    assert not pathlib.Path("/sys/kernel/debug/ipoib_rs").exists()


@pytest.mark.parametrize("params", [
    "send_queue_size=many", "recv_queue_size=", "num_queues=1x", "num_queues=99999999999", "roce=perhaps",
    "debug_level=x"])
def test_no_number(unloaded, params):
    """What the kernel's own parser refuses: an error and its line, module not loaded."""
    run(["dmesg", "-C"])
    # Behind the fabric's parameters: the last one counts.
    done = insmod(params)
    assert done.returncode != 0
    name = params.split("=")[0]
    assert re.search(rf"ipoib_rs: `.*' (invalid|too large) for parameter `{name}'", kernel_log()), kernel_log()
    assert not loaded()


def test_unknown_parameter(unloaded):
    """A parameter that does not exist is only remarked by the kernel, as with any module."""
    run(["dmesg", "-C"])
    assert insmod("no_such_thing=1").returncode == 0
    assert "unknown parameter 'no_such_thing' ignored" in kernel_log()


def test_without_roce(unloaded):
    """Without roce=1 RoCE ports get no interface, and the module loads all the same (NET-2)."""
    assert run(["insmod", os.environ["MODULE"], "roce=0"], check=False).returncode == 0
    assert loaded()
    assert not list(pathlib.Path("/sys/kernel/debug/ipoib_rs").glob("ib*"))


@pytest.mark.parametrize("queues", [1, 2, 4, 8])
def test_queue_counts(a, b, driver, queues):
    """As many queues as asked for, for the stack and in debugfs; all of them carry traffic (B22)."""
    driver.renew(f"num_queues={queues}")
    for side in (a, b):
        link = side.link()
        assert (link["num_tx_queues"], link["num_rx_queues"]) == (queues, queues)
        assert len(Debug(side).queues) == queues
        qpns = re.findall(r"^queue \d+: qpn (\w+)", Debug(side).text, re.MULTILINE)
        assert len(set(qpns)) == queues
        # The advertised one is queue 0's (NET-13).
        assert int(qpns[0], 16) == int(side.hwaddr[3:11].replace(":", ""), 16)
    before = Debug(a)
    with net.FlowServer(b) as server:
        for _ in range(10):
            assert server.run(a, flows=64, octets=MB // 64) == "64 flows ok"
            after = Debug(a)
            if all(y["tx"] > x["tx"] for x, y in zip(before.queues, after.queues)):
                break
        else:
            pytest.fail(f"a queue has sent nothing: {after.text}")


@pytest.mark.parametrize("asked, send, recv", [(2, 128, 2), (100, 128, 128), (129, 256, 256), (8192, 8192, 8192)])
def test_ring_sizes(a, b, driver, asked, send, recv):
    """Sizes are rounded up to powers of two, sends to at least 128; sysfs shows what is in force; the smallest
    and the largest carry traffic (MOD-3)."""
    driver.renew(f"send_queue_size={asked} recv_queue_size={asked} num_queues=1")
    assert (PARAMETERS / "send_queue_size").read_text().strip() == str(send)
    assert (PARAMETERS / "recv_queue_size").read_text().strip() == str(recv)
    with net.FlowServer(b) as server:
        assert server.run(a, flows=4, octets=MB // 16) == "4 flows ok"


def test_most_queues(a, b, driver):
    """The largest number of queues, on a machine with fewer CPUs, works."""
    driver.renew("num_queues=64 recv_queue_size=64 send_queue_size=128")
    assert len(Debug(a).queues) == 64
    assert a.ping(b.ip4, count=50, flood=True).lost == 0
