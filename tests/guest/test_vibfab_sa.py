"""The embedded subnet administrator, asked with MADs of our own: records, groups, and what it refuses."""

import contextlib
import ipaddress
import time

import pytest

import net
import umad
import vibfab

A, B = "vib0/1", "vib1/1"
NO_RECORDS, INVALID, BAD_GID, INSUFFICIENT, UNSUPPORTED, BUSY = 0x300, 0x200, 0x500, 0x600, 0x0C, 1
FULL, NON, SENDONLY, SENDONLY_FULL = 1, 2, 4, 8
OTHER = ipaddress.ip_address("ff12:401b:ffff::1:2:3").packed
BROADCAST = ipaddress.ip_address("ff12:401b:ffff::ffff:ffff").packed
JOIN = umad.MGID | umad.PORT_GID | umad.JOIN
CREATE = JOIN | umad.QKEY | umad.TCLASS | umad.PKEY | umad.SL | umad.FLOW
MODULE = "/src/build/stock-vibfab/vibfab.ko"


@pytest.fixture
def sa():
    with contextlib.closing(umad.Sa("vib0", 1)) as found:
        yield found
    vibfab.reset()
    assert vibfab.strict() == {}


@pytest.fixture
def reloaded():
    """A function that loads the fabric with parameters, and gives its SA."""
    opened = []

    def load(*params):
        net.run(["rmmod", "vibfab"])
        net.run(["insmod", MODULE, *params])
        opened.append(umad.Sa("vib0", 1))
        return opened[-1]
    yield load
    for s in opened:
        s.close()
    net.run(["rmmod", "vibfab"])
    net.run(["insmod", MODULE])


def gid(port):
    p = vibfab.port(port)
    return (p["prefix"] << 64 | p["guid"]).to_bytes(16, "big")


def member(mgid, port=A, qkey=0, mtu=0, pkey=0, rate=0, state=FULL):
    return umad.MEMBER.pack(mgid, gid(port), qkey, 0, mtu, 0, pkey, rate, 0, 0, state, 0)


def members(mgid):
    group = vibfab.groups().get(ipaddress.ip_address(mgid).exploded)
    return group and group["members"]


def join(sa, mgid, mask=JOIN, **kwargs):
    status, record = sa.ask(umad.SET, umad.MCMEMBER, mask, member(mgid, **kwargs))
    return status, umad.MEMBER.unpack_from(record)


def leave(sa, mgid, **kwargs):
    return sa.ask(umad.DELETE, umad.MCMEMBER, JOIN, member(mgid, **kwargs))[0]


def path(sa, sgid, dgid, mask=umad.SGID | umad.DGID, pkey=0):
    status, record = sa.ask(umad.GET, umad.PATH, mask, umad.PATH_RECORD.pack(0, dgid, sgid, *[0] * 11))
    return status, umad.PATH_RECORD.unpack_from(record)


def test_class_port_info(sa):
    status, record = sa.ask(umad.GET, umad.CLASS_PORT_INFO)
    assert status == 0 and record[:2] == b"\x01\x02"
    # Capability mask 2, above five bits of response time: bit 12 says that send-only full members are known.
    assert int.from_bytes(record[4:8], "big") >> 5 == 1 << 12


def test_path_record(sa):
    status, p = path(sa, gid(A), gid(B))
    assert status == 0 and p[1:3] == (gid(B), gid(A))
    assert p[3:5] == (vibfab.port(B)["lid"], vibfab.port(A)["lid"])
    # No flow label and hop limit; reversible, one path; P_Key; exactly MTU 4096 and 40 Gb/s.
    assert p[5] == 0 and p[7] == 0x81 and p[8] == 0xFFFF and p[10:12] == (0x85, 0x87)


def test_paths_that_are_not_there(sa):
    assert path(sa, gid(A), bytes(16))[0] == NO_RECORDS
    assert path(sa, bytes(16), gid(B))[0] == NO_RECORDS
    record = umad.PATH_RECORD.pack(0, gid(B), gid(A), 0, 0, 0, 0, 0, 0x8123, *[0] * 5)
    assert sa.ask(umad.GET, umad.PATH, umad.SGID | umad.DGID | umad.PATH_PKEY, record)[0] == NO_RECORDS
    vibfab.ctl(f"port {B} down noevent")
    assert path(sa, gid(A), gid(B))[0] == NO_RECORDS
    vibfab.ctl(f"port {B} up noevent")
    assert path(sa, gid(A), gid(B))[0] == 0


