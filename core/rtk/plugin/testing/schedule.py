"""The contract suite of schedule policies: `CHECKS`, each a function of a factory that builds a fresh policy.

A policy passes when it orders any set of waiting requests totally and repeatably, and when requests served under it all
end, with the answers they have when alone.
"""

import dataclasses
import itertools
import random
from collections.abc import Callable

import numpy as np

from rtk.plugin.guard import GuardedSchedule, Health
from rtk.plugin.schedule import Columns, Progress, ScheduleContext, SchedulePolicy, TreeView
from rtk.plugin.testing.harness import Harness, digest

Factory = Callable[[], SchedulePolicy]
Check = Callable[[Factory], None]


def random_columns(count: int, seed: int) -> Columns:
    """`count` waiting requests with facts as the host gives them."""
    rng = np.random.default_rng(seed)
    prompt_len = rng.integers(1, 5000, count)
    return Columns(
        id=np.sort(rng.choice(10 * count + 10, count, replace=False)).astype(np.int64),
        arrival_s=np.sort(rng.random(count) * 100),
        prompt_len=prompt_len,
        max_new_tokens=rng.integers(0, 2000, count),
        matched_len=(rng.random(count) * prompt_len).astype(np.int64),
        prefilled_since_arrival=np.sort(rng.integers(0, 100_000, count))[::-1].copy(),
        priority=rng.integers(-3, 4, count),
        output_len=rng.integers(0, 50, count) * (np.arange(count) < count // 10),
        shares_prefix=rng.random(count) < 0.3,
        tenant=rng.integers(0, 3, count),
        running_with_key=rng.integers(0, 3, count),
        retractions=(np.arange(count) < count // 10).astype(np.int64),
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


def orders_are_permutations(factory: Factory) -> None:
    """0, 1, 2 and 300 requests: each exactly once, and no fault of the guard."""
    for count in (0, 1, 2, 300):
        health = Health()
        columns = random_columns(count, seed=count)
        order = GuardedSchedule(factory(), "under test", health).order(columns, context(columns=columns))
        assert not health.degraded, f"{count} requests: {dict(health.faults)}"
        assert len(set(order.tolist())) == len(order) <= count, "a request is ordered twice"


def orders_are_repeatable(factory: Factory) -> None:
    """The same facts, clock and random source give the same order, in a policy built anew."""
    columns = random_columns(100, seed=5)
    orders = [
        GuardedSchedule(factory(), "under test", Health()).order(columns, context(columns=columns)) for _ in range(2)
    ]
    assert orders[0].tolist() == orders[1].tolist(), "two equal queues were ordered differently"


def facts_are_left_alone(factory: Factory) -> None:
    """Ranking does not write into the host's arrays, which are read-only."""
    columns, before, health = random_columns(50, seed=9), random_columns(50, seed=9), Health()
    GuardedSchedule(factory(), "under test", health).order(columns, context(columns=columns))
    assert not health.degraded, f"the guard had to step in: {dict(health.faults)}"
    for name in Columns.__dataclass_fields__:
        assert (getattr(columns, name) == getattr(before, name)).all(), f"the policy changed {name!r}"


def questions_are_answered(factory: Factory) -> None:
    """What is asked beside the order is answered with amounts, keys that compare, and a yes or no."""
    columns, health = random_columns(60, seed=7), Health()
    guarded, views = GuardedSchedule(factory(), "under test", health), columns.views()
    ctx = context(columns=columns)
    guarded.order(columns, ctx)
    guarded.on_progress([Progress(view.id, view.tenant, view.prompt_len, view.output_len) for view in views])
    assert guarded.chunk_reserve(columns, dataclasses.replace(ctx, chunked=views[0], page_size=16)) >= 0
    assert len(sorted(map(guarded.retract_key, views))) == len(views)
    for one, other in itertools.pairwise(views):
        mutual = guarded.preempts(one, other) and guarded.preempts(other, one)
        assert not mutual, "two requests would preempt each other for ever"
    assert not health.degraded, f"the guard had to step in: {dict(health.faults)}"


def everybody_is_served(factory: Factory) -> None:
    """40 requests through a small pool: all end, none twice, each with the answer it has when alone."""
    rng = random.Random(3)
    prompts = {f"r{i}": [i % 4] * rng.randint(1, 12) + [10 + i] for i in range(40)}
    harness = Harness(script=digest, pool_tokens=64, max_running=4, schedule=factory())
    for i, (rid, prompt) in enumerate(prompts.items()):
        whose = "abc"[i % 3]
        harness.add(rid, prompt, max_new_tokens=6, priority=i % 2, tenant=whose, routing_key=whose)
        harness.step()
    harness.run()
    assert not harness.stat("plugin_faults"), "the guard had to step in"
    for rid, prompt in prompts.items():
        alone = Harness(script=digest)
        alone.add(rid, prompt, max_new_tokens=6)
        alone.run()
        assert harness.tokens[rid] == alone.tokens[rid], f"{rid} was answered differently"


CHECKS: tuple[Check, ...] = (
    orders_are_permutations,
    orders_are_repeatable,
    facts_are_left_alone,
    questions_are_answered,
    everybody_is_served,
)
