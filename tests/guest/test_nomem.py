"""Each allocation on the way fails once: no crash, no leak, the right error or a later success, and the next
attempt works. What leaks shows at the end of the boot (kmemleak); for kernels with fault injection."""

import pytest

from attempts import ATTEMPTS, NO_MEMORY
from faults import Allocations, sweep

# One test makes thousands of attempts.
pytestmark = pytest.mark.timeout(3600)


@pytest.mark.parametrize("what", ATTEMPTS)
@pytest.mark.parametrize("kind", ["failslab", "fail_page_alloc"])
def test_allocations(a, b, driver, kind, what):
    with ATTEMPTS[what](a, b, driver, NO_MEMORY) as attempt:
        failed = sweep(Allocations.of(kind), attempt)
    print(f"{what}: {failed} allocations of {kind} failed")
    # Joining takes no page of its own, nor does a path.
    assert failed or (kind, what) in {("fail_page_alloc", "join"), ("fail_page_alloc", "resolve")}
