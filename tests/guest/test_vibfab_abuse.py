"""The fabric module, treated badly: commands from everywhere at once, at the wrong time and to the wrong object, sizes
at their limits, packets that nobody should send. What it does must stay right, and it must not blame a client."""

import contextlib
import errno
import random
import socket
import struct
import threading

import pytest

import net
import umad
import vibfab
import vibload
from test_vibfab_load import command, sound
from vibload import MODULE, hosts, reload

loaded, clients = vibload.loaded, vibload.clients
A, B = "vib0/1", "vib1/1"


def refused(*commands):
    for c in commands:
        with pytest.raises(OSError):
            vibfab.ctl(c)


def carried(*pairs):
    """The fabric carries packets between these ports."""
    for src, dst in pairs:
        vibfab.ctl(f"bench {src} {dst} 100 100")


def test_words_that_are_nearly_right():
    refused("port vib0/1x down", "port vib4294967296/1 down", "port vib0/4294967297 down", "port vib0/ down",
            "port vib0/0 down", "port /1 down", "port vibvib0/1 down", "port vib0/1/1 down", "hca vib0x fatal",
            "hca vib0 qpn", "hca vib0 qpn 1", "hca vib0 qpn 0xffffff", "hca vib0 fatal 0x7000",
            "bench vib0/1 vib1/1z 10 10", "rule add src=vib0/1x drop", "rule add dst=vib9/1 drop",
            "rule add percent=0 drop", "rule add percent=101 drop", "rule add nth=0 drop", "rule add every=0 drop",
            "rule add count=0 drop", "rule add sqpn=0x1000000 drop", "rule add class=256 drop",
            "rule add attr=0x10000 drop", "rule add minlen=0 drop", "rule add percent=-1 drop", "rule add drop=",
            "rule add delay drop", "rule del 32", "sa slow 60001", "sm lid 0xc000", "port vib0/1 lid 0xc000",
            "port vib0/1 lid 7 8", "port vib0/1 pkey 16 0xffff", "port vib0/1 guid 8 1", "port vib0/1 guid 0 0",
            "fail post_send 2147483648", "fail nothing 1", "bench vib0/1 vib1/1 10 4097", "bench vib0/1 vib1/1 10 0")
    assert vibfab.rules() == [] and {p["link"] for p in vibfab.ports()} == {1}


def test_states_that_a_queue_pair_cannot_have():
    """A command that changes nothing says so."""
    with hosts("connected") as ping:
        net.run([*ping, "-c", "3", "-s", "9000"])
        ud, rc = vibfab.qps(A)[0]["qpn"], vibfab.qps(A, vibfab.RC)[0]["qpn"]
        refused(f"qp vib0 {rc} sqe", f"qp vib0 {ud} hold", f"qp vib0 {ud} sqe extra", "qp vib0 0 err", "qp vib0 1 sqe",
                f"qp vib0 {ud} event port_err", f"qp vib0 {ud} event cq_err", f"qp vib1 {ud} err", "qp vib9 5 err")
        vibfab.ctl(f"qp vib0 {ud} err")
        refused(f"qp vib0 {ud} sqe")
        net.run([*ping, "-c", "3", "-s", "9000"])


def test_a_lid_that_was_given_away_stays_there():
    """A port that is down loses its LID to another; what becomes of that port is no business of the LID's any more."""
    lid = vibfab.port(A)["lid"]
    vibfab.ctl(f"port {A} down", f"port {B} lid {lid}", f"port {A} lid 600")
    carried(("vib1/2", B), ("vib0/2", B))
    assert vibfab.port(A)["lid"] == 600
    vibfab.ctl(f"port {A} lid {lid + 40}", "hca vib0 remove")
    carried(("vib1/2", B))
    vibfab.ctl("hca vib0 add")
    assert len({p["lid"] for p in vibfab.ports()}) == 4
    carried((A, B), (B, A), ("vib1/2", B), ("vib0/2", "vib1/2"))
    # The same for a port that comes up again.
    vibfab.ctl(f"port {B} down", f"port {A} lid {lid}")
    refused(f"port {B} lid {lid}", f"port {B} up")
    vibfab.ctl(f"port {B} lid 700", f"port {B} up")
    carried((A, B), (B, A))


