"""The contract suite of eviction policies: `CHECKS`.

A policy passes when its keys are stable and total, depend on nothing but the declared facts and what it was told, and
when evicting by the host's heap gives the same log as sorting every leaf anew at each eviction.
"""

import random
from collections.abc import Sequence

import numpy as np

from rtk.cache.key import DEFAULT_NAMESPACE, Key, pack, unpack
from rtk.cache.node import Node
from rtk.cache.slots import SlotAllocator
from rtk.cache.tree import PrefixCache
from rtk.plugin.eviction import FACTS, EvictionPolicy, NodeView
from rtk.plugin.guard import GuardedEviction, Health
from rtk.plugin.testing import trace
from rtk.plugin.testing.check import Check, Factory, Watch, another_day, named, tell

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
    """The same facts give the same key, on any day, and keys of any two nodes can be compared."""
    policy = factory()
    views = _views(50)
    for view in views:
        tell(policy.on_insert, view)
        tell(policy.on_hit, view)
    keys = [policy.key(view) for view in views]
    assert keys == [policy.key(view) for view in views], "key() answers differently when asked again"
    with another_day(policy):
        assert keys == [policy.key(view) for view in views], "key() answers differently on another day"
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
    """The same operations twice give one log: nothing depends on a clock, or on what an earlier policy was told."""
    first = replay(factory(), operations=400)
    again = factory()
    with another_day(again):
        second = replay(again, operations=400)
    assert first, "nothing was evicted"
    assert first == second, "two replays evicted differently"


def no_fault_while_serving(factory: Factory) -> None:
    """The host's guard never has to step in."""
    watch = Watch()
    for page_size in PAGES:
        replay(factory(), operations=400, page_size=page_size, health=watch)
    watch.assert_none()


def a_trace_is_replayed(factory: Factory) -> None:
    """300 requests of growing conversations, through pools of three sizes: no fault, no more hits than are possible."""
    requests, watch = trace.conversations(), Watch()
    best = trace.replay(requests, 1 + sum(len(request.blocks) for request in requests), factory(), watch)
    for pool in (60, 200, 600):
        outcome = trace.replay(requests, pool, factory(), watch)
        assert outcome.hit <= best.hit, f"a pool of {pool} blocks hits more than one without end"
    watch.assert_none()


def any_nodes_have_keys(factory: Factory) -> None:
    """Hypothesis looks for nodes whose keys raise, do not compare, or change with a fact that is not declared."""
    from hypothesis import given
    from hypothesis import strategies as st

    from rtk.plugin.testing.strategies import few, node_views

    @few(40)
    @given(st.lists(node_views(), min_size=2, max_size=6, unique_by=lambda view: view.id), node_views())
    def search(views: list[NodeView], other: NodeView) -> None:
        watch = Watch()
        policy = factory()
        guarded = GuardedEviction(policy, "under test", watch)
        for view in views:
            if guarded.on_insert:
                guarded.on_insert(view)
        keys = [guarded.key(view) for view in views]
        watch.assert_none()
        for key, view in sorted(zip(keys, views, strict=True)):
            changed = view._replace(**{fact: getattr(other, fact) for fact in FACTS - policy.facts})
            assert guarded.key(changed) == key, f"{view} and {changed} differ in facts that are not declared only"
        watch.assert_none()

    search()


def any_requests_evict_as_a_full_sort_would(factory: Factory) -> None:
    """Hypothesis looks for requests after which the heap and a full sort of the leaves choose different victims."""
    from hypothesis import given

    from rtk.plugin.testing.strategies import few, requests

    @few(40)
    @given(requests())
    def search(prompts: list[list[int]]) -> None:
        watch = Watch()
        serve(factory(), prompts, pool=24, health=watch, sort_anew=True)
        watch.assert_none()

    search()


CHECKS: tuple[Check, ...] = (
    named(keys_are_stable),
    named(facts_are_declared),
    named(the_heap_equals_a_full_sort, quick=False),
    named(replays_are_equal),
    named(no_fault_while_serving),
    named(a_trace_is_replayed),
    named(any_nodes_have_keys, quick=False),
    named(any_requests_evict_as_a_full_sort_would, quick=False),
)
"""The whole contract."""


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
    prompts = ((_sequence(rng), rng.randint(0, 3)) for _ in range(operations))
    tokens, priorities = zip(*prompts, strict=True)
    return serve(policy, tokens, priorities, page_size=page_size, sort_anew=sort_anew, health=health)


def serve(
    policy: EvictionPolicy,
    prompts: Sequence[Sequence[int]],
    priorities: Sequence[int] | None = None,
    *,
    pool: int = POOL,
    page_size: int = 1,
    sort_anew: bool = False,
    health: Health | None = None,
) -> Log:
    """Drive a real cache of `pool` tokens with these prompts, one after the other; see `replay`."""
    guarded = GuardedEviction(policy, "under test", health or Watch())
    allocator = SlotAllocator(pool, page_size)
    cache = PrefixCache(allocator, guarded)
    log: Log = []
    for tokens, priority in zip(prompts, priorities or [0] * len(prompts), strict=True):
        tokens = tokens[: len(tokens) - len(tokens) % page_size]
        key = Key(DEFAULT_NAMESPACE, pack(tokens))
        lease = cache.acquire(key, cache.peek(key, limit=len(tokens) - 1), priority)
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
