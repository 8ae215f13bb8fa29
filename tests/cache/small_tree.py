"""A cache with the few operations that examples are told in."""

import numpy as np
import pytest

from rtk.cache.key import DEFAULT_NAMESPACE, Key, pack
from rtk.cache.slots import SlotAllocator
from rtk.cache.tree import PrefixCache
from rtk.plugin.guard import GuardedEviction, Health
from rtk.plugin.host import installed


def policy_of(name):
    entry = installed().get("eviction", name)
    return entry.build(entry.plugin.options())


class Tree:
    """A pool and a cache over it; what is stored enters as requests store it."""

    def __init__(self, pool=256, page_size=1, policy="lru", **settings):
        policy = policy_of(policy) if isinstance(policy, str) else policy
        self.health = Health()
        self.allocator = SlotAllocator(pool, page_size)
        self.cache = PrefixCache(self.allocator, GuardedEviction(policy, "test", self.health), **settings)

    def peek(self, tokens, namespace=DEFAULT_NAMESPACE, limit=None):
        return self.cache.peek(Key(namespace, pack(tokens)), limit)

    def match(self, tokens, namespace=DEFAULT_NAMESPACE, priority=0):
        """A hit that is given back at once; returns its length."""
        lease = self.acquire(tokens, namespace, priority=priority)
        lease.release()
        return lease.length

    def acquire(self, tokens, namespace=DEFAULT_NAMESPACE, limit=None, priority=0):
        return self.cache.acquire(Key(namespace, pack(tokens)), self.peek(tokens, namespace, limit), priority)

    def fill(self, lease, tokens):
        """Compute what the lease lacks of `tokens` into fresh slots, and cache it; whole pages enter."""
        page = self.allocator.page_size
        whole = len(tokens) - len(tokens) % page
        fresh = self.allocator.alloc((whole - lease.length) // page)
        grown = lease.grow(pack(tokens[:whole]), np.concatenate([lease.slots(), fresh]))
        self.allocator.release(grown.duplicates)
        return grown

    def insert(self, tokens, namespace=DEFAULT_NAMESPACE, priority=0):
        """What a request does that starts, computes `tokens` and ends. Returns the tokens stored."""
        lease = self.acquire(tokens, namespace, priority=priority)
        self.fill(lease, tokens)
        lease.release()
        return lease.length

    def shape(self):
        """The nodes as (start, size), by start and then size."""
        return sorted((node.start, node.size) for node in self.cache.nodes())

    def books(self):
        """(evictable, protected)."""
        return self.cache.evictable, self.cache.protected


@pytest.fixture
def make_tree():
    """Builds trees, whose books are checked at the end."""
    trees = []

    def make(**settings):
        trees.append(Tree(**settings))
        return trees[-1]

    yield make
    for tree in trees:
        tree.cache.check()
        tree.allocator.check()