def test_the_sm_says_where_it_is():
    vibfab.ctl("sm lid 500")
    out = net.run(["smpquery", "-C", "vib1", "-P", "1", "portinfo", "500", "0"]).stdout
    assert "SMLid:...........................500" in out
    vibfab.ctl("hca vib0 remove", "hca vib0 add")
    assert {p["sm_lid"] for p in vibfab.ports()} == {500}


def test_slow_answers_come_when_it_is_fast_again():
    vibfab.ctl("sa slow 60000")
    with contextlib.closing(umad.Sa("vib0", 1)) as sa:
        assert sa.ask(umad.GET, umad.CLASS_PORT_INFO, timeout_ms=500) is None
        vibfab.ctl("sa slow 0")
        assert sa.ask(umad.GET, umad.CLASS_PORT_INFO, timeout_ms=20000)[0] == 0


def test_strict_can_be_off():
    assert reload("strict=0").returncode == 0
    net.run(["insmod", MODULE.replace("vibfab.ko", "vibcheck.ko")])
    try:
        for what in ("overpost_sq", "foreign_ah", "bad_state", "lkey", "cq_overflow", "zero_qkey"):
            vibfab.write(vibfab.DEBUG.parent / "vibcheck/run", what)
        assert vibfab.strict() == {}
    finally:
        net.run(["rmmod", "vibcheck"])


def test_clients_that_fail_are_not_blamed():
    """Verbs fail under a driver and its HCA is pulled out: it leaves nothing behind, and nothing is said of it."""
    for _ in range(3):
        with hosts("connected") as ping:
            net.run([*ping, "-c", "3", "-s", "20000"])
            for verb in ("create_ah", "create_qp", "attach_mcast", "post_srq_recv", "modify_qp"):
                vibfab.ctl(f"fail {verb} 2")
            net.run([*ping, "-c", "3", "-s", "20000"], check=False)
            vibfab.ctl("hca vib1 remove", "hca vib1 add")
            vibfab.ctl(*(f"fail {v} 0" for v in ("create_ah", "create_qp", "attach_mcast", "post_srq_recv",
                                                 "modify_qp")))
        assert vibfab.strict() == {}
    assert vibfab.kernel_log(r"vibfab: (leak|STRICT)") == []


@pytest.mark.parametrize("params", ["hcas=64 ports=1", "hcas=1 ports=64", "hcas=8 ports=8 pkeys=128 gids=128"])
def test_sixty_four_ports_carry(params):
    assert reload(*params.split(), "cmd=port vib0/1 pkey 0 0xffff").returncode == 0
    names = [p["port"] for p in vibfab.ports()]
    assert len(names) == 64
    carried((names[0], names[-1]), (names[-1], names[0]), (names[31], names[32]), (names[5], names[5]))
    net.wait_until("an interface each", lambda: all(vibload.iface(p) for p in (names[0], names[63])))


@pytest.mark.parametrize("params", [
    "max_wr=1048576 max_cqe=16777216 vectors=1024 max_send_sge=32 max_recv_sge=32 max_srq_sge=32",
    "max_wr=512 max_cqe=2048 vectors=1 max_send_sge=2 max_recv_sge=2 max_srq_sge=2 snap=0 ring=1",
    "pkeys=128 gids=128 lmc=7 ring=65536 snap=4096", "strict=0 strict_len=1 deferred=1 comp=direct"])
def test_a_driver_works_at_the_limits(params):
    assert reload(*params.split()).returncode == 0
    with hosts("connected") as ping:
        for size in ("56", "9000", "60000"):
            net.run([*ping, "-A", "-c", "5", "-s", size])
        (vibfab.DEBUG / "pcap").read_bytes()
        assert vibfab.strict() == {}


