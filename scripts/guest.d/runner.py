"""Runs a script in a guest. See README.md ("The guest runner") and scripts/guest."""

import argparse
import os
import pathlib
import re
import shlex
import shutil
import sys
import time

import initramfs
import kernels
import klog
import qemu
import uml

HERE = pathlib.Path(__file__).parent
SRC = pathlib.Path("/src")
HOST = pathlib.Path("/host")
KEEP_LOGS = 40
DIRTY, BROKEN = 3, 4
POLL_SECONDS = 0.03
# Emulated processors have been seen to lose their timer two seconds after the start, and the boot with it: what
# is not up by then, before any driver of ours is loaded, is booted again.
BOOT_SECONDS = 150
BOOTS = 3
STUCK = f"the kernel did not boot in {BOOT_SECONDS} s"

EPILOG = """
The script sees: NS_A NS_B (network namespaces of the two sides), IF_A IF_B, IP4_A IP4_B, IP6_A IP6_B,
PORT_A PORT_B (RDMA device/port), MODULE (the built ipoib_rs.ko), GUEST_FABRIC, GUEST_DRIVER,
GUEST_KERNEL, GUEST_GUESTS; the commands on-b and guest-setup (see scripts/guest.d/bin); the repository
at /src, read only. Anything it writes to GUEST_JOB appears in the log folder.

Exit status: that of the script; 3 when the script passed but the kernel log is dirty or the
driver could not be unloaded; 4 when the boot, the preparation or the time limit failed.
"""


def say(text):
    print(f"guest: {text}", file=sys.stderr, flush=True)


def plugins():
    return sorted(p.name[len("fabric-"):-len(".sh")] for p in HERE.glob("fabric-*.sh"))


def parse(argv):
    top = argparse.ArgumentParser(prog="scripts/guest")
    sub = top.add_subparsers(dest="command", required=True)
    for name in ("run", "shell"):
        p = sub.add_parser(name, epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter)
        p.add_argument("--fabric", default="rxe", help=f"NAME[:key=value,...]; {', '.join(plugins())} (default rxe)")
        p.add_argument("--driver", default="ipoib_rs", choices=["ipoib_rs", "ib_ipoib", "both", "mixed", "none"],
                       help="both: ipoib_rs on the first ports, ib_ipoib on the second ones (NS_C, NS_D, ...); "
                       "mixed: ipoib_rs is side A, ib_ipoib side B; these two want --fabric vibfab")
        p.add_argument("--sm", choices=["embedded", "opensm"], help="subnet manager of --fabric vibfab")
        p.add_argument("--kernel", default="stock", help="a file of scripts/kernels (default stock)")
        p.add_argument("--param", default="", metavar="'NAME=VALUE ...'", help="module parameters of the driver")
        p.add_argument("--smp", type=int, default=2, help="virtual CPUs (default 2)")
        p.add_argument("--mem", type=int, default=2048, help="memory in MiB (default 2048)")
        p.add_argument("--timeout", type=float, default=600, help="limit for everything, in seconds (default 600)")
        p.add_argument("--icount", action="store_true",
                       help="virtual clock that counts instructions, one CPU: rates that do not depend on the load")
        p.add_argument("--plain", action="store_true", help="without slab debugging and KFENCE (implied by --icount)")
        p.add_argument("--no-teardown", action="store_true", help="do not unload the driver at the end")
        p.add_argument("--allow-log", action="append", default=[], metavar="REGEX",
                       help="kernel log lines that are expected and do not make the run dirty")
        p.add_argument("--append", default="", help="more kernel parameters")
        p.add_argument("--qemu", default="", metavar="'OPTIONS'", help="more options of QEMU (folders as in the root)")
        p.add_argument("--verbose", action="store_true", help="copy the console to stderr")
        p.add_argument("--log", metavar="FOLDER", help="where console and logs go, below build/ (it is emptied)")
        p.add_argument("--no-build", action="store_true", help="take the module as it is, do not build it first")
        if name == "run":
            p.add_argument("script", metavar="SCRIPT", help="any executable file of this machine")
            p.add_argument("args", nargs=argparse.REMAINDER)
    opts = top.parse_args(argv)
    if opts.command == "shell":
        opts.script, opts.args = "", []
    if opts.smp < 1 or opts.mem < 256 or opts.timeout <= 0:
        top.error("--smp wants 1 or more, --mem 256 or more, --timeout more than 0")
    opts.fabric_name = opts.fabric.partition(":")[0]
    if (opts.sm or opts.driver in ("both", "mixed")) and opts.fabric_name != "vibfab":
        top.error("--sm and the drivers both and mixed want --fabric vibfab")
    if opts.sm:
        opts.fabric += f"{',' if ':' in opts.fabric else ':'}sm={opts.sm}"
    if opts.fabric_name not in plugins():
        top.error(f"no fabric '{opts.fabric_name}': there are {', '.join(plugins())}")
    for expression in opts.allow_log:
        try:
            re.compile(expression)
        except re.error as e:
            top.error(f"--allow-log {expression}: {e}")
    if opts.icount:
        opts.smp, opts.plain = 1, True
    return opts


