"""Every installed plugin keeps the contract of its kind."""

from importlib.util import find_spec

import pytest

from rtk.plugin.host import installed
from rtk.plugin.info import KINDS
from rtk.plugin.testing import Check, NotApplicable, Subject, suite

INSTALLED = {f"{entry.plugin.kind}:{entry.plugin.name}": entry for entry in installed().all()}
PAIRS = [
    pytest.param(entry, check, id=f"{name}-{check}")
    for name, entry in INSTALLED.items()
    for check in suite(entry.plugin.kind)
]
EXTRAS = {"attention:flashinfer": "flashinfer"}
"""What `make test` does without: such plugins keep their contract by a stand-in, in tests of their own."""


@pytest.mark.parametrize(("entry", "check"), PAIRS)
def test_installed(entry, check: Check):
    package = EXTRAS.get(f"{entry.plugin.kind}:{entry.plugin.name}")
    if package and find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    try:
        check(Subject.of(entry))
    except NotApplicable as reason:
        pytest.skip(str(reason))


def test_the_built_ins_are_there():
    assert {"eviction:lru", "schedule:fcfs", "attention:torch"} <= INSTALLED.keys()


@pytest.mark.parametrize("kind", KINDS)
def test_a_suite_has_a_quick_part_and_names_each_check_once(kind):
    names = [check.name for check in suite(kind)]
    assert len(set(names)) == len(names)
    assert any(check.quick for check in suite(kind))
