"""The tree against a brute-force model: a dictionary of every cached page-prefix, with real reference counts."""

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from rtk.cache.key import Key, Namespace, pack
from rtk.cache.node import LockLedger
from rtk.cache.slots import SlotAllocator
from rtk.cache.tree import PrefixCache
from rtk.plugin import EvictionPolicy
from rtk.plugin.guard import GuardedEviction, Health
from rtk.plugin.host import installed

POOL = 512
SPACES = [Namespace(), Namespace(None, "a"), Namespace(None, "")]


class Mru(EvictionPolicy):
    def key(self, node):
        return (-node.last_use,)


class Greedy(EvictionPolicy):
    """Stateful: what a node is worth was fixed when it was last told of."""

    def __init__(self):
        self.inflation = 0
        self.worth = {}

    def on_insert(self, node):
        self.worth[node.id] = self.inflation + node.start

    on_hit = on_insert

    def on_evict(self, node, key):
        self.inflation = max(self.inflation, key[0])
        self.worth.pop(node.id, None)

    def key(self, node):
        return (self.worth.get(node.id, self.inflation),)


def built(name):
    entry = installed().get("eviction", name)
    return entry.build(entry.plugin.options())


POLICIES = {"lru": lambda: built("lru"), "slru": lambda: built("slru"), "mru": Mru, "greedy": Greedy}

# Whole blocks of 16 equal tokens and a ragged tail, so that sequences share and diverge at every page size.
sequences = st.tuples(st.lists(st.integers(0, 2), max_size=4), st.lists(st.integers(0, 1), max_size=5)).map(
    lambda drawn: [t for block in drawn[0] for t in [block] * 16] + drawn[1]
)


class TreeMachine(RuleBasedStateMachine):
    leases = Bundle("leases")

    @initialize(page=st.sampled_from([1, 4, 16]), policy=st.sampled_from(sorted(POLICIES)))
    def build(self, page, policy):
        self.page = page
        self.allocator = SlotAllocator(POOL, page)
        self.health = Health()
        self.cache = PrefixCache(self.allocator, GuardedEviction(POLICIES[policy](), policy, self.health))
        self.pages: dict[tuple, tuple[int, ...]] = {}  # (namespace, prefix up to the page's end) -> the page's slots
        self.holders: dict[tuple, int] = {}  # the same key -> leases that run through the page

    # --- the model ----------------------------------------------------------------------------------------------

    def prefixes(self, space, tokens, length=None):
        """The model's keys of a sequence, page by page."""
        whole = len(tokens) if length is None else length
        return [(space, tuple(tokens[: i + self.page])) for i in range(0, whole - whole % self.page, self.page)]

    def cached(self, space, tokens, limit=None):
        pages = self.prefixes(space, tokens, None if limit is None else min(limit, len(tokens)))
        return next((i for i, page in enumerate(pages) if page not in self.pages), len(pages)) * self.page

    def hold(self, pages, by):
        for page in pages:
            self.holders[page] = self.holders.get(page, 0) + by

    # --- rules --------------------------------------------------------------------------------------------------

    @rule(space=st.sampled_from(SPACES), tokens=sequences, limit=st.none() | st.integers(0, 80))
    def peek(self, space, tokens, limit):
        match = self.cache.peek(Key(space, pack(tokens)), limit)
        assert match.length == self.cached(space, tokens, limit)
        free_to_lock = [p for p in self.prefixes(space, tokens, match.length) if not self.holders.get(p)]
        assert self.cache.lock_cost(match, LockLedger()) == len(free_to_lock) * self.page

    @rule(target=leases, space=st.sampled_from(SPACES), tokens=sequences, limit=st.none() | st.integers(0, 80))
    def acquire(self, space, tokens, limit):
        key = Key(space, pack(tokens))
        lease = self.cache.acquire(key, self.cache.peek(key, limit))
        held = self.prefixes(space, tokens, lease.length)
        assert lease.length == self.cached(space, tokens, limit)
        assert lease.slots().tolist() == [slot for page in held for slot in self.pages[page]]
        self.hold(held, 1)
        return lease, space, tokens

    @rule(target=leases, held=consumes(leases), tail=sequences)
    def grow(self, held, tail):
        lease, space, tokens = held
        tokens = tokens[: lease.length] + tail
        whole = len(tokens) - len(tokens) % self.page
        lacking = (whole - lease.length) // self.page
        if lacking <= 0 or lacking * self.page > self.allocator.free:
            return multiple((lease, space, tokens[: lease.length]))
        before = lease.length
        slots = np.concatenate([lease.slots(), self.allocator.alloc(lacking)])
        grown = lease.grow(pack(tokens), np.concatenate([slots, np.zeros(len(tokens) - whole, dtype=np.int32)]))
        self.allocator.release(grown.duplicates)
        known = self.cached(space, tokens)
        assert grown.start == before and len(grown.duplicates) == max(0, known - before) == len(grown.canonical)
        for i, page in enumerate(self.prefixes(space, tokens)):
            self.pages.setdefault(page, tuple(slots[i * self.page : (i + 1) * self.page].tolist()))
        assert lease.length == whole
        pages = self.prefixes(space, tokens)
        assert lease.slots().tolist() == [slot for page in pages for slot in self.pages[page]]
        assert grown.canonical.tolist() == lease.slots()[before:known].tolist()
        self.hold(pages[before // self.page :], 1)
        return multiple((lease, space, tokens))

    @rule(held=consumes(leases))
    def release(self, held):
        lease, space, tokens = held
        self.hold(self.prefixes(space, tokens, lease.length), -1)
        lease.release()

    @rule(tokens=st.integers(0, 40))
    def evict(self, tokens):
        possible = self.cache.evictable
        freed = self.cache.evict(tokens)
        assert freed >= min(tokens, possible)
        self.forget_evicted(freed)

    @rule()
    def flush(self):
        assert self.cache.flush() == sum(not self.holders.get(page) for page in self.pages) * self.page
        self.forget_evicted(None)
        assert all(self.holders.get(page) for page in self.pages)

    def forget_evicted(self, freed):
        """Take out of the model what left the tree; nothing that is held, and nothing in front of what stayed."""
        left = set()
        for node in self.cache.nodes():
            left.update(node.slots.tolist())
        gone = {page for page, slots in self.pages.items() if slots[0] not in left}
        assert freed is None or len(gone) * self.page == freed
        assert not any(self.holders.get(page) for page in gone)
        for page in gone:
            del self.pages[page]
        for space, tokens in self.pages:
            parent = (space, tokens[: -self.page])
            assert not parent[1] or parent in self.pages, "a page went before its children"

    # --- what must always hold ----------------------------------------------------------------------------------

    @invariant()
    def books_agree(self):
        if not hasattr(self, "cache"):
            return
        self.cache.check()
        self.allocator.check()
        protected = sum(bool(self.holders.get(page)) for page in self.pages) * self.page
        assert self.cache.protected == protected
        assert self.cache.evictable == len(self.pages) * self.page - protected
        assert self.allocator.free + self.cache.evictable + self.cache.protected == POOL
        assert not self.health.degraded


TestTree = TreeMachine.TestCase
TestTree.settings = settings(max_examples=80, stateful_step_count=30, deadline=None)
