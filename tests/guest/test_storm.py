"""Everything that can happen to an interface, in random order and partly at the same time, under traffic; then
nothing may be left of it. The seed is printed; STORM_SEED=N on the guest's kernel command line repeats a storm, and
STORM_EACH=N says how many there are of each kind."""

import contextlib
import random
import threading

import pytest

from driver import MODULE, Debug, Stream, loaded
from mcast import membership, udp
from net import asked, run, wait_until
from test_lifecycle import gone, infiniband_links, memory_in_use, resources_of_ours

pytestmark = pytest.mark.timeout(7200)


SEED = asked("STORM_SEED", random.SystemRandom().randrange(1 << 32))
EACH = asked("STORM_EACH", 100)


class Storm:
    """The blows. Those of `hard` leave both interfaces up; those of `soft` run beside them and may find nothing
    to hit."""

    def __init__(self, a, b, driver, rng):
        self.a, self.b, self.driver, self.rng = a, b, driver, rng
        self.counts = {}

    @property
    def hard(self):
        return [self.module, self.updown, self.device, self.namespace, self.flap]

    @property
    def soft(self):
        return [self.mtu, self.groups, self.neighbours]

    def strike(self, blow):
        self.counts[blow.__name__] = self.counts.get(blow.__name__, 0) + 1
        blow(random.Random(self.rng.random()))

    def module(self, _):
        run(["timeout", "120", "rmmod", MODULE])
        self.driver.insert()

    def updown(self, rng):
        side = rng.choice((self.a, self.b))
        side.set_link("down")
        side.set_link("up")

    def device(self, _):
        name = self.a.port.split("/")[0]
        run(["timeout", "120", "rdma", "link", "delete", name])
        wait_until("the interface to go", lambda: gone(self.a))
        run(["rdma", "link", "add", name, "type", "rxe", "netdev", "v0"])
        self.driver.up_side(self.a)

    def namespace(self, rng):
        side = rng.choice((self.a, self.b))
        run(["ip", "netns", "add", "storm"])
        side.run("ip", "link", "set", side.iface, "netns", "storm")
        run(["ip", "-n", "storm", "link", "set", side.iface, "up"])
        run(["ip", "netns", "del", "storm"])
        self.driver.up_side(side)

    def flap(self, rng):
        link = rng.choice(("v0", "v1"))
        run(["ip", "link", "set", link, "down"])
        run(["ip", "link", "set", link, "up"])

    def mtu(self, rng):
        side = rng.choice((self.a, self.b))
        side.run("ip", "link", "set", "dev", side.iface, "mtu", rng.randrange(72, 4093), check=False)

    def groups(self, rng):
        with contextlib.suppress(OSError):
            sock, index = udp(rng.choice((self.a, self.b)), 4)
            with sock:
                for _ in range(rng.randrange(1, 10)):
                    with contextlib.suppress(OSError):
                        membership(sock, 4, f"239.7.0.{rng.randrange(1, 250)}", index)

    def neighbours(self, rng):
        side = rng.choice((self.a, self.b))
        side.run("ip", "neigh", "flush", "dev", side.iface, check=False)

    def plan(self):
        """Pairs (hard blow, soft blows beside it), all as often as asked for."""
        hard = self.hard * EACH
        self.rng.shuffle(hard)
        soft = [[] for _ in hard]
        for blow in self.soft * EACH:
            self.rng.choice(soft).append(blow)
        return zip(hard, soft, strict=True)


def groups_of(side):
    return {gid for gid, line in Debug(side).groups.items() if "member true" in line}


def figures(a, b):
    """What must be the same before and afterwards: groups, and how many verbs objects there are."""
    return {"groups": (groups_of(a), groups_of(b)), "objects": len(resources_of_ours())}


def test_storm(a, b, driver):
    """At least a hundred of each; the traffic recovers each time, and then all is as it was."""
    rng = random.Random(SEED)
    print(f"STORM_SEED={SEED} STORM_EACH={EACH}")
    driver.renew()
    wait_until("an answer", lambda: a.reaches(b.ip4) and a.reaches(b.ip6))
    before, memory = figures(a, b), memory_in_use()
    storm = Storm(a, b, driver, rng)
    with Stream(a, b) as stream:
        for i, (hard, soft) in enumerate(storm.plan()):
            beside = [threading.Thread(target=storm.strike, args=(blow,)) for blow in soft]
            for t in beside:
                t.start()
            storm.strike(hard)
            for t in beside:
                t.join()
            if i % 20 == 19:
                stream.flows(f"traffic after {i + 1} blows, the last was {hard.__name__}")
    assert all(n == EACH for n in storm.counts.values()) and len(storm.counts) == 8, storm.counts
    assert loaded() and not infiniband_links()
    driver.renew()
    wait_until("an answer", lambda: a.reaches(b.ip4) and a.reaches(b.ip6))
    wait_until("the same groups and objects", lambda: figures(a, b) == before)
    wait_until("an idle machine's memory", lambda: memory_in_use() - memory < 8192)
