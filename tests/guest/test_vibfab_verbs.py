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
         "stranger", "long_message", "comm_est", "srq_limit", "last_wqe", "last_wqe_remote"]
# A mistake, the counter it must raise, and by how much.
MISUSE = {"cq_overflow": ("cq_overflow", 1), "overpost_sq": ("overpost_sq", 1), "overpost_rq": ("overpost_rq", 1),
          "foreign_ah": ("foreign_ah", 1), "bad_state": ("bad_state_post", 2), "sges": ("too_many_sge", 2),
          "lkey": ("bad_lkey", 2), "zero_qkey": ("no_qkey", 1)}
# Those with a test of their own, for they need parameters.
OTHER = {"double_post", "dma_addr", "leak"}
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


@pytest.mark.parametrize("comp", ["direct", "wq"])
def test_handlers_elsewhere(fabric, comp):
    fabric(f"comp={comp}")
    for what in ("datagram", "err_flush", "rc_order", "rnr_wait", "srq_limit", "last_wqe_remote"):
        check(what)


def test_no_shared_receive_queues(fabric):
    fabric("srq=0")
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
EVENTS = [
    ([f"port {A} down"], [ERR]),
    ([f"port {A} state armed"], [ERR]),
    ([f"port {A} state active"], [ACTIVE]),
    ([f"port {A} lid 99"], [LID]),
    ([f"port {A} smlid 7"], [SM]),
    ([f"port {A} smsl 3"], [SM]),
    ([f"port {A} pkey 3 0x8123"], [PKEY]),
    # GID_CHANGE stays in the RDMA core.
    ([f"port {A} guid 1 0x1234"], [REREGISTER]),
    ([f"port {A} prefix 0xfec0000000000001"], [REREGISTER]),
    (["hca vib0 fatal"], [FATAL]),
]


def events():
    return [(e["port"], e["event"]) for e in vibfab.read_lines(CHECK / "events")]


@pytest.mark.parametrize("commands,expected", EVENTS)
def test_a_command_raises_its_event_or_none(fabric, commands, expected):
    """With `noevent` nobody is told; the event that ends the test shows that those before it have come through."""
    fabric()
    vibfab.write(CHECK / "run", "events clear")
    vibfab.ctl(*(f"{c} noevent" for c in commands))
    vibfab.ctl(f"port {A} event sm_change")
    net.wait_until("the mark", lambda: (A, SM) in events())
    assert events() == [(A, SM)]
    fabric()
    vibfab.write(CHECK / "run", "events clear")
    vibfab.ctl(*commands)
    net.wait_until("the event", lambda: len(events()) >= len(expected))
    assert events() == [(A, e) for e in expected]


def test_events_of_the_sm_go_to_every_port():
    vibfab.write(CHECK / "run", "events clear")
    vibfab.ctl("sm restart")
    names = {p["port"] for p in vibfab.ports()}
    net.wait_until("the events", lambda: {p for p, e in events() if e == REREGISTER} == names)
    vibfab.ctl("sm lid 500", "sm lid 1")
    net.wait_until("the events", lambda: {p for p, e in events() if e == SM} == names)


def test_a_leak_is_counted_and_its_place_stays_taken():
    """The last test: the HCA that was left with objects is gone for good, and so is its name."""
    check("leak")
    vibfab.ctl("hca vib1 remove")
    assert vibfab.strict() == {"leak": 2}
    assert vibfab.kernel_log("vibfab: leak: 1 ah left on HCA 1")
    vibfab.ctl("strict clear")
    with pytest.raises(OSError):
        vibfab.ctl("hca vib1 add")
    assert vibfab.hca("vib1") is None and vibfab.hca("vib0") is not None
