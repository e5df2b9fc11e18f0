"""The driver under test, for tests that load, unload and disturb it; and what its debugfs files say."""

import contextlib
import os
import pathlib
import re
import socket
import subprocess
import threading
import time

import net
from net import run, wait_until

DEBUGFS = pathlib.Path("/sys/kernel/debug/ipoib_rs")
MODULE = "ipoib_rs"
# The network devices below rxe0 and rxe1.
UNDERLAY = {"A": "v0", "B": "v1"}
# A step with loading in it, on a loaded machine without KVM.
SETUP_SECONDS = 600


def loaded():
    return pathlib.Path("/sys/module", MODULE).is_dir()


def kernel_log():
    return run(["dmesg"]).stdout


class Driver:
    """Loads and unloads the module, and brings the two interfaces to their namespaces."""

    def __init__(self, a, b):
        self.sides = (a, b)

    def step(self, *cmd, check=True):
        return run(["guest-setup", *cmd], check=check, timeout=SETUP_SECONDS)

    def load(self, params="", check=True):
        return self.step("load", MODULE, params, check=check)

    def insert(self):
        """Loads the module alone: what it needs is there from the first time."""
        run(["insmod", os.environ["MODULE"], *os.environ.get("FABRIC_PARAMS", "").split()])
        for side in self.sides:
            self.up_side(side)

    def unload(self):
        self.step("unload", MODULE)

    def up(self):
        """Namespaces, addresses, both interfaces up; returns when the two sides reach each other."""
        names = dict(re.findall(r"^IF_([AB])=(\S+)$", self.step("up", MODULE).stdout, re.MULTILINE))
        for side in self.sides:
            side.forget_iface(names[side.letter])

    def up_side(self, side):
        """Brings one side's new interface to its namespace, the other side being up."""
        wait_until(f"the interface of {side}", lambda: self._take(side))

    def _take(self, side):
        """Moves the port's interface, if it is there yet, into the namespace."""
        gid = run(["cat", f"/sys/class/infiniband/{side.port.split('/')[0]}/ports/1/gids/0"], check=False).stdout
        for dev in pathlib.Path("/sys/class/net").iterdir():
            address = (dev / "address").read_text().strip()
            if len(address) == 59 and address[12:].replace(":", "") == gid.strip().replace(":", ""):
                break
        else:
            return False
        run(["ip", "link", "set", dev.name, "netns", side.ns])
        side.forget_iface(dev.name)
        side.run("sysctl", "-qw", f"net.ipv6.conf.{dev.name}.accept_dad=0")
        side.run("ip", "addr", "add", f"{side.ip4}/24", "dev", dev.name)
        side.run("ip", "addr", "add", f"{side.ip6}/64", "dev", dev.name, "nodad")
        side.set_link("up")
        return True

    def down(self):
        self.step("down")

    def renew(self, params=""):
        """Everything anew: namespaces, module, interfaces."""
        self.down()
        self.unload()
        self.load(params)
        self.up()

    def sound(self):
        a, b = self.sides
        return all(
            s.run("ip", "link", "show", "dev", s.iface, check=False).returncode == 0 for s in self.sides
        ) and a.reaches(b.ip4)

    def restore(self):
        """Puts the guest back to what the next test expects: parameters by default, both sides reachable."""
        for link in UNDERLAY.values():
            run(["tc", "qdisc", "del", "dev", link, "root"], check=False)
            run(["ip", "link", "set", link, "up"], check=False)
        if loaded() and self.sound():
            return
        self.down()
        self.unload()
        # A link that comes up has its GIDs made anew.
        for state in ("down", "up"):
            for link in UNDERLAY.values():
                run(["ip", "link", "set", link, state], check=False)
        self.load()
        self.up()