def test_what_it_does_not_know(sa):
    assert sa.ask(umad.GET, umad.NODE_RECORD)[0] == UNSUPPORTED
    assert sa.ask(umad.SET, umad.PATH)[0] == UNSUPPORTED
    assert sa.ask(umad.GET, 0x7777)[0] == UNSUPPORTED


def test_join_get_and_leave(sa):
    status, m = join(sa, BROADCAST)
    assert status == 0 and m[0:2] == (BROADCAST, gid(A))
    group = vibfab.groups()[ipaddress.ip_address(BROADCAST).exploded]
    # Q_Key, MLID, MTU (exactly), P_Key, rate (exactly 10 Gb/s), scope and join state
    assert (m[2], m[3], m[4], m[6], m[7], m[10]) == (0x0B1B, int(group["mlid"]), 0x85, 0xFFFF, 0x83, 0x21)
    port = vibfab.port(A)["sw"]
    assert group["members"] == {port: FULL}
    status, record = sa.ask(umad.GET, umad.MCMEMBER, umad.MGID, member(BROADCAST))
    assert status == 0 and umad.MEMBER.unpack_from(record)[2:4] == m[2:4]
    assert leave(sa, BROADCAST) == 0
    assert members(BROADCAST) == {}
    assert leave(sa, BROADCAST) == INVALID, "not a member any more"


@pytest.mark.parametrize("state", [FULL, NON, SENDONLY, SENDONLY_FULL])
def test_join_states(sa, state):
    """Each is a bit of its own; only full and non-members receive, and only full ones of either kind keep a group."""
    port = vibfab.port(A)["sw"]
    status, m = join(sa, OTHER, CREATE, qkey=5, pkey=0xFFFF, state=state)
    if state in (NON, SENDONLY):
        assert status == INVALID and members(OTHER) is None, "they do not create a group"
        assert join(sa, OTHER, CREATE, port=B, qkey=5, pkey=0xFFFF)[0] == 0
        status, m = join(sa, OTHER, state=state)
    assert status == 0 and m[10] & 15 == state and members(OTHER)[port] == state
    assert join(sa, OTHER, state=FULL)[0] == 0
    assert members(OTHER)[port] == state | FULL
    assert leave(sa, OTHER, state=FULL) == 0
    if state == FULL:
        assert members(OTHER) is None
        return
    assert members(OTHER)[port] == state
    assert leave(sa, OTHER, state=state) == 0
    if state in (NON, SENDONLY):
        assert leave(sa, OTHER, port=B) == 0
    assert members(OTHER) is None, "its last full member left"


def test_a_group_has_what_its_first_member_wanted(sa):
    mask = CREATE | umad.MTU_SELECTOR | umad.MTU | umad.RATE_SELECTOR | umad.RATE
    status, m = join(sa, OTHER, mask, qkey=0x1234, mtu=0x84, pkey=0xFFFF, rate=0x82)
    assert status == 0 and (m[2], m[4], m[6], m[7]) == (0x1234, 0x84, 0xFFFF, 0x82)
    assert join(sa, OTHER, port=B)[1][2:5] == m[2:5]
    for wrong, kwargs in ((umad.QKEY, {"qkey": 0x1235}), (umad.PKEY, {"pkey": 0x8123}),
                          (umad.MTU_SELECTOR | umad.MTU, {"mtu": 0x85}),       # exactly 4096
                          (umad.MTU_SELECTOR | umad.MTU, {"mtu": 0x04}),       # above 2048
                          (umad.RATE_SELECTOR | umad.RATE, {"rate": 0x42})):   # below 2.5 Gb/s
        assert join(sa, OTHER, JOIN | wrong, port="vib1/2", **kwargs)[0] == INVALID
    assert join(sa, OTHER, JOIN | umad.MTU_SELECTOR | umad.MTU, port="vib1/2", mtu=0x03)[0] == 0, "above 1024"
    for port in (A, B, "vib1/2"):
        assert leave(sa, OTHER, port=port) == 0


