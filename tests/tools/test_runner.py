"""The guest runner's parts that work without a guest."""

import pathlib
import subprocess
import sys
import time
import types

import pytest

TOP = pathlib.Path(__file__).parents[2]
sys.path[:0] = [str(TOP / "scripts" / "guest.d"), str(TOP / "tests" / "guest")]

import initramfs  # noqa: E402
import klog  # noqa: E402
import runner  # noqa: E402
import suite  # noqa: E402


@pytest.mark.parametrize("line", [
    "BUG: unable to handle page fault for address: 0000000000001000",
    "BUG: KASAN: slab-use-after-free in foo+0x1/0x2",
    "WARNING: CPU: 1 PID: 2 at net/core/dev.c:1 foo+0x1/0x2",
    "WARNING: possible circular locking dependency detected",
    "Oops: general protection fault, probably for non-canonical address",
    "Kernel panic - not syncing: Fatal exception",
    "BUG: KFENCE: use-after-free read in foo",
    "UBSAN: array-index-out-of-bounds in x.c:1:2",
    "INFO: task rmmod:12 blocked for more than 61 seconds.",
    "refcount_t: underflow; use-after-free.",
    "unregister_netdevice: waiting for ib0 to become free. Usage count = 2",
    "watchdog: BUG: soft lockup - CPU#0 stuck for 22s!",
    "rcu: INFO: rcu_preempt self-detected stall on CPU",
    "BUG: sleeping function called from invalid context at mm/slab.h:1",
    "NETDEV WATCHDOG: ib0 (ipoib_rs): transmit queue 0 timed out 5000 ms",
    "infiniband rxe0: rxe_pool_cleanup: pool leaked 2 entries: leak",
    "BUG kmalloc-64 (Tainted: G): Poison overwritten",
    "guest health: taking down failed: rmmod ipoib_rs: exit status 124",
])
def test_dirty(line):
    assert klog.dirty_lines(f"[    1.0] {line}\n") == [f"[    1.0] {line}"]


def test_allowed():
    log = "[ 1.0] WARNING: expected one\n[ 2.0] WARNING: other\n"
    assert klog.dirty_lines(log, ["expected"]) == ["[ 2.0] WARNING: other"]


@pytest.mark.parametrize("line", [
    "Kernel command line: console=ttyS0 oops=panic",
    "kfence: initialized - using 2097152 bytes for 255 objects at 0x(____ptrval____)",
    "rcu: Hierarchical RCU implementation.",
    "ipoib_rs: loading out-of-tree module taints kernel.",
    "IPv6: ADDRCONF(NETDEV_CHANGE): ib0: link becomes ready",
    "guest: test test_leak.py::test_leak",
])
def test_clean(line):
    assert klog.dirty_lines(f"[    1.0] {line}\n") == []


class FakeGuest:
    """A process in place of a machine; it gets up if it is told to."""

    CLEAN_EXIT = 0

    def __init__(self, job, up):
        self.role, self.job, self.console, self.up = "A", job, job / "console.log", up

    def start(self, *_args, **_kwargs):
        self.started = time.monotonic()
        self.process = subprocess.Popen(["sleep", "1" if self.up else "60"])
        self.console.write_text("up\n" if self.up else "no timer\n")
        if self.up:
            (self.job / "up").touch()
            (self.job / "result").write_text("rc=0\n")
            (self.job / "finished").touch()

    def kill(self):
        self.process.kill()
        self.process.wait()

    def console_text(self):
        return self.console.read_text()


@pytest.mark.parametrize("boots,status", [([False, True], 0), ([False] * runner.BOOTS, runner.BROKEN)])
def test_stuck_boot(tmp_path, monkeypatch, capsys, boots, status):
    """What never gets up is booted again, but not for ever."""
    left = list(boots)
    for stream in ("stdout", "stderr"):
        (tmp_path / stream).touch()
    monkeypatch.setattr(runner, "BOOT_SECONDS", 0.3)
    monkeypatch.setattr(runner, "headers", lambda fabric: {})
    monkeypatch.setattr(runner, "new_job", lambda opts: tmp_path)
    monkeypatch.setattr(runner, "SRC", tmp_path)
    monkeypatch.setattr(runner.kernels, "Kernel", lambda: types.SimpleNamespace(is_uml=False))
    monkeypatch.setenv("IPOIB_SRC", str(tmp_path))
    for name in ("find_script", "check_script", "write_job", "cache_dir"):
        monkeypatch.setattr(runner, name, lambda *_: None)
    fake = ("fake", lambda _role, folder, _console: FakeGuest(folder, left.pop(0)), (), "")
    monkeypatch.setattr(runner, "machine", lambda *_: fake)
    monkeypatch.setattr(sys, "argv", ["runner", "run", "--fabric", "none", "--driver", "none", "script"])
    with pytest.raises(SystemExit) as ended:
        runner.main()
    assert ended.value.code == status and not left
    assert capsys.readouterr().err.count("once more") == len(boots) - 1 and (tmp_path / "console-1.log").exists()


def test_cpio(tmp_path):
    archive = initramfs.Cpio()
    archive.directory("d")
    archive.file("d/f", b"hello", 0o755)
    data = archive.finish()
    done = subprocess.run(["cpio", "-i", "--quiet"], input=data, cwd=tmp_path, check=True)
    assert done.returncode == 0
    assert (tmp_path / "d" / "f").read_bytes() == b"hello"
    assert (tmp_path / "d" / "f").stat().st_mode & 0o777 == 0o755


def test_module_order(tmp_path):
    (tmp_path / "modules.dep").write_text("k/c.ko.xz: k/b-x.ko.xz k/a.ko.xz\nk/b-x.ko.xz: k/a.ko.xz\nk/a.ko.xz:\n")
    (tmp_path / "modules.builtin").write_text("kernel/z.ko\n")
    assert initramfs.module_files(tmp_path, ["z", "c"]) == ["k/a.ko.xz", "k/b-x.ko.xz", "k/c.ko.xz"]


@pytest.mark.parametrize("collected, results, expected", [
    ("", "", (0, 1)),
    ("t::a\nt::b\n", "passed t::a\npassed t::b\n", (2, 0)),
    ("t::a\nt::b\n", "passed t::a\n", (1, 1)),
    ("t::a\n", "skipped t::a\n", (0, 1)),
    ("t::a\n", "passed t::a\nfailed t::a\n", (0, 1)),
    ("t::a[x y]\n", "passed t::a[x y]\n", (1, 0)),
])
def test_count(tmp_path, collected, results, expected):
    if collected:
        (tmp_path / "collected").write_text(collected)
    (tmp_path / "results").write_text(results)
    passed, failed, complaints = suite.count(tmp_path)
    assert (passed, failed) == expected
    assert len(complaints) == failed


def test_every_suite_loads():
    assert suite.names()
    for name in suite.names():
        assert "--fabric" in suite.options(suite.load(name))
