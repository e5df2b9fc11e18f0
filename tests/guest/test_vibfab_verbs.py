"""The virtual HCAs by their verbs, without a network driver: tests/vibfab's second module, vibcheck, is the
consumer. A check looks at what a verb answers and at completions and events; here are the counters and the wire."""

import pathlib

import pytest

import net
import vibfab

BUILD = pathlib.Path("/src/build/stock-vibfab")
CHECK = pathlib.Path("/sys/kernel/debug/vibcheck")
A, B = "vib0/1", "vib1/1"

# What needs no parameter of vibfab, with its argument.
CLEAN = ["datagram", "grh", "short_buffer", "qkey", "sqe", "err_flush", "loopback", "loopback 2", "burst", "arming",
         "solicited", "moderation", "vector 0", "vector 1", "vector 3", "rc_order", "rnr", "rnr_wait", "retry",
         "stranger", "long_message", "comm_est", "err_post", "srq_limit", "last_wqe", "last_wqe_remote", "attached",
         "limits"]
# A mistake, the counter it must raise, and by how much.
MISUSE = {"cq_overflow": ("cq_overflow", 1), "overpost_sq": ("overpost_sq", 1), "overpost_rq": ("overpost_rq", 1),
          "foreign_ah": ("foreign_ah", 1), "bad_state": ("bad_state_post", 2), "sges": ("too_many_sge", 2),
          "lkey": ("bad_lkey", 2), "zero_qkey": ("no_qkey", 1)}
# Those with a test of their own, for they need parameters; "bounce" is in the suite vibfab-offload.
OTHER = {"double_post", "dma_addr", "leak", "bounce"}
# For each verb that can be made to fail a check that calls it.
FAILING = {"create_ah": "datagram", "create_qp": "datagram", "create_cq": "datagram", "alloc_pd": "datagram",
           "modify_qp": "datagram", "post_send": "datagram", "post_recv": "datagram", "query_port": "datagram",
           "create_srq": "srq_limit", "post_srq_recv": "srq_limit", "attach_mcast": "loopback",
           "req_notify": "arming"}


def load(*params):
    net.run(["rmmod", "vibcheck"], check=False)
    net.run(["rmmod", "vibfab"], check=False)
    net.run(["insmod", str(BUILD / "vibfab.ko"), *params])
    net.run(["insmod", str(BUILD / "vibcheck.ko")])


@pytest.fixture(scope="module", autouse=True)
def loaded():
    load()
    yield
    net.run(["rmmod", "vibcheck"])


@pytest.fixture
def fabric():
    """A function that loads the fabric with parameters; the next test finds the defaults again."""
    yield load
    load()


@pytest.fixture(autouse=True)
def quiet():
    yield
    vibfab.reset()
    assert vibfab.strict() == {}


def check(what):
    """Runs a check; what it says in the end."""
    try:
        vibfab.write(CHECK / "run", what)
    except OSError as e:
        pytest.fail(f"{what}: {e}: {(CHECK / 'result').read_text()}")
    return (CHECK / "result").read_text().strip()


def test_no_check_is_forgotten():
    assert set((CHECK / "list").read_text().split()) == {c.split()[0] for c in CLEAN} | set(MISUSE) | OTHER


def test_an_unknown_check_fails():
    with pytest.raises(OSError):
        vibfab.write(CHECK / "run", "nothing")


@pytest.mark.parametrize("what", CLEAN)
def test_verbs(what):
    check(what)


@pytest.mark.parametrize("verb", FAILING)
def test_a_verb_fails_once(verb):
    what = FAILING[verb]
    vibfab.ctl(f"fail {verb} 1")
    with pytest.raises(OSError):
        vibfab.write(CHECK / "run", what)
    check(what)


def test_a_verb_fails_on_its_nth_call():
    vibfab.ctl("fail post_recv 9")
    with pytest.raises(OSError):
        vibfab.write(CHECK / "run", "rc_order")
    assert "vc_recv" in (CHECK / "result").read_text()
    check("rc_order")


