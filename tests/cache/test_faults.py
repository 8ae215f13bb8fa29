"""An exception in whatever the tree calls, at every one of its calls, leaves the books right and the tree usable."""

import random

import numpy as np
import pytest
from small_tree import Tree
from toys import HostTier, Recurrent, Window

from rtk.cache.key import Namespace, pack
from rtk.plugin import EvictionPolicy

POOL, PAGE = 96, 4


class InjectedError(Exception):
    """What is raised."""


class Fails:
    """Counts the calls of some methods while it is on, and fails the one after `k` others."""

    def __init__(self, k):
        self.calls, self.k, self.on = 0, k, False

    def watch(self, owner, *names):
        for name in names:
            setattr(owner, name, self.failing(getattr(owner, name)))

    def failing(self, method):
        def call(*args):
            self.calls += self.on
            if self.on and self.calls == self.k + 1:
                raise InjectedError(method.__name__)
            return method(*args)

        return call


class Fussy(EvictionPolicy):
    """Reads what a split changes, and wants to be told."""

    facts = frozenset({"size", "last_use"})

    def __init__(self):
        self.told = 0

    def on_hit(self, node):
        self.told += 1

    def key(self, node):
        return node.size, node.last_use


def serve(what, k):
    """Requests under pressure, with one failure; answers how many calls there were that could have failed."""
    fails, recurrent, window, tier, policy = Fails(k), Recurrent(), Window(8), HostTier(40), Fussy()
    tree = Tree(pool=POOL, page_size=PAGE, policy=policy, components=(recurrent, window), tier=tier)
    match what:
        case "tier":
            fails.watch(tier, "store", "split", "drop")
        case "components":
            fails.watch(recurrent, "usable", "split", "free")
            fails.watch(window, "usable", "split", "free")
        case "allocator":
            fails.watch(tree.allocator, "release_packed", "alloc")
        case "policy":
            fails.watch(policy, "key", "on_hit")
    rng, held, failed = random.Random(5), [], 0
    for i in range(36):
        tokens = [i % 3] * rng.choice([4, 8, 12, 16]) + [9 + rng.randrange(3)] * rng.choice([4, 8, 12])
        lease = fresh = None
        fails.on = True
        try:
            lease = tree.acquire(tokens, Namespace(None, "ab"[i % 2]), limit=len(tokens) - 1, priority=i % 2)
            lacking = len(tokens) - lease.length
            tree.cache.evict(lacking - tree.allocator.free)
            if lacking <= tree.allocator.free:
                fresh = tree.allocator.alloc(lacking // PAGE)
                grown = lease.grow(pack(tokens), np.concatenate([lease.slots(), fresh]))
                fresh = grown.duplicates
                if i % 3:
                    lease.attach("recurrent", recurrent.make(None))
            if i % 5 == 0:
                tree.cache.flush()
        except InjectedError:
            failed += 1
        fails.on = False
        if fresh is not None:
            tree.allocator.release(fresh)
        if lease is not None:
            held.append(lease)
        while len(held) > i % 4:
            held.pop(0).release()
        tree.cache.check()
        tree.allocator.check()
        assert tree.allocator.free + sum(tree.books()) == POOL
    assert failed == (what != "policy" and k < fails.calls)
    assert tree.health.degraded == (what == "policy" and k < fails.calls)
    for lease in held:
        lease.release()
    tree.cache.flush()
    tree.cache.check()
    assert (tree.allocator.free, tree.cache.namespaces, tree.books()) == (POOL, 0, (0, 0))
    return fails.calls


@pytest.mark.parametrize("what", ["tier", "components", "allocator", "policy"])
def test_a_failure_at_any_call(what, caplog):
    calls = serve(what, 10**9)
    assert calls > 15
    for k in range(calls):
        serve(what, k)
