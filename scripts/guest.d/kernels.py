"""Where the kernel that is booted and its modules are."""

import os
import pathlib


class Kernel:
    """The kernel that the runner was asked for: one that was built here (prepare-debug), or the distribution's."""

    def __init__(self):
        self.folder = pathlib.Path(os.path.realpath("/kdir/" + os.environ["IPOIB_KERNEL"]))
        self.is_uml = os.environ.get("IPOIB_KERNEL_GUEST") == "uml"
        release = self.folder / "release"
        self.built_here = release.exists()
        if self.built_here:
            self.modules = self.folder / "modules-root" / "lib" / "modules" / release.read_text().strip()
            self.image = self.folder / ("linux" if self.is_uml else "vmlinux")
        else:
            self.modules = pathlib.Path("/usr/lib/modules") / os.environ["IPOIB_KERNEL_RELEASE"]
            self.image = self.modules / "vmlinuz"
