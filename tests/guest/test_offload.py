"""What our driver makes of an HCA's offloads, beside test_vibfab_offload.py; facts NET-21, TX-9, TX-16, RX-12."""

import pytest

import net
import vibfab

A, B = "vib0/1", "vib1/1"


@pytest.fixture(autouse=True)
def quiet(a, b):
    with vibfab.quiet(lambda: a.reaches(b.ip4) and a.reaches(b.ip6)):
        yield


def sent_by(side, port):
    """Datagrams of IPoIB in the ring that a port has sent: their number and the length of the longest."""
    sent = [p["len"] for p in vibfab.ring() if p["in"] == vibfab.port(port)["sw"] and p["dqpn"] > 1]
    return len(sent), max(sent, default=0)


def bulk(a, b, **options):
    with net.FlowServer(b) as server:
        assert server.run(a, flows=1, octets=1 << 20, **options) == "1 flows ok"


def test_counters_tell_of_the_wire(a, b):
    """A packet that the HCA cuts counts as what it was cut into, headers and all."""
    before = a.stats()["tx"]
    vibfab.ctl("ring clear")
    bulk(a, b)
    net.wait_until("the last completion", lambda: a.stats()["tx"]["packets"] - before["packets"] >= sent_by(a, A)[0])
    after, (packets, _) = a.stats()["tx"], sent_by(a, A)
    # One of something else may have been between the two readings.
    assert abs(after["packets"] - before["packets"] - packets) <= 2
    assert after["bytes"] - before["bytes"] >= (1 << 20) + 44 * (packets - 2)
    assert packets > 200


def test_switches_are_obeyed_at_run_time(a, b):
    """Each of them, under way: data arrive whole with and without."""
    for feature in ("tso", "tx", "rx"):
        for state in ("off", "on"):
            a.run("ethtool", "-K", a.iface, feature, state)
            b.run("ethtool", "-K", b.iface, feature, state)
            bulk(a, b)
    assert vibfab.strict() == {}


def test_headers_with_options(a, b):
    """TCP options make the headers longer than the least, and they are copied whole."""
    vibfab.ctl("ring clear")
    bulk(a, b)
    out = vibfab.tshark("-o", "tcp.check_checksum:TRUE", "-Y", "tcp.len > 1000", "-T", "fields",
                        "-e", "tcp.hdr_len", "-e", "tcp.checksum.status", "-e", "tcp.options.timestamp.tsval")
    rows = [line.split("\t") for line in out.splitlines()]
    assert len(rows) > 100
    assert all(int(length) > 20 and status == "1" and stamp for length, status, stamp in rows)


def test_nothing_is_lost_for_lack_of_pieces(a, b):
    """An HCA that gathers few pieces leaves most large packets to the stack, and small ones are copied together
    (TX-11): none is dropped."""
    def dropped():
        return {name: n for name, n in a.ethtool_statistics().items() if name.startswith("tx_drop")}

    before = dropped()
    assert before
    bulk(a, b)
    bulk(a, b, family=6)
    assert dropped() == before


@pytest.mark.parametrize("state", ["off", "on"])
def test_corrupted_data_are_caught_either_way(a, b, state):
    """B35: whether the stack may believe the HCA's word on a checksum or not, data that were corrupted on the way do
    not get through, and what is right does."""
    b.run("ethtool", "-K", b.iface, "rx", state)
    try:
        with vibfab.rule("kind=uc", f"src={A}", "minlen=1000", "every=20", "corrupt=payload") as rule:
            bulk(a, b)
            assert rule()["hits"] > 0
    finally:
        b.run("ethtool", "-K", b.iface, "rx", "on")
