"""Frames that no decent peer sends: each is counted by its reason, none disturbs what comes after.

The fuzzing is determined by HOSTILE_SEED, and has HOSTILE_FRAMES frames (environment or kernel line; by default
seed 1 and 20,000 frames): `scripts/guest run --append 'HOSTILE_SEED=7 HOSTILE_FRAMES=200000' --
tests/guest/run-suite hostile-rxe`.
"""

import os
import subprocess

import pytest

import inject
import net
import roce

SEED = net.asked("HOSTILE_SEED", 1)
FRAMES = net.asked("HOSTILE_FRAMES", 20000)
REASONS = ("too_short", "bad_ethertype", "empty")
BROADCAST = "ff12:401b:ffff::ffff:ffff"


@pytest.fixture(scope="module", autouse=True)
def prepared():
    net.run(["modprobe", "ib_uverbs"])
    assert os.access(inject.PROGRAM, os.X_OK), f"{inject.PROGRAM} is not built: scripts/build-inject"


@pytest.fixture
def injector(a, b):
    return inject.Injector(a, b)


@pytest.fixture
def wire():
    with roce.Wire("v1", "v0") as w:
        yield w


@pytest.fixture(autouse=True)
def still_alive(prepared, a, b):
    """After every test a good ping goes both ways, whatever the neighbour tables have learned."""
    yield
    for side, other in ((a, b), (b, a)):
        for address in (other.ip4, other.ip6):
            side.flush_neighbours()
            other.flush_neighbours()
            # One by one: of several, ping would not wait for the last one as long as it takes.
            for _ in range(3):
                p = side.ping(address, count=1)
                assert (p.received, p.duplicates) == (1, 0), p.output


def check_account(account, added):
    """The driver's counters against the sender's account of a finished run."""
    assert added.losses == {r: account[r] for r in REASONS if account[r]}
    # Answers to what was delivered go out and cause more to come in: there may be more, never less.
    assert added.rx.get("packets", 0) >= account["whole"] + account["asked"]
    # The stack counts here too, what is of a type that it does not know.
    assert added.rx.get("dropped", 0) >= sum(added.losses.values())
    length_errors = account["too_short"] + account["empty"]
    assert added.rx.get("length_errors", 0) == length_errors
    assert added.rx.get("errors", 0) == length_errors


# kind: what its frames must be counted as, at least one each; None: delivered all.
KINDS = {
    "empty": {"too_short": 1},
    "short": {"too_short": 6, "empty": 2},
    "low-types": {"bad_ethertype": 5},
    "other-types": None,
    "truncated-ip": None,
    "wrong-ip": None,
    "wrong-arp": None,
    "oversize": None,
}


@pytest.mark.parametrize("kind", KINDS)
def test_kind(a, injector, kind):
    """Every kind of malformed frame is counted as what it is, or delivered for the stack to judge (RX-5,
    RX-6, RX-10; RFC row 12: an unknown type is delivered)."""
    before = inject.Counters.of(a)
    account = injector.send("corpus", kind)
    expected = KINDS[kind] or {}
    assert {r: account[r] for r in REASONS if account[r]} == expected
    assert account["whole"] + sum(expected.values()) == account["sent"] > 0
    added = inject.Counters.of(a).since(before)
    check_account(account, added)
    if expected:
        assert added.rx["dropped"] == sum(expected.values())


def test_every_queue_takes_frames(a, injector):
    """A peer may send to any of the interface's queue pairs; each does the same checks."""
    qpns = inject.View(a).qpns
    assert qpns[0] == inject.qpn_of(a.hwaddr)
    for qpn in qpns:
        before = inject.Counters.of(a)
        account = injector.send("corpus", "empty", "low-types", "short", to=(inject.gid_of(a), qpn))
        check_account(account, inject.Counters.of(a).since(before))


def test_larger_than_the_port_takes(a, injector):
    """What is larger than the port's MTU never arrives, and the frames after it do."""
    before = inject.Counters.of(a)
    frames = [b"\x08\x00\0\0" + bytes(n - 4) for n in (4097, 4100, 5000, 9000)]
    account = injector.send("frames", frames=frames)
    assert account["sent"] == len(frames)
    added = inject.Counters.of(a).since(before)
    assert added.losses == {}
    assert added.rx["bytes"] < 4096


