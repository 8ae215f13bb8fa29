"""What a contract suite is made of: checks, and the plugin that they look at."""

import contextlib
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Any
from unittest import mock

from rtk.plugin.guard import Health
from rtk.plugin.info import CAPABILITIES
from rtk.plugin.registry import Registered


class NotApplicable(Exception):  # noqa: N818 - an answer, not a failure
    """A check does not concern this plugin, or not on this machine. Says why."""


@dataclass(frozen=True, slots=True)
class Subject:
    """The plugin under test: call it, and it makes a fresh one."""

    make: Callable[[], Any]
    requires: frozenset[str] = frozenset(CAPABILITIES)
    """What its description asks of the host (`Plugin.requires`)."""

    @classmethod
    def of(cls, entry: Registered, **options: Any) -> "Subject":
        """An installed plugin, with its default options but for those given here."""
        return cls(lambda: entry.build(entry.plugin.options(**options)), entry.plugin.requires)

    def __call__(self) -> Any:
        return self.make()


Factory = Callable[[], Any]
"""Makes a fresh plugin: a `Subject`, or any function without parameters."""


@dataclass(frozen=True, slots=True)
class Check:
    """One part of a contract: call it with a subject, or with a factory of plugins that may require anything.

    Raises `AssertionError` where the contract is broken, and `NotApplicable` where it does not apply.
    """

    name: str
    run: Callable[[Subject], None]
    quick: bool = True
    """Whether it takes well under a second and needs nothing but rtk: `rtk plugins doctor` runs those."""
    about: str = ""
    """What it looks at."""

    def __call__(self, factory: Factory) -> None:
        self.run(factory if isinstance(factory, Subject) else Subject(factory))

    def __str__(self) -> str:
        return self.name


def named(run: Callable[[Subject], None], *, quick: bool = True) -> Check:
    """A check by the name of its function, about what its docstring says."""
    return Check(run.__name__.replace("_", " "), run, quick, " ".join((run.__doc__ or "").split()))


def tell(method: Callable[..., object], *args: object) -> None:
    """Call what is told something, and look that it was: a coroutine or a generator has not begun."""
    answer = method(*args)
    begun = not isinstance(answer, Awaitable | AsyncIterator | Generator)
    assert begun, (
        f"{method.__name__}() answers a {type(answer).__name__}, of which nothing has run; write a plain method"
    )


@contextlib.contextmanager
def elsewhere() -> Iterator[None]:
    """The current folder is a temporary one: what a plugin writes there by default harms nobody."""
    with (
        tempfile.TemporaryDirectory(prefix="rtk-suite-", ignore_cleanup_errors=True) as folder,
        contextlib.chdir(folder),
    ):
        yield


class Watch(Health):
    """The guard's counts of a policy under test: what it had to replace is kept, and not logged."""

    def __init__(self) -> None:
        super().__init__()
        self.problems: list[str] = []

    def fault(self, plugin: str, problem: str, instead: str) -> None:
        """Keep it for `assert_none`."""
        self.faults[plugin] += 1
        self.problems.append(problem)

    def assert_none(self, about: str = "") -> None:
        """The policy needed no replacement."""
        assert not self.problems, f"{about}{': ' * bool(about)}the guard had to step in: {self.problems[0]}"


CLOCKS = ("time", "monotonic", "perf_counter", "time_ns", "monotonic_ns", "perf_counter_ns")
A_DAY = 86_400


@contextlib.contextmanager
def another_day(plugin: object) -> Iterator[None]:
    """For the code inside, and for the module of `plugin`, the clocks of `time` are a day ahead."""
    moved = {id(getattr(time, name)): _ahead(name) for name in CLOCKS}
    with contextlib.ExitStack() as stack:
        for module in (time, sys.modules[type(plugin).__module__]):
            for name, value in list(vars(module).items()):
                if id(value) in moved:
                    stack.enter_context(mock.patch.object(module, name, moved[id(value)]))
        yield


def _ahead(name: str) -> Callable[[], float]:
    clock, ahead = getattr(time, name), A_DAY * (10**9 if name.endswith("_ns") else 1)
    return lambda: clock() + ahead
