"""The real subnet manager on the virtual fabric (fabric vibfab:sm=opensm)."""

import contextlib
import re
import subprocess
import threading
import time

import pytest

import net
import vibfab

A, B = "vib0/1", "vib1/1"


@pytest.fixture(autouse=True)
def quiet(a, b):
    net.wait_until("a sound start", lambda: a.reaches(b.ip4))
    yield
    assert vibfab.strict() == {}


def opensm(port, *args):
    guid = f"0x{int(vibfab.port(port)['guid']):x}"
    net.run(["opensm", "--daemon", "-g", guid, "-P", "/run/opensm.partitions", "-s", "3",
             "-f", f"/run/opensm-{port.replace('/', '-')}.log", *args])


def kill_opensm():
    net.run(["pkill", "-KILL", "-x", "opensm"], check=False)
    net.wait_until("the end of opensm", lambda: net.run(["pgrep", "-x", "opensm"], check=False).returncode == 1)


def test_lids_and_state():
    ports = vibfab.ports()
    assert {p["state"] for p in ports} == {vibfab.ACTIVE}
    assert len({p["lid"] for p in ports}) == len(ports) and 0 not in {p["lid"] for p in ports}
    assert len({p["sm_lid"] for p in ports}) == 1


def test_ibnetdiscover_sees_the_fabric():
    out = net.run(["ibnetdiscover"]).stdout
    assert out.count("\nSwitch") == 1 and out.count("\nCa\t") == 2
    assert len(re.findall(r"^\[\d+\]\t\"H-", out, re.M)) == len(vibfab.ports())
    assert "4xQDR" in out


def test_ibstat():
    out = net.run(["ibstat", "vib1", "1"]).stdout
    port = vibfab.port(B)
    for want in ("State: Active", "Physical state: LinkUp", "Rate: 40", f"Base lid: {port['lid']}",
                 f"SM lid: {port['sm_lid']}", "Link layer: InfiniBand"):
        assert want in out


def test_sminfo():
    assert re.search(rf"sm lid {vibfab.port(A)['sm_lid']} .*SMINFO_MASTER", net.run(["sminfo"]).stdout)


def test_smpquery():
    lid = vibfab.port(B)["lid"]
    assert re.search(r"NodeType:\.*Channel Adapter", net.run(["smpquery", "nodeinfo", str(lid)]).stdout)
    assert re.search(r"LinkState:\.*Active", net.run(["smpquery", "portinfo", str(lid), "1"]).stdout)
    assert re.search(r"LinkState:\.*Active", net.run(["smpquery", "-D", "portinfo", "0,1", "3"]).stdout)
    assert "vibfab switch" in net.run(["smpquery", "-D", "nodedesc", "0,1"]).stdout
    assert re.search(r"Lid:\.*" + str(lid), net.run(["smpquery", "-D", "portinfo", "0,1,3", "0"]).stdout)


def test_saquery(a, b):
    groups = net.run(["saquery", "-g"]).stdout
    assert "ff12:401b:ffff::ffff:ffff" in groups
    nodes = net.run(["saquery"]).stdout
    assert nodes.count("NodeRecord dump") == 1 + len(vibfab.ports())
    # Whose ports are members is shown to the trusted only, so a path has to do.
    lids = [vibfab.port(p)["lid"] for p in (A, B)]
    path = net.run(["saquery", "--src-to-dst", f"{lids[0]}:{lids[1]}"]).stdout
    assert re.search(rf"slid\.+{lids[0]}\n", path) and re.search(rf"dlid\.+{lids[1]}\n", path), path


