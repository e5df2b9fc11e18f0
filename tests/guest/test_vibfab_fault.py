"""Faults on the wire and in the queues: that they strike, and that a driver gets over them."""

import pytest

import net
import vibfab

A, B = "vib0/1", "vib1/1"


@pytest.fixture(autouse=True)
def quiet(a, b):
    with vibfab.quiet(lambda: a.reaches(b.ip4)):
        yield
    net.wait_until("the sides to reach each other again", lambda: a.reaches(b.ip4))


def ud_qp(port):
    return vibfab.qps(port)[0]


def test_nth_packet_is_dropped(a, b):
    with vibfab.rule("kind=uc", f"src={A}", "minlen=500", "nth=3", "drop") as r:
        lost = a.ping(b.ip4, count=6, size=600).lost
        assert (lost, r()["hits"]) == (1, 1)


def test_every_second_packet_is_dropped(a, b):
    with vibfab.rule("kind=uc", f"src={A}", "minlen=500", "every=2", "drop"):
        assert a.ping(b.ip4, count=6, size=600, extra=["-i", "0.2"]).lost == 3


def test_one_shot(a, b):
    with vibfab.rule("kind=uc", f"src={A}", "minlen=500", "oneshot", "drop"):
        assert a.ping(b.ip4, count=4, size=600).lost == 1


def test_percentage(a, b):
    with vibfab.rule("kind=uc", f"src={A}", "minlen=500", "percent=50", "drop") as r:
        a.run("ping", "-q", "-n", "-i", "0.01", "-c", 60, "-s", 600, "-W", 1, b.ip4, check=False)
        assert 10 < r()["hits"] < 50 and r()["seen"] >= 60


def test_multicast_lost_for_one_receiver(a, b):
    a.flush_neighbours()
    with vibfab.rule("kind=mc", f"dst={B}", "drop") as r:
        assert not a.reaches(b.ip4)
        assert r()["hits"] > 0
    net.wait_until("ARP to get through", lambda: a.reaches(b.ip4))


def test_duplicates(a, b):
    with vibfab.rule("kind=uc", f"src={A}", "minlen=500", "dup"):
        pings = a.ping(b.ip4, count=3, size=600)
    assert pings.lost == 0 and pings.duplicates >= 2


def test_delay(a, b):
    with vibfab.rule("kind=uc", f"src={A}", "minlen=500", "delay=300000"):
        out = a.run("ping", "-n", "-c", 2, "-s", 600, "-W", 10, b.ip4).stdout
    times = [float(w.removeprefix("time=")) for w in out.split() if w.startswith("time=")]
    assert len(times) == 2 and min(times) >= 300


def test_reorder(a, b):
    """The first packet is overtaken by two more."""
    with vibfab.rule("kind=uc", f"src={A}", "minlen=500", "nth=1", "reorder=2"):
        vibfab.ctl("ring clear")
        a.run("ping", "-q", "-n", "-c", 4, "-i", "0.01", "-s", 600, "-W", 5, b.ip4)
    seq = [int.from_bytes(p["data"][30:32], "big") for p in vibfab.ring()
           if p["in"] == vibfab.port(A)["sw"] and p["len"] > 500]
    assert sorted(seq) == [1, 2, 3, 4] and seq[0] != 1


@pytest.mark.parametrize("what", ["payload", "len", "pkey", "qkey", "srcqp", "slid"])
def test_corruption(a, b, what):
    """A flipped bit or a short packet is caught above, a wrong key by the HCA; the rest does no harm to ping."""
    with vibfab.rule("kind=uc", f"src={A}", "minlen=500", f"corrupt={what}") as r:
        lost = a.ping(b.ip4, count=3, size=600, extra=["-i", "0.2", "-W", "1"]).lost
        assert r()["hits"] >= 3
    assert lost == (0 if what in ("srcqp", "slid") else 3)


def test_a_multicast_without_its_grh(a, b):
    vibfab.ctl("ring clear")
    with vibfab.rule("kind=mc", f"src={A}", "corrupt=nogrh") as r:
        def struck():
            # The peer may teach us its address in the meantime: then there is nothing to ask for.
            a.flush_neighbours()
            a.reaches(b.ip4)
            return r()["hits"]
        net.wait_until("a multicast", struck)
        here, there = vibfab.port(A)["sw"], vibfab.port(B)["sw"]
    found = [p["grh"] for p in vibfab.ring() if p["dlid"] >= 0xC000 and (p["in"], p["out"]) == (here, there)]
    assert 0 in found
    net.wait_until("an answer", lambda: a.reaches(b.ip4))


def test_a_failed_send_takes_the_qp_to_sqe_and_the_driver_back(a, b):
    with vibfab.rule("kind=uc", f"src={A}", "minlen=500", "oneshot", f"wc={vibfab.LOC_QP_OP_ERR}") as r:
        a.ping(b.ip4, count=1, size=600, extra=["-W", "1"])
        assert r()["hits"] == 1
    net.wait_until("the QP to be in RTS", lambda: ud_qp(A)["state"] == vibfab.RTS)
    net.wait_until("an answer", lambda: a.reaches(b.ip4))


def test_held_completions_come_late_but_come(a, b):
    qp = ud_qp(B)
    where = f"qp {qp['device']} {qp['qpn']}"
    vibfab.ctl(f"{where} hold recv")
    process = a.start("ping", "-q", "-c", 1, "-W", 30, b.ip4)
    net.wait_until("a completion to be held", lambda: any(
        c["hold"] and c["used"] for c in vibfab.lines("state", "cq")))
    assert process.poll() is None
    vibfab.ctl(f"{where} release recv")
    assert process.wait(60) == 0


def test_receive_error_costs_one_packet(a, b):
    with vibfab.rule("kind=uc", f"src={A}", "minlen=500", "oneshot", f"rxerr={vibfab.LOC_LEN_ERR}") as r:
        a.ping(b.ip4, count=1, size=600, extra=["-W", "1"])
        assert r()["hits"] == 1


def test_bad_commands_are_refused():
    for bad in ("nonsense", "rule add kind=uc", "rule add kind=nobody drop", "rule add delay", "port vib7/1 down",
                "port vib0/1 mtu 1000", "fail create_ah", "qp vib0 0x3 err", "sa slow x", "hca vib0 explode",
                "rule del 31"):
        with pytest.raises(OSError):
            vibfab.ctl(bad)
