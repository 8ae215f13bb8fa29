"""For plugin authors: contract suites, one module per kind, and a scheduler over a scripted model.

`pytest --rtk-plugin NAME` runs the suite of an installed plugin. Importing this package is light; what a suite needs
comes with its module.
"""

import importlib

from rtk.errors import PluginError
from rtk.plugin.info import Kind
from rtk.plugin.testing.check import Check, NotApplicable, Subject

__all__ = ["Check", "NotApplicable", "Subject", "suite"]


def suite(kind: Kind) -> tuple[Check, ...]:
    """The contract of a kind: all of `rtk.plugin.testing.<kind>.CHECKS`. Raises `PluginError` where none could fail."""
    if not __debug__:
        raise PluginError("contracts are assertions, and python -O leaves those out; run without -O and PYTHONOPTIMIZE")
    checks: tuple[Check, ...] = importlib.import_module(f"{__name__}.{kind}").CHECKS
    return checks