@pytest.mark.parametrize("what", MISUSE)
def test_misuse_is_counted(what):
    counter, times = MISUSE[what]
    check(what)
    assert vibfab.strict() == {counter: times}
    vibfab.ctl("strict clear")


def test_double_posting_is_counted(fabric):
    check("double_post")
    assert vibfab.strict() == {}, "strict=1 does not look"
    fabric("strict=2")
    check("double_post")
    assert vibfab.strict() == {"double_post": 1}
    vibfab.ctl("strict clear")


def test_a_bus_address_without_memory_is_counted(fabric):
    fabric("dma=direct")
    check("dma_addr")
    assert vibfab.strict().keys() == {"dma_addr"}
    vibfab.ctl("strict clear")
    check("datagram")
    check("rc_order")


def test_strict_len(fabric):
    fabric("strict_len=1")
    check("short_buffer 1")


def test_block_loopback(fabric):
    fabric("block_loopback=1")
    check("loopback")
    check("loopback 1")


def test_loopback_can_be_off(fabric):
    fabric("mcast_self=0")
    check("loopback 3")


def test_packets_in_a_work_item(fabric):
    fabric("deferred=1")
    for what in ("datagram", "grh", "err_flush", "rc_order", "comm_est", "last_wqe_remote"):
        check(what)


@pytest.mark.parametrize("comp", ["direct", "wq"])
def test_handlers_elsewhere(fabric, comp):
    fabric(f"comp={comp}")
    for what in ("datagram", "err_flush", "rc_order", "rnr_wait", "srq_limit", "last_wqe_remote"):
        check(what)


@pytest.mark.parametrize("mtu", [256, 2048])
def test_limits_by_parameter(fabric, mtu):
    limits = {"max_wr": 600, "max_cqe": 2500, "max_send_sge": 3, "max_recv_sge": 4, "max_srq_sge": 5, "mtu": mtu,
              "vectors": 9}
    fabric(*(f"{k}={v}" for k, v in limits.items()))
    said = dict(w.split("=") for w in check("limits").split())
    assert {k: int(v) for k, v in said.items()} == limits
    check("sqe")


def test_no_shared_receive_queues(fabric):
    fabric("srq=0")
    check("limits")
    check("rc_order")
    with pytest.raises(OSError):
        vibfab.write(CHECK / "run", "srq_limit")


def fate(dice=50):
    """Which of sixty datagrams a rule with dice lets pass."""
    with vibfab.rule("kind=uc", f"src={A}", f"percent={dice}", "drop") as r:
        arrived = int(check("burst").removeprefix("arrived="), 16)
        assert r()["seen"] == 60 and arrived.bit_count() == 60 - r()["hits"]
    return arrived


def test_the_seed_decides_the_dice(fabric):
    """The same run with the same seed has the same fate, with another seed another."""
    fates = []
    for seed in (5, 6, 5):
        fabric(f"seed={seed}")
        fates.append((fate(), fate(20)))
    assert fates[0] == fates[2] != fates[1]
    assert fates[0][0] not in (0, (1 << 60) - 1)


def test_all_of_a_burst_arrive():
    assert check("burst") == f"arrived={(1 << 60) - 1:#x}"


