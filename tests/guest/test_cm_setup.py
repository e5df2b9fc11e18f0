"""How long it takes until a peer has a connection: two hundred at once, on a device that is slow with its P_Key table
(fabric vibfab:far=200,far_cm=1). The clock counts instructions, so that the times are not this machine's.

The figures are in the file `figures` of the run.
"""

import pathlib
import struct

import far
import net
import vibfab

SLOW = pathlib.Path("/sys/module/vibfab/parameters/pkey_delay")
# Microseconds of a query of the P_Key table: two hundred of them one after another would take a second.
QUERY = 5000
# Milliseconds for all but one of a hundred.
MOST = 20
CM, RTU = 7, 0x14
# Of the ports; far nodes come behind them.
NODES = 0x1000


def management(packet):
    """(class, attribute) of a management datagram"""
    return packet["data"][1], struct.unpack_from("!H", packet["data"], 16)[0]


def delays(packets):
    """From the first datagram to a node to the message that ends the making of the connection, in milliseconds."""
    asked, made = {}, {}
    for p in packets:
        if p["dlid"] < NODES or p["qkey"] == 0:
            continue
        if p["dqpn"] != 1:
            asked.setdefault(p["dlid"], p["ns"])
        elif management(p) == (CM, RTU):
            made.setdefault(p["dlid"], p["ns"])
    return {lid: (made[lid] - asked[lid]) / 1e6 for lid in made.keys() & asked.keys()}


def test_two_hundred_with_a_slow_query(a):
    far.room_for_neighbours(a)
    peers = far.Peers(a, far.nodes())
    try:
        # Addresses and paths, by datagram.
        assert peers.contact(300)[0] == peers.count
        queries = vibfab.lines("state", "queries")[0]["n"]
        vibfab.write(SLOW, str(QUERY))
        a.run("sh", "-c", f"echo connected | tee /sys/class/net/{a.iface}/mode")
        vibfab.ctl("ring clear")
        peers.send(range(peers.count))
        net.wait_until("a connection to everyone",
                       lambda: vibfab.lines("state", "far")[0]["open"] >= peers.count and
                       len(delays(vibfab.ring())) == peers.count)
        asked = vibfab.lines("state", "queries")[0]["n"] - queries
        found = sorted(delays(vibfab.ring()).values())
    finally:
        vibfab.write(SLOW, "0")
        peers.close()
    slowest = found[len(found) * 99 // 100 - 1]
    far.say(f"connections to {len(found)} peers at once: median {found[len(found) // 2]:.2f} ms, "
            f"99 of 100 in {slowest:.2f} ms, {asked} queries of the P_Key table")
    assert asked == 0
    assert slowest < MOST
