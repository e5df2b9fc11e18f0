"""Each verb that is called on the way fails once, on the virtual HCAs: no crash, no leak (the run is dirty when an
object of the HCA is left), and the next attempt works."""

import pytest

import vibfab
from attempts import ATTEMPTS
from faults import Verbs, sweep

pytestmark = pytest.mark.timeout(3600)
VERBS = ("create_ah", "create_qp", "create_cq", "alloc_pd", "modify_qp", "post_send", "post_recv", "attach_mcast",
         "req_notify", "query_port")


@pytest.fixture(autouse=True)
def sound():
    vibfab.reset()
    yield
    vibfab.ctl(*(f"fail {verb} 0" for verb in VERBS))
    vibfab.reset()


@pytest.mark.parametrize("what", ATTEMPTS)
def test_verbs(a, b, driver, what):
    failed = {}
    with ATTEMPTS[what](a, b, driver, "") as attempt:
        for verb in VERBS:
            failed[verb] = sweep(Verbs(verb), attempt)
    print(f"{what}: {failed}")
    assert sum(failed.values()) > 0