def fire(seed, stop, pause):
    """Random commands until told to stop, with so many seconds in between; returns how many were obeyed."""
    dice, obeyed = random.Random(seed), 0
    while not stop.wait(pause):
        line = command(dice)
        # What carries packets for minutes with all others waiting is no news.
        if line.startswith("bench"):
            continue
        with contextlib.suppress(OSError):
            vibfab.ctl(line)
            obeyed += 1
    return obeyed


@contextlib.contextmanager
def gunners(number, pause=0):
    stop = threading.Event()
    obeyed = [0] * number

    def shoot(i):
        obeyed[i] = fire(100 + i, stop, pause)
    threads = [threading.Thread(target=shoot, args=(i,)) for i in range(number)]
    for t in threads:
        t.start()
    try:
        yield obeyed
    finally:
        stop.set()
        for t in threads:
            t.join()


def test_commands_from_all_sides_while_hcas_come_and_go():
    with gunners(4) as obeyed:
        for _ in range(6):
            for verb in ("remove", "add"):
                for h in ("vib0", "vib1"):
                    with contextlib.suppress(OSError):
                        vibfab.ctl(f"hca {h} {verb}")
            for name in ("state", "groups", "rules", "ring", "pcap", "strict"):
                (vibfab.DEBUG / name).read_bytes()
    assert min(obeyed) > 0
    for h in ("vib0", "vib1"):
        with contextlib.suppress(OSError):
            vibfab.ctl(f"hca {h} add")
    sound()


def test_the_module_goes_under_commands():
    """Whoever writes keeps it for that moment; then it goes, and the writers find no file."""
    with gunners(1, 0.1):
        for _ in range(5):
            net.wait_until("a moment without a writer",
                           lambda: net.run(["rmmod", "vibfab"], check=False).returncode == 0)
            assert net.run(["insmod", MODULE], check=False).returncode == 0
    reload()
    sound()


def test_rules_come_and_go_under_traffic():
    """A rule that was added strikes, whoever clears others at that moment."""
    stop = threading.Event()

    def clear():
        while not stop.is_set():
            vibfab.ctl("rule clear")
    thread = threading.Thread(target=clear)
    thread.start()
    try:
        for _ in range(300):
            try:
                vibfab.ctl("rule add kind=uc minlen=4000 drop")
            except OSError as e:
                # The other thread had no turn for 32 rules.
                if e.errno != errno.ENOSPC:
                    raise
    finally:
        stop.set()
        thread.join()
    vibfab.ctl("rule add kind=uc minlen=50 drop")
    refused("bench vib0/1 vib1/1 10 100")
    vibfab.ctl("rule clear")
    sound()


