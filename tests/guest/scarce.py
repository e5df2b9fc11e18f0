"""One system call made while hardly any memory may be charged to its caller: allocations fail, for real, on a kernel
without fault injection.

    scarce.py OCTETS load FILE PARAMETERS     finit_module(2)
    scarce.py OCTETS up|down INTERFACE        SIOCSIFFLAGS, in the present namespace
    scarce.py OCTETS mtu INTERFACE MTU        SIOCSIFMTU

OCTETS is what the call may have on top of what the process has. A process that the kernel may not kill for want of
memory is told ENOMEM instead. Prints "ERRNO HITS": what the call returned (0: done), and how often it hit the
limit. Only allocations that the kernel accounts to the caller can fail: those of network
devices, directory entries and inodes do, those of rings and queue pairs do not.
"""

import ctypes
import fcntl
import os
import pathlib
import socket
import struct
import sys

# mlockall(2): everything that is mapped now.
MCL_CURRENT = 1
GROUP = pathlib.Path("/run/scarce/group")
SIOCGIFFLAGS, SIOCSIFFLAGS, SIOCSIFMTU = 0x8913, 0x8914, 0x8922
FINIT_MODULE = 313
IFF_UP = 1


class Reading:
    """A file of the group that can be read without any memory: opened and read once before."""

    def __init__(self, name):
        self.fd = os.open(GROUP / name, os.O_RDONLY)
        self.text()

    def text(self):
        return os.pread(self.fd, 4096, 0).decode()


def enter():
    """Makes the memory group, if need be, and moves this process there."""
    root = GROUP.parent
    if not root.is_dir():
        root.mkdir()
        mount = ctypes.CDLL(None, use_errno=True).mount
        if mount(b"none", bytes(root), b"cgroup2", 0, None) != 0:
            sys.exit(f"no cgroup2: {os.strerror(ctypes.get_errno())}")
        (root / "cgroup.subtree_control").write_text("+memory")
    GROUP.mkdir(exist_ok=True)
    (GROUP / "memory.max").write_text("max")
    pathlib.Path("/proc/self/oom_score_adj").write_text("-1000")
    (GROUP / "cgroup.procs").write_text(str(os.getpid()))


def call(what, *args):
    """The system call, ready to be made: nothing of the process' own is allocated any more."""
    if what == "load":
        syscall = ctypes.CDLL(None, use_errno=True).syscall
        file, parameters = os.open(args[0], os.O_RDONLY), args[1].encode()
        return lambda: -ctypes.get_errno() if syscall(FINIT_MODULE, file, parameters, 0) else 0
    control = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    name = args[0].encode()
    if what == "mtu":
        request, number = struct.pack("16si20x", name, int(args[1])), SIOCSIFMTU
    else:
        flags = struct.unpack("16sh", fcntl.ioctl(control, SIOCGIFFLAGS, struct.pack("16sh22x", name, 0))[:18])[1]
        flags = flags | IFF_UP if what == "up" else flags & ~IFF_UP
        request, number = struct.pack("16sh22x", name, flags), SIOCSIFFLAGS

    def ioctl():
        try:
            fcntl.ioctl(control, number, request)
        except OSError as e:
            return -e.errno
        return 0
    return ioctl


def main():
    octets, what, *args = sys.argv[1:]
    enter()
    limit = os.open(GROUP / "memory.max", os.O_WRONLY)
    events, current = Reading("memory.events"), Reading("memory.current")

    def hits():
        return int(dict(line.split() for line in events.text().splitlines())["max"])

    ready = call(what, *args)
    hits()
    # The process itself must need no page below: not one of its heap, and none that was reclaimed.
    spare = [bytes(4096) for _ in range(256)]
    del spare
    if ctypes.CDLL(None).mlockall(MCL_CURRENT) != 0:
        sys.exit("mlockall failed")
    # What was charged in advance, for the next allocations, is given back.
    os.write(limit, b"0")
    most, before = int(current.text()) + int(octets), hits()
    os.write(limit, str(most).encode())
    result = ready()
    after = hits()
    os.write(limit, b"max")
    print(-result, after - before)


main()