def find_script(opts, job):
    """Path of the script in the guest. One that is not in the repository goes into the job folder."""
    if opts.command == "shell":
        return ""
    host = pathlib.Path(os.environ["IPOIB_CWD"]) / opts.script
    host = pathlib.Path(os.path.normpath(host))
    try:
        return str(SRC / host.relative_to(os.environ["IPOIB_SRC"]))
    except ValueError:
        pass
    seen = HOST / str(host).lstrip("/")
    if str(host).startswith("/tmp/"):
        seen = host
    if not seen.is_file():
        sys.exit(f"guest: no such file: {host}")
    copy = job / "bin" / host.name
    copy.parent.mkdir()
    shutil.copy(seen, copy)
    copy.chmod(0o755)
    return f"/run/guest/bin/{host.name}"


def check_script(path, job, typed):
    if not path:
        return
    seen = job / path.removeprefix("/run/guest/") if path.startswith("/run/guest/") else pathlib.Path(path)
    if not seen.is_file():
        sys.exit(f"guest: no such file: {typed}")
    if not os.access(seen, os.X_OK):
        sys.exit(f"guest: not executable: {typed}")


def headers(fabric):
    """Header comments of a fabric plug-in: "# key: value"."""
    text = (HERE / f"fabric-{fabric}.sh").read_text()
    return dict(re.findall(r"^# (guests|build|qemu): (.*)$", text, re.M))


def new_job(opts):
    if opts.log:
        job = SRC / opts.log
        if job.resolve().parts[:3] != ("/", "src", "build"):
            sys.exit("guest: --log wants a folder below build/")
        shutil.rmtree(job, ignore_errors=True)
        job.mkdir(parents=True)
        return job
    top = SRC / "build" / "guest"
    top.mkdir(parents=True, exist_ok=True)
    old = sorted(p for p in top.iterdir() if p.is_dir())
    for p in old[:-KEEP_LOGS]:
        shutil.rmtree(p, ignore_errors=True)
    job = top / (time.strftime("%Y%m%d-%H%M%S-") + str(os.getpid()))
    job.mkdir()
    return job


def write_job(job, opts, role, guests, script, modules):
    # One CPU would mean one queue, and then much of the driver has nothing to do.
    params = f"num_queues=2 {opts.param}" if modules and opts.driver == "ipoib_rs" else opts.param
    config = {
        "GUEST_ROLE": role, "GUEST_GUESTS": guests, "GUEST_FABRIC": opts.fabric, "GUEST_DRIVER": opts.driver,
        "GUEST_KERNEL": opts.kernel, "GUEST_PARAMS": params,
        "GUEST_TEARDOWN": "" if opts.no_teardown else 1,
        "GUEST_MODULES": modules, "GUEST_WAIT": int(opts.timeout), "GUEST_SHELL": 1 if opts.command == "shell" else "",
        "MODULE": f"/src/build/{opts.kernel}/ipoib_rs.ko",
    }
    build = headers(opts.fabric_name).get("build")
    if build:
        name = pathlib.Path(build).name
        key = "MODULE_" + re.sub(r"\W", "_", name).upper()
        config[key] = f"/src/build/{opts.kernel}-{name}/{name}.ko"
    lines = [f"{k}={shlex.quote(str(v))}\n" for k, v in config.items()]
    if build:
        lines.append(f"export {key}\n")
    (job / "config").write_text("".join(lines))
    (job / "script").write_text(script + "\0")
    (job / "args").write_text("".join(a + "\0" for a in opts.args))
    (job / "commands").mkdir()
    for name in ("stdout", "stderr"):
        (job / name).touch()


