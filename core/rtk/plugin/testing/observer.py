"""The contract suite of observers: `CHECKS`.

An observer passes when it takes whatever reports an engine makes, also where some were dropped, and ends when it is
told to. The suite runs in an empty folder, which is gone afterwards: files with relative paths are written there.
"""

import contextlib
import random
import tempfile
import threading
from collections.abc import Iterable, Iterator

from rtk.errors import one_line
from rtk.plugin.foreign import contained
from rtk.plugin.observer import Observer, RequestReport, StepReport
from rtk.plugin.testing.check import Check, Factory, named, tell

END_S = 1.0
"""How long threads may take to end after `close`."""

Report = StepReport | RequestReport

REASONS = ("stop", "length", "abort", "error")


def reports(count: int, seed: int) -> Iterator[Report]:
    """Reports as an engine makes them: steps, and requests that end between them."""
    rng, now = random.Random(seed), 0.0
    for step in range(1, count + 1):
        now += rng.random()
        free, evictable, protected = (rng.randrange(1000) for _ in range(3))
        yield StepReport(
            step=step,
            ended_s=now,
            failed=rng.random() < 0.05,
            rows=rng.randint(1, 64),
            prefill_tokens=rng.choice([0, 0, 0, 2048]),
            decode_tokens=rng.randrange(64),
            running=rng.randrange(64),
            waiting=rng.choice([0, rng.randrange(20_000)]),
            free=free,
            evictable=evictable,
            protected=protected,
            held=4000 - free - evictable - protected,
        )
        for _ in range(rng.choice([0, 0, 1, 3])):
            prompt, output = rng.randint(1, 100_000), rng.choice([0, rng.randint(1, 5000)])
            yield RequestReport(
                rid=rng.choice(["r1", "", "é漢 \U0001f9ca", "x" * 200]),
                arrival_s=now * rng.random(),
                first_token_s=now if output else None,
                ended_s=now,
                prompt_tokens=prompt,
                cached_tokens=rng.randrange(prompt),
                output_tokens=output,
                retractions=rng.choice([0, 0, 7]),
                priority=rng.choice([0, -(2**31), 2**31 - 1]),
                reason=rng.choice(REASONS),
            )


def _call(observer: Observer, method: str, *report: Report) -> None:
    try:
        tell(getattr(observer, method), *report)
    except AssertionError:
        raise
    except BaseException as error:
        if not contained(error):
            raise
        raise AssertionError(f"{method}() raises {one_line(error)}") from error


def _run(factory: Factory, told: Iterable[Report]) -> None:
    """Build an observer, hand it reports as its process does, and close it."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        observer = factory()
        for report in told:
            _call(observer, "on_step" if isinstance(report, StepReport) else "on_request", report)
        _call(observer, "close")


def it_listens(factory: Factory) -> None:
    """Its class has a method that is told something: `on_step`, `on_request`, or both."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        observer = factory()
        _call(observer, "close")
    own = type(observer)
    listens = own.on_step is not Observer.on_step or own.on_request is not Observer.on_request
    assert listens, f"{own.__name__} overrides neither on_step nor on_request"


def every_report_is_taken(factory: Factory) -> None:
    """The reports of a busy engine: failed steps, requests of any length, name and end."""
    _run(factory, reports(500, seed=1))


def requests_come_without_steps(factory: Factory) -> None:
    """Requests that ended before any step: refused by a time limit, or aborted while they waited."""
    _run(factory, (report for report in reports(200, seed=2) if isinstance(report, RequestReport)))


def gaps_are_taken(factory: Factory) -> None:
    """What is left where the engine dropped most reports."""
    rng = random.Random(3)
    _run(factory, (report for report in reports(500, seed=3) if rng.random() < 0.2))


def nothing_may_happen(factory: Factory) -> None:
    """An engine that ends before its first step."""
    _run(factory, ())


def its_process_can_end(factory: Factory) -> None:
    """After `close` no thread is left that the end of the process would wait for."""
    before = set(threading.enumerate())
    _run(factory, reports(20, seed=4))
    left = [thread for thread in threading.enumerate() if thread not in before and not thread.daemon]
    for thread in left:
        thread.join(END_S)
    names = [thread.name for thread in left if thread.is_alive()]
    assert not names, f"after close() it still runs {', '.join(names)}; end it there, or make it a daemon"


def any_reports_are_taken(factory: Factory) -> None:
    """Hypothesis looks for reports that it cannot take."""
    from hypothesis import given
    from hypothesis import strategies as st

    from rtk.plugin.testing.strategies import few, request_reports, step_reports

    @few(50)
    @given(st.lists(step_reports() | request_reports(), max_size=20))
    def search(told: list[Report]) -> None:
        _run(factory, told)

    search()


CHECKS: tuple[Check, ...] = (
    named(it_listens),
    named(every_report_is_taken),
    named(requests_come_without_steps),
    named(gaps_are_taken),
    named(nothing_may_happen),
    named(its_process_can_end),
    named(any_reports_are_taken, quick=False),
)
"""The whole contract."""
