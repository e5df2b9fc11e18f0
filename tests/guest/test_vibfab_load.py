"""The fabric module itself: loading, plugging, parameters. Driver: none; clients: all of the RDMA core."""

import contextlib
import pathlib
import subprocess

import pytest

import net
import vibfab

MODULE = "/src/build/stock-vibfab/vibfab.ko"


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
    for m in ("ib_umad", "ib_uverbs", "rdma_cm", "rdma_ucm", "ib_ipoib", "ib_srp", "ib_iser", "rds_rdma"):
        net.run(["modprobe", m], check=False)
    yield
    net.run(["rmmod", "vibfab"])
    for m in ("rds_rdma", "ib_iser", "ib_srp", "ib_ipoib"):
        net.run(["rmmod", m], check=False)
    net.run(["insmod", MODULE])


def reload(*params):
    net.run(["rmmod", "vibfab"])
    return net.run(["insmod", MODULE, *params], check=False)


def test_a_hundred_loads_leave_a_clean_log():
    for _ in range(100):
        assert reload().returncode == 0
    assert vibfab.kernel_log(r"vibfab: (leak|STRICT)|WARNING|BUG|[Rr]estrack") == []


def test_hot_remove_and_hot_add():
    for _ in range(10):
        vibfab.ctl("hca vib1 remove")
        assert vibfab.hca("vib1") is None and vibfab.hca("vib0") is not None
        vibfab.ctl("hca vib1 add")
        assert vibfab.hca("vib1") is not None
    assert vibfab.strict() == {}


def iface(port):
    """The network device of a port, by the GUID in its hardware address."""
    guid = f"{vibfab.port(port)['guid']:016x}"
    for dev in pathlib.Path("/sys/class/net").iterdir():
        if (dev / "address").read_text().strip().replace(":", "").endswith(guid):
            return dev.name
    return None


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
        for h in ("vib0", "vib1"):
            vibfab.ctl(f"hca {h} remove", f"hca {h} add")
        for ns in ("x", "y"):
            net.run(["ip", "netns", "del", ns])


@pytest.mark.parametrize("mode,first", [("datagram", []), ("connected", []), ("datagram", ["hca vib1 fatal"])])
def test_hot_remove_under_traffic(mode, first):
    """An HCA goes while packets are on their way to and from it, also one that is dead already."""
    with hosts(mode) as ping:
        flood = subprocess.Popen([*ping, "-f", "-s", "1500"], stdout=subprocess.DEVNULL)
        net.wait_until("traffic", lambda: vibfab.port("vib1/1")["rx_pkts"] > 200)
        vibfab.ctl(*first, "hca vib1 remove", "hca vib1 add")
        assert vibfab.hca("vib1")["fatal"] == 0
        assert vibfab.strict() == {}
        flood.kill()
        flood.wait()
    assert vibfab.strict() == {}


def test_hop_limit_makes_a_driver_add_a_grh():
    assert reload("hop_limit=5").returncode == 0
    with hosts() as ping:
        vibfab.ctl("ring clear")
        net.run([*ping, "-c", "3"])
        port = vibfab.port("vib0/1")
        echo = [p for p in vibfab.ring() if p["data"][:2] == b"\x08\x00" and p["in"] == port["sw"]]
    assert len(echo) == 3 and {p["grh"] for p in echo} == {1}
    assert {p["sgid"].replace(":", "") for p in echo} == {f"{port['prefix']:016x}{port['guid']:016x}"}


def test_sixty_four_ports():
    assert reload("hcas=32", "ports=2").returncode == 0
    ports = vibfab.ports()
    assert len(ports) == 64 and {p["state"] for p in ports} == {vibfab.ACTIVE}
    assert len({p["lid"] for p in ports}) == 64 and len({p["guid"] for p in ports}) == 64


def test_sizes_by_parameter():
    assert reload("hcas=1", "ports=1", "mtu=2048", "pkeys=40", "gids=33", "vectors=7", "max_send_sge=5",
                  "partition=0xffff,0x8123", "seed=99", "lmc=2").returncode == 0
    sysfs = "/sys/class/infiniband/vib0/ports/1"
    assert len(net.run(["ls", f"{sysfs}/pkeys"]).stdout.split()) == 40
    assert len(net.run(["ls", f"{sysfs}/gids"]).stdout.split()) == 33
    assert net.run(["cat", f"{sysfs}/pkeys/1"]).stdout.strip() == "0x8123"
    port = vibfab.port("vib0/1")
    assert port["mtu"] == 2048 and port["lmc"] == 2 and port["lid"] % 4 == 0


def test_the_seed_decides_the_guids():
    reload("seed=5")
    first = [p["guid"] for p in vibfab.ports()]
    reload("seed=6")
    other = [p["guid"] for p in vibfab.ports()]
    reload("seed=5")
    assert [p["guid"] for p in vibfab.ports()] == first != other


@pytest.mark.parametrize("bad", ["hcas=0", "hcas=9 ports=8", "mtu=1500", "pkeys=0", "gids=1000", "comp=never",
                                 "dma=maybe", "sm=other", "max_send_sge=33", "vectors=0", "far=60000"])
def test_bad_parameters_are_refused(bad):
    assert reload(*bad.split()).returncode != 0
    net.run(["insmod", MODULE])


def test_commands_at_load():
    assert reload('cmd=port vib0/1 down noevent; sa slow 10').returncode == 0
    assert vibfab.port("vib0/1")["link"] == 0 and vibfab.sa()["slow_ms"] == 10


def test_datagrams_without_a_driver():
    """The micro-benchmark carries what it is told to and checks each completion."""
    vibfab.ctl("bench vib0/1 vib1/1 1000 1024")
    result = vibfab.lines("bench")[0]
    assert result["packets"] >= 1000 and result["len"] == 1024 and result["ns_per_packet"] > 0
    assert vibfab.port("vib1/1")["rx_pkts"] >= 1000