def kernel_line(opts, accel, checked):
    line = (
        "console=ttyS0 loglevel=5 panic=-1 oops=panic net.ifnames=0 mitigations=off log_buf_len=4M"
        " watchdog_thresh=60 sysctl.kernel.hung_task_timeout_secs=180 rcupdate.rcu_cpu_stall_timeout=120"
        " random.trust_cpu=on"
    )
    if checked:
        # One that was built with KASAN: it sees what the allocator's own checks would, and goes on after a report.
        line += " kasan_multi_shot"
    elif opts.plain:
        line += " kfence.sample_interval=0 nokaslr"
    else:
        line += " slab_debug=FZPU kfence.sample_interval=10"
    return f"{line} {qemu.clock(accel, opts.icount)} {opts.append}".strip()


class Tail:
    """Copies what is appended to a file to a stream."""

    def __init__(self, path, stream):
        self.file = open(path, "rb")
        self.stream = stream

    def pump(self):
        data = self.file.read()
        if data:
            self.stream.write(data)
            self.stream.flush()


def read(path):
    try:
        return path.read_text(errors="replace")
    except FileNotFoundError:
        return ""


def outcome(job):
    """("rc", N), ("error", text) or ("", "") from a job folder."""
    kind, _, value = read(job / "result").strip().partition("=")
    return kind, value


def watch(opts, guests):
    """Waits for the guests to end; returns a reason when they did not in time."""
    deadline = guests[0].started + opts.timeout
    tails = [Tail(guests[0].job / "stdout", sys.stdout.buffer), Tail(guests[0].job / "stderr", sys.stderr.buffer)]
    for g in guests:
        if opts.verbose:
            g.console.touch()
            tails.append(Tail(g.console, sys.stderr.buffer))
    reason = ""
    while True:
        running = [g for g in guests if g.process.poll() is None]
        for t in tails:
            t.pump()
        if not running:
            break
        if outcome(guests[0].job)[0] or guests[0] not in running:
            # The script is over: let the others go.
            for g in guests[1:]:
                (g.job / "stop").touch()
        if guests[0] in running and len(running) < len(guests):
            failed = [g for g in guests if g not in running]
            if not (failed[0].job / "stop").exists():
                reason = f"guest {failed[0].role} ended early"
                break
        if time.monotonic() > deadline:
            reason = f"time limit of {opts.timeout:g} s reached"
            break
        if any(time.monotonic() > g.started + BOOT_SECONDS and not (g.job / "up").exists() for g in running):
            reason = STUCK
            break
        time.sleep(POLL_SECONDS)
    for g in guests:
        g.kill()
    for t in tails:
        t.pump()
    return reason


def verdict(opts, guests, reason):
    """(exit status, lines to print)"""
    notes, dirty = [], []
    for g in guests:
        log = read(g.job / "dmesg") or g.console_text()
        found = klog.dirty_lines(log, opts.allow_log)
        if found:
            dirty += found
            where = "kernel log" if len(guests) == 1 else f"kernel log of guest {g.role}"
            notes.append(f"{where} is not clean:")
            notes += [f"    {line}" for line in found[:30]]
        finished = g.process.returncode == g.CLEAN_EXIT and (g.job / "finished").exists()
        if not finished and not reason:
            kind, value = outcome(g.job)
            if kind == "error":
                reason = value
            elif kind == "rc":
                reason = f"guest {g.role} died after the script had ended"
            else:
                reason = f"guest {g.role} died (its process ended with status {g.process.returncode})"
    kind, value = outcome(guests[0].job)
    if kind == "rc" and int(value) != 0:
        return int(value), notes + ([reason] if reason else [])
    if reason:
        over = kind == "rc" and dirty
        if (guests[0].job / "state").exists():
            notes.append("what was there when the preparation failed is in the file state beside the console log")
        elif not over and not dirty:
            tail = guests[0].console_text().splitlines()[-15:]
            notes += ["last lines of the console:", *(f"    {line}" for line in tail)]
            tail = read(guests[0].job / "qemu.log").splitlines()[-5:]
            notes += [f"    qemu: {line}" for line in tail]
        return (DIRTY if over else BROKEN), [*notes, reason]
    return (DIRTY if dirty else 0), notes


