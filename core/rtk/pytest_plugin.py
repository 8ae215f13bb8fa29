"""`pytest --rtk-plugin NAME`: the contract suite of an installed plugin, among the other tests of the run.

pytest imports this module in every run of an environment that has rtk: without the option it does nothing, and brings
nothing in.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from rtk.errors import RtkError

if TYPE_CHECKING:
    from _pytest._code.code import TerminalRepr, Traceback, TracebackStyle

    from rtk.plugin.registry import Registered
    from rtk.plugin.testing import Check

OPTION = "--rtk-plugin"


def pytest_addoption(parser: pytest.Parser) -> None:
    """One option, and nothing else in anybody's configuration."""
    parser.getgroup("rtk").addoption(
        OPTION,
        action="append",
        default=[],
        metavar="NAME",
        help="also run the contract suite of this installed rtk plugin; KIND:NAME where kinds share a name; repeatable",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Find the plugins before anything is collected: one that is not there ends the run."""
    if names := config.getoption(OPTION):
        config.pluginmanager.register(_Suites(list(dict.fromkeys(map(_found, names)))), "rtk suites")


def _found(name: str) -> tuple[Registered, tuple[Check, ...]]:
    from rtk.plugin.host import installed
    from rtk.plugin.testing import suite

    try:
        import hypothesis  # noqa: F401 - the suites search with it
    except ImportError:
        raise pytest.UsageError(f"{OPTION}: needs Hypothesis: pip install 'rtk-inference[testing]'") from None
    try:
        entry = installed().find(name)
        return entry, suite(entry.plugin.kind)
    except RtkError as error:
        raise pytest.UsageError(f"{OPTION}: {error}") from None


class _Suites:
    """Registered where the option is given."""

    def __init__(self, found: list[tuple[Registered, tuple[Check, ...]]]) -> None:
        self._found = found

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(
        self, collector: pytest.Collector
    ) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        """The suites stand beside what the session collects from its arguments."""
        report = yield
        if isinstance(collector, pytest.Session) and report.passed:
            suites = (_Suite.of(collector, entry, checks) for entry, checks in self._found)
            report.result = [*(report.result or ()), *suites]
        return report


class _Suite(pytest.Collector):
    """The checks of one plugin."""

    entry: Registered
    checks: tuple[Check, ...]

    @classmethod
    def of(cls, session: pytest.Session, entry: Registered, checks: tuple[Check, ...]) -> _Suite:
        name = f"rtk-plugin[{entry.plugin.kind}:{entry.plugin.name}]"
        suite: _Suite = cls.from_parent(session, name=name, nodeid=name)
        suite.entry, suite.checks = entry, checks
        return suite

    def collect(self) -> Iterator[_CheckItem]:
        return (_CheckItem.of(self, check) for check in self.checks)


class _CheckItem(pytest.Item):
    """One check of one plugin."""

    entry: Registered
    check: Check

    @classmethod
    def of(cls, suite: _Suite, check: Check) -> _CheckItem:
        item: _CheckItem = cls.from_parent(suite, name=check.name)
        item.entry, item.check = suite.entry, check
        return item

    def runtest(self) -> None:
        from rtk.plugin.testing import NotApplicable, Subject
        from rtk.plugin.testing.check import elsewhere

        try:
            with elsewhere():
                self.check(Subject.of(self.entry))
        except NotApplicable as reason:
            pytest.skip(str(reason))

    def repr_failure(
        self, excinfo: pytest.ExceptionInfo[BaseException], style: TracebackStyle | None = None
    ) -> str | TerminalRepr:
        """Without the frames of what runs the check, which say nothing of the plugin. `--full-trace` has all."""
        asked = style or self.config.getoption("tbstyle")
        if self.config.getoption("fulltrace"):
            return super().repr_failure(excinfo, style)
        return excinfo.getrepr(
            style="short" if asked == "auto" else asked,
            showlocals=self.config.getoption("showlocals"),
            tbfilter=_of_the_check,
        )

    def reportinfo(self) -> tuple[str, int | None, str]:
        """Stands for the line of source: the plugin's origin."""
        return self.path.as_posix(), None, f"{self.entry.label}: {self.check.name}"


def _of_the_check(excinfo: pytest.ExceptionInfo[BaseException]) -> Traceback:
    """The frames of a check, and of the plugin that it looks at."""
    import hypothesis

    here, search = Path(__file__), Path(hypothesis.__file__).parent
    frames = excinfo.traceback.cut(path=here)
    return frames.filter(lambda frame: here != frame.path and search not in Path(frame.path).parents) or frames
