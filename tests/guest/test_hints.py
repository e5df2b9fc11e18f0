"""A device that says that it grants a creation flag of queue pairs, and refuses it all the same (B25 of tests/BUGS.md).
The same file runs on the in-tree driver (suite catalogue-in-tree)."""

import pytest

import net
import vibfab
from driver import Driver, kernel_log

B = "vib1/1"
# Bits of enum ib_qp_create_flags.
FLAGS = {"IPOIB_UD_LSO": 1 << 0, "BLOCK_MULTICAST_LOOPBACK": 1 << 1}
REFUSED = {"none": [], "loopback": ["BLOCK_MULTICAST_LOOPBACK"], "lso": ["IPOIB_UD_LSO"], "both": list(FLAGS)}


@pytest.fixture(autouse=True)
def quiet(a, b):
    with vibfab.quiet(lambda: a.reaches(b.ip4)):
        yield


def plug_in_again(a, b, refused):
    vibfab.ctl("hca vib1 remove", f"refuse {refused}", "hca vib1 add")
    Driver(a, b).up_side(b)
    net.wait_until("the sides to reach each other", lambda: a.reaches(b.ip4) and b.reaches(a.ip4))


@pytest.mark.parametrize("refused", REFUSED)
def test_refused_flag(a, b, refused):
    """The interface comes up without what is refused, and with what is not; the log names the flag."""
    net.run(["dmesg", "-C"])
    try:
        plug_in_again(a, b, refused)
        granted = sum(bit for name, bit in FLAGS.items() if name not in REFUSED[refused])
        assert {q["flags"] for q in vibfab.qps(B)} == {granted}
        segments = "on" if granted & FLAGS["IPOIB_UD_LSO"] else "off"
        assert f"tx-tcp-segmentation: {segments}" in b.run("ethtool", "-k", b.iface).stdout
        for name in FLAGS:
            assert (name in kernel_log()) == (name in REFUSED[refused]), name
        with net.FlowServer(a) as server:
            assert server.run(b, 2, 200000, both=True) == "2 flows ok"
    finally:
        plug_in_again(a, b, "none")