def test_larger_than_the_mtu(a, injector):
    """An interface with a lowered MTU takes larger frames from peers, as in-tree: the port's MTU counts."""
    mtu = a.mtu
    a.set_link("mtu", "1500")
    try:
        before = inject.Counters.of(a)
        account = injector.send("corpus", "oversize")
        check_account(account, inject.Counters.of(a).since(before))
    finally:
        a.set_link("mtu", mtu)


def port_counter(side, name):
    """A counter of violations that the port keeps."""
    out = net.run(["ibv_devinfo", "-v", "-d", side.port.split("/")[0]]).stdout
    return next(int(line.split(":")[1], 0) for line in out.splitlines() if line.strip().startswith(name + ":"))


def test_wrong_q_key(a, injector):
    """Frames with another Q_Key do not arrive: the port refuses, and counts, them."""
    before, violations = inject.Counters.of(a), port_counter(a, "qkey_viol_cntr")
    frames = [b"\x88\xb5\0\0" + bytes(40)] * 600
    account = injector.send("frames", frames=frames, options=["--qkey", "0x0b1c"])
    assert account["sent"] == 600
    assert port_counter(a, "qkey_viol_cntr") == violations + 600
    added = inject.Counters.of(a).since(before)
    assert added.losses == {}
    assert added.rx["packets"] < 600


def test_wrong_p_key(a, b, wire):
    """The same for another P_Key."""
    gid, qpn = inject.gid_of(a), inject.View(a).qpns[0]
    before, violations = inject.Counters.of(a), port_counter(a, "bad_pkey_cntr")
    for psn in range(300):
        frame = roce.datagram(b"\x88\xb5\0\0x", 9, qpn, pkey=0x8001 if psn % 2 else 0x1234, psn=psn)
        wire.send(roce.packet(inject.gid_of(b), gid, frame))
    net.wait_until("the violations", lambda: port_counter(a, "bad_pkey_cntr") == violations + 300)
    added = inject.Counters.of(a).since(before)
    assert added.losses == {}
    assert added.rx.get("packets", 0) < 300


def test_forged_own_source(a, wire):
    """A frame that claims to come from a queue pair of ours, from our own GID, is our echo and goes (RX-8).
    Each of our queue pairs counts as ours."""
    gid, qpns = inject.gid_of(a), inject.View(a).qpns
    payload = b"\x88\xb5\0\0forged"
    for qpn in qpns:
        before = inject.Counters.of(a)
        for psn in range(50):
            wire.send(roce.packet(gid, gid, roce.datagram(payload, qpn, qpns[0], psn=psn)))
        net.wait_until("the echoes", lambda: inject.Counters.of(a).since(before).drops.get("own_echo", 0) >= 50)
        added = inject.Counters.of(a).since(before)
        assert added.losses == {}
        # An echo is nobody's loss.
        assert added.rx.get("dropped", 0) == 0
        assert added.rx.get("packets", 0) < 50


@pytest.mark.parametrize("half", ["queue-pair", "gid"])
def test_half_forged_source(a, b, wire, half):
    """Only our queue pair's number, or only our GID: that is somebody else, who is heard (RX-8)."""
    gid, qpns = inject.gid_of(a), inject.View(a).qpns
    source, qpn = (inject.gid_of(b), qpns[0]) if half == "queue-pair" else (gid, 0xABCDE)
    before = inject.Counters.of(a)
    for psn in range(50):
        wire.send(roce.packet(source, gid, roce.datagram(b"\x88\xb5\0\0forged", qpn, qpns[0], psn=psn)))
    net.wait_until("the frames", lambda: inject.Counters.of(a).since(before).rx.get("packets", 0) >= 50)
    added = inject.Counters.of(a).since(before)
    assert added.losses == {}
    assert added.drops.get("own_echo", 0) < 50


@pytest.mark.parametrize("address", ["fd00:5::1/64", "192.0.2.1/24"], ids=["ipv6", "ipv4"])
def test_other_gid_of_the_port(a, wire, address):
    """The port has more GIDs than the interface's: what is sent to those is not for the interface."""
    other = address.split("/")[0]
    gid = other if ":" in other else f"::ffff:{other}"
    source = "fd00:5::2" if ":" in other else "192.0.2.2"
    net.run(["ip", "addr", "add", address, "dev", "v0", *(["nodad"] if ":" in other else [])])
    try:
        net.wait_until("the port's new GID", lambda: inject.gid_index(a, gid) is not None)
        qpns = inject.View(a).qpns
        before = inject.Counters.of(a)
        for psn in range(20):
            wire.send(roce.packet(source, other, roce.datagram(b"\x88\xb5\0\0wrong", 0x1234, qpns[0], psn=psn)))

        def arrived():
            return inject.Counters.of(a).since(before).drops.get("wrong_gid", 0) == 20
        net.wait_until("the frames", arrived)
        added = inject.Counters.of(a).since(before)
        assert added.losses == {"wrong_gid": 20}
        assert added.rx["dropped"] == 20
    finally:
        net.run(["ip", "addr", "del", address, "dev", "v0"])


