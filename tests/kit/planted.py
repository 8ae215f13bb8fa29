"""What the tests of planted faults share."""

from collections.abc import Callable

import pytest

from rtk.plugin.info import Kind
from rtk.plugin.testing import NotApplicable, suite


def assert_passes(kind: Kind, factory: Callable[[], object]) -> None:
    """Every check that applies."""
    for check in suite(kind):
        try:
            check(factory)
        except NotApplicable:
            assert kind == "attention"  # only backends may lack what a check is about


def assert_caught(kind: Kind, factory: Callable[[], object], by: str) -> None:
    """The check of this name fails; every other may."""
    check = next(check for check in suite(kind) if check.name == by)
    with pytest.raises((AssertionError, RuntimeError)):
        check(factory)
