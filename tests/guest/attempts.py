"""What is done while something fails on the way: each is a context manager with attempt(), during which one thing
may fail, and repair(), after which all is as before. repair() insists on the right error or a later success."""

import os
import pathlib

import vibfab
from child import add_link, del_link
from driver import MODULE, loaded
from mcast import group, membership, udp
from net import run, wait_until
from test_lifecycle import gone, infiniband_links

NO_MEMORY = "Cannot allocate memory"


class Attempt:
    """`reason` is what a failed command must say, or "" for anything."""

    # What is called on the way there is code of the module; False: the module is not there at the start.
    in_module = True

    def __init__(self, a, b, driver, reason):
        self.a, self.b, self.driver, self.reason = a, b, driver, reason

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        pass

    def settle(self, fired):
        """Waits until the sides reach each other or the failure has been."""
        wait_until("an answer or the failure", lambda: self.a.reaches(self.b.ip4) or fired())

    def reachable(self):
        wait_until("an answer", lambda: self.a.reaches(self.b.ip4) and self.b.reaches(self.a.ip4))

    def failed(self, done):
        """Whether a command failed; then it must have been for the right reason."""
        if done.returncode:
            assert self.reason in done.stderr, done.stderr
        return done.returncode != 0


class Open(Attempt):
    """Interface up: either that fails, and works the next time, or the traffic starts without anybody's help."""

    def __enter__(self):
        self.a.set_link("down")
        return self

    def __exit__(self, *exc):
        self.a.set_link("up")

    def attempt(self, fired):
        done = self.a.run("ip", "link", "set", "dev", self.a.iface, "up", check=False)
        if done.returncode == 0:
            self.settle(fired)
        return done

    def repair(self, done):
        if self.failed(done):
            self.a.set_link("up")
        self.reachable()
        self.a.set_link("down")


class Mtu(Attempt):
    """MTU changes of an interface that is up: a refused one leaves the old MTU and working rings."""

    def __enter__(self):
        self.first = self.a.mtu
        self.wanted = 2044
        return self

    def __exit__(self, *exc):
        self.a.set_link("mtu", self.first)

    def attempt(self, fired):
        before, mtu = self.a.mtu, self.wanted
        done = self.a.run("ip", "link", "set", "dev", self.a.iface, "mtu", mtu, check=False)
        assert self.a.mtu == (before if done.returncode else mtu)
        self.settle(fired)
        return done

    def repair(self, done):
        if not self.failed(done):
            self.wanted = self.first + 2044 - self.wanted
        self.reachable()
        wait_until("full frames", lambda: self.a.ping(
            self.b.ip4, count=3, size=self.a.mtu - 28, extra=["-M", "do"]).received == 3)


class Resolve(Attempt):
    """Neighbours that must be found again, on both sides."""

    def attempt(self, fired):
        for side in (self.a, self.b):
            side.flush_neighbours()
        self.settle(fired)

    def repair(self, _):
        self.reachable()


class Join(Attempt):
    """A socket joins a group and leaves it."""

    ADDRESS = "239.9.8.7"

    def __enter__(self):
        self.sock, self.index = udp(self.a, 4)
        return self

    def __exit__(self, *exc):
        self.sock.close()

    def member(self):
        return "member true joining false attached true" in group(self.a, self.ADDRESS)

    def attempt(self, fired):
        try:
            membership(self.sock, 4, self.ADDRESS, self.index)
        except OSError as e:
            assert "memory" in e.strerror or "buffer" in e.strerror, e
            return e
        wait_until("the membership or the failure", lambda: self.member() or fired())
        return None

    def repair(self, error):
        if error:
            membership(self.sock, 4, self.ADDRESS, self.index)
        wait_until("the membership", self.member)
        membership(self.sock, 4, self.ADDRESS, self.index, join=False)
        wait_until("the leave", lambda: group(self.a, self.ADDRESS) == "")


