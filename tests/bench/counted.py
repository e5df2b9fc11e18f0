"""What the QEMU plugin has counted, by function: whose instructions they are."""

import bisect
import collections
import subprocess

PROGRAMS = "programs"
# Modules that stand for the wire and the device; the rest of the kernel is the stack.
FABRIC = {"vibfab", "ib_core", "ib_uverbs", "ib_umad", "ib_cm"}
DRIVERS = {"ipoib_rs", "ib_ipoib"}


class Symbols:
    """The text of /proc/kallsyms."""

    def __init__(self, text):
        found = {}
        for line in text.splitlines():
            addr, kind, name, *module = line.split()
            if kind in "tTwW":
                found[int(addr, 16)] = (name, module[0].strip("[]") if module else "")
        self.addresses = sorted(found)
        self.names = [found[a] for a in self.addresses]

    def at(self, address):
        """(function, module) that an address lies in."""
        if address == 0:
            return PROGRAMS, ""
        i = bisect.bisect_right(self.addresses, address) - 1
        return self.names[i] if i >= 0 else (hex(address), "")


def part_of(function, module):
    """driver, fabric, stack or programs"""
    if function == PROGRAMS:
        return PROGRAMS
    # The kernel's own helpers for Rust stand where C has an inline function; no other Rust code runs.
    if module in DRIVERS or function.startswith("rust_helper_"):
        return "driver"
    return "fabric" if module in FABRIC else "stack"


def read_windows(path, symbols):
    """For each window of a plugin's output, instructions by (function, module)."""
    windows = []
    with open(path) as f:
        for line in f:
            first, second = line.split()
            if first == "window":
                windows.append(collections.Counter())
            else:
                windows[-1][symbols.at(int(first, 16))] += int(second)
    return windows


def parts(window):
    """Instructions by part."""
    sums = collections.Counter()
    for (function, module), n in window.items():
        sums[part_of(function, module)] += n
    return sums


def readable(names):
    """Names as they are written in the source."""
    done = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True)
    return dict(zip(names, done.stdout.splitlines())) if done.returncode == 0 else {n: n for n in names}