def test_recording_is_switched_from_two_sides():
    def switch():
        for _ in range(300):
            vibfab.ctl("ring on", "ring off")
    threads = [threading.Thread(target=switch) for _ in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    vibfab.ctl("ring on", "ring clear")
    carried((A, B))
    assert vibfab.ring()


def test_far_nodes_and_a_driver_that_goes():
    """Datagrams for ten thousand nodes are on their way when the HCA is pulled out."""
    assert reload("far=10000", "ring=0").returncode == 0
    for _ in range(2):
        with hosts():
            name = vibload.iface_in("x")
            net.run(["ip", "-n", "x", "addr", "add", "10.128.255.254/16", "dev", name])
            with net.netns("x"):
                s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            s.setblocking(False)
            base = int.from_bytes(socket.inet_aton("10.128.0.1"), "big")
            for at in range(0, 10000, 3):
                with contextlib.suppress(OSError):
                    s.sendto(b"x", (socket.inet_ntoa((base + at).to_bytes(4, "big")), 7000))
                if at == 6000:
                    vibfab.ctl("hca vib0 remove")
            vibfab.ctl("hca vib0 add")
            s.close()
        assert vibfab.strict() == {}
    assert vibfab.kernel_log(r"vibfab: (leak|STRICT)") == []


def mad(dice, lids):
    """A random management datagram for umad: head and 256 bytes, half of them nearly right."""
    qp = dice.randrange(2)
    cls = dice.choice([1, 0x81] if qp == 0 else [3, 3, 3, 4, 7, 0x32, dice.randrange(256)])
    method = dice.choice([1, 2, 0x12, 0x15, 0x81, dice.randrange(256)])
    attr = dice.choice([1, 2, 0x10, 0x11, 0x12, 0x14, 0x15, 0x16, 0x19, 0x1B, 0x20, 0x35, 0x38,
                        dice.randrange(1 << 16)])
    body = bytearray(dice.randbytes(256) if dice.randrange(2) else bytes(256))
    version = 2 if cls == 3 else 1
    struct.pack_into(">4BHHQHHI", body, 0, 1, cls, version, method, 0, 0, dice.randrange(1 << 32), attr, 0,
                     dice.choice([0, 1, 2, 0xFF, dice.randrange(1 << 32)]))
    if cls == 0x81:
        # Status and direction, hop pointer and count.
        struct.pack_into(">HBB", body, 4, dice.choice([0, 0x8000]), dice.choice([0, 0, 1, dice.randrange(256)]),
                         dice.choice([0, 1, 2, 63, 64, dice.randrange(256)]))
    lid = dice.choice([*lids, 0, 0xFFFF, 0xC000, dice.randrange(1 << 16)])
    if cls == 0x81 and dice.randrange(2):
        lid = 0xFFFF
    return qp, lid, bytes(body)


@pytest.mark.parametrize("params", [[], ["sm=external"], ["far=100"]])
def test_random_mads_do_no_harm(params):
    """To the SA, to the management agents of switch and HCAs, along paths that do not exist."""
    assert reload(*params).returncode == 0
    lids = [1, *(p["lid"] for p in vibfab.ports())]
    dice = random.Random(7)
    with contextlib.closing(umad.Sa("vib0", 1)) as sa, contextlib.closing(umad.Sa("vib0", 1, (1, 0x81))) as sma:
        for _ in range(3000):
            qp, lid, body = mad(dice, lids)
            with contextlib.suppress(OSError):
                (sa if qp else sma).send(body, qp, lid)
    if not params:
        vibfab.ctl("sm restart", "port vib0/1 reregister")
    for name in ("state", "groups", "ring"):
        (vibfab.DEBUG / name).read_bytes()
    assert vibfab.strict() == {}
    assert reload().returncode == 0
    carried((A, B), (B, A))
    sound()


def test_a_group_without_receivers_is_on_the_wire():
    """What is sent to nobody was sent all the same, and the ring has it."""
    with hosts():
        vibfab.ctl("ring clear")
        sent = vibfab.port(A)["tx_mcast"]
        net.run(["ip", "netns", "exec", "x", "ping", "-c", "3", "-W", "1", "-I", vibload.iface_in("x"), "239.7.7.7"],
                check=False)
        net.wait_until("three multicasts", lambda: vibfab.port(A)["tx_mcast"] >= sent + 3)
        seen = [p for p in vibfab.ring() if p["data"][20:24] == bytes([239, 7, 7, 7])]
    assert len(seen) == 3 and {p["verdict"] for p in seen} == {"no_member"}


def test_held_packets_have_an_end():
    """A rule that delays everything by a minute does not eat the memory of the machine."""
    with hosts() as ping:
        with net.netns("x"):
            s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        with vibfab.rule("kind=uc", f"src={A}", "minlen=1000", "delay=60000000") as r, contextlib.closing(s):
            def more():
                for _ in range(2000):
                    s.sendto(bytes(1400), ("10.80.0.2", 7000))
                return r()["hits"] > 18000
            net.wait_until("more packets than may wait", more)
        net.run([*ping, "-c", "2"])
    assert vibfab.strict() == {}