def cache_dir():
    cache = pathlib.Path("/cache")
    for c in (cache / "guest", pathlib.Path(f"/tmp/ipoib-rs-{os.getuid()}")):
        try:
            c.mkdir(mode=0o755, exist_ok=True)
        except OSError:
            continue
        if os.access(c, os.W_OK) and c.stat().st_uid == os.getuid():
            return c
    sys.exit("guest: no folder to keep the initramfs in")


def machine(opts, cache, kernel):
    """What boots the kernel: (kind, guest class, arguments of its start(), the modules when they are not the
    root's own)"""
    busybox = pathlib.Path("/usr/bin/busybox")
    own = kernel.modules if kernel.built_here else ""
    if kernel.is_uml:
        initrd = initramfs.build(cache, kernel.modules, busybox, modules=[])
        return "uml", uml.Guest, ([], opts.smp, opts.mem, kernel.image, initrd, uml.kernel_line(opts)), own
    initrd = initramfs.build(cache, kernel.modules, busybox)
    image = kernel.image if kernel.built_here else qemu.uncompressed(cache, kernel.image)
    accel = "tcg" if opts.icount else qemu.pick_accel(cache, image, initrd)
    base = qemu.machine(accel, opts.icount)
    # Shadow memory and what else the checkers keep.
    mem = opts.mem * 2 if kernel.built_here else opts.mem
    return accel, qemu.Guest, (base, opts.smp, mem, image, initrd, kernel_line(opts, accel, kernel.built_here)), own


def run_guests(opts, guests, start, job):
    """Starts the guests and waits for their end; returns what watch() does."""
    try:
        for g in guests:
            extra = shlex.split(opts.qemu)
            if len(guests) == 2:
                # A server that waits for nobody: either may come first.
                server = "server=on" if g.role == "A" else "server=off,reconnect-ms=200"
                mac = f"52:54:00:77:00:0{'AB'.index(g.role) + 1}"
                extra += [
                    "-netdev", f"stream,id=n0,{server},addr.type=unix,addr.path={job}/link.sock",
                    "-device", f"virtio-net-pci,netdev=n0,mac={mac},romfile=",
                ]
            g.start(*start, extra, interactive=opts.command == "shell" and g.role == "A")
        return watch(opts, guests)
    finally:
        for g in guests:
            g.kill()


def main():
    opts = parse(sys.argv[1:])
    head = headers(opts.fabric_name)
    count = int(head.get("guests", 1))
    kernel = kernels.Kernel()
    if kernel.is_uml and (count > 1 or opts.icount):
        sys.exit(f"guest: kernel {opts.kernel} knows neither fabrics of two guests nor --icount")
    job = new_job(opts)
    shown = pathlib.Path(os.environ["IPOIB_SRC"]) / job.relative_to(SRC)
    script = find_script(opts, job)
    check_script(script, job, opts.script)
    cache = cache_dir()
    kind, guest, start, modules = machine(opts, cache, kernel)
    folders = list(zip("AB", [job, job / "B"]))[:count]
    for role, folder in folders:
        folder.mkdir(exist_ok=True)
        write_job(folder, opts, role, count, script, modules)
    for boot in range(1, BOOTS + 1):
        guests = [guest(role, folder, folder / "console.log") for role, folder in folders]
        reason = run_guests(opts, guests, start, job)
        if reason != STUCK or boot == BOOTS:
            break
        say(f"{reason}; once more")
        for g in guests:
            # Kept, but not judged: nothing of ours has run.
            if g.console.exists():
                g.console.rename(g.job / f"console-{boot}.log")
            (g.job / "up").unlink(missing_ok=True)
    rc, notes = verdict(opts, guests, reason)
    for n in notes:
        say(n)
    if rc:
        say(f"status {rc}; console and logs: {shown}/console.log")
    elif opts.verbose:
        say(f"{kind}: {time.monotonic() - guests[0].started:.1f} s; logs: {shown}")
    sys.exit(rc)


if __name__ == "__main__":
    main()
