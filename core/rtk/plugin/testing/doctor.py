"""Looks plugins over: each is imported, built with its default options, and put to the quick part of its suite."""

import contextlib
import functools
import io
from collections.abc import Sequence
from dataclasses import dataclass, field

from rtk.errors import PluginError, one_line
from rtk.plugin.foreign import TooLateError, contained, in_time
from rtk.plugin.registry import OURS, Registered
from rtk.plugin.testing import Check, NotApplicable, Subject, suite
from rtk.plugin.testing.check import elsewhere

LIMIT_S = 60.0
"""How long one plugin may take."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found of one plugin."""

    entry: Registered
    passed: int
    skipped: int
    """Checks that do not concern it, or not on this machine."""
    problems: tuple[str, ...]
    """Each check that failed, and how, in one line; or why the plugin cannot be built."""
    absent: bool = False
    """Whether it is one of rtk's own that was not built since an optional package is not installed."""


@dataclass(slots=True)
class _Notes:
    """What one examination has come to so far."""

    doing: str = "building it"
    passed: int = 0
    skipped: int = 0
    problems: list[str] = field(default_factory=list)
    absent: bool = False


def examine(entry: Registered) -> Finding:
    """Build a plugin and run its quick checks. Raises nothing that the plugin raises, and shows nothing that it prints.

    In a temporary folder, and in a thread of its own, which is left behind where it does not end in time.
    """
    notes = _Notes()
    checks = [check for check in suite(entry.plugin.kind) if check.quick]
    look = functools.partial(_look, entry, checks, notes)
    unseen = io.StringIO()
    try:
        with elsewhere(), contextlib.redirect_stdout(unseen), contextlib.redirect_stderr(unseen):
            in_time(look, LIMIT_S, name=f"rtk-doctor-{entry.plugin.name}", module=entry.module)
    except TooLateError:
        late = f"{notes.doing}: has not ended within the {LIMIT_S:g} s that a plugin may take"
        return Finding(entry, notes.passed, notes.skipped, (*notes.problems, late))
    return Finding(entry, notes.passed, notes.skipped, tuple(notes.problems), notes.absent)


def _look(entry: Registered, checks: Sequence[Check], notes: _Notes) -> None:
    subject = Subject.of(entry)
    try:
        subject()
    except PluginError as error:
        notes.problems.append(str(error).removeprefix(entry.label).lstrip())
        notes.absent = entry.origin.distribution == OURS and isinstance(error.__cause__, ModuleNotFoundError)
        return
    for check in checks:
        notes.doing = check.name
        match _result(check, subject):
            case None:
                notes.skipped += 1
            case "":
                notes.passed += 1
            case problem:
                notes.problems.append(problem)


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
