"""What Hypothesis draws for the contract suites. The only module of them that needs Hypothesis."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

from rtk.plugin.eviction import NodeView
from rtk.plugin.observer import RequestReport, StepReport
from rtk.plugin.schedule import Columns, RequestView

Rows = tuple[tuple[int, int], ...]
SIZES = st.integers(0, 2**31 - 1) | st.integers(0, 40)
"""What counts tokens: any number that a table of int32 holds, and often a small one."""

MOMENTS = st.floats(0, 1e6, allow_subnormal=False)


PHASES = (Phase.explicit, Phase.generate, Phase.shrink)


def few(examples: int) -> Callable[[Any], Any]:
    """So many examples, the same ones in every run: a contract does not hold on some days only."""
    return settings(
        max_examples=examples,
        derandomize=True,
        database=None,
        deadline=None,
        phases=PHASES,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )


@st.composite
def node_views(draw: st.DrawFn) -> NodeView:
    """A node with any facts that go together."""
    created = draw(SIZES)
    return NodeView(
        id=draw(SIZES),
        size=draw(st.integers(1, 2**31 - 1) | st.integers(1, 40)),
        start=draw(SIZES),
        created=created,
        last_use=created + draw(SIZES),
        hits=draw(SIZES),
        priority=draw(st.integers(-(2**31), 2**31 - 1) | st.integers(-3, 3)),
    )


def requests() -> st.SearchStrategy[list[list[int]]]:
    """Prompts that share prefixes: each a stem of some length, and an end of its own."""
    prompt = st.builds(
        lambda stem, depth, end: [100 * stem + i for i in range(depth)] + [1000 + token for token in end],
        st.integers(0, 2),
        st.integers(0, 9),
        st.lists(st.integers(0, 3), min_size=1, max_size=5),
    )
    return st.lists(prompt, min_size=1, max_size=40)


@st.composite
def queues(draw: st.DrawFn) -> Columns:
    """Any waiting requests, as the host would show them to a policy that requires everything."""
    count = draw(st.integers(0, 12))

    def each(values: st.SearchStrategy[Any]) -> list[Any]:
        return draw(st.lists(values, min_size=count, max_size=count))

    prompt = np.array(each(st.integers(1, 2**20) | st.integers(1, 40)), np.int64)
    retracted = draw(st.integers(0, count))
    first = np.arange(count) < retracted
    output = np.array(each(st.integers(0, 100)), np.int64) * first
    filled = prompt + output  # what a retracted request had generated may be found too, but for the last token
    matched = (filled * np.array(each(st.sampled_from([0.0, 0.5, 0.999])))).astype(np.int64)
    kinds = RequestView.__annotations__
    facts = {
        "id": sorted(draw(st.lists(SIZES, min_size=count, max_size=count, unique=True))),
        "arrival_s": sorted(each(st.floats(0, 200, allow_subnormal=False))),
        "prompt_len": prompt,
        "max_new_tokens": each(SIZES),
        "matched_len": matched,
        "prefilled_since_arrival": sorted(each(SIZES), reverse=True),
        "priority": each(st.integers(-(2**31), 2**31 - 1) | st.integers(-3, 3)),
        "output_len": output,
        "stored_len": ((filled - matched) * np.array(each(st.sampled_from([0.0, 0.5])))).astype(np.int64),
        "shares_prefix": each(st.booleans()),
        "tenant": each(st.integers(0, 2)),
        "running_with_key": each(st.integers(0, 9)),
        "retractions": first.astype(np.int64),
        "deadline_s": each(st.floats(0, 1000, allow_subnormal=False) | st.just(math.inf)),
    }
    return Columns(**{name: np.asarray(values, dtype=kinds[name]) for name, values in facts.items()})


@st.composite
def batches(draw: st.DrawFn) -> tuple[Rows, bool, int]:
    """Rows as (q_len, kv_len), whether their slots are scattered, and a number to choose other things by."""
    row = st.integers(1, 90).flatmap(lambda n: st.tuples(st.sampled_from([1, math.ceil(n / 2), n]), st.just(n)))
    return tuple(draw(st.lists(row, min_size=1, max_size=6))), draw(st.booleans()), draw(st.integers(0, 99))


@st.composite
def told_batches(draw: st.DrawFn) -> tuple[Rows, int, tuple[tuple[tuple[int, ...], int, int], ...], bool]:
    """Rows as (q_len, kv_len), tokens that all begin with, runs of these that are told, whether slots are scattered."""
    shared = 64 * draw(st.integers(1, 2))  # whole pages, whatever the page size
    new = st.one_of(st.just(1), st.integers(1, 30))
    rows = draw(st.lists(st.tuples(new, st.integers(0, 40)), min_size=2, max_size=6))
    told: list[tuple[tuple[int, ...], int, int]] = []
    free = np.ones((len(rows), shared), np.bool_)
    for _ in range(draw(st.integers(1, 4))):
        some = sorted(draw(st.sets(st.integers(0, len(rows) - 1), min_size=2)))
        start, stop = sorted(draw(st.lists(st.integers(0, shared), min_size=2, max_size=2, unique=True)))
        if free[some, start:stop].all():
            free[some, start:stop] = False
            told.append((tuple(some), start, stop))
    return tuple((q_len, shared + own + q_len) for q_len, own in rows), shared, tuple(told), draw(st.booleans())


@st.composite
def step_reports(draw: st.DrawFn) -> StepReport:
    """A step, as any engine might report it."""
    numbers = {name: draw(SIZES) for name in StepReport._fields if StepReport.__annotations__[name] is int}
    return StepReport(**numbers, ended_s=draw(MOMENTS), failed=draw(st.booleans()))


@st.composite
def request_reports(draw: st.DrawFn) -> RequestReport:
    """A request, as any engine might report it."""
    arrival, first, ended = sorted(draw(st.lists(MOMENTS, min_size=3, max_size=3)))
    prompt, output = draw(st.integers(1, 2**31 - 1)), draw(SIZES)
    return RequestReport(
        rid=draw(st.text(max_size=20)),
        arrival_s=arrival,
        first_token_s=first if output else None,
        ended_s=ended,
        prompt_tokens=prompt,
        cached_tokens=draw(st.integers(0, prompt - 1)),
        output_tokens=output,
        retractions=draw(SIZES),
        priority=draw(st.integers(-(2**31), 2**31 - 1)),
        reason=draw(st.sampled_from(["stop", "length", "abort", "error"])),
    )
