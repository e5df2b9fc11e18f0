"""The plain build, as on a distribution whose kernel headers carry the Rust metadata."""

import os
import pathlib
import shutil
import subprocess

import pytest

SRC = pathlib.Path(__file__).parents[2]
KDIR = pathlib.Path("/kdir/stock")


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """A copy of the sources alone: the build is one in place."""
    copy = tmp_path_factory.mktemp("plain")
    for name in ("Kbuild", "Makefile", "src", "bindings", "scripts"):
        source = SRC / name
        if source.is_dir():
            shutil.copytree(source, copy / name)
        else:
            shutil.copy(source, copy / name)
    return copy


def make(tree, *args):
    env = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")}
    return subprocess.run(["make", *args], cwd=tree, env=env, capture_output=True, text=True)


def test_without_metadata(tree, tmp_path):
    """One sentence that says what is missing, and names the script that makes it."""
    done = make(tree, f"KDIR={tmp_path}")
    assert done.returncode != 0
    assert f"{tmp_path} has no Rust metadata" in done.stderr and "scripts/make-root" in done.stderr


def test_build_and_install(tree, tmp_path):
    """`make` and `make modules_install` need none of the scripts; the build is without warnings."""
    shutil.rmtree(tree / "scripts")
    release = (KDIR / "include/config/kernel.release").read_text().strip()
    done = make(tree, f"KDIR={KDIR}", f"KERNELRELEASE={release}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "warning" not in (done.stdout + done.stderr).lower(), done.stdout + done.stderr
    modules = tmp_path / "lib/modules" / release
    modules.mkdir(parents=True)
    for name in ("modules.order", "modules.builtin"):
        (modules / name).touch()
    done = make(tree, "modules_install", f"KDIR={KDIR}", f"KERNELRELEASE={release}", f"INSTALL_MOD_PATH={tmp_path}")
    assert done.returncode == 0, done.stdout + done.stderr
    installed = [str(f.relative_to(modules)) for f in modules.rglob("ipoib_rs.ko*")]
    assert len(installed) == 1 and installed[0].startswith("updates/"), installed
    # modprobe finds it by this.
    assert f"{installed[0]}:" in (modules / "modules.dep").read_text()


def test_test_fabric(tree):
    """`make vibfab` builds the fabric for the same kernel, beside the sources; plain `make` does not."""
    shutil.copytree(SRC / "tests/vibfab", tree / "tests/vibfab")
    assert not list(tree.rglob("vibfab.ko"))
    release = (KDIR / "include/config/kernel.release").read_text().strip()
    done = make(tree, "vibfab", f"KDIR={KDIR}", f"KERNELRELEASE={release}")
    assert done.returncode == 0, done.stdout + done.stderr
    built = sorted(str(f.relative_to(tree)) for f in tree.rglob("vib*.ko"))
    assert built == ["build/vibfab/vibcheck.ko", "build/vibfab/vibcm.ko", "build/vibfab/vibfab.ko"]


def test_test_fabric_without_a_kernel(tree, tmp_path):
    done = make(tree, "vibfab", f"KDIR={tmp_path}")
    assert done.returncode != 0 and f"{tmp_path} is no kernel build folder" in done.stderr
