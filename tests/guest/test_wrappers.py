"""The KUnit suites in tests/wrappers: loading their module runs them, and each case is a test here."""

import os
import pathlib
import re

import pytest

from net import run

SOURCES = pathlib.Path(__file__).parent.parent / "wrappers"
RESULTS = pathlib.Path("/sys/kernel/debug/kunit")
LINE = re.compile(r"^    (ok|not ok) \d+ (\w+)( # SKIP.*)?$")


def declared():
    """(suite, case) of every test in the sources."""
    for source in sorted(SOURCES.glob("test_*.rs")):
        suite, marked = "", False
        for line in source.read_text().splitlines():
            if found := re.search(r"#\[kunit_tests\((\w+)\)\]", line):
                suite = found[1]
            elif "#[test]" in line:
                marked = True
            elif marked and (found := re.search(r"fn (\w+)\(", line)):
                yield suite, found[1]
                marked = False


CASES = list(declared())


@pytest.fixture(scope="session")
def ran():
    """{(suite, case): (whether it passed, what the suite printed)}"""
    run(["insmod", os.environ["MODULE_WRAPPERS"]], timeout=600)
    results = {}
    for suite in {suite for suite, _ in CASES}:
        text = (RESULTS / suite / "results").read_text()
        for line in text.splitlines():
            if found := LINE.match(line):
                results[suite, found[2]] = (found[1] == "ok" and not found[3], text)
    return results


@pytest.mark.parametrize(("suite", "case"), CASES, ids=[".".join(c) for c in CASES])
def test_case(ran, suite, case):
    passed, text = ran.get((suite, case), (False, "it did not run"))
    assert passed, text


def test_nothing_else_ran(ran):
    assert set(ran) == set(CASES)


def test_unloading(ran):
    """Waits for everything the suites have left to RCU; memory that nobody frees shows at the end of the boot."""
    run(["rmmod", "wrappers"])
    assert "RCU-managed objects leaked" not in run(["dmesg"]).stdout
