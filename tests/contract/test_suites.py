"""Every installed plugin keeps the contract of its kind."""

import pytest

from rtk.errors import PluginError
from rtk.plugin.host import installed
from rtk.plugin.info import KINDS
from rtk.plugin.testing import Check, NotApplicable, Subject, suite

OPTIONAL = {"attention:flashinfer", "attention:flashmla", "attention:native", "attention:trtllm-mla"}
"""Built-ins that need what `make test` does without: packages, which stand-ins keep to the contract elsewhere; or a
compiler."""
INSTALLED = {f"{entry.plugin.kind}:{entry.plugin.name}": entry for entry in installed().all()}
PAIRS = [
    pytest.param(entry, check, id=f"{name}-{check}")
    for name, entry in INSTALLED.items()
    for check in suite(entry.plugin.kind)
]


@pytest.mark.parametrize(("entry", "check"), PAIRS)
def test_installed(entry, check: Check):
    try:
        check(Subject.of(entry))
    except NotApplicable as reason:
        pytest.skip(str(reason))
    except PluginError as error:
        if f"{entry.plugin.kind}:{entry.plugin.name}" in OPTIONAL and isinstance(error.__cause__, ImportError):
            pytest.skip(str(error))
        raise


def test_the_built_ins_are_there():
    assert {"eviction:lru", "schedule:fcfs", "attention:torch"} <= INSTALLED.keys()


@pytest.mark.parametrize("kind", KINDS)
def test_a_suite_has_a_quick_part_and_names_each_check_once(kind):
    names = [check.name for check in suite(kind)]
    assert len(set(names)) == len(names)
    assert any(check.quick for check in suite(kind))
