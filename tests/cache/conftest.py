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
    """A cache with the few operations that examples are told in."""

    def __init__(self, pool=256, page_size=1, policy="lru", enabled=True):
        policy = policy_of(policy) if isinstance(policy, str) else policy
        self.health = Health()
        self.allocator = SlotAllocator(pool, page_size)
        self.cache = PrefixCache(self.allocator, GuardedEviction(policy, "test", self.health), enabled=enabled)

    def match(self, tokens, namespace=DEFAULT_NAMESPACE):
        """A hit that is given back at once; returns its length."""
        lease = self.acquire(tokens, namespace)
        lease.release()
        return lease.length

    def acquire(self, tokens, namespace=DEFAULT_NAMESPACE, limit=None):
        key = Key(namespace, pack(tokens))
        return self.cache.acquire(key, self.cache.peek(key, limit))

    def fill(self, lease, tokens):
        """Compute what the lease lacks of `tokens` into fresh slots, and cache it; whole pages enter."""
        page = self.allocator.page_size
        whole = len(tokens) - len(tokens) % page
        fresh = self.allocator.alloc((whole - lease.length) // page)
        slots = [*lease.slots().tolist(), *fresh.tolist()]
        grown = lease.grow(pack(tokens[:whole]), as_slots(slots))
        self.allocator.release(grown.duplicates)
        return grown

    def insert(self, tokens, namespace=DEFAULT_NAMESPACE):
        """What a request does that starts, computes `tokens` and ends. Returns the tokens stored."""
        lease = self.acquire(tokens, namespace)
        self.fill(lease, tokens)
        lease.release()
        return lease.length

    def shape(self):
        """The nodes as (start, size), by start and then id."""
        return sorted((node.start, node.size) for node in self.cache.nodes())


def as_slots(slots):
    import numpy as np

    return np.array(slots, dtype=np.int32)


@pytest.fixture
def make_tree():
    trees = []

    def make(**settings):
        trees.append(Tree(**settings))
        return trees[-1]

    yield make
    for tree in trees:
        tree.cache.check()
        tree.allocator.check()