class Child(Attempt):
    """A child is made and comes up."""

    NAME = "child0"

    def there(self):
        return self.a.run("ip", "link", "show", "dev", self.NAME, check=False).returncode == 0

    def carrier(self):
        return self.a.run("cat", f"/sys/class/net/{self.NAME}/carrier", check=False).stdout.strip() == "1"

    def add(self, check):
        done = add_link(self.a, self.NAME, check=check)
        if done.returncode == 0:
            done = self.a.run("ip", "link", "set", self.NAME, "up", check=check)
        return done

    def attempt(self, fired):
        done = self.add(check=False)
        if done.returncode == 0:
            wait_until("the carrier or the failure", lambda: self.carrier() or fired())
        return done

    def repair(self, done):
        if self.failed(done):
            if self.there():
                del_link(self.a, self.NAME)
            self.add(check=True)
        wait_until("the carrier", self.carrier)
        del_link(self.a, self.NAME)
        assert not self.there()
        self.reachable()


class Device(Attempt):
    """A device appears: with its interfaces, or without one and with it when it appears the next time."""

    def __enter__(self):
        self.name = self.a.port.split("/")[0]
        self.delete()
        return self

    def __exit__(self, *exc):
        self.add()
        self.driver.up_side(self.a)

    def delete(self):
        if self.name.startswith("vib"):
            vibfab.ctl(f"hca {self.name} remove")
        else:
            run(["timeout", "120", "rdma", "link", "delete", self.name])
        wait_until("the interface to go", lambda: gone(self.a))

    def add(self):
        """Says whether there is one now."""
        try:
            if self.name.startswith("vib"):
                vibfab.ctl(f"hca {self.name} add")
            else:
                run(["rdma", "link", "add", self.name, "type", "rxe", "netdev", "v0"])
        except (OSError, AssertionError):
            return False
        wait_until("the port", lambda: "ACTIVE" in pathlib.Path(
            f"/sys/class/infiniband/{self.a.port.replace('/', '/ports/')}/state").read_text())
        return True

    def interface(self):
        """Whether the port has its interface."""
        gid = pathlib.Path(f"/sys/class/infiniband/{self.a.port.replace('/', '/ports/')}/gids/0").read_text().strip()
        return any(self.address(link)[12:].replace(":", "") == gid.replace(":", "") for link in infiniband_links())

    @staticmethod
    def address(link):
        return pathlib.Path("/sys/class/net", link, "address").read_text().strip()

    def attempt(self, fired):
        self.complaints = self.without_sm()
        return self.add()

    @staticmethod
    def without_sm():
        return run(["dmesg"]).stdout.count("Couldn't create new SM AH")

    def repair(self, there):
        # The core makes its address handle for the subnet manager once for each change; no driver of an interface can
        # mend what was refused to it.
        if there and self.without_sm() > self.complaints:
            vibfab.ctl(*(f"port {self.name}/{number} event sm_change" for number in (1, 2)))
        if there and not self.interface():
            if self.name.startswith("vib"):
                vibfab.ctl(f"hca {self.name} remove")
            else:
                run(["rdma", "link", "delete", self.name])
            there = False
        assert there or self.add()
        self.driver.up_side(self.a)
        self.reachable()
        self.delete()


class Load(Attempt):
    """The module is loaded, with two devices there: without memory for the first it does not load, or loads without
    an interface; the next time all is there."""

    in_module = False

    def __enter__(self):
        self.count = len(infiniband_links()) + 2
        self.driver.down()
        self.driver.unload()
        self.command = ["insmod", os.environ["MODULE"], *os.environ.get("FABRIC_PARAMS", "").split()]
        return self

    def __exit__(self, *exc):
        self.driver.load()
        self.driver.up()

    def attempt(self, fired):
        return run(self.command, check=False)

    def repair(self, done):
        if self.failed(done):
            assert not loaded() and not infiniband_links()
        else:
            run(["rmmod", MODULE])
        assert not pathlib.Path("/sys/kernel/debug", MODULE).exists()
        run(self.command)
        wait_until("all interfaces", lambda: len(infiniband_links()) == self.count)
        run(["rmmod", MODULE])


ATTEMPTS = {kind.__name__.lower(): kind for kind in (Open, Mtu, Resolve, Join, Child, Device, Load)}
