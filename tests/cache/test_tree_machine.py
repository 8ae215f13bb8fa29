"""The tree, its pins and its seams against a brute-force model: dictionaries of cached page-prefixes.

A page is named by its namespace and the tokens from the first of the sequence to the end of the page.
"""

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule
from small_tree import policy_of
from toys import Gdsf, HostTier, Recurrent, Rising, Window

from rtk.cache.explain import explain
from rtk.cache.key import AdapterRef, Key, Namespace, pack, unpack
from rtk.cache.node import LockLedger
from rtk.cache.pins import Pins
from rtk.cache.slots import SlotAllocator
from rtk.cache.tree import PrefixCache
from rtk.plugin.guard import GuardedEviction, Health
from rtk.plugin.host import installed

POOL = 256
WINDOW = 20
BUDGET = 128
SPACES = [Namespace(), Namespace(None, "a"), Namespace(None, ""), Namespace(AdapterRef("a", 1))]
POLICIES = {"gdsf": Gdsf, "rising": Rising} | {
    name: lambda name=name: policy_of(name) for name in installed().names("eviction")
}

bits = st.integers(0, 1)
lengths = st.sampled_from([56, 48, 40, 33, 32, 31, 20, 17, 16, 9, 4, 1])
sequences = st.tuples(bits, bits, bits, bits, lengths).map(
    lambda drawn: [drawn[i // 16] for i in range(56)][: drawn[4]]
)
"""Blocks of 16 equal tokens, cut anywhere, so that sequences share and diverge at every page size."""

spaces = st.sampled_from([SPACES[0], SPACES[0], SPACES[0], *SPACES])
limits = st.none() | st.integers(0, 80)
priorities = st.integers(-1, 2)


class TreeMachine(RuleBasedStateMachine):
    leases = Bundle("leases")

    @initialize(
        page=st.sampled_from([1, 4, 16]),
        policy=st.sampled_from(sorted(POLICIES)),
        components=st.booleans(),
        tier=st.sampled_from([None, 64, 10_000]),
    )
    def build(self, page, policy, components, tier):
        self.page, self.policy, self.now = page, policy, 0.0
        self.allocator = SlotAllocator(POOL, page)
        self.health = Health()
        self.recurrent, self.window, self.tier = Recurrent(), Window(WINDOW), tier and HostTier(tier)
        self.cache = PrefixCache(
            self.allocator,
            GuardedEviction(POLICIES[policy](), policy, self.health),
            clock=lambda: self.now,
            components=(self.recurrent, self.window) if components else (),
            tier=self.tier,
        )
        self.components = components
        self.pins = Pins(BUDGET, lambda: self.now)
        self.pages: dict[tuple, tuple[int, ...]] = {}  # on the device, with their slots
        self.holders: dict[tuple, int] = {}  # leases that run through a page
        self.raised: dict[tuple, int] = {}  # the highest priority of those who held it
        self.stored: set[tuple] = set()  # only in the tier
        self.evicted: set[tuple] = set()  # ever
        self.edges: set[tuple] = set()  # pages at whose end some lease has ended
        self.with_end: set[tuple] = set()  # pages at whose end there is a recurrent state
        self.with_window: set[tuple] = set()  # pages with window states
        self.pinned: dict[str, tuple] = {}  # name -> (pages, expiry)
        self.private: list = []  # slots that are held outside the tree

    # --- the model ----------------------------------------------------------------------------------------------

    def prefixes(self, space, tokens, length=None):
        """The model's names of a sequence, page by page."""
        whole = len(tokens) if length is None else min(length, len(tokens))
        return [(space, tuple(tokens[: i + self.page])) for i in range(0, whole - whole % self.page, self.page)]

    def on_device(self, space, tokens, limit=None):
        pages = self.prefixes(space, tokens, limit)
        return next((i for i, page in enumerate(pages) if page not in self.pages), len(pages)) * self.page

    def cached(self, space, tokens, limit=None):
        """What can be used: the longest prefix on the device that every component can serve."""
        length = self.on_device(space, tokens, limit)
        pages = self.prefixes(space, tokens, length)
        if self.components:
            while pages and not (pages[-1] in self.with_end and self.windowed(pages)):
                pages.pop()
        return len(pages) * self.page

    def windowed(self, pages):
        return self.with_window.issuperset(pages[-(-WINDOW // self.page) * -1 :])

    def hold(self, pages, by, priority=None):
        for page in pages:
            self.holders[page] = self.holders.get(page, 0) + by
            if priority is not None:
                self.raised[page] = max(priority, self.raised.get(page, priority))

    # --- rules --------------------------------------------------------------------------------------------------

    @rule(space=spaces, tokens=sequences, limit=limits)
    def peek(self, space, tokens, limit):
        match = self.cache.peek(Key(space, pack(tokens)), limit)
        assert match.length == self.cached(space, tokens, limit)
        held = self.prefixes(space, tokens, match.length)
        assert self.cache.lock_cost(match, LockLedger()) == sum(not self.holders.get(p) for p in held) * self.page
        pinned = {page for pages, _ in self.pinned.values() for page in pages}
        assert self.pins.shared(match) == len(pinned.intersection(held)) * self.page
        device = self.on_device(space, tokens, limit)
        following = self.prefixes(space, tokens, limit)[device // self.page :]
        stored = next((i for i, page in enumerate(following) if page not in self.stored), len(following)) * self.page
        assert match.stored == (stored if match.length == device else 0)

    @rule(target=leases, space=spaces, tokens=sequences, limit=limits, priority=priorities)
    def acquire(self, space, tokens, limit, priority):
        key = Key(space, pack(tokens))
        self.explain(space, tokens)
        lease = self.cache.acquire(key, self.cache.peek(key, limit), priority)
        held = self.prefixes(space, tokens, lease.length)
        assert lease.length == self.cached(space, tokens, limit)
        assert lease.slots().tolist() == [slot for page in held for slot in self.pages[page]]
        self.hold(held, 1, priority)
        self.edges.update(held[-1:])
        return lease, space, tokens

    def explain(self, space, tokens):
        told = explain(self.cache, Key(space, pack(tokens)))
        matched = self.on_device(space, tokens)
        assert (told.namespace, told.prompt_tokens, told.matched_tokens) == (space, len(tokens), matched)
        assert told.cached_tokens == self.cached(space, tokens, max(0, len(tokens) - 1))
        assert (told.evicted is not None) == (told.ends == "evicted")
        assert (told.position is not None) == (told.ends == "differs")
        following = (space, tuple(tokens[: matched + self.page]))
        goes_on = [
            page[1][matched:]
            for page in self.pages.keys() | self.stored
            if page[0] == space and len(page[1]) == matched + self.page and page[1][:matched] == following[1][:matched]
        ]
        if len(following[1]) < matched + self.page:
            assert told.ends == "prompt"
        elif following in self.stored:
            assert told.ends == "stored"
        elif told.ends == "evicted":
            assert following in self.evicted
            assert told.evicted.policy == self.policy
            following = tuple(tokens[told.matched_tokens : told.matched_tokens + self.page])
            assert following in zip(*[iter(unpack(told.evicted.packed))] * self.page, strict=True)
        elif told.ends == "differs":
            agree = {page: agreement(page, following[1][matched:]) for page in goes_on}
            best = max(agree.values())
            assert told.position == matched + best
            assert told.token == tokens[told.position]
            assert told.cached_token in {page[best] for page in goes_on if agree[page] == best}
        else:
            assert told.ends == "new" and not goes_on

    @rule(target=leases, held=consumes(leases), tail=sequences, end=st.booleans(), window=st.booleans())
    def grow(self, held, tail, end, window):
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
        known = self.on_device(space, tokens)
        assert grown.start == before and len(grown.duplicates) == max(0, known - before) == len(grown.canonical)
        pages = self.prefixes(space, tokens)
        for i, page in enumerate(pages):
            self.pages.setdefault(page, tuple(slots[i * self.page : (i + 1) * self.page].tolist()))
            self.stored.discard(page)
        assert lease.length == whole
        assert lease.slots().tolist() == [slot for page in pages for slot in self.pages[page]]
        assert grown.canonical.tolist() == lease.slots()[before:known].tolist()
        self.hold(pages[before // self.page :], 1, lease.priority)
        self.edges.add(pages[-1])
        if self.components:
            self.attach(lease, pages, end, window)
        return multiple((lease, space, tokens))

    def attach(self, lease, pages, end, window):
        last = pages[lease.node.start // self.page :]
        if end:
            state = self.recurrent.make(None)
            if not lease.attach("recurrent", state):
                self.recurrent.free(state)
                assert pages[-1] in self.with_end
            self.with_end.add(pages[-1])
        if window:
            state = self.window.make(unpack(lease.node.tokens))
            if not lease.attach("window", state):
                self.window.free(state)
                assert self.with_window.issuperset(last)
            self.with_window.update(last)

    @rule(
        space=spaces,
        prompts=st.lists(sequences, min_size=1, max_size=4),
        priority=priorities,
        end=st.booleans(),
        window=st.booleans(),
    )
    def serve(self, space, prompts, priority, end, window):
        """Whole requests: each reuses, makes room, computes and ends."""
        for tokens in prompts:
            held = self.acquire(space, tokens, len(tokens) - 1, priority)
            lacking = len(tokens) - held[0].length - self.allocator.free
            if lacking > 0:
                self.evict(lacking)
            for grown in self.grow(held, tokens[held[0].length :], end, window).values:
                self.release(grown)

    @rule(held=consumes(leases))
    def release(self, held):
        lease, space, tokens = held
        self.hold(self.prefixes(space, tokens, lease.length), -1)
        lease.release()

    @rule(pages=st.integers(0, 8))
    def keep_outside_the_tree(self, pages):
        if self.private:
            self.allocator.release(self.private.pop())
        elif pages * self.page <= self.allocator.free:
            self.private.append(self.allocator.alloc(pages))

    # --- pins ---------------------------------------------------------------------------------------------------

    @rule(space=spaces, tokens=sequences, ttl=st.none() | st.integers(1, 4))
    def pin(self, space, tokens, ttl):
        name = next(str(i) for i in range(99) if str(i) not in self.pinned)
        held = self.acquire(space, tokens, len(tokens) - 1, 0)
        for lease, _, grown in self.grow(held, tokens[held[0].length :], False, False).values:
            if not lease.length or self.pins.tokens + lease.length > BUDGET:
                self.release((lease, space, grown))
                continue
            pin = self.pins.add(name, lease, ttl)
            assert (pin.tokens, pin.namespace) == (lease.length, space)
            self.pinned[name] = self.prefixes(space, grown, lease.length), None if ttl is None else self.now + ttl

    @rule(which=st.integers(0, 3))
    def unpin(self, which):
        name = str(which)
        assert (name in self.pins) == (name in self.pinned)
        if name in self.pinned:
            self.pins.remove(name)
            self.hold(self.pinned.pop(name)[0], -1)

    @rule(seconds=st.integers(0, 3))
    def time_goes_by(self, seconds):
        self.now += seconds
        self.pins.expire()
        for name in [n for n, (_, expires) in self.pinned.items() if expires is not None and expires <= self.now]:
            self.hold(self.pinned.pop(name)[0], -1)

    # --- eviction -----------------------------------------------------------------------------------------------

    @rule(tokens=st.sampled_from([1, 5, 17, 40, 0]))
    def evict(self, tokens):
        possible = self.cache.evictable
        freed = self.cache.evict(tokens)
        assert freed >= min(tokens, possible)
        self.forget_evicted(freed)

    @rule(really=st.sampled_from([False] * 5 + [True]))
    def flush(self, really):
        if not really:
            return
        assert self.cache.flush() == sum(not self.holders.get(page) for page in self.pages) * self.page
        self.forget_evicted(None)
        assert all(self.holders.get(page) for page in self.pages)
        assert not self.stored

    def forget_evicted(self, freed):
        """Take out of the model what left the device; nothing that is held, and nothing in front of what stayed."""
        left, stored = set(), set()
        for node, pages in self.nodes():
            left.update(node.slots.tolist())
            stored.update(() if node.packed else pages)
        gone = {page for page, slots in self.pages.items() if slots[0] not in left}
        assert freed is None or len(gone) * self.page == freed
        assert not any(self.holders.get(page) for page in gone)
        assert stored <= gone | self.stored, "something is in the tier that was not on the device"
        forgotten = (gone | self.stored) - stored
        self.evicted |= forgotten
        self.edges -= forgotten
        self.with_end -= gone
        self.with_window -= gone
        self.stored = stored
        for page in gone:
            del self.pages[page]
        for page in forgotten:
            del self.raised[page]
        for space, tokens in self.pages:
            parent = (space, tokens[: -self.page])
            assert not parent[1] or parent in self.pages, "a page went before its children"

    def nodes(self):
        """Every node with the names of its pages."""
        prefix = {}
        for node in self.cache.nodes():
            parent = node.parent
            space, before = prefix.get(parent.id, (getattr(parent, "namespace", None), []))
            prefix[node.id] = space, before + unpack(node.tokens)
            yield node, self.prefixes(*prefix[node.id])[node.start // self.page :]

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
        held = sum(map(len, self.private))
        assert self.allocator.free + self.cache.evictable + self.cache.protected + held == POOL
        assert self.pins.tokens == len({page for pages, _ in self.pinned.values() for page in pages}) * self.page
        assert sorted(pin.name for pin in self.pins) == sorted(self.pinned)
        assert not self.health.degraded

    @invariant()
    def nodes_agree(self):
        if not hasattr(self, "cache"):
            return
        ends, copies, states = set(), [], ([], [])
        for node, pages in self.nodes():
            ends.add(pages[-1])
            assert all((page in self.pages) == bool(node.packed) for page in pages)
            assert node.packed or self.stored.issuperset(pages)
            assert node.priority == max(self.raised[page] for page in pages)
            if node.stored is not None:
                copies.append(node.stored)
                assert self.tier.live[node.stored] == unpack(node.tokens)
            for of_kind, state in zip(states, node.states or (None, None), strict=True):
                of_kind.extend([] if state is None else [state])
            if node.states and node.states[1] is not None:
                assert self.window.live[node.states[1]] == unpack(node.tokens)
        assert ends >= self.edges, "sequences that ended somewhere have a node's edge there"
        assert sorted(copies) == sorted(self.tier.live if self.tier else ())
        assert [sorted(of_kind) for of_kind in states] == [sorted(self.recurrent.live), sorted(self.window.live)]
        assert self.tier is None or self.tier.tokens <= self.tier.capacity


def agreement(a, b):
    """How many tokens agree from the start."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=True)) if x != y), len(a))


TestTree = TreeMachine.TestCase
TestTree.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)
