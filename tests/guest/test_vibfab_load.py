"""The fabric module itself: loading, plugging, parameters. Driver: none; clients: all of the RDMA core."""

import collections
import contextlib
import random
import subprocess
import threading

import pytest

import net
import vibfab
import vibload
from vibload import MODULE, hosts, reload

loaded, clients = vibload.loaded, vibload.clients


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


@pytest.mark.parametrize("mode", ["datagram", "connected"])
def test_the_module_goes_under_traffic(mode):
    """As a driver of real hardware is unloaded: the clients go first, whatever is on its way."""
    for _ in range(3):
        with hosts(mode) as ping:
            floods = [subprocess.Popen([*ping, "-f", "-s", n], stdout=subprocess.DEVNULL) for n in ("56", "20000")]
            net.wait_until("traffic", lambda: vibfab.port("vib1/1")["rx_pkts"] > 200)
            assert vibfab.strict() == {}
            assert reload().returncode == 0
            assert vibfab.strict() == {}
            for flood in floods:
                flood.kill()
                flood.wait()
    assert vibfab.kernel_log(r"vibfab: (leak|STRICT)") == []


def test_files_are_read_while_hcas_come_and_go():
    names = ("state", "groups", "ring", "pcap", "strict")
    stop = threading.Event()
    read = collections.Counter()
    errors = []

    def reader(name):
        try:
            while not stop.is_set():
                read[name] += len((vibfab.DEBUG / name).read_bytes())
        except OSError as e:
            errors.append((name, e))
    threads = [threading.Thread(target=reader, args=(n,)) for n in names]
    for t in threads:
        t.start()
    try:
        for _ in range(5):
            vibfab.ctl("hca vib1 remove", "hca vib1 add", "bench vib0/1 vib1/1 200 500")
    finally:
        stop.set()
        for t in threads:
            t.join()
    assert errors == []
    assert set(read) == set(names) and min(read.values()) > 0


def test_an_open_file_keeps_the_module():
    with open(vibfab.DEBUG / "pcap", "rb") as f:
        assert net.run(["rmmod", "vibfab"], check=False).returncode != 0
        assert f.read(4) == b"\xd4\xc3\xb2\xa1"
    assert reload().returncode == 0


FAILING = ["create_ah", "create_qp", "create_cq", "create_srq", "alloc_pd", "modify_qp", "post_send", "post_recv",
           "post_srq_recv", "attach_mcast", "req_notify", "query_port"]
# What stands for a word in upper case below.
ANY = {
    "P": ["vib0/1", "vib0/2", "vib1/1", "vib1/2"],
    "H": ["vib0", "vib1"],
    "N": "0 1 2 3 5 64 255 256 2048 4096 0xffff 0x8001 0xbfff 0xc000 0x10000 4294967295 18446744073709551615".split(),
    "V": FAILING,
    "M": "kind=any kind=uc kind=mc kind=rc kind=mad kind=smp src=vib0/1 dst=vib1/2 nth=2 every=3 percent=50 count=3 "
         "oneshot minlen=9 sqpn=1 attr=0x35".split(),
    "A": "drop dup delay=10 reorder=2 corrupt=qkey corrupt=payload corrupt=len corrupt=nogrh corrupt=slid rnr wc=2 "
         "rxerr=1".split(),
    "E": "lid_change sm_change pkey_change client_reregister gid_change port_err port_active device_fatal".split(),
    "S": "down init armed active".split(),
}
SHAPES = """rule add A|rule add M A|rule add M M A|rule del N|rule clear|port P down|port P up|port P state S
port P lid N|port P lid N N|port P smlid N|port P smsl N|port P pkey N N|port P guid N N
port P prefix N|port P mtu N|port P reregister|port P event E|hca H remove|hca H add|hca H fatal
hca H recover|qp H N hold recv|qp H N err|sa down|sa up|sa slow N|sa lose N|sa busy N|sa reject N N
sa attr N|sa clear|sm lid N|sm restart|sm reregister|group N add|group N del|group N mtu N
group N qkey N|group N rate N|group N sl N|fail V N|ring on|ring off|ring clear|bench P P N N
strict clear""".replace("\n", "|").split("|")
ODD = ["noevent", "", "-1", "0x", "vib", "vib9", "vib0/0", "vib0/99", "vib/", "/", "=", "rule=", "=drop", "delay=",
       "add", "18446744073709551616", "rule", "%s", "x" * 300]


def command(dice):
    """A command as it should be, or with a word exchanged, added or taken away."""
    words = [dice.choice(ANY.get(w, [w])) for w in dice.choice(SHAPES).split()]
    at = dice.randrange(len(words))
    odd = dice.choice([*ODD, *ANY["N"]])
    match dice.randrange(8):
        case 0:
            words[at] = odd
        case 1:
            words.insert(at + 1, odd)
        case 2:
            del words[at]
        case 3:
            words.append("noevent")
    return " ".join(words)