def test_joins_that_are_refused(sa):
    assert join(sa, OTHER)[0] == INVALID, "no such group, and not enough to make one"
    assert join(sa, BROADCAST, JOIN & ~umad.JOIN)[0] == INSUFFICIENT
    assert join(sa, BROADCAST, JOIN & ~umad.MGID)[0] == INSUFFICIENT
    assert join(sa, BROADCAST, JOIN & ~umad.PORT_GID)[0] == INSUFFICIENT
    assert join(sa, BROADCAST, state=0)[0] == INSUFFICIENT
    record = umad.MEMBER.pack(BROADCAST, bytes(16), 0, 0, 0, 0, 0, 0, 0, 0, FULL, 0)
    assert sa.ask(umad.SET, umad.MCMEMBER, JOIN, record)[0] == BAD_GID
    assert join(sa, OTHER, CREATE, pkey=0x8123)[0] == INVALID, "the port does not have that P_Key"
    assert join(sa, bytes(16), CREATE, pkey=0xFFFF)[0] == INVALID, "no MGID: it does not choose one"
    assert join(sa, gid(B), CREATE, pkey=0xFFFF)[0] == INVALID, "no multicast GID"
    assert join(sa, OTHER, CREATE | umad.MTU, pkey=0xFFFF, mtu=0x86)[0] == INVALID, "there is no such MTU"
    assert sa.ask(umad.GET, umad.MCMEMBER, umad.MGID, member(OTHER))[0] == NO_RECORDS
    vibfab.ctl(f"port {A} mtu 2048")
    assert join(sa, BROADCAST)[0] == INVALID, "the group's MTU is above the port's"
    vibfab.ctl(f"port {A} mtu 4096")
    assert members(BROADCAST) == {} and members(OTHER) is None


def test_a_link_that_goes_ends_its_memberships(sa):
    assert join(sa, BROADCAST, port=B)[0] == 0
    assert join(sa, OTHER, CREATE, port=B, qkey=5, pkey=0xFFFF)[0] == 0
    vibfab.ctl(f"port {B} down noevent", f"port {B} up noevent")
    assert members(BROADCAST) == {} and members(OTHER) is None


def test_partitions_and_limited_members(reloaded):
    sa = reloaded("partition=0xffff,0x8001,0x0002")
    keys = {g["pkey"] for g in vibfab.groups().values()}
    assert keys == {0xFFFF, 0x8001, 0x8002}
    for key in (0x8001, 0x8002):
        mgid = ipaddress.ip_address(f"ff12:401b:{key:x}::ffff:ffff").packed
        assert join(sa, mgid)[1][6] == key
    pkey = umad.SGID | umad.DGID | umad.PATH_PKEY

    def with_key(key):
        record = umad.PATH_RECORD.pack(0, gid(B), gid(A), 0, 0, 0, 0, 0, key, *[0] * 5)
        return sa.ask(umad.GET, umad.PATH, pkey, record)[0]
    assert with_key(0x8001) == 0
    assert with_key(0x0002) == NO_RECORDS, "two limited members have no path"


@pytest.mark.parametrize("status", [0x100, 0x200, 0x300, 0x400, 0x500, 0x600, 0x700])
def test_it_refuses_with_any_status(sa, status):
    vibfab.ctl(f"sa reject 2 {status}")
    assert path(sa, gid(A), gid(B))[0] == status
    assert join(sa, BROADCAST)[0] == status and members(BROADCAST) == {}
    assert path(sa, gid(A), gid(B))[0] == 0


def test_busy_lost_and_down(sa):
    vibfab.ctl("sa busy 1")
    assert path(sa, gid(A), gid(B))[0] == BUSY
    vibfab.ctl("sa lose 1")
    ask = umad.GET, umad.CLASS_PORT_INFO
    assert sa.ask(*ask, timeout_ms=500) is None
    assert sa.ask(*ask)[0] == 0
    vibfab.ctl("sa down")
    assert sa.ask(*ask, timeout_ms=500) is None
    vibfab.ctl("sa up")
    assert sa.ask(*ask)[0] == 0


