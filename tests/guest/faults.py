"""Allocations that fail on purpose: failslab and fail_page_alloc of a kernel with fault injection."""

import pathlib

from driver import MODULE
from net import run

DEBUG = pathlib.Path("/sys/kernel/debug")
KINDS = ("failslab", "fail_page_alloc")
# Below this number each allocation is made to fail; above, where a ring is filled, one in so many.
EACH_BELOW, THEN_ONE_IN = 64, 16


def module_text():
    """(first, behind the last) address of the module's code."""
    out = run(["grep", "-E", rf" [tT] .*\[{MODULE}\]$", "/proc/kallsyms"]).stdout
    addresses = [int(line.split()[0], 16) for line in out.splitlines()]
    return min(addresses), max(addresses) + 4096


def modules_area():
    """The addresses at which modules are now, and room for one more."""
    rows = [line.split() for line in pathlib.Path("/proc/modules").read_text().splitlines()]
    return min(int(r[5], 16) for r in rows), max(int(r[5], 16) + int(r[1]) for r in rows) + (16 << 20)


class Faults:
    """One kind of allocation, of which one fails: the n-th that has code of an area on its stack.

    The kernel counts such allocations and fails one when the interval divides the count. The count cannot be read
    or set, so what it must be is followed here: it is least at `low` and at most at `high`.
    """

    def __init__(self, kind):
        self.folder = DEBUG / kind
        self.low = self.high = 0
        self.set("probability", 0)
        self.set("task-filter", "N")
        self.set("ignore-gfp-wait", "N")
        self.set("space", 0)
        self.set("verbose", 1)
        self.set("stacktrace-depth", 32)
        if kind == "fail_page_alloc":
            self.set("ignore-gfp-highmem", "N")
            self.set("min-order", 0)

    def set(self, name, value):
        (self.folder / name).write_text(str(value))

    def arm(self, n, area):
        """Lets the n-th such allocation from now on fail, and no other. Where the count is not known exactly it
        is the n-th or an earlier one."""
        self.interval = self.high + n
        self.set("require-start", hex(area[0]))
        self.set("require-end", hex(area[1]))
        self.set("interval", self.interval)
        self.set("times", 1)
        self.set("probability", 100)

    @property
    def fired(self):
        return (self.folder / "times").read_text().strip() == "0"

    def disarm(self):
        """Says whether it failed."""
        self.set("probability", 0)
        if not self.fired:
            self.high = self.interval - 1
            return False
        if self.interval > 1:
            # With an interval of one the kernel does not count.
            self.low = self.high = self.interval
        return True


ALL = {}


def numbers():
    """1, 2, ... and then in growing steps."""
    n = 1
    while True:
        yield n
        n += 1 if n < EACH_BELOW else n // THEN_ONE_IN


def sweep(kind, area, attempt, repair):
    """Makes one allocation after the other fail during attempt(fired), until it passes unharmed; fired() says
    whether the failure has been. After each attempt calls repair(what it returned), with nothing failing.
    Returns how many failed."""
    if kind not in ALL:
        ALL[kind] = Faults(kind)
    faults = ALL[kind]

    def once(n):
        faults.arm(n, area())
        try:
            result = attempt(lambda: faults.fired)
        finally:
            fired = faults.disarm()
        repair(result)
        return fired

    for _ in range(100):
        if faults.low == faults.high:
            break
        # The next failure tells where the count is.
        once(1)
    failed = 0
    for n in numbers():
        if not once(n):
            break
        failed += 1
    assert failed, "nothing was allocated"
    return failed
