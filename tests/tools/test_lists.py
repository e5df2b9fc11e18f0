"""The lists that tell which test shows what name tests, checks and suites that there are."""

import pathlib
import re

import pytest

SRC = pathlib.Path(__file__).parents[2]
GUEST = SRC / "tests/guest"


def known():
    return {n for f in GUEST.glob("test_*.py") for n in re.findall(r"^def (test_\w+)", f.read_text(), re.M)}


@pytest.mark.parametrize("path", ["tests/guest/RFC.md", "tests/vibfab/TESTS.md"])
def test_every_name_is_a_test(path):
    text = (SRC / path).read_text()
    named = set(re.findall(r"\b(test_\w+)(?!\w*\.py)\b", text)) - {f.stem for f in GUEST.glob("test_*.py")}
    assert named and named - known() == set()
    for file, name in re.findall(r"`(test_\w+\.py)::(\w+)", text):
        assert re.search(rf"^def {name}\(", (GUEST / file).read_text(), re.M), f"{file}::{name}"
    for file in re.findall(r"`(test_\w+\.py)", text):
        assert (GUEST / file).exists(), file


def test_every_check_and_suite_of_the_fabric_is_one():
    text = (SRC / "tests/vibfab/TESTS.md").read_text()
    source = "".join(f.read_text() for f in (SRC / "tests/vibfab").glob("check_*.c"))
    checks = set(re.findall(r"`(?:verbs|misuse)\[(\w+)\]`", text))
    assert checks and checks <= set(re.findall(r'\{ "(\w+)", vc_\w+ \}', source))
    heads = " ".join(re.findall(r"\*\* \| suites? (.*?) \|", text))
    suites = set(re.findall(r"`(vibfab[\w-]*)`", heads))
    assert suites and suites <= {f.stem for f in (GUEST / "suites").glob("*.toml")}
