"""What the tests with a raw peer share: the program of tests/inject, and the driver's own counters."""

import dataclasses
import ipaddress
import re

import net

PROGRAM = "/src/build/inject/release/inject"
# Nobody's addresses, eight of each from here on.
US4, US6 = "10.77.0.200", "fd77::200"


def gid_of(side, index=0):
    """A GID of the side's port."""
    device, port = side.port.split("/")
    with open(f"/sys/class/infiniband/{device}/ports/{port}/gids/{index}") as f:
        return ipaddress.ip_address(f.read().strip())


def gid_index(side, address):
    """The index of a GID of the side's port, or None."""
    device, port = side.port.split("/")
    for i in range(64):
        try:
            if gid_of(side, i) == ipaddress.ip_address(address):
                return i
        except OSError:
            continue
    return None


def qpn_of(hwaddr):
    """The queue pair number in a hardware address as `ip link` shows it."""
    return int(hwaddr.replace(":", "")[2:8], 16)


class View:
    """The driver's file in debugfs, as it was when this was made."""

    def __init__(self, side):
        with open(f"/sys/kernel/debug/ipoib_rs/{side.iface}") as f:
            self.text = f.read()

    def _sum(self, what):
        sums = {}
        for name, n in re.findall(rf"^ *{what} (\w+) (\d+)$", self.text, re.M):
            sums[name] = sums.get(name, 0) + int(n)
        return sums

    @property
    def rx_drops(self):
        """Received frames that were dropped, by reason, over all queues."""
        return self._sum("rx_drop")

    @property
    def tx_drops(self):
        """Packets that were not sent, by reason, over all queues."""
        return self._sum("tx_drop")

    @property
    def qpns(self):
        """The queue pair numbers, the advertised one first."""
        return [int(q, 16) for q in re.findall(r"^queue \d+: qpn (0x[0-9a-f]+) ", self.text, re.M)]

    @property
    def groups(self):
        """The lines on multicast groups."""
        return re.findall(r"^group (.*)$", self.text, re.M)


@dataclasses.dataclass
class Counters:
    """The counters of one interface at one moment."""
    drops: dict
    rx: dict
    tx: dict
    tx_drops: dict

    @classmethod
    def of(cls, side):
        view, stats = View(side), side.stats()
        return cls(view.rx_drops, stats["rx"], stats["tx"], view.tx_drops)

    def since(self, before):
        """What was added to every counter."""
        def less(now, then):
            return {k: now[k] - then.get(k, 0) for k in now if now[k] != then.get(k, 0)}
        return Counters(*(less(getattr(self, f.name), getattr(before, f.name)) for f in dataclasses.fields(self)))

    @property
    def losses(self):
        """Frames dropped on receive, our own echoes left out: nobody loses those."""
        return {k: v for k, v in self.drops.items() if k != "own_echo"}


class Injector:
    """Runs the program against the interface of one side, from the port of the other."""

    def __init__(self, victim, peer):
        self.victim, self.peer = victim, peer

    def __call__(self, *command, to=None, options=(), frames=None, check=True, timeout=1200):
        """Returns what the program prints. `to` is (GID, QPN); by default the interface's own."""
        gid, qpn = to or (gid_of(self.victim), qpn_of(self.victim.hwaddr))
        args = [PROGRAM, "--device", self.peer.port.split("/")[0], "--to", gid, qpn]
        args += ["--ip4", US4, self.victim.ip4, "--ip6", US6, self.victim.ip6]
        text = {"input": "".join(f.hex() + "\n" for f in frames)} if frames is not None else {}
        return net.run([*map(str, args), *map(str, options), *map(str, command)], check=check, timeout=timeout, **text)

    def send(self, *command, **kwargs):
        """Sends, and returns the program's account: {"sent": N, "too_short": N, ...}."""
        words = self(*command, **kwargs).stdout.splitlines()[-1].split()
        return {k: int(v) for k, v in zip(words[::2], words[1::2])}

    def ask(self, what, *options):
        """Asks for an answer, and returns it: (source QPN, source GID, destination GID, octets)."""
        out = self("ask", what, options=options).stdout
        m = re.match(r"from (\d+) (\S+) to (\S+): ([0-9a-f]*)$", out.splitlines()[0])
        assert m, out
        return int(m[1]), ipaddress.ip_address(m[2]), ipaddress.ip_address(m[3]), bytes.fromhex(m[4])