@contextlib.contextmanager
def ibping_server():
    p = subprocess.Popen(["ibping", "-S", "-C", "vib1", "-P", "1"], stdin=subprocess.DEVNULL,
                         stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        lid = vibfab.port(B)["lid"]
        net.wait_until("the ibping server", lambda: net.run(
            ["ibping", "-C", "vib0", "-P", "1", "-c", "1", str(lid)], check=False).returncode == 0)
        yield lid
    finally:
        p.kill()
        p.wait()


def test_ibping():
    with ibping_server() as lid:
        out = net.run(["ibping", "-C", "vib0", "-P", "1", "-c", "3", str(lid)]).stdout
    assert "3 packets transmitted, 3 received, 0% packet loss" in out


def test_perfquery_counts(a, b):
    lid = str(vibfab.port(B)["lid"])

    def received():
        return int(re.search(r"PortRcvPkts:\.*(\d+)", net.run(["perfquery", "-x", lid, "1"]).stdout)[1])
    before = received()
    assert a.ping(b.ip4, count=20, flood=True).lost == 0
    assert received() >= before + 20


def test_second_partition(a, b):
    for side in (a, b):
        port = vibfab.port(A if side is a else B)
        assert "8001" in str(port["pkeys"]).split(",")
        side.run("ip", "link", "add", "link", side.iface, "name", "child", "type", "ipoib", "pkey", "0x8001")
        side.run("ip", "addr", "add", f"10.78.0.{1 if side is a else 2}/24", "dev", "child")
        side.run("ip", "link", "set", "child", "up")
    net.wait_until("an answer in the second partition", lambda: a.reaches("10.78.0.2"))
    for side in (a, b):
        side.run("ip", "link", "del", "child")


def test_link_bounce_is_seen_by_the_sm(a, b):
    vibfab.ctl(f"port {B} down")
    net.wait_until("the carrier to go", lambda: b.read(f"/sys/class/net/{b.iface}/carrier") == "0")
    vibfab.ctl(f"port {B} up")
    assert vibfab.port(B)["state"] in (vibfab.INIT, vibfab.ARMED, vibfab.ACTIVE)
    net.wait_until("the SM to bring the port up", lambda: vibfab.port(B)["state"] == vibfab.ACTIVE)
    net.wait_until("an answer", lambda: a.reaches(b.ip4))


def test_sm_killed_and_restarted(a, b):
    kill_opensm()
    # Established traffic needs no SM.
    assert a.ping(b.ip4, count=3).lost == 0
    b.set_link("down")
    b.set_link("up")
    time.sleep(1)
    assert b.read(f"/sys/class/net/{b.iface}/carrier") == "0"
    opensm(A)
    net.wait_until("the carrier", lambda: b.read(f"/sys/class/net/{b.iface}/carrier") == "1")
    net.wait_until("an answer", lambda: a.reaches(b.ip4))


def test_handover_to_a_second_sm(a, b):
    """A standby on another port takes over when the master dies: the SM's LID moves."""
    master = vibfab.port(A)["sm_lid"]
    opensm(B, "-p", "1")
    # It has the higher priority, so the first one hands over to it.
    net.wait_until("the SM to move", lambda: vibfab.port(A)["sm_lid"] == vibfab.port(B)["lid"])
    assert vibfab.port(A)["sm_lid"] != master
    net.wait_until("an answer", lambda: a.reaches(b.ip4))
    net.run(["pkill", "-KILL", "-f", f"opensm.*{int(vibfab.port(B)['guid']):x}"])
    net.wait_until("the first SM to take over", lambda: vibfab.port(A)["sm_lid"] == vibfab.port(A)["lid"])
    net.wait_until("an answer", lambda: a.reaches(b.ip4))


def our_side(side):
    return "driver: ipoib_rs" in side.run("ethtool", "-i", side.iface).stdout


@contextlib.contextmanager
def tcp_all_the_time(src, dst):
    """TCP both ways, one transfer after the other, while the block runs; gives how many came through whole so far. Each
    one must."""
    done, stop = [], threading.Event()

    def transfer():
        while not stop.is_set():
            done.append(server.run(src, flows=2, octets=1 << 20, both=True))

    with net.FlowServer(dst) as server:
        thread = threading.Thread(target=transfer)
        thread.start()
        try:
            yield lambda: len(done)
        finally:
            stop.set()
            thread.join()
    assert done and set(done) == {"2 flows ok"}, done


def test_tcp_across_restart_and_handover(a, b):
    """The subnet manager is killed, starts over, hands over to another and dies there: TCP goes on all the time, and
    our driver's carrier stays."""
    changes = {side: side.carrier_changes() for side in (a, b) if our_side(side)}
    with tcp_all_the_time(a, b) as transfers:
        def some_more(what):
            before = transfers()
            net.wait_until(f"transfers {what}", lambda: transfers() > before + 1)
        some_more("at first")
        kill_opensm()
        some_more("without a subnet manager")
        opensm(A)
        net.wait_until("the SM to be there", lambda: "SMINFO_MASTER" in net.run(["sminfo"], check=False).stdout)
        some_more("after the restart")
        opensm(B, "-p", "1")
        net.wait_until("the SM to move", lambda: vibfab.port(A)["sm_lid"] == vibfab.port(B)["lid"])
        some_more("after the handover")
        net.run(["pkill", "-KILL", "-f", f"opensm.*{int(vibfab.port(B)['guid']):x}"])
        net.wait_until("the first SM to take over", lambda: vibfab.port(A)["sm_lid"] == vibfab.port(A)["lid"])
        some_more("after the death of the second")
    assert {side: side.carrier_changes() for side in changes} == changes


def test_hca_that_is_plugged_in_is_brought_up():
    """The trap of the switch alone has a subnet manager, which looks by itself every ten minutes, find new ports. The
    last test: it takes side B's interface away."""
    kill_opensm()
    opensm(A, "-s", "600")
    net.wait_until("the SM to be there", lambda: "SMINFO_MASTER" in net.run(["sminfo"], check=False).stdout)
    for _ in range(6):
        vibfab.ctl("hca vib1 remove", "hca vib1 add")
        net.wait_until("the SM to bring the ports up", lambda: {p["state"] for p in vibfab.ports()} == {vibfab.ACTIVE})
        # More than ten traps of a kind, each within five seconds of the one before: opensm looks no more.
        time.sleep(6)
