"""Starting QEMU: command line, accelerator, the uncompressed kernel."""

import ctypes
import hashlib
import mmap
import os
import pathlib
import signal
import subprocess
import time

QEMU = "qemu-system-x86_64"
# Debian's initramfs exit device: guest writes N to port 0xf4, QEMU exits with 2 N + 1.
EXIT_DEVICE = ["-device", "isa-debug-exit,iobase=0xf4,iosize=4"]
PROBE_SECONDS = 20


def die_with_parent():
    """Makes the kernel kill the child when the runner dies, however it dies."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def machine(accel, icount):
    """Options that all guests share."""
    if icount:
        args = ["-accel", "tcg", "-icount", "shift=0,sleep=off", "-cpu", "max"]
    elif accel == "kvm":
        args = ["-accel", "kvm", "-cpu", "host"]
    else:
        args = ["-accel", "tcg,thread=multi", "-cpu", "max"]
    return [
        QEMU, *args, "-M", "pc", "-bios", "/usr/share/qemu/qboot.rom", "-nodefaults", "-nographic",
        "-no-reboot", "-monitor", "none", *EXIT_DEVICE,
    ]


def uncompressed(cache, vmlinuz):
    """The kernel as an ELF file: unpacking it in the guest costs seconds without KVM."""
    st = vmlinuz.stat()
    key = hashlib.sha256(f"{vmlinuz} {st.st_size} {st.st_mtime_ns}".encode()).hexdigest()[:16]
    out = cache / f"vmlinux-{key}"
    if out.exists():
        return out
    tool = "/kdir/" + (os.environ.get("IPOIB_KERNEL") or "stock") + "/scripts/extract-vmlinux"
    done = subprocess.run([tool, str(vmlinuz)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    if done.returncode or not done.stdout:
        return vmlinuz
    new = out.with_suffix(f".{os.getpid()}")
    new.write_bytes(done.stdout)
    new.rename(out)
    return out


def tsc_khz():
    """Frequency of this machine's time stamp counter, which is what a TCG guest sees."""
    page = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    # rdtsc; shl $32, %rdx; or %rdx, %rax; ret
    page.write(bytes.fromhex("0f31 48c1e220 4809d0 c3"))
    rdtsc = ctypes.CFUNCTYPE(ctypes.c_uint64)(ctypes.addressof(ctypes.c_char.from_buffer(page)))

    def sample():
        # Of several pairs the one taken in the shortest time was not interrupted.
        pairs = []
        for _ in range(50):
            before = time.monotonic_ns()
            ticks = rdtsc()
            after = time.monotonic_ns()
            pairs.append((after - before, (before + after) // 2, ticks))
        return min(pairs)[1:]

    t0, c0 = sample()
    time.sleep(0.1)
    t1, c1 = sample()
    return round((c1 - c0) * 1e6 / (t1 - t0))


def clock(accel, icount):
    """Kernel parameters that tell the guest the speed of its clock. Left to itself it measures, and on a
    loaded machine it measures nonsense: its seconds then last minutes."""
    if icount:
        # One instruction is a nanosecond, and so is a tick.
        return "tsc_early_khz=1000000 tsc=reliable no_timer_check"
    if accel == "kvm":
        return ""
    return f"tsc_early_khz={tsc_khz()} tsc=reliable no_timer_check"


def host_key():
    """What the answer of the KVM probe depends on."""
    boot = pathlib.Path("/proc/sys/kernel/random/boot_id").read_text()
    cpu = [x for x in pathlib.Path("/proc/cpuinfo").read_text().splitlines() if x.startswith("model name")]
    version = subprocess.run([QEMU, "--version"], capture_output=True, text=True).stdout
    return hashlib.sha256("\n".join([boot, *cpu[:1], version]).encode()).hexdigest()[:16]


def pick_accel(cache, kernel, initrd):
    """"kvm" when a guest really boots with it, else "tcg"; the answer is remembered."""
    if not os.access("/dev/kvm", os.R_OK | os.W_OK):
        return "tcg"
    memo = cache / f"accel-{host_key()}"
    if memo.exists():
        return memo.read_text().strip()
    cmd = [
        *machine("kvm", False), "-m", "512", "-smp", "1", "-kernel", str(kernel), "-initrd", str(initrd),
        "-append", "panic=-1 quiet guest.probe", "-serial", "none",
    ]
    try:
        done = subprocess.run(
            cmd, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            timeout=PROBE_SECONDS, preexec_fn=die_with_parent,
        )
        accel = "kvm" if done.returncode == 1 else "tcg"
    except subprocess.TimeoutExpired:
        accel = "tcg"
    new = memo.with_suffix(f".{os.getpid()}")
    new.write_text(accel)
    new.rename(memo)
    return accel


class Guest:
    """One virtual machine of a run."""

    # What the process ends with when the guest ended itself with status 0: see EXIT_DEVICE.
    CLEAN_EXIT = 1

    def __init__(self, role, job, console):
        self.role = role
        self.job = job
        self.console = console
        self.process = None
        self.started = None

    def start(self, base, smp, mem, kernel, initrd, append, extra, interactive=False):
        share = "local,security_model=none,multidevs=remap,mount_tag={},path={}{}"
        cmd = [
            *base, "-m", str(mem), "-smp", str(smp), "-kernel", str(kernel), "-initrd", str(initrd),
            "-append", append,
            "-virtfs", share.format("root", "/mnt", ",readonly=on"),
            "-virtfs", share.format("src", "/src", ",readonly=on"),
            "-virtfs", share.format("job", self.job, ""),
            "-serial", f"file:{self.console}", *extra,
        ]
        if interactive:
            cmd += ["-serial", "stdio"]
        self.started = time.monotonic()
        self.log = open(self.job / "qemu.log", "wb")
        self.process = subprocess.Popen(
            cmd, stdin=None if interactive else subprocess.DEVNULL,
            stdout=None if interactive else self.log, stderr=self.log, preexec_fn=die_with_parent,
        )

    def kill(self):
        if self.process and self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def console_text(self):
        try:
            return self.console.read_text(errors="replace")
        except FileNotFoundError:
            return ""
