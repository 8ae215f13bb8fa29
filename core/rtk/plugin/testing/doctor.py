"""Looks plugins over: each is imported, built with its default options, and put to the quick part of its suite."""

from dataclasses import dataclass

from rtk.errors import PluginError, one_line
from rtk.plugin.foreign import contained
from rtk.plugin.registry import Registered
from rtk.plugin.testing import Check, NotApplicable, Subject, suite


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found of one plugin."""

    entry: Registered
    passed: int
    skipped: int
    """Checks that do not concern it, or not on this machine."""
    problems: tuple[str, ...]
    """Each check that failed, and how, in one line; or why the plugin cannot be built."""


def examine(entry: Registered) -> Finding:
    """Build a plugin and run its quick checks. Raises nothing that the plugin raises."""
    subject = Subject.of(entry)
    try:
        subject()
    except PluginError as error:
        return Finding(entry, 0, 0, (str(error),))
    results = [_result(check, subject) for check in suite(entry.plugin.kind) if check.quick]
    problems = tuple(result for result in results if result)
    return Finding(entry, results.count(""), results.count(None), problems)


def _result(check: Check, subject: Subject) -> str | None:
    """What is wrong; nothing where the check passed, and None where it does not apply."""
    try:
        check(subject)
    except NotApplicable:
        return None
    except BaseException as error:
        if not contained(error):
            raise
        reason = str(error) if type(error) is AssertionError and str(error) else one_line(error)
        return f"{check.name}: {reason.partition(chr(10))[0]}"
    return ""
