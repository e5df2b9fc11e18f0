"""What users see of an interface: files in sysfs, `ethtool`."""

import re

import pytest

from child import children, sysfs_read, sysfs_write
from driver import kernel_log
from net import run


def mode_of(side, file):
    return side.run("stat", "-c", "%a", f"/sys/class/net/{side.iface}/{file}").stdout.strip()


def test_files(a):
    """The parent's files with their permissions and texts (SYSFS-1 to SYSFS-7)."""
    expected = {"mode": ("644", "datagram"), "pkey": ("444", "0xffff"), "umcast": ("644", "0"),
                "dev_id": ("444", "0x0"), "dev_port": ("444", "0"), "create_child": ("200", None),
                "delete_child": ("200", None)}
    for file, (mode, text) in expected.items():
        assert mode_of(a, file) == mode, file
        if text is not None:
            assert sysfs_read(a.run, a.iface, file) == text, file
    assert a.run("cat", f"/sys/class/net/{a.iface}/parent", check=False).returncode != 0
    # Nothing in the log that looks like a complaint about udev (B62).
    assert "dev_id" not in kernel_log()


def test_mode(a, b):
    """`datagram` and `connected` are taken; anything else is invalid, the newline being part of the word, with a
    reason in the log (SYSFS-1)."""
    for text in ("datagram", "connected", "datagram"):
        assert sysfs_write(a, "mode", f"{text}\n").returncode == 0
        assert sysfs_read(a.run, a.iface, "mode") == text
    run(["dmesg", "-C"])
    assert sysfs_write(a, "mode", "fast\n").returncode != 0
    assert f"{a.iface}: mode refused: mode must be datagram" in kernel_log()
    for text in ("datagram", "connected", "x\n", "\n", "datagram\n\n"):
        done = sysfs_write(a, "mode", text)
        assert done.returncode != 0 and "nvalid argument" in done.stderr, (text, done.stderr)
    assert sysfs_read(a.run, a.iface, "mode") == "datagram"
    assert a.reaches(b.ip4)


def test_umcast(a):
    """Any number above 0 sets it, with a warning; anything else clears it; it never fails (SYSFS-3)."""
    run(["dmesg", "-C"])
    for text, value in (("1\n", "1"), ("0\n", "0"), ("17 apples", "1"), ("yes\n", "0"), ("0x2\n", "1"),
                        ("-1\n", "0")):
        assert sysfs_write(a, "umcast", text).returncode == 0
        assert sysfs_read(a.run, a.iface, "umcast") == value, text
    assert "joined directly by userspace" in kernel_log()


def test_writers_need_a_capability(a):
    """Children are made and deleted with CAP_NET_ADMIN only, whoever owns the file (PK-3)."""
    for file in ("create_child", "delete_child"):
        path = f"/sys/class/net/{a.iface}/{file}"
        # As root, but without the capability: the file lets one write, the driver does not.
        done = a.run("setpriv", "--bounding-set", "-net_admin", "--inh-caps", "-net_admin", "tee", path,
                     input="0x8007\n", check=False)
        assert done.returncode != 0 and "not permitted" in done.stderr, done.stderr


def coalescing(side):
    text = side.run("ethtool", "-c", side.iface).stdout
    return tuple(int(re.search(rf"^{key}:\s+(\d+)", text, re.MULTILINE)[1]) for key in ("rx-usecs", "rx-frames"))


def test_coalescing(a, b):
    """Receive coalescing: 0 at first, what was set is shown, out of range and other parameters are refused, and a
    device that cannot moderate does not make it fail (ETH-2, ETH-3)."""
    assert coalescing(a) == (0, 0)
    try:
        for usecs, frames in ((16, 8), (65535, 65535), (0, 1)):
            a.run("ethtool", "-C", a.iface, "rx-usecs", usecs, "rx-frames", frames)
            assert coalescing(a) == (usecs, frames)
            assert a.ping(b.ip4).received == 3
        for bad in (["rx-usecs", 65536], ["rx-frames", 65536], ["tx-usecs", 1], ["adaptive-rx", "on"]):
            assert a.run("ethtool", "-C", a.iface, *bad, check=False).returncode != 0, bad
        assert coalescing(a) == (0, 1)
    finally:
        a.run("ethtool", "-C", a.iface, "rx-usecs", 0, "rx-frames", 0)


def settings(side):
    text = side.run("ethtool", side.iface).stdout
    return dict(re.findall(r"^\t([^:\n]+): (.*)$", text, re.MULTILINE))


def test_link_settings(a, b):
    """Speed from the port's speed and width, full duplex; nothing is known without carrier (ETH-5, ETH-6)."""
    device, port = a.port.split("/")
    rate = run(["cat", f"/sys/class/infiniband/{device}/ports/{port}/rate"]).stdout
    mbps = int(float(rate.split()[0]) * 1000)
    shown = settings(a)
    assert shown["Speed"] == f"{mbps}Mb/s" and shown["Duplex"] == "Full", shown
    assert shown["Port"] == "Other" and shown["Auto-negotiation"] == "on" and shown["Link detected"] == "yes"
    a.set_link("down")
    try:
        shown = settings(a)
        assert shown["Speed"].startswith("Unknown") and shown["Duplex"].startswith("Unknown"), shown
        assert shown["Link detected"] == "no"
    finally:
        a.set_link("up")


@pytest.mark.parametrize("which", ["parent", "child"])
def test_drvinfo_and_statistics(a, which):
    """Driver and bus, and the in-tree driver's counters first, under its names and in its order (ETH-1, ETH-4)."""
    names = ["rx_packets", "tx_packets", "rx_bytes", "tx_bytes", "tx_errors", "rx_dropped", "tx_dropped", "multicast"]

    def check(side):
        info = dict(re.findall(r"^([\w-]+): (.*)$", side.run("ethtool", "-i", side.iface).stdout, re.MULTILINE))
        assert info["driver"] == "ipoib_rs"
        assert info["supports-statistics"] == "yes"
        shown = re.findall(r"^\s+(\w+): (\d+)$", side.run("ethtool", "-S", side.iface).stdout, re.MULTILINE)
        assert [name for name, _ in shown[:8]] == names
        rest = {name for name, _ in shown[8:]}
        assert {"queue_0_rx_packets", "queue_0_tx_packets"} <= rest
        assert any(name.startswith("rx_drop_") for name in rest) and any(name.startswith("tx_drop_") for name in rest)

    if which == "parent":
        check(a)
    else:
        with children(a) as (child,):
            check(child)
