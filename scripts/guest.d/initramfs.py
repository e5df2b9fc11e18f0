"""The first stage of the guest: a small initramfs that mounts the shares and starts the job."""

import hashlib
import lzma
import os
import pathlib

HERE = pathlib.Path(__file__).parent

# What it takes to mount a 9p root with an overlay; dependencies come from modules.dep. User-mode Linux
# has all it needs built in.
MODULES = ["9pnet_virtio", "9p", "overlay"]


def module_files(moddir, names):
    """Files of the named modules and all they depend on, in an order in which they can be loaded."""
    depends = {}
    for line in (moddir / "modules.dep").read_text().splitlines():
        path, _, rest = line.partition(":")
        depends[path] = rest.split()
    by_name = {pathlib.Path(p).name.split(".")[0].replace("-", "_"): p for p in depends}
    builtin = {
        pathlib.Path(p).name.split(".")[0].replace("-", "_")
        for p in (moddir / "modules.builtin").read_text().split()
    }
    order = []
    for name in names:
        if name in builtin:
            continue
        path = by_name[name]
        # modules.dep lists what must come first last.
        for p in [*reversed(depends[path]), path]:
            if p not in order:
                order.append(p)
    return order


def read_module(path):
    """Contents of a module file, uncompressed: the guest's busybox cannot, and the host is faster."""
    data = path.read_bytes()
    if path.suffix == ".xz":
        return lzma.decompress(data)
    return data


class Cpio:
    """A writer of the "newc" archive format that the kernel unpacks."""

    def __init__(self):
        self.parts = []
        self.inode = 0

    def add(self, name, mode, data=b""):
        self.inode += 1
        encoded = name.encode() + b"\0"
        fields = [self.inode, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(encoded), 0]
        header = b"070701" + b"".join(b"%08X" % f for f in fields)
        for part in (header + encoded, data):
            self.parts.append(part + b"\0" * (-len(part) % 4))

    def directory(self, name):
        self.add(name, 0o040755)

    def file(self, name, data, mode=0o644):
        self.add(name, 0o100000 | mode, data)

    def finish(self):
        self.inode = 0
        self.add("TRAILER!!!", 0)
        return b"".join(self.parts)


def build(cache, moddir, busybox, modules=MODULES):
    """Path of an initramfs for the kernel whose modules are in moddir, with those it needs to mount its root;
    made when not in the cache."""
    init = (HERE / "init").read_bytes()
    files = module_files(moddir, modules)
    stamp = hashlib.sha256(init + pathlib.Path(__file__).read_bytes() + str(files).encode())
    stamp.update(str(moddir).encode())
    for f in [busybox, *(moddir / f for f in files)]:
        st = f.stat()
        stamp.update(f"{st.st_size} {st.st_mtime_ns}".encode())
    out = cache / f"initramfs-{stamp.hexdigest()[:16]}.cpio"
    if out.exists():
        return out
    cpio = Cpio()
    for name in ["bin", "dev", "proc", "sys", "mnt", "mnt/root", "mnt/rw", "mnt/all", "modules"]:
        cpio.directory(name)
    cpio.file("init", init, 0o755)
    cpio.file("bin/busybox", busybox.read_bytes(), 0o755)
    order = []
    for f in files:
        name = pathlib.Path(f).name.split(".")[0] + ".ko"
        order.append(name)
        cpio.file(f"modules/{name}", read_module(moddir / f))
    cpio.file("modules/order", "".join(f"{n}\n" for n in order).encode())
    new = out.with_suffix(f".{os.getpid()}")
    new.write_bytes(cpio.finish())
    new.rename(out)
    return out
