"""Loading the fabric's module with parameters, with all clients of IB devices that the kernel has, and two hosts on it.
A test file takes the fixtures over: loaded, clients = vibload.loaded, vibload.clients."""

import contextlib
import pathlib

import pytest

import net
import vibfab

MODULE = "/src/build/stock-vibfab/vibfab.ko"
CLIENTS = ("ib_umad", "ib_uverbs", "rdma_cm", "rdma_ucm", "ib_ipoib", "ib_srp", "ib_srpt", "ib_iser", "ib_isert",
           "rds_rdma")


@pytest.fixture(autouse=True)
def loaded():
    """Whatever a test does to the module, the next one finds it loaded with its defaults."""
    yield
    net.run(["rmmod", "vibfab"], check=False)
    net.run(["insmod", MODULE])


@pytest.fixture(scope="module", autouse=True)
def clients():
    """All clients of IB devices there are, the in-tree driver included."""
    net.run(["rm", "-f", "/etc/modprobe.d/no-ib-ipoib.conf"])
    for m in CLIENTS:
        net.run(["modprobe", m])
    yield
    net.run(["rmmod", "vibfab"])
    for m in ("rds_rdma", "ib_iser", "ib_isert", "ib_srp", "ib_srpt", "ib_ipoib"):
        net.run(["rmmod", m], check=False)
    net.run(["insmod", MODULE])


def reload(*params):
    net.run(["rmmod", "vibfab"])
    return net.run(["insmod", MODULE, *params], check=False)


def iface(port):
    """The network device of a port, by the GUID in its hardware address."""
    guid = f"{vibfab.port(port)['guid']:016x}"
    for dev in pathlib.Path("/sys/class/net").iterdir():
        if (dev / "address").read_text().strip().replace(":", "").endswith(guid):
            return dev.name
    return None


def iface_in(ns):
    """The IPoIB interface that a namespace of hosts() has."""
    return net.run(["ip", "-n", ns, "-br", "link", "show", "type", "ipoib"]).stdout.split()[0]


@contextlib.contextmanager
def hosts(mode="datagram"):
    """The in-tree driver's interfaces of vib0/1 and vib1/1 in two namespaces; gives a ping command."""
    names = [net.wait_until("an interface", lambda p=p: iface(p)) for p in ("vib0/1", "vib1/1")]
    for i, (ns, name) in enumerate(zip(("x", "y"), names, strict=True), 1):
        net.run(["ip", "netns", "add", ns])
        net.run(["sh", "-c", f"echo {mode} >/sys/class/net/{name}/mode"])
        net.run(["ip", "link", "set", name, "netns", ns])
        net.run(["ip", "-n", ns, "addr", "add", f"10.80.0.{i}/24", "dev", name])
        net.run(["ip", "-n", ns, "link", "set", name, "up"])
    ping = ["ip", "netns", "exec", "x", "ping", "-q", "10.80.0.2"]
    net.wait_until("an answer", lambda: net.run([*ping, "-c", "1", "-W", "1"], check=False).returncode == 0)
    try:
        yield ping
    finally:
        # ib_ipoib ends connections in the background, and does not wait for the last when its completion queue goes.
        for ns, name in zip(("x", "y"), names, strict=True):
            net.run(["ip", "-n", ns, "link", "set", name, "down"], check=False)
        net.wait_until("the end of all connections",
                       lambda: not any(vibfab.qps(p, vibfab.RC) for p in ("vib0/1", "vib1/1")))
        for h in ("vib0", "vib1"):
            vibfab.ctl(f"hca {h} remove", f"hca {h} add")
        for ns in ("x", "y"):
            net.run(["ip", "netns", "del", ns])
