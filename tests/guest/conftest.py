"""Pytest set-up of the guest tests: results that survive a crash of the guest, and the two sides."""

import os
import pathlib
import time

import pytest

import net
from driver import Driver

JOB = pathlib.Path(os.environ.get("GUEST_JOB", "/tmp"))


def append(name, line):
    with open(JOB / name, "a") as f:
        f.write(line + "\n")


def mark_log(text):
    """Puts a line into the kernel log, so that a splat can be told from its test."""
    try:
        with open("/dev/kmsg", "w") as f:
            f.write(f"guest: {text}\n")
    except OSError:
        pass


def pytest_collection_finish(session):
    for item in session.items:
        append("collected", item.nodeid)


def pytest_runtest_logstart(nodeid):
    mark_log(f"test {nodeid}")


def pytest_runtest_logreport(report):
    # A test counts once: by its call, or by the phase that kept it from being called; a failing
    # teardown spoils a pass (the last line wins).
    if report.when == "call" or report.outcome != "passed":
        append("results", f"{report.outcome} {report.nodeid}")
    if report.failed:
        # The report at the end is lost if the guest does not live to see it.
        append("failures", f"{report.nodeid} ({report.when})\n{report.longreprtext}\n")


@pytest.fixture(scope="session")
def a():
    """Side A: the one this process runs on."""
    return net.Side("A")


@pytest.fixture(scope="session")
def b():
    """Side B: the other namespace, or the other guest."""
    return net.Side("B")


@pytest.fixture
def driver(a, b):
    """The module, for tests that disturb it; what they leave is put right afterwards."""
    world = Driver(a, b)
    yield world
    world.restore()


@pytest.fixture(autouse=True)
def no_strays(request):
    """A test leaves no process behind in the namespaces."""
    yield
    deadline = time.monotonic() + net.SECONDS
    for side in ("a", "b"):
        if side in request.fixturenames:
            request.getfixturevalue(side).kill_all(deadline)
