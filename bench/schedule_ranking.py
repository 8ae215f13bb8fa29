"""Ranking the waiting requests in a steady state: see bench/schedule.py."""

import random
import statistics
import time
from collections.abc import Callable
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rtk.cache.key import DEFAULT_NAMESPACE, Key, pack
from rtk.cache.slots import SlotAllocator
from rtk.cache.tree import PrefixCache
from rtk.plugin import Columns, Options, ScheduleContext, SchedulePolicy
from rtk.plugin.guard import GuardedEviction, GuardedSchedule, Health
from rtk.plugin.host import installed
from rtk.schedule.params import SamplingParams
from rtk.schedule.queue import WaitingQueue
from rtk.schedule.request import Request
from rtk_eviction.lru import Lru

POLICIES: dict[str, dict[str, Any]] = {"lpm": {"fallback_above": None}, "hrrn": {}}
POOL = 200_000
STEMS, STEM, TAIL, ANSWER = 1000, 200, 100, 16
"""Prompts begin with one of so many stems of so many tokens, and have tails of their own; answers. Tokens."""
LOOKED_AT = 8
"""Requests that admission looks at in a step."""

Figures = dict[str, float]


class Scene:
    """A full cache, a queue of requests that share stems, and the steps of an engine that computes one at a time."""

    def __init__(self, waiting: int, schedule: SchedulePolicy, seed: int = 1) -> None:
        self.health, self.policy = Health(), schedule
        self._rng = np.random.default_rng(seed)
        self.allocator = SlotAllocator(POOL, 1)
        self.cache = PrefixCache(self.allocator, GuardedEviction(Lru(Options()), "lru", self.health))
        requires = frozenset({"prefix_match", "in_batch_check"})
        self.queue = WaitingQueue(GuardedSchedule(schedule, "bench", self.health), self.cache, requires=requires)
        self._stems = self._rng.integers(0, 50_000, (STEMS, STEM), dtype=np.int32)
        self._ids = 0
        self.prefilled = 0
        self.evicted = 0
        while self.allocator.free > STEM + TAIL + ANSWER:
            self.finish(self.arrival())
        for _ in range(waiting):
            self.queue.add(self.arrival())

    def arrival(self) -> Request:
        """A request that nobody has seen."""
        self._ids += 1
        tail = self._rng.integers(0, 50_000, TAIL, dtype=np.int32)
        tokens = pack(np.concatenate([self._stems[self._rng.integers(STEMS)], tail]))
        return Request(
            rid=str(self._ids),
            id=self._ids,
            prompt_len=STEM + TAIL,
            tokens=bytearray(tokens),
            params=SamplingParams(),
            key=Key(DEFAULT_NAMESPACE, tokens),
            priority=0,
            max_new_tokens=ANSWER,
            seed=0,
            arrival_s=0.0,
            prefilled_at_arrival=self.prefilled if self._ids > 1 else 0,
            stop_token_ids=frozenset(),
        )

    def finish(self, request: Request) -> None:
        """Everything that a request computes enters the tree; what is lacking is evicted."""
        tokens = request.key.tokens + pack(self._rng.integers(0, 50_000, ANSWER - 1))
        lease = self.cache.acquire(request.key, self.cache.peek(request.key, request.fill_len - 1))
        lacking = len(tokens) // 4 - lease.length
        self.evicted += self.cache.evict(lacking - self.allocator.free)
        self.prefilled += STEM + TAIL - lease.length
        grown = lease.grow(tokens, np.concatenate([lease.slots(), self.allocator.alloc(lacking)]))
        self.allocator.release(grown.duplicates)
        lease.release()

    def context(self) -> ScheduleContext:
        """What the scheduler tells the policy."""
        return ScheduleContext(now=0.0, rng=random.Random(0), running=1, prefilled_total=self.prefilled)

    def steps(self, count: int, rank: Callable[[], list[Request]]) -> list[float]:
        """Milliseconds of each step: rank, take the first out, let another finish, let one arrive."""
        times = []
        for _ in range(count):
            new = self.arrival()
            begin = time.perf_counter()
            first = rank()[0]
            self.queue.remove(first)
            self.finish(first)
            self.queue.add(new)
            times.append(time.perf_counter() - begin)
        return [1000 * seconds for seconds in times]


def incremental(scene: Scene) -> list[Request]:
    """The queue as it is: it was told of what changed."""
    return list(islice(scene.queue.ranked(scene.context()), LOOKED_AT))


def rematching(scene: Scene) -> list[Request]:
    """Every request looked up in the tree, the columns built of all, all sorted."""
    waiting, policy, peek = list(scene.queue), scene.policy, scene.cache.peek
    matches = [peek(request.key, request.fill_len - 1).length for request in waiting]
    firsts = [request.key.tokens[: 4 * policy.in_batch_len] for request in waiting]
    seen: set[bytes] = set()
    shares = [first in seen or bool(seen.add(first)) for first in firsts]

    def column(values: list[Any], kind: type) -> NDArray[Any]:
        return np.array(values, dtype=kind)

    columns = Columns(
        id=column([r.id for r in waiting], int),
        arrival_s=column([r.arrival_s for r in waiting], float),
        prompt_len=column([r.prompt_len for r in waiting], int),
        max_new_tokens=column([r.max_new_tokens for r in waiting], int),
        matched_len=column(matches, int),
        prefilled_since_arrival=column([scene.prefilled - r.prefilled_at_arrival for r in waiting], int),
        priority=column([r.priority for r in waiting], int),
        shares_prefix=column(shares, bool),
    )
    order = np.lexsort(policy.rank(columns, scene.context())[::-1])
    return [waiting[i] for i in order[:LOOKED_AT].tolist()]


def build(name: str) -> SchedulePolicy:
    """A policy with the options it is measured with."""
    entry = installed().get("schedule", name)
    policy: SchedulePolicy = entry.build(entry.plugin.options(**POLICIES[name]))
    return policy


def measure(name: str, waiting: int, steps: int) -> Figures:
    """Milliseconds a step: of the queue as it is, and of a look-up of every request, in the same scene."""
    scene = Scene(waiting, build(name))
    scene.steps(max(1, steps // 10), lambda: incremental(scene))
    before = scene.evicted
    told = scene.steps(steps, lambda: incremental(scene))
    evicted = scene.evicted - before
    assert incremental(scene) == rematching(scene), "the two ways order differently"
    anew = scene.steps(max(3, steps // 20), lambda: rematching(scene))
    assert not scene.health.degraded and len(scene.queue) == waiting
    return {
        "told_ms": statistics.median(told),
        "told_p90_ms": statistics.quantiles(told, n=10)[-1] if len(told) > 1 else told[0],
        "anew_ms": statistics.median(anew),
        "evicted_tokens_a_step": evicted / steps,
    }
