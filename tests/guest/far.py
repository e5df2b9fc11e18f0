"""Thousands of simulated peers (fabric vibfab:far=N): sending to all, what comes back, and where the rest is."""

import ipaddress
import os
import pathlib
import re
import selectors
import socket
import struct
import time

import net
import vibfab
from driver import Debug

FIRST = ipaddress.ip_address("10.128.0.1")
PREFIX = 16
# Behind all nodes; one for each side.
OWN = {"A": "10.128.255.254", "C": "10.128.255.253"}
SO_SNDBUFFORCE, SO_RCVBUFFORCE = 32, 33
PORT = 7000
README = pathlib.Path(__file__).parents[2] / "README.md"


def nodes():
    """How many the fabric has."""
    return int(net.run(["cat", "/sys/module/vibfab/parameters/far"]).stdout)


def room_for_neighbours(side):
    """The stack keeps all of them, and the side has an address that they can answer."""
    for family in ("ipv4", "ipv6"):
        for n in (1, 2, 3):
            net.run(["sysctl", "-qw", f"net.{family}.neigh.default.gc_thresh{n}=65536"])
        # An address that was found stays valid, so that the stack asks for no path in between.
        side.run("sysctl", "-qw", f"net.{family}.neigh.{side.iface}.base_reachable_time_ms=36000000")
    side.run("ip", "addr", "replace", f"{OWN[side.letter]}/{PREFIX}", "dev", side.iface)


def first_guid(side):
    """The GUID of node 0; those of the others follow it."""
    net.wait_until("the first node", lambda: side.reaches(str(FIRST)))
    mac = side.neighbours()[str(FIRST)]["lladdr"].replace(":", "")
    return int(mac[24:], 16)


class Peers:
    """Datagrams to all nodes, or the first `count`, which echo them."""

    def __init__(self, side, count, family=4):
        self.side, self.count = side, count
        kind = {4: socket.AF_INET, 6: socket.AF_INET6}[family]
        with net.netns(side.ns):
            self.socket = socket.socket(kind, socket.SOCK_DGRAM)
            scope = socket.if_nametoindex(side.iface)
        for option in (SO_SNDBUFFORCE, SO_RCVBUFFORCE):
            self.socket.setsockopt(socket.SOL_SOCKET, option, 1 << 28)
        self.socket.setblocking(False)
        self.ready = selectors.DefaultSelector()
        self.ready.register(self.socket, selectors.EVENT_READ)
        if family == 4:
            self.addresses = [(str(FIRST + i), PORT) for i in range(count)]
        else:
            base = 0xFE80 << 112 | first_guid(side)
            self.addresses = [(str(ipaddress.ip_address(base + i)), PORT, 0, scope) for i in range(count)]
        self.sent = self.received = 0
        self.round = 0

    def close(self):
        self.ready.close()
        self.socket.close()

    def send(self, who):
        for i in who:
            self.socket.sendto(struct.pack("!II", self.round, i), self.addresses[i])
            self.sent += 1

    def receive(self, seconds):
        """Who answered within that time, as (round, node)."""
        found = []
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if not self.ready.select(left):
                break
            try:
                while True:
                    found.append(struct.unpack("!II", self.socket.recv(64)))
            except BlockingIOError:
                pass
        self.received += len(found)
        return found

    def contact(self, limit, every=1):
        """Sends to all at once, and after `every` second again to those that have not answered yet, for so many seconds
        at most. Each of the others is sent to every 20 seconds, so that they stay in use. Returns (how many answered,
        seconds until the last one did)."""
        missing = set(range(self.count))
        start = last = time.monotonic()
        number = 0
        while missing and time.monotonic() - start < limit:
            began = time.monotonic()
            number += 1
            self.send(i for i in range(self.count) if i in missing or (i + number) % (20 // every) == 0)
            while missing and (left := began + every - time.monotonic()) > 0:
                for _, i in self.receive(min(left, 0.1)):
                    missing.discard(i)
                    last = time.monotonic()
        return self.count - len(missing), last - start

    def sweep(self, who=None, window=64, patience=20):
        """Sends once to each, a window at a time; returns those that did not answer. None is sent to twice."""
        who = list(range(self.count) if who is None else who)
        lost = []
        for at in range(0, len(who), window):
            self.round += 1
            batch = set(who[at:at + window])
            self.send(sorted(batch))
            end = time.monotonic() + patience
            while batch and time.monotonic() < end:
                for number, i in self.receive(0.05):
                    if number == self.round:
                        batch.discard(i)
            lost += sorted(batch)
            if len(lost) > 256:
                break
        return lost


class Ledger:
    """What became of each datagram: it came back, or our driver has dropped it with a counted reason."""

    def __init__(self, peers):
        self.peers = peers
        self.sent, self.received = peers.sent, peers.received
        self.before = Debug(peers.side).drops("tx")

    def settle(self):
        """Waits until nothing is on the way; returns the drops by reason since the ledger was opened. What the stack's
        own requests for addresses lost is among them."""
        result = {}

        def even():
            self.peers.receive(0.5)
            drops = {k: n - self.before.get(k, 0) for k, n in Debug(self.peers.side).drops("tx").items()}
            result.update(sent=self.peers.sent - self.sent, received=self.peers.received - self.received,
                          drops={k: n for k, n in drops.items() if n})
            return result["sent"] <= result["received"] + sum(result["drops"].values())
        try:
            net.wait_until("an even balance", even, seconds=60, pause=0.5)
        except AssertionError as e:
            raise AssertionError(f"datagrams are lost without a reason: {result}") from e
        return result["drops"]


def queries_done(side):
    text = Debug(side).text
    return "queries: 0 waiting, 0 out" in text and "joins: 0 waiting, 0 out" in text


class Requests:
    """What the subnet administrator received since this was made."""

    KINDS = ("paths", "joins", "leaves", "others", "full")

    def __init__(self):
        self.before = vibfab.sa()

    def __call__(self):
        now = vibfab.sa()
        return {k: now[k] - self.before[k] for k in self.KINDS}


def predicted(driver):
    """(resolved, requests for each, seconds) of the simulator, as the README has it."""
    columns = r"(\d+) \| ([\d.]+) \| (?:([\d.]+) s|not within the limit) \| [\d.]+ s \|$"
    row = re.search(rf"^\| {re.escape(driver)} \| {columns}", README.read_text(), re.MULTILINE)
    return int(row[1]), float(row[2]), float(row[3]) if row[3] else None


def tables(side):
    """Entries of our tables: {"neighbours": N, "paths": N, "groups": N}."""
    return {k: int(n) for k, n in re.findall(r"^table (\w+): (\d+) of", Debug(side).text, re.MULTILINE)}


def slab():
    """Octets in use of the kernel's small allocations."""
    total = 0
    for line in pathlib.Path("/proc/slabinfo").read_text().splitlines()[2:]:
        name, active, _, size = line.split()[:4]
        if name.startswith("kmalloc"):
            total += int(active) * int(size)
    return total


def say(text):
    """Into the output of the run."""
    print(text, flush=True)
    with open(pathlib.Path(os.environ.get("GUEST_JOB", "/tmp")) / "figures", "a") as f:
        f.write(text + "\n")