class Debug:
    """One reading of an interface's debugfs file."""

    def __init__(self, side):
        self.text = (DEBUGFS / side.iface).read_text()
        self.queues, self.neighbours, self.groups, self.recoveries = [], {}, {}, []
        self.pending_drops, self.paths = {}, {}
        for line in self.text.splitlines():
            self._take(line)

    def _take(self, line):
        words = line.split()
        match words[:1]:
            case ["queue"]:
                numbers = {k: int(v) for k, v in re.findall(r"(\w+) (\d+)\b(?!x)", line.split(":", 1)[1])}
                self.queues.append({**numbers, "running": "running" in words, "drops": {}})
            case ["rx_drop" | "tx_drop"]:
                self.queues[-1]["drops"][f"{words[0]} {words[1]}"] = int(words[2])
            case ["pending_drop"]:
                self.pending_drops[words[1]] = int(words[2])
            case ["recovery"]:
                self.recoveries.append(int(re.search(r"(\d+) so far", line)[1]))
            case ["group"]:
                self.groups[words[1].rstrip(":")] = line
            case ["path"]:
                self.paths[words[1].rstrip(":")] = line
            case ["neighbour"]:
                self.neighbours[words[1].rstrip(":")] = line

    def total(self, key):
        return sum(q[key] for q in self.queues)

    def drops(self, kind):
        """Drops by reason over all queues; kind is "rx" or "tx", the latter with what waited in vain."""
        sums = dict(self.pending_drops) if kind == "tx" else {}
        for q in self.queues:
            for name, n in q["drops"].items():
                if name.startswith(kind):
                    reason = name.split()[1]
                    sums[reason] = sums.get(reason, 0) + n
        return sums

    @property
    def recovered(self):
        return sum(self.recoveries)


class Stream:
    """Endless traffic from one side to the other and back, that survives its interfaces: UDP datagrams
    are sent and echoed, errors ignored. `replies` counts what came back."""

    PAYLOAD = b"x" * 900
    WINDOW = 16

    def __init__(self, src, dst, family=4):
        self.src, self.dst, self.family = src, dst, family
        self.replies = 0
        self.stopping = False

    def __enter__(self):
        kind = {4: socket.AF_INET, 6: socket.AF_INET6}[self.family]
        with net.netns(self.dst.ns):
            self.server = socket.socket(kind, socket.SOCK_DGRAM)
        with net.netns(self.src.ns):
            self.client = socket.socket(kind, socket.SOCK_DGRAM)
        self.server.bind(("", 0))
        self.address = (self.dst.address(self.family), self.server.getsockname()[1])
        self.threads = [threading.Thread(target=t) for t in (self._send, self._echo, self._count)]
        for s in (self.server, self.client):
            s.settimeout(0.2)
        for t in self.threads:
            t.start()
        return self

    def __exit__(self, *exc):
        self.stopping = True
        for t in self.threads:
            t.join()
        self.server.close()
        self.client.close()

    def _send(self):
        """Keeps a few datagrams on the way: more than the machine carries would only show where it drops."""
        sent, seen = 0, self.replies
        while not self.stopping:
            if self.replies > seen:
                sent, seen = max(0, sent - (self.replies - seen)), self.replies
            elif sent >= self.WINDOW:
                # Nothing comes back: start afresh, but slowly.
                time.sleep(0.05)
                sent = sent if self.replies > seen else 0
                continue
            if sent >= self.WINDOW:
                time.sleep(0.001)
                continue
            with contextlib.suppress(OSError):
                self.client.sendto(self.PAYLOAD, self.address)
            sent += 1

    def _echo(self):
        while not self.stopping:
            with contextlib.suppress(OSError):
                data, peer = self.server.recvfrom(2048)
                self.server.sendto(data, peer)

    def _count(self):
        while not self.stopping:
            with contextlib.suppress(OSError):
                self.client.recv(2048)
                self.replies += 1

    def flows(self, what="traffic"):
        """Waits until datagrams come back now."""
        seen = self.replies
        wait_until(what, lambda: self.replies > seen + 20)


@contextlib.contextmanager
def background(*cmds):
    """Processes that run while the block does."""
    processes = [subprocess.Popen(c, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for c in cmds]
    try:
        yield processes
    finally:
        for p in processes:
            p.kill()
            p.wait(net.SECONDS)
