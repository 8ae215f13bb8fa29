"""The contract suite of eviction policies: `CHECKS`, each a function of a factory that builds a fresh policy.

A policy passes when its keys are stable and total, depend on nothing but the declared facts and what it was told, and
when evicting by the host's heap gives the same log as sorting every leaf anew at each eviction.
"""

import random
from collections.abc import Callable

import numpy as np

from rtk.cache.key import DEFAULT_NAMESPACE, Key, pack, unpack
from rtk.cache.node import Node
from rtk.cache.slots import SlotAllocator
from rtk.cache.tree import PrefixCache
from rtk.plugin.eviction import FACTS, EvictionPolicy, NodeView
from rtk.plugin.guard import GuardedEviction, Health

Factory = Callable[[], EvictionPolicy]
Check = Callable[[Factory], None]
Log = list[tuple[int, ...]]
"""Evictions in order, each as the tokens from the root to the end of the node."""

POOL = 96
PAGES = (1, 4)


def _views(count: int, seed: int = 0) -> list[NodeView]:
    rng = random.Random(seed)
    return [
        NodeView(
            id=i, size=rng.randint(1, 50), start=rng.randint(0, 50), created=i, last_use=i + rng.randint(0, 40),
            hits=rng.randint(0, 5), priority=rng.randint(-3, 3),
        )
        for i in range(count)
    ]  # fmt: skip


def keys_are_stable(factory: Factory) -> None:
    """The same facts give the same key, and keys of any two nodes can be compared."""
    policy = factory()
    views = _views(50)
    for view in views:
        policy.on_insert(view)
    keys = [policy.key(view) for view in views]
    assert keys == [policy.key(view) for view in views], "key() answers differently when asked again"
    assert all(type(key) is tuple and key for key in keys), "key() must answer a non-empty tuple"
    assert len(sorted(keys)) == 50, "keys must be sortable"
    assert all(part == part for key in keys for part in key), "a key has a NaN"


def facts_are_declared(factory: Factory) -> None:
    """A fact that is not in `facts` does not change the key."""
    policy = factory()
    assert policy.facts <= FACTS, f"unknown facts {sorted(policy.facts - FACTS)}; known: {sorted(FACTS)}"
    for view in _views(20):
        policy.on_insert(view)
        for fact in FACTS - policy.facts:
            changed = view._replace(**{fact: getattr(view, fact) + 1000})
            assert policy.key(changed) == policy.key(view), f"key() reads {fact!r}, which is not in `facts`"


def the_heap_equals_a_full_sort(factory: Factory) -> None:
    """1,000 random operations with splits: each eviction takes the node that a full sort of the leaves puts first."""
    for page_size in PAGES:
        replay(factory(), operations=1000, page_size=page_size, sort_anew=True)


def replays_are_equal(factory: Factory) -> None:
    """The same operations twice give one log: nothing depends on a clock, on hashing or on identity."""
    first, second = (replay(factory(), operations=400) for _ in range(2))
    assert first, "nothing was evicted"
    assert first == second, "two replays evicted differently"


def no_fault_while_serving(factory: Factory) -> None:
    """The host's guard never has to step in."""
    health = Health()
    for page_size in PAGES:
        replay(factory(), operations=400, page_size=page_size, health=health)
    assert not health.degraded, f"the guard replaced the policy: {dict(health.faults)}"


CHECKS: tuple[Check, ...] = (
    keys_are_stable,
    facts_are_declared,
    the_heap_equals_a_full_sort,
    replays_are_equal,
    no_fault_while_serving,
)


def replay(
    policy: EvictionPolicy,
    *,
    operations: int,
    page_size: int = 1,
    seed: int = 1,
    sort_anew: bool = False,
    health: Health | None = None,
) -> Log:
    """Drive a real cache with random requests of random priorities under pool pressure; answers the evictions in order.

    With `sort_anew`, every victim is compared with the first of all unlocked leaves, sorted by the policy's key of now.
    """
    rng = random.Random(seed)
    guarded = GuardedEviction(policy, "under test", health or Health())
    allocator = SlotAllocator(POOL, page_size)
    cache = PrefixCache(allocator, guarded)
    log: Log = []
    for _ in range(operations):
        tokens = _sequence(rng)
        tokens = tokens[: len(tokens) - len(tokens) % page_size]
        key = Key(DEFAULT_NAMESPACE, pack(tokens))
        lease = cache.acquire(key, cache.peek(key, limit=len(tokens) - 1), rng.randint(0, 3))
        lacking = len(tokens) - lease.length
        while allocator.free < lacking:
            log.append(_evict_one(cache, policy if sort_anew else None))
        slots = np.concatenate([lease.slots(), allocator.alloc(lacking // page_size)])
        allocator.release(lease.grow(key.tokens, slots).duplicates)
        lease.release()
    cache.check()
    return log


def _sequence(rng: random.Random) -> list[int]:
    """Few stems, shared to random depths, so that hits, splits and evictions of inner nodes all occur."""
    stem = rng.randrange(4)
    depth = rng.randint(1, 12)
    return [stem * 100 + i for i in range(depth)] + [1000 + rng.randrange(30) for _ in range(rng.randint(1, 8))]


def _evict_one(cache: PrefixCache, policy: EvictionPolicy | None) -> tuple[int, ...]:
    """Evict one node and say which, as its tokens from the root."""
    before = {node.id for node in cache.nodes()}
    leaves = {node.id: (node.parent, node.tokens) for node in cache.nodes() if node.is_evictable_leaf}
    expected = None
    if policy is not None:
        views = [node.view() for node in cache.nodes() if node.is_evictable_leaf]
        expected = min((policy.key(view), view.id) for view in views)[1]
    assert cache.evict(1) > 0, "nothing could be evicted"
    gone = before - {node.id for node in cache.nodes()}
    assert len(gone) == 1, f"one eviction removed {len(gone)} nodes"
    victim = gone.pop()
    assert victim in leaves, f"node {victim} was evicted, which is no unlocked leaf"
    assert expected in (None, victim), f"evicted node {victim}, but {expected} sorts first"
    return _from_root(*leaves[victim])


def _from_root(parent: Node | None, tokens: bytes) -> tuple[int, ...]:
    """The tokens from the root to the end of a node that hangs, or hung, below `parent`."""
    while parent is not None:
        tokens, parent = parent.tokens + tokens, parent.parent
    return tuple(unpack(tokens))
