"""Checksum and segmentation offload of the virtual HCA (fabric vibfab:csum=1,tso=1,...)."""

import pytest

import net
import vibfab

A, B = "vib0/1", "vib1/1"


@pytest.fixture(autouse=True)
def quiet(a, b):
    with vibfab.quiet(lambda: a.reaches(b.ip4) and a.reaches(b.ip6)):
        yield


def feature(side, name):
    out = side.run("ethtool", "-k", side.iface).stdout
    return next(line.split()[1] for line in out.splitlines() if line.strip().startswith(name + ":")) == "on"


def test_features_are_offered(a):
    assert feature(a, "tx-checksumming") and feature(a, "rx-checksumming")
    assert feature(a, "tcp-segmentation-offload")


@pytest.mark.parametrize("family", [4, 6])
def test_segments_on_the_wire_are_right(a, b, family):
    """tshark, told to check, finds no bad checksum; segments are full but for the last of a burst."""
    vibfab.ctl("ring clear")
    with net.FlowServer(b) as server:
        assert server.run(a, flows=1, octets=1 << 20, family=family) == "1 flows ok"
    text = vibfab.tshark("-o", "tcp.check_checksum:TRUE", "-o", "ip.check_checksum:TRUE", "-Y",
                         "tcp.len > 0", "-T", "fields", "-e", "tcp.checksum.status", "-e", "tcp.len",
                         "-e", "ip.checksum.status")
    rows = [line.split("\t") for line in text.splitlines()]
    # A frame that was not recorded whole is not decoded that far.
    assert sum(int(r[1]) > 1000 for r in rows) > 100
    assert all(r[0] == "1" for r in rows), "a TCP checksum is wrong"
    if family == 4:
        assert all(r[2] == "1" for r in rows), "an IP checksum is wrong"
    sent = [p for p in vibfab.ring() if p["in"] == vibfab.port(A)["sw"] and p["len"] > 2000]
    assert sent and max(p["len"] for p in sent) <= 4096


@pytest.mark.parametrize("family", [4, 6])
def test_bulk_both_ways(a, b, family):
    assert net.Iperf(a, b, "-n", "8M", "--bidir", family=family).received > 0


def test_udp_with_checksum_offload(a, b):
    assert net.Iperf(a, b, "-u", "-b", "2M", "-n", "500K").lost_percent < 50


def test_software_checksums_too(a, b):
    a.run("ethtool", "-K", a.iface, "tx", "off", "tso", "off")
    with net.FlowServer(b) as server:
        assert server.run(a, flows=2, octets=1 << 20) == "2 flows ok"
    a.run("ethtool", "-K", a.iface, "tx", "on", "tso", "on")


def test_bad_data_is_caught_by_the_checksum(a, b):
    with vibfab.rule("kind=uc", f"src={A}", "minlen=3000", "every=20", "corrupt=payload") as r:
        with net.FlowServer(b) as server:
            assert server.run(a, flows=2, octets=1 << 20) == "2 flows ok"
        assert r()["hits"] > 0


def test_what_is_not_synchronised_is_not_there():
    """The instrument itself: with bounce buffers a consumer that forgets to sync sees and sends the wrong bytes."""
    net.run(["insmod", "/src/build/stock-vibfab/vibcheck.ko"])
    try:
        vibfab.write("/sys/kernel/debug/vibcheck/run", "bounce")
    except OSError as e:
        pytest.fail(f"{e}: {net.run(['cat', '/sys/kernel/debug/vibcheck/result']).stdout}")
    finally:
        net.run(["rmmod", "vibcheck"])
