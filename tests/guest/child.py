"""Children of the sides' interfaces, made by netlink or sysfs, each in a namespace of its own."""

import contextlib
import re

import net
from net import run, wait_until


def sysfs_write(side, file, text, iface=None):
    """Writes in one piece; the error, if any, is in stderr."""
    return side.run("tee", f"/sys/class/net/{iface or side.iface}/{file}", input=text, check=False)


def sysfs_read(where, iface, file):
    return where("cat", f"/sys/class/net/{iface}/{file}").stdout.strip()


def in_ns(ns):
    """run() for a namespace by its name."""
    return lambda *cmd, **kwargs: run(["ip", "netns", "exec", ns, *map(str, cmd)], **kwargs)


def add_link(side, name, *args, lower=None, ns=None, check=True):
    """`ip link add ... type ipoib` in the side's namespace, or from there into another."""
    where = ["netns", ns] if ns else []
    options = list(args)
    generic = options[:options.index("--")] if "--" in options else []
    options = options[options.index("--") + 1:] if "--" in options else options
    link = ["link", lower or side.iface] if lower != "" else []
    return side.run("ip", "link", "add", *link, "name", name, *generic, *where, "type", "ipoib", *options, check=check)


def del_link(side, name, check=True):
    return side.run("ip", "link", "del", "dev", name, check=check)


class Child(net.Side):
    """A child on a side, up, in a namespace of its own, as one more side to send from and to."""

    number = 0

    def __init__(self, side, *args, host=None, name=None):
        Child.number += 1
        super().__init__(side.letter)
        self.side = side
        self.ns = f"c{Child.number}{side.letter.lower()}"
        self._iface = name or f"child{Child.number}"
        host = host or {"A": 1, "B": 2}[side.letter]
        self.ip4, self.ip6 = f"10.88.0.{host}", f"fd88::{host}"
        run(["ip", "netns", "add", self.ns])
        if name:
            # Made by sysfs, in its parent's namespace.
            side.run("ip", "link", "set", "dev", name, "netns", self.ns)
        else:
            add_link(side, self._iface, *args, ns=self.ns)
        self.run("sysctl", "-qw", f"net.ipv6.conf.{self.iface.replace('.', '/')}.keep_addr_on_down=1")
        self.run("ip", "addr", "add", f"{self.ip4}/24", "dev", self.iface)
        self.run("ip", "addr", "add", f"{self.ip6}/64", "dev", self.iface, "nodad")
        self.set_link("up")

    def remove(self):
        self.run("ip", "link", "del", "dev", self.iface, check=False)
        run(["ip", "netns", "del", self.ns], check=False)


@contextlib.contextmanager
def children(*sides, args=()):
    """One child on each side, made by netlink."""
    made = []
    try:
        for side in sides:
            made.append(Child(side, *args))
        yield made
    finally:
        for child in made:
            child.remove()


def reach_each_other(one, other):
    for family in (4, 6):
        wait_until(f"an answer over IPv{family}", lambda f=family: one.reaches(other.address(f)))


def shown_kind(side, iface):
    """What `ip -d link` says of the kind: (P_Key, mode, umcast), None when it says nothing."""
    text = side.run("ip", "-d", "link", "show", "dev", iface).stdout
    found = re.search(r"\bipoib\s+pkey\s+(\S+)\s+mode\s+(\S+)\s+umcast\s+(\S+)", text)
    return found.groups() if found else None


def queues(where, iface):
    """The transmit and receive queues in use."""
    return sorted(where("ls", f"/sys/class/net/{iface}/queues").stdout.split())


def features(where, iface):
    return where("ethtool", "-k", iface).stdout.splitlines()[1:]


def exchange(one, other):
    """IPv4 and IPv6, ICMP, TCP and UDP between two children, and nothing is lost."""
    assert one.ping(other.ip4, count=200, flood=True).lost == 0
    assert other.ping(one.ip6, count=200, flood=True).lost == 0
    with net.FlowServer(other) as server:
        assert server.run(one, 4, 500000, both=True) == "4 flows ok"
        assert server.datagrams(one, 500, family=6) == "500 datagrams ok"
