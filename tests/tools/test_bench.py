"""The comparison of instructions a packet with the figures kept notices what is worse."""

import pathlib
import sys

import pytest

SRC = pathlib.Path(__file__).parents[2]
sys.path.insert(0, str(SRC / "tests/bench"))
import kept  # noqa: E402

KEPT = {"udp4-64, MTU 4092": {"driver": 1000.0, "whole": 10000.0}}


def result(driver, stack):
    return {"workload": "udp4-64", "mtu": 4092, "driver": "ipoib_rs", "round": 0, "units": 10, "octets": 640,
            "instructions": {"driver": 10 * driver, "stack": 10 * stack, "programs": 77777}}


@pytest.mark.parametrize("driver, stack, good", [
    (1000, 9000, True),
    (1029, 9000, True),
    (1031, 8900, False),  # the driver's share alone
    (1000, 9301, False),  # what it has others do
    (500, 4000, True),
])
def test_what_is_worse_is_noticed(driver, stack, good):
    lines, same = kept.compare(KEPT, kept.figures([result(driver, stack)]))
    assert same == good, lines


def test_what_was_not_counted_is_no_success():
    assert not kept.compare(KEPT, {})[1]
    assert not kept.compare({}, kept.figures([result(1, 1)]))[1]


def test_the_kept_figures_are_of_the_short_form():
    import json
    assert set(json.loads(kept.KEPT.read_text())) == {f"{w}, MTU 4092" for w in ("udp4-64", "tcp4", "tcp4-rr")}