# Numbers of enum ib_event_type
FATAL, ACTIVE, ERR, LID, PKEY, SM, REREGISTER = 8, 9, 10, 11, 12, 13, 17
# Two commands, of which the second undoes the first, and the event of each.
EVENTS = [
    (f"port {A} down", ERR, f"port {A} up", ACTIVE),
    (f"port {A} state armed", ERR, f"port {A} state active", ACTIVE),
    (f"port {A} lid 99", LID, f"port {A} lid 2", LID),
    (f"port {A} lid 96 3", LID, f"port {A} lid 2 0", LID),
    (f"port {A} smlid 7", SM, f"port {A} smlid 1", SM),
    (f"port {A} smsl 3", SM, f"port {A} smsl 0", SM),
    (f"port {A} pkey 3 0x8123", PKEY, f"port {A} pkey 3 0", PKEY),
    # GID_CHANGE stays in the RDMA core.
    (f"port {A} guid 1 0x1234", REREGISTER, f"port {A} guid 1 0", REREGISTER),
    (f"port {A} prefix 0xfec0000000000001", REREGISTER, f"port {A} prefix 0xfe80000000000000", REREGISTER),
    ("hca vib0 fatal", FATAL, "hca vib0 recover", None),
]
# Those whose event every port gets.
EVENTS_OF_ALL = [
    ("sm lid 500", SM, "sm lid 1", SM),
    ("sm restart", REREGISTER, "sm restart", REREGISTER),
    ("group 0xffff mtu 2048", REREGISTER, "group 0xffff mtu 4096", REREGISTER),
    ("group 0xffff qkey 0x1234", REREGISTER, "group 0xffff qkey 0x0b1b", REREGISTER),
    ("group 0xffff rate 6", REREGISTER, "group 0xffff rate 3", REREGISTER),
    ("group 0xffff sl 2", REREGISTER, "group 0xffff sl 0", REREGISTER),
    ("group 0x8123 add", REREGISTER, "group 0x8123 del", REREGISTER),
    ("group 0xffff del", REREGISTER, "group 0xffff add", REREGISTER),
]


def events():
    return [(e["port"], e["event"]) for e in vibfab.read_lines(CHECK / "events")]


def raised(command, done):
    """The events that a command raises; done() says, of the events so far, that all there will be have come."""
    vibfab.write(CHECK / "run", "events clear")
    vibfab.ctl(command)
    net.wait_until("the event", lambda: done(events()))
    return events()


def raised_quietly(command):
    """The same with `noevent`: nobody is told. An event that ends the test shows that those before it came through."""
    vibfab.write(CHECK / "run", "events clear")
    vibfab.ctl(f"{command} noevent", "port vib1/2 event pkey_change")
    mark = ("vib1/2", PKEY)
    net.wait_until("the mark", lambda: mark in events())
    return [e for e in events() if e != mark]


def with_and_without(command, event, undo, undo_event, ports):
    """The event of either command goes to these ports, and to nobody with `noevent`."""
    assert raised_quietly(command) == [] == raised_quietly(undo)
    for what, number in ((command, event), (undo, undo_event)):
        wanted = sorted((p, number) for p in ports if number)
        assert sorted(raised(what, lambda e, n=len(wanted): len(e) >= n)) == wanted


@pytest.mark.parametrize("command,event,undo,undo_event", EVENTS)
def test_a_command_raises_its_event_or_none(command, event, undo, undo_event):
    with_and_without(command, event, undo, undo_event, [A])


@pytest.mark.parametrize("command,event,undo,undo_event", EVENTS_OF_ALL)
def test_a_command_of_the_sm_tells_every_port_or_none(command, event, undo, undo_event):
    with_and_without(command, event, undo, undo_event, [p["port"] for p in vibfab.ports()])


def test_events_alone():
    """Those that are raised without anything having changed, and those that no port can have."""
    assert raised(f"port {A} reregister", bool) == [(A, REREGISTER)]
    for name, number in (("lid_change", LID), ("sm_change", SM), ("pkey_change", PKEY), ("port_err", ERR)):
        assert raised(f"port {A} event {name}", bool) == [(A, number)]
    for name in ("cq_err", "last_wqe", "srq_limit", "no_event"):
        with pytest.raises(OSError):
            vibfab.ctl(f"port {A} event {name}")


def test_a_leak_is_counted_and_its_place_stays_taken():
    """The last test: the HCA that was left with objects is gone for good, and so is its name."""
    check("leak")
    vibfab.ctl("hca vib1 remove")
    assert vibfab.strict() == {"leak": 7}
    for kind in ("pd", "cq", "qp", "srq", "ah", "mr", "mcast"):
        assert vibfab.kernel_log(f"vibfab: leak: 1 {kind} left on HCA 1")
    vibfab.ctl("strict clear")
    with pytest.raises(OSError):
        vibfab.ctl("hca vib1 add")
    assert vibfab.hca("vib1") is None and vibfab.hca("vib0") is not None