def test_transport_headers(a, wire):
    """Immediate data, odd pads, a broken ICRC, a group as destination of a unicast queue pair: no more
    frames than were good arrive, and none is anything worse than counted."""
    gid, qpn = inject.gid_of(a), inject.View(a).qpns[0]
    mcast_mac = bytes.fromhex("3333ffffffff")
    before = inject.Counters.of(a)
    for n in range(20):
        source = "fe80::1234"
        wire.send(roce.packet(source, gid, roce.datagram(b"\x88\xb5\0\0x", 9, qpn, opcode=roce.UD_SEND_ONLY_IMMEDIATE)))
        wire.send(roce.packet(source, BROADCAST, roce.datagram(b"\x88\xb5\0\0x", 9, qpn)), mcast_mac)
        # Not delivered: a pad longer than the payload, another checksum, other opcodes.
        wire.send(roce.packet(source, gid, roce.datagram(b"", 9, qpn, pad=3)))
        wire.send(roce.packet(source, gid, roce.datagram(b"\x88\xb5\0\0x", 9, qpn), icrc=0x12345678))
        wire.send(roce.packet(source, gid, roce.datagram(b"\x88\xb5\0\0x", 9, qpn, opcode=n)))
        wire.send(roce.packet(source, gid, roce.datagram(b"\x88\xb5\0\0" + bytes(4200), 9, qpn)))
        if n % 5 == 4:
            net.wait_until(
                "the frames", lambda: inject.Counters.of(a).since(before).rx.get("packets", 0) >= 2 * (n + 1))
    added = inject.Counters.of(a).since(before)
    assert added.losses == {}
    assert added.rx["packets"] < 60
    # That the destination was a group is told from its GID (RX-7); to the broadcast group is no multicast.
    assert added.rx.get("multicast", 0) < 20


def test_mutated(a, injector):
    """Many changed copies of good frames to all queues: counted as what they are, nothing crashes (RX-5,
    RX-6, RX-10)."""
    gid, qpns = inject.gid_of(a), inject.View(a).qpns
    for i, qpn in enumerate(qpns):
        before = inject.Counters.of(a)
        account = injector.send("mutate", SEED + i, FRAMES // len(qpns), to=(gid, qpn), timeout=3600)
        assert account["sent"] == FRAMES // len(qpns)
        assert min(account[k] for k in (*REASONS, "whole")) > 0
        check_account(account, inject.Counters.of(a).since(before))


def test_mutated_to_the_broadcast_group(a, injector):
    """The same to the broadcast group, which both interfaces and the sender's port hear."""
    gid, qpns = inject.gid_of(a), inject.View(a).qpns
    before = inject.Counters.of(a)
    # Whichever queue pair the group is attached to: all are asked before more is sent.
    asked = [word for qpn in qpns for word in ("--ask", gid, qpn)]
    account = injector.send(
        "mutate", SEED + 100, 2000, to=(BROADCAST, roce.MULTICAST_QPN), options=asked, timeout=3600)
    assert account["sent"] == 2000
    check_account(account, inject.Counters.of(a).since(before))


def test_under_traffic(a, b, injector):
    """Hostile frames beside a TCP stream: the stream comes through whole."""
    with net.FlowServer(a) as server:
        flow = subprocess.Popen(server.command(b, 4, 2 << 20), stdout=subprocess.PIPE, text=True)
        account = injector.send("mutate", SEED + 200, 1000, timeout=3600)
        assert account["sent"] == 1000
        # A changed frame may have put a wrong address into the neighbour tables: then the stream waits
        # until they are asked anew, and must come through all the same.
        a.flush_neighbours()
        b.flush_neighbours()
        out, _ = flow.communicate(timeout=600)
    assert out.strip() == "4 flows ok"
