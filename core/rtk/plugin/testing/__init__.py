"""For plugin authors: contract suites, one module per kind, and a scheduler over a scripted model.

`pytest --rtk-plugin NAME` runs the suite of an installed plugin. Importing this package is light; what a suite needs
comes with its module.
"""

import importlib

from rtk.plugin.info import Kind
from rtk.plugin.testing.check import Check, NotApplicable, Subject

__all__ = ["Check", "NotApplicable", "Subject", "suite"]


def suite(kind: Kind) -> tuple[Check, ...]:
    """The contract of a kind: every check of `rtk.plugin.testing.<kind>`."""
    checks: tuple[Check, ...] = importlib.import_module(f"{__name__}.{kind}").CHECKS
    return checks