def sound():
    """Without faults, and with its HCAs plugged anew, the fabric carries what it is asked to carry."""
    vibfab.ctl("rule clear", "sa clear", *(f"fail {v} 0" for v in FAILING))
    for h in ("vib0", "vib1"):
        if vibfab.hca(h):
            vibfab.ctl(f"hca {h} remove")
        vibfab.ctl(f"hca {h} add")
    vibfab.ctl("bench vib0/1 vib1/1 1000 100")
    assert vibfab.strict() == {}


@pytest.mark.parametrize("seed", range(2))
def test_random_commands_do_no_harm(seed):
    """They are refused or obeyed, and afterwards the fabric can be set right again."""
    dice = random.Random(seed)
    obeyed = 0
    for _ in range(400):
        line = command(dice)
        with contextlib.suppress(OSError):
            vibfab.ctl(line)
            obeyed += 1
        if "remove" in line:
            for h in ("vib0", "vib1"):
                with contextlib.suppress(OSError):
                    vibfab.ctl(f"hca {h} add")
    assert 80 < obeyed < 380
    sound()


def test_bytes_that_are_no_commands_are_refused():
    dice = random.Random(1)
    for text in (b"\0", b"\xff" * 100, b"a" * 65536, b"rule add " + b"x " * 200, b"port  ", b"rule\0 clear",
                 b"port vib0/1 down extra", b"sa clear now", b"port vib0/1 lid 3", b"port vib0/1 lid 1",
                 b"sm lid 3", b"rule add drop dup", b"rule add percent=101 drop", b"rule add to=err drop",
                 b"sa reject 1 0", b"group 0 add", b"hca vib0 add", b"qp vib0 0 err",
                 *(dice.randbytes(dice.randrange(1, 300)) for _ in range(200))):
        with open(vibfab.DEBUG / "ctl", "wb", buffering=0) as f, contextlib.suppress(OSError):
            f.write(text)
            # What is nothing but white space and separators is no command, and no error.
            assert not text.strip(b" \t\n;"), text
    with pytest.raises(OSError):
        vibfab.ctl("x" * 65537)
    sound()


def test_hop_limit_makes_a_driver_add_a_grh():
    assert reload("hop_limit=5").returncode == 0
    with hosts() as ping:
        vibfab.ctl("ring clear")
        net.run([*ping, "-c", "3"])
        port = vibfab.port("vib0/1")
        echo = [p for p in vibfab.ring() if p["data"][:2] == b"\x08\x00" and p["in"] == port["sw"]]
    assert len(echo) == 3 and {p["grh"] for p in echo} == {1}
    assert {p["sgid"].replace(":", "") for p in echo} == {f"{port['prefix']:016x}{port['guid']:016x}"}


@pytest.mark.parametrize("params,mode", [
    ("mtu=256", "datagram"), ("mtu=512", "datagram"), ("mtu=1024", "datagram"), ("mtu=2048", "datagram"),
    ("deferred=1", "datagram"), ("lmc=3", "datagram"), ("comp=wq", "connected"), ("comp=direct", "connected"),
    ("csum=1 tso=1 csum_fill=0", "datagram"), ("dma=direct strict=2", "connected"), ("mcast_self=0", "datagram"),
    ("vectors=1 max_send_sge=2 max_recv_sge=2", "datagram"), ("srq=0 max_wr=512", "connected"),
    ("max_srq_sge=2", "connected"), ("hcas=2 ports=1 pkeys=1 gids=1", "datagram")])
def test_a_driver_works_with_parameters(params, mode):
    assert reload(*params.split()).returncode == 0
    with hosts(mode) as ping:
        for size in ("56", "1500", "9000"):
            net.run([*ping, "-A", "-c", "5", "-s", size])
        assert vibfab.strict() == {}


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


BAD = ["hcas=0", "hcas=9 ports=8", "mtu=1500", "pkeys=0", "gids=1000", "comp=never",
       "dma=maybe", "sm=other", "max_send_sge=33", "vectors=0", "vectors=4294967295",
       "far=60000", "far=4294967295", "far=10 far_lid=3", "far=10 far_ip=host",
       "far=10 sm=external", "lmc=8", "lmc=7 hcas=32 far=10", "partition=0",
       "partition=0xffff,0x8001 pkeys=1", "ring=4294967295", "snap=4097", "strict=3",
       "hop_limit=256", "max_wr=4294967295", "max_cqe=4294967295",
       "cmd=nonsense", "hcas=-1", "seed=x"]


def test_bad_parameters_are_refused():
    net.run(["rmmod", "vibfab"])
    for bad in BAD:
        assert net.run(["insmod", MODULE, *bad.split()], check=False).returncode != 0, bad
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
