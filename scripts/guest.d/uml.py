"""Starting user-mode Linux: the kernel is a program that runs inside the build root like any other."""

import fcntl
import os
import random
import resource
import subprocess
import time

import qemu


def kernel_line(opts):
    line = (
        "loglevel=5 panic=-1 oops=panic noreboot net.ifnames=0 log_buf_len=4M watchdog_thresh=60"
        " sysctl.kernel.hung_task_timeout_secs=180 rcupdate.rcu_cpu_stall_timeout=120"
        " kasan_multi_shot"
    )
    return f"{line} {opts.append}".strip()


def own_processor():
    """A processor, if possible one that no other such guest has now; and the file that must stay open meanwhile."""
    mine = sorted(os.sched_getaffinity(0))
    for cpu in mine:
        file = open(f"/tmp/ipoib-rs-{os.getuid()}-uml-cpu{cpu}", "w")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return cpu, file
        except OSError:
            file.close()
    return random.choice(mine), None


def prepare_process(cpu):
    qemu.die_with_parent()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # Each file that the guest has in its caches is an open file here.
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    # The kernel and the processes of its user space hand over to each other all the time: five times
    # slower when the two sides sit on different processors.
    os.sched_setaffinity(0, {cpu})


class Guest(qemu.Guest):
    """One user-mode Linux. Same interface as the virtual machine's."""

    # A crash aborts the program.
    CLEAN_EXIT = 0

    def start(self, base, smp, mem, kernel, initrd, append, extra, interactive=False):
        del base, extra
        lines = ["con0=null,fd:1", "con=null", "ssl=null"]
        if interactive:
            # The console goes to its file; the shell's line is the terminal.
            lines = ["con=null", "ssl0=null", "ssl1=fd:0,fd:1", "console=stderr", "stderr=1"]
        cmd = [
            str(kernel), f"mem={mem}M", f"initrd={initrd}", "seccomp=off", *lines, *append.split(),
            f"guest.job={self.job}",
        ]
        self.started = time.monotonic()
        self.log = open(self.console, "wb")
        cpu, self.processor = own_processor()
        # The guest's memory is a file there.
        env = {**os.environ, "TMPDIR": "/dev/shm"}
        self.process = subprocess.Popen(
            cmd, env=env, cwd=self.job, stdin=None if interactive else subprocess.DEVNULL,
            stdout=None if interactive else self.log, stderr=self.log, preexec_fn=lambda: prepare_process(cpu),
        )
