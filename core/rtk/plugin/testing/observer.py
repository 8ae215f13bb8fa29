"""The contract suite of observers: `CHECKS`, each a function of a factory that builds a fresh observer.

An observer passes when it takes whatever reports the engine makes, in any order, and ends when it is told to.
"""

import random
from collections.abc import Callable, Iterator
from pathlib import Path

from rtk.plugin.info import Options
from rtk.plugin.observer import Observer, RequestReport, StepReport

Factory = Callable[[], Observer]
Check = Callable[[Factory], None]

REASONS = ("stop", "length", "abort", "error")


def reports(count: int, seed: int) -> Iterator[StepReport | RequestReport]:
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
            prompt, output = rng.randint(1, 100_000), rng.randrange(5000)
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


def tell(observer: Observer, told: Iterator[StepReport | RequestReport]) -> None:
    """Hand the observer reports, as its process does."""
    for report in told:
        if isinstance(report, StepReport):
            observer.on_step(report)
        else:
            observer.on_request(report)


def takes_every_report(factory: Factory) -> None:
    """It takes the reports of a busy engine without raising."""
    observer = factory()
    assert isinstance(observer, Observer), f"{observer!r} is no rtk.plugin.Observer"
    tell(observer, reports(500, seed=1))
    observer.close()


def takes_requests_without_steps(factory: Factory) -> None:
    """It takes requests that ended before any step: refused by a time limit, or aborted while they waited."""
    observer = factory()
    tell(observer, (report for report in reports(200, seed=2) if isinstance(report, RequestReport)))
    observer.close()


def takes_gaps(factory: Factory) -> None:
    """It takes what is left where some reports were dropped."""
    observer, rng = factory(), random.Random(3)
    tell(observer, (report for report in reports(500, seed=3) if rng.random() < 0.2))
    observer.close()


def closes_before_the_first_report(factory: Factory) -> None:
    """It ends where nothing happened."""
    factory().close()


CHECKS: tuple[Check, ...] = (
    takes_every_report,
    takes_requests_without_steps,
    takes_gaps,
    closes_before_the_first_report,
)


class RecorderOptions(Options):
    """Where a `Recorder` writes."""

    path: Path = Path("rtk-reports.txt")


class Recorder(Observer):
    """A toy: writes every report down, a line for each."""

    def __init__(self, options: RecorderOptions) -> None:
        self._out = options.path.open("a", encoding="utf-8")

    def on_step(self, report: StepReport) -> None:
        """One line."""
        self._out.write(f"{report!r}\n")

    def on_request(self, report: RequestReport) -> None:
        """One line."""
        self._out.write(f"{report!r}\n")

    def close(self) -> None:
        """The last one."""
        self._out.write("closed\n")
        self._out.close()