def test_faults_of_one_attribute(sa):
    vibfab.ctl(f"sa attr {umad.MCMEMBER}", "sa reject 1 0x100")
    assert path(sa, gid(A), gid(B))[0] == 0
    assert join(sa, BROADCAST)[0] == 0x100


def test_rules_pick_mads(sa):
    """By attribute, class and method, and by number."""
    path_request = umad.GET, umad.PATH, umad.SGID | umad.DGID, umad.PATH_RECORD.pack(0, gid(B), gid(A), *[0] * 11)
    for words in ("attr=0x35", "class=3 method=1 attr=0x35"):
        with vibfab.rule("kind=mad", *words.split(), "drop") as r:
            assert sa.ask(*path_request, timeout_ms=500) is None
            assert sa.ask(umad.GET, umad.CLASS_PORT_INFO)[0] == 0
            assert r()["hits"] == 1
    with vibfab.rule("kind=mad", "class=3", "attr=0x35", "nth=2", "drop") as r:
        assert [sa.ask(*path_request, timeout_ms=500) is None for _ in range(3)] == [False, True, False]
        assert r()["seen"] == 3 and r()["hits"] == 1
    with vibfab.rule("kind=mad", "class=4", "drop") as r:
        assert sa.ask(*path_request)[0] == 0 and r()["seen"] == 0


def test_slow_and_hurried(sa):
    vibfab.ctl("sa slow 700")
    start = time.monotonic()
    assert path(sa, gid(A), gid(B))[0] == 0
    assert time.monotonic() - start >= 0.6
    # What would be answered in a minute is answered when the fault ends.
    vibfab.ctl("sa slow 60000")
    assert sa.ask(umad.GET, umad.CLASS_PORT_INFO, timeout_ms=500) is None
    before = vibfab.sa()["replies"]
    start = time.monotonic()
    vibfab.ctl("sa clear")
    net.wait_until("the answer", lambda: vibfab.sa()["replies"] > before)
    assert time.monotonic() - start < 50


def test_a_bounded_rate(sa):
    """One request after the other, each in its time; how many came, and of which kind, is counted."""
    vibfab.ctl("sa rate 10")
    before = vibfab.sa()
    start = time.monotonic()
    for _ in range(6):
        assert path(sa, gid(A), gid(B))[0] == 0
    assert join(sa, BROADCAST)[0] == 0 and leave(sa, BROADCAST) == 0
    assert sa.ask(umad.GET, umad.CLASS_PORT_INFO)[0] == 0
    assert time.monotonic() - start >= 0.89
    after = vibfab.sa()
    assert after["rate"] == 10
    assert {k: after[k] - before[k] >= n for k, n in
            (("paths", 6), ("joins", 1), ("leaves", 1), ("others", 1))} == dict.fromkeys(
                ("paths", "joins", "leaves", "others"), True)
    # What would be worked off in seconds is answered when the bound is lifted.
    vibfab.ctl("sa rate 1")
    assert sa.ask(umad.GET, umad.CLASS_PORT_INFO, timeout_ms=300) is None
    vibfab.ctl("sa clear")
    net.wait_until("an empty queue", lambda: vibfab.sa()["queued"] == 0)


@pytest.mark.parametrize("busy", [False, True])
def test_bounded_room(sa, busy):
    """One request waits; what comes meanwhile is lost or told BUSY, and counted."""
    vibfab.ctl("sa slow 60000", "sa room 1" + (" busy" if busy else ""))
    before = vibfab.sa()["full"]
    assert sa.ask(umad.GET, umad.CLASS_PORT_INFO, timeout_ms=300) is None
    assert vibfab.sa()["queued"] == 1
    answer = sa.ask(umad.GET, umad.CLASS_PORT_INFO, timeout_ms=300)
    assert answer[0] == BUSY if busy else answer is None
    assert vibfab.sa()["full"] > before and vibfab.sa()["queued"] == 1
    vibfab.ctl("sa clear")
    net.wait_until("an empty queue", lambda: vibfab.sa()["queued"] == 0)
    assert sa.ask(umad.GET, umad.CLASS_PORT_INFO)[0] == 0
