"""Traces of requests: read from a file, or made up; and their replay through a real prefix cache.

A prompt is a sequence of block ids: equal beginnings are equal prefixes. A line of a file names `input_length` and
`hash_ids`, one id for each block of `BLOCK` tokens (the last may be shorter), and perhaps `timestamp`, in milliseconds,
and `output_length`. The cache holds one token for each block, with page size 1: a node can be cut and evicted at any
block, and a hit of n blocks counts min(n * BLOCK, input_length) tokens.
"""

import itertools
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from rtk.cache.key import DEFAULT_NAMESPACE, Key, pack
from rtk.cache.slots import SlotAllocator
from rtk.cache.tree import PrefixCache
from rtk.plugin.eviction import EvictionPolicy
from rtk.plugin.guard import GuardedEviction, Health

BLOCK = 512


class Request(NamedTuple):
    """A prompt: its length in tokens and the ids of its blocks; when it arrives and how much it generates."""

    tokens: int
    blocks: Sequence[int]
    at_s: float = 0.0
    output: int = 1

    def hit_tokens(self, blocks: int) -> int:
        """The tokens of so many of its first blocks."""
        return min(BLOCK * blocks, self.tokens)


class Outcome(NamedTuple):
    """What a policy reached on a pool. Everything in tokens but `skipped`."""

    hit: int
    total: int
    skipped: int

    @property
    def rate(self) -> float:
        """Hit tokens over prompt tokens."""
        return self.hit / self.total if self.total else 0.0


def read(trace: Path, limit: int | None = None) -> list[Request]:
    """The first `limit` requests of a file."""
    with trace.open(encoding="utf-8") as lines:
        rows = [json.loads(line) for line in itertools.islice(lines, limit)]
    return [
        Request(row["input_length"], row["hash_ids"], row.get("timestamp", 0) / 1000, row.get("output_length", 1))
        for row in rows
    ]


def conversations(count: int = 300, *, seed: int = 0) -> list[Request]:
    """A made-up trace of `count` requests: conversations that come back and grow, some with a system prompt in common.

    Lengths and pauses are skewed as those of recorded traces are: few come back often, most never.
    """
    rng = random.Random(seed)
    fresh = itertools.count(100)
    systems = [list(range(20 * i, 20 * i + rng.randint(1, 8))) for i in range(4)]
    talks: list[list[int]] = []
    requests: list[Request] = []
    now = 0.0
    for _ in range(count):
        if not talks or rng.random() < 0.4:
            talks.append(list(rng.choice(systems)))
        talk = talks[-min(len(talks), int(rng.paretovariate(0.8)))]
        talk += [next(fresh) for _ in range(min(40, int(rng.paretovariate(0.9))))]
        now += rng.expovariate(2.0)
        requests.append(Request(BLOCK * len(talk) - rng.randrange(BLOCK), tuple(talk), now, rng.randint(1, 400)))
    return requests


def replay(requests: Sequence[Request], pool: int, policy: EvictionPolicy, health: Health | None = None) -> Outcome:
    """Serve the requests one after the other from rtk's own tree over `pool` blocks.

    A prompt with more blocks than the pool is skipped. Answers are not cached. No clock is read. Faults of the policy
    are counted in `health`; without one, they raise.
    """
    faults = health or Health()
    allocator = SlotAllocator(pool, 1)
    cache = PrefixCache(allocator, GuardedEviction(policy, type(policy).__name__, faults))
    hit = total = skipped = 0
    for request in requests:
        if len(request.blocks) > pool:
            skipped += 1
            continue
        key = Key(DEFAULT_NAMESPACE, pack(request.blocks))
        lease = cache.acquire(key, cache.peek(key))
        hit, total = hit + request.hit_tokens(lease.length), total + request.tokens
        need = len(request.blocks) - lease.length
        if need > allocator.free:
            cache.evict(need - allocator.free)
        lease.grow(key.tokens, np.concatenate([lease.slots(), allocator.alloc(need)]))
        lease.release()
    assert health or not faults.degraded, f"the guard replaced the policy: {dict(faults.faults)}"
    return Outcome(hit, total, skipped)
