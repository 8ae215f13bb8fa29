"""The contract suite of schedule policies: `CHECKS`.

A policy passes when it orders any set of waiting requests totally and repeatably, and when requests served under it all
end, with the answers they have when alone.
"""

import dataclasses
import itertools
import random
from collections.abc import Sequence, Set
from typing import Any

import numpy as np

from rtk.plugin.guard import GuardedSchedule
from rtk.plugin.schedule import Columns, Progress, ScheduleContext, TreeView
from rtk.plugin.testing import trace
from rtk.plugin.testing.check import Check, Subject, Watch, another_day, named, tell
from rtk.plugin.testing.harness import Harness, digest

SHOWN_FOR = {
    "matched_len": {"prefix_match"},
    "stored_len": {"prefix_match"},
    "shares_prefix": {"in_batch_check"},
    "tenant": {"tenant"},
    "running_with_key": {"routing_key"},
    "priority": {"priority"},
}
"""The columns that a policy must require something for, and what."""


def random_columns(count: int, seed: int) -> Columns:
    """`count` waiting requests with facts as the host gives them."""
    rng = np.random.default_rng(seed)
    prompt_len, output_len = rng.integers(1, 5000, count), rng.integers(0, 50, count) * (np.arange(count) < count // 10)
    return Columns(
        id=np.sort(rng.choice(10 * count + 10, count, replace=False)).astype(np.int64),
        arrival_s=np.sort(rng.random(count) * 100),
        prompt_len=prompt_len,
        max_new_tokens=rng.integers(0, 2000, count),
        matched_len=(rng.random(count) * (prompt_len + output_len)).astype(np.int64),
        prefilled_since_arrival=np.sort(rng.integers(0, 100_000, count))[::-1].copy(),
        priority=rng.integers(-3, 4, count),
        output_len=output_len,
        shares_prefix=rng.random(count) < 0.3,
        tenant=rng.integers(0, 3, count),
        running_with_key=rng.integers(0, 3, count),
        retractions=(np.arange(count) < count // 10).astype(np.int64),
        deadline_s=np.where(rng.random(count) < 0.5, np.inf, 100 + rng.random(count) * 200),
    )


def context(seed: int = 0, columns: Columns | None = None) -> ScheduleContext:
    """A context with its own seeded random source, and a tree for these columns."""
    return ScheduleContext(
        now=200.0,
        rng=random.Random(seed),
        running=3,
        prefilled_total=100_000,
        tenants=("", "a", "b"),
        tree=None if columns is None else random_tree(len(columns), seed=seed),
    )


def random_tree(count: int, seed: int) -> TreeView:
    """A part of a prefix tree in which the matches of `count` waiting requests end."""
    rng = np.random.default_rng(seed)
    nodes = np.arange(1 + count // 3)
    parent = (rng.random(len(nodes)) * nodes).astype(np.int64) - (nodes == 0)
    return TreeView(parent=parent, size=16 * (nodes > 0), node=rng.integers(0, len(nodes), count))


def shown(columns: Columns, requires: Set[str]) -> Columns:
    """What the host shows of these to a policy that requires so much."""
    hidden = {name for name, needed in SHOWN_FOR.items() if not needed <= requires}
    return dataclasses.replace(columns, **{name: np.zeros_like(getattr(columns, name)) for name in hidden})


def scene(subject: Subject, count: int, seed: int) -> tuple[Columns, ScheduleContext]:
    """`count` waiting requests and a context, as the host shows them to this policy."""
    columns = random_columns(count, seed)
    return shown(columns, subject.requires), _context(subject, columns, seed)


def _context(subject: Subject, columns: Columns, seed: int = 0) -> ScheduleContext:
    ctx = context(seed, columns if "tree" in subject.requires else None)
    return ctx if "tenant" in subject.requires else dataclasses.replace(ctx, tenants=())


def _order(subject: Subject, columns: Columns, ctx: ScheduleContext) -> list[int]:
    """What the guard makes of the answer of a fresh policy, which it must not have had to replace."""
    watch = Watch()
    order = GuardedSchedule(subject(), "under test", watch).order(columns, ctx).tolist()
    watch.assert_none(f"{len(columns)} requests")
    assert len(set(order)) == len(order) <= len(columns), "a request is ordered twice"
    return order


def orders_are_permutations(subject: Subject) -> None:
    """0, 1, 2 and 300 requests: each exactly once, and no fault of the guard."""
    for count in (0, 1, 2, 300):
        _order(subject, *scene(subject, count, seed=count))


def orders_are_repeatable(subject: Subject) -> None:
    """The same facts, clock and random source give the same order, in a policy built anew, on any day."""
    once = _order(subject, *scene(subject, 100, seed=5))
    assert once == _order(subject, *scene(subject, 100, seed=5)), "two equal queues were ordered differently"
    with another_day(subject()):
        later = _order(subject, *scene(subject, 100, seed=5))
    assert once == later, "a queue is ordered differently on another day: the clock of a policy is ctx.now"


def facts_are_required(subject: Subject) -> None:
    """What the policy does not require makes no difference: to it the host shows zeros there."""
    columns, ctx = scene(subject, 100, seed=11)
    everything = random_columns(100, seed=11)
    once = _order(subject, columns, ctx)
    for name, needed in SHOWN_FOR.items():
        if not needed <= subject.requires:
            ctx = _context(subject, everything, seed=11)
            order = _order(subject, dataclasses.replace(columns, **{name: getattr(everything, name)}), ctx)
            assert order == once, f"the policy reads {name!r}, and does not require {needed}"


def facts_are_left_alone(subject: Subject) -> None:
    """Ranking does not write into the host's arrays, which are read-only."""
    columns, ctx = scene(subject, 50, seed=9)
    before, _ = scene(subject, 50, seed=9)
    _order(subject, columns, ctx)
    for name in Columns.__dataclass_fields__:
        assert (getattr(columns, name) == getattr(before, name)).all(), f"the policy changed {name!r}"


def questions_are_answered(subject: Subject) -> None:
    """What is asked beside the order is answered with amounts, keys that compare, and a yes or no."""
    columns, ctx = scene(subject, 60, seed=7)
    watch = Watch()
    guarded, views = GuardedSchedule(subject(), "under test", watch), columns.views()
    guarded.order(columns, ctx)
    deltas = [Progress(view.id, view.tenant, view.prompt_len, view.output_len) for view in views]
    guarded.on_progress(deltas)
    assert guarded.chunk_reserve(columns, dataclasses.replace(ctx, chunked=views[0], page_size=16)) >= 0
    assert len(sorted(map(guarded.retract_key, views))) == len(views)
    for one, other in itertools.pairwise(views):
        mutual = guarded.preempts(one, other) and guarded.preempts(other, one)
        assert not mutual, "two requests would preempt each other for ever"
    watch.assert_none()
    tell(subject().on_progress, deltas)


def everybody_is_served(subject: Subject) -> None:
    """40 requests through a small pool: all end, none twice, each with the answer it has when alone."""
    rng = random.Random(3)
    prompts = {f"r{i}": [i % 4] * rng.randint(1, 12) + [10 + i] for i in range(40)}
    harness = _harness(subject, pool_tokens=64, max_running=4)
    for i, (rid, prompt) in enumerate(prompts.items()):
        whose = "abc"[i % 3]
        harness.add(rid, prompt, max_new_tokens=6, priority=i % 2, tenant=whose, routing_key=whose)
        harness.step()
    _serve_all(harness, {rid: (prompt, 6) for rid, prompt in prompts.items()})


def a_trace_is_served(subject: Subject) -> None:
    """100 requests of growing conversations, arriving as they did: all end, each with the answer it has when alone."""
    harness = _harness(subject, pool_tokens=400, context_length=256, max_running=4, chunk_tokens=32)
    sent: dict[str, tuple[Sequence[int], int]] = {}
    for i, request in enumerate(trace.conversations(100)):
        while harness.now < request.at_s and harness.scheduler.busy:
            harness.step(0.1)
        harness.now = max(harness.now, request.at_s)
        rid, new = f"r{i}", 1 + request.output % 8
        sent[rid] = (request.blocks[:240], new)
        harness.add(rid, request.blocks[:240], max_new_tokens=new, tenant="abc"[i % 3])
    _serve_all(harness, sent)


def any_queue_is_ordered(subject: Subject) -> None:
    """Hypothesis looks for waiting requests that are not ordered, or not alike by two policies."""
    from hypothesis import given

    from rtk.plugin.testing.strategies import few, queues

    @few(40)
    @given(queues())
    def search(columns: Columns) -> None:
        facts = shown(columns, subject.requires)
        ctx = _context(subject, columns)
        once = _order(subject, facts, ctx)
        assert once == _order(subject, facts, _context(subject, columns)), "ordered differently by two policies"

    search()


def any_requests_are_served(subject: Subject) -> None:
    """Hypothesis looks for requests and settings under which somebody is not served, or answered differently."""
    from hypothesis import given
    from hypothesis import strategies as st

    from rtk.plugin.testing.strategies import few, requests

    settings = st.fixed_dictionaries(
        {
            "page_size": st.sampled_from([1, 4]),
            "pool_tokens": st.sampled_from([32, 64]),
            "max_running": st.integers(1, 4),
            "chunk_tokens": st.sampled_from([None, 4, 8]),
            "mixed_chunk": st.booleans(),
            "overlap": st.booleans(),
            "conservativeness": st.sampled_from([0.1, 1.0]),
        }
    )

    @few(20)
    @given(requests(), settings, st.integers(1, 6))
    def search(prompts: list[list[int]], how: dict[str, Any], new: int) -> None:
        harness = _harness(subject, **how)
        sent: dict[str, tuple[Sequence[int], int]] = {f"r{i}": (prompt, new) for i, prompt in enumerate(prompts)}
        for i, (rid, (prompt, _)) in enumerate(sent.items()):
            harness.add(rid, prompt, max_new_tokens=new, priority=i % 3, tenant="ab"[i % 2], routing_key="xy"[i % 2])
        _serve_all(harness, sent)

    search()


def _harness(subject: Subject, **settings: Any) -> Harness:
    return Harness(script=digest, schedule=subject(), schedule_requires=subject.requires, **settings)


def _serve_all(harness: Harness, sent: dict[str, tuple[Sequence[int], int]]) -> None:
    """Run until idle, and compare what each got for its prompt and number of tokens."""
    harness.run()
    assert not harness.stat("plugin_faults"), "the guard had to step in"
    for rid, (prompt, new) in sent.items():
        history = list(prompt)
        for _ in range(new):
            history.append(digest(history))
        assert harness.tokens[rid] == history[len(prompt) :], f"{rid} was answered differently"


CHECKS: tuple[Check, ...] = (
    named(orders_are_permutations),
    named(orders_are_repeatable),
    named(facts_are_required),
    named(facts_are_left_alone),
    named(questions_are_answered),
    named(everybody_is_served),
    named(a_trace_is_served, quick=False),
    named(any_queue_is_ordered, quick=False),
    named(any_requests_are_served, quick=False),
)
"""The whole contract."""
