"""What fails on purpose: allocations (failslab and fail_page_alloc of a kernel with fault injection), and verbs of
the virtual HCAs."""

import pathlib

import vibfab
from driver import MODULE
from net import run

DEBUG = pathlib.Path("/sys/kernel/debug")


def module_text():
    """(first, behind the last) address of the module's code."""
    out = run(["grep", "-E", rf" [tT] .*\[{MODULE}\]$", "/proc/kallsyms"]).stdout
    addresses = [int(line.split()[0], 16) for line in out.splitlines()]
    return min(addresses), max(addresses) + 4096


def modules_area():
    """The addresses at which modules are now, and room for one more."""
    rows = [line.split() for line in pathlib.Path("/proc/modules").read_text().splitlines()]
    return min(int(r[5], 16) for r in rows), max(int(r[5], 16) + int(r[1]) for r in rows) + (16 << 20)


class Allocations:
    """One kind of allocation, of which one fails: the n-th that has code of an area on its stack.

    The kernel counts such allocations and fails one when the interval divides the count. The count cannot be read
    or set, so what it must be is followed here: it is least at `low` and at most at `high`.
    """

    # Below this number each is made to fail; above, where a ring is filled, one in so many.
    EACH_BELOW, THEN_ONE_IN = 64, 16
    ALL = {}

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

    @classmethod
    def of(cls, kind):
        """The one object for a kind: the kernel's count goes on."""
        if kind not in cls.ALL:
            cls.ALL[kind] = cls(kind)
        return cls.ALL[kind]

    @property
    def exact(self):
        """Whether the count is known."""
        return self.low == self.high

    def set(self, name, value):
        (self.folder / name).write_text(str(value))

    def arm(self, n, attempt):
        """Lets the n-th such allocation from now on fail, and no other. Where the count is not known exactly it
        is the n-th or an earlier one."""
        first, last = module_text() if attempt.in_module else modules_area()
        self.interval = self.high + n
        self.set("require-start", hex(first))
        self.set("require-end", hex(last))
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


class Verbs:
    """One verb of the virtual HCAs, whose n-th call fails."""

    EACH_BELOW, THEN_ONE_IN = 12, 4
    exact = True

    def __init__(self, verb):
        self.verb = verb

    def arm(self, n, _attempt):
        vibfab.ctl(f"fail {self.verb} {n}")

    @property
    def fired(self):
        return all(line["fail"] != self.verb for line in vibfab.lines("state", "fail"))

    def disarm(self):
        """Says whether it failed."""
        fired = self.fired
        vibfab.ctl(f"fail {self.verb} 0")
        return fired


def numbers(faults):
    """1, 2, ... and then in growing steps."""
    n = 1
    while True:
        yield n
        n += 1 if n < faults.EACH_BELOW else n // faults.THEN_ONE_IN


def sweep(faults, attempt):
    """Makes one thing after the other fail during the attempt, until that passes unharmed, and repairs after each.
    Returns how many failed."""

    def once(n):
        faults.arm(n, attempt)
        try:
            result = attempt.attempt(lambda: faults.fired)
        finally:
            fired = faults.disarm()
        attempt.repair(result)
        return fired

    for _ in range(100):
        if faults.exact:
            break
        # The next failure tells where the count is.
        once(1)
    failed = 0
    for n in numbers(faults):
        if not once(n):
            return failed
        failed += 1
