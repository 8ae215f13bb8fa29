"""The prefix cache: one radix tree per namespace over the slots of the KV pool.

A node holds a segment of tokens and the slots of their K/V, in whole pages; children are keyed by their first page.
A node is *evictable* while no lease runs through it and *protected* otherwise. Splitting slices indices and moves no
K/V. Times are logical ticks: one for each `acquire` and each `Lease.grow`.

Complexities: n is the length of a key in tokens (compared at memory speed), d the number of nodes on its path.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from rtk.cache.evictions import Evicted, EvictionLog
from rtk.cache.heap import EvictionHeap
from rtk.cache.key import TOKEN_BYTES, Key, Namespace, common_prefix
from rtk.cache.lease import Grown, Lease
from rtk.cache.node import NO_CHILDREN, NO_MATCH, LockLedger, Match, Node, Root
from rtk.cache.seams import Component, Stretch, Tier, Watcher
from rtk.cache.slots import EMPTY, SlotAllocator, Slots
from rtk.plugin.guard import GuardedEviction


class PrefixCache:
    """The tree, its books and its eviction. Not thread-safe: it belongs to the scheduler's thread."""

    def __init__(
        self,
        allocator: SlotAllocator,
        policy: GuardedEviction,
        *,
        enabled: bool = True,
        clock: Callable[[], float] = time.time,
        components: Sequence[Component] = (),
        tier: Tier | None = None,
    ) -> None:
        """With `enabled` false nothing is ever cached: matches are empty and grown leases hold nothing.

        `clock` answers seconds, for the log of evictions.
        """
        self.enabled = enabled
        self.page_size = allocator.page_size
        self.evictable = 0
        """Tokens in nodes without locks."""
        self.protected = 0
        """Tokens in locked nodes."""
        self.evicted = 0
        """Tokens evicted since the start."""
        self.evicted_by = Counter({policy.name: 0})
        """Of these, those that somebody chose: by whom. The rest was flushed."""
        self.created_nodes = 0
        """Nodes made since the start, roots and halves of splits included."""
        self.log = EvictionLog()
        self._clock = clock
        self._page_bytes = allocator.page_size * TOKEN_BYTES
        self._allocator = allocator
        self._policy = policy
        self._heap = EvictionHeap(policy)
        self._splits_rekey = bool(policy.facts & {"size", "start"})
        self._components = tuple(components)
        self._tier = tier
        self._watcher: Watcher | None = None
        self._roots: dict[Namespace, Root] = {}
        self._leases: set[Lease] = set()
        self._tick = 0
        self._version = 0

    def watch(self, watcher: Watcher) -> None:
        """Tell `watcher`, the only one, of every change from now on."""
        self._watcher = watcher

    @property
    def plain(self) -> bool:
        """Whether a match is whatever lies on the way down: there are no components, and no tier."""
        return not self._components and self._tier is None

    # --- asking -------------------------------------------------------------------------------------------------

    def peek(self, key: Key, limit: int | None = None) -> Match:
        """The longest cached prefix of `key`, at most `limit` tokens, in whole pages. Changes nothing. O(n + d)."""
        root = self._roots.get(key.namespace)
        if root is None:
            return NO_MATCH
        tokens = key.tokens
        end = len(tokens) if limit is None else min(len(tokens), max(0, limit) * TOKEN_BYTES)
        end -= end % self._page_bytes
        node, position, used = self.walk(root, tokens, end)
        if not position:
            match = NO_MATCH
        else:
            match = tuple.__new__(Match, (position // TOKEN_BYTES, node, used, self._version, 0))  # as `Node.view`
            if self._components:
                match = self._served_by_all(match)
        if self._tier is not None and used == node.size and match.length * TOKEN_BYTES == position:
            match = match._replace(stored=self._stored(node, tokens, position, end))
        return match

    def _whole_pages(self, length: int) -> int:
        """`length` in bytes, without what does not fill a page."""
        return length - length % self._page_bytes

    def walk(self, node: Node, tokens: bytes, end: int) -> tuple[Node, int, int]:
        """Follow `tokens[:end]` down the nodes on the device.

        Answers the deepest node reached, the bytes matched, and how many tokens of that node they end after. O(n + d).
        """
        page, position = self._page_bytes, 0
        while position < end:
            child = node.children.get(tokens[position : position + page])
            if child is None or not child.packed:
                break
            segment = child.tokens
            stop = position + len(segment)
            if stop > end or not tokens.startswith(segment, position):
                same = self._whole_pages(common_prefix(tokens, position, segment, 0, min(len(segment), end - position)))
                return child, position + same, same // TOKEN_BYTES
            node, position = child, stop
        return node, position, node.size

    def _served_by_all(self, match: Match) -> Match:
        """The longest prefix of a match that every component can serve. Each may only shorten it."""
        path = list(match.path())[::-1]
        length, settled = match.length, False
        while path and not settled:
            usable = min(component.usable(self._states(i, path)) for i, component in enumerate(self._components))
            settled, length = usable == length, usable - usable % self.page_size
            while path and path[-1][0].start >= length:
                path.pop()
            if path:
                path[-1] = (path[-1][0], length - path[-1][0].start)
        return Match(length, *path[-1], self._version) if path else NO_MATCH

    @staticmethod
    def _states(component: int, path: list[tuple[Node, int]]) -> list[Stretch]:
        """What one component has on a path."""
        return [Stretch(node.states[component] if node.states else None, used, node.size) for node, used in path]

    def _stored(self, node: Node, tokens: bytes, position: int, end: int) -> int:
        """Tokens that follow on a match with all of `node` and lie in the tier."""
        begin, page = position, self._page_bytes
        while position < end:
            child = node.children.get(tokens[position : position + page])
            if child is None or child.packed:
                break
            limit = min(len(child.tokens), end - position)
            same = self._whole_pages(common_prefix(tokens, position, child.tokens, 0, limit))
            node, position = child, position + same
            if same < len(child.tokens):
                break
        return (position - begin) // TOKEN_BYTES

    def lock_cost(self, match: Match, ledger: LockLedger) -> int:
        """Evictable tokens that acquiring `match` would protect, beyond those the ledger has moved. O(d). Pure."""
        return sum(max(0, used - ledger.moved.get(node.id, 0)) for node, used in match.path() if not node.locks)

    def root(self, namespace: Namespace) -> Root | None:
        """The root of a namespace, None while nothing of it is cached. O(1)."""
        return self._roots.get(namespace)

    @property
    def namespaces(self) -> int:
        """Namespaces that something is cached of."""
        return len(self._roots)

    def latest_namespaces(self) -> Iterator[Namespace]:
        """Namespaces that something is cached of, the latest to come first. The tree must not change meanwhile."""
        return reversed(self._roots)

    # --- taking and giving --------------------------------------------------------------------------------------

    def acquire(self, key: Key, match: Match, priority: int = 0) -> Lease:
        """Lock the matched prefix and count the hit. Splits the last node where the match ends inside it. O(n + d).

        `match` may be of an older version of the tree, as long as its prefix is still cached; otherwise the lease is
        shorter than the match was. What the lease runs through is raised to `priority`.
        """
        if match.version != self._version:
            match = self.peek(key, match.length)
        node = match.node
        if node is not None and match.offset < node.size:
            node = self._split(node, match.offset)
        self._tick = tick = self._tick + 1
        lease = Lease(self, key.namespace, priority)
        self._leases.add(lease)
        if node is None:
            return lease
        if node.entry is not None:
            self._heap.void(node)
        lease.node, lease.length = node, match.length
        taken, told = 0, self._policy.on_hit
        while (parent := node.parent) is not None:
            if not node.locks:
                taken += node.size
            node.locks += 1
            node.hits += 1
            node.last_use = tick
            if node.priority < priority:
                node.priority = priority
            if told is not None:
                told(node.view())
            node = parent
        self.evictable -= taken
        self.protected += taken
        return lease

    def _split(self, node: Node, at: int) -> Node:
        """Cut `node` after `at` tokens; the new upper half is returned. The lower half keeps the id.

        Both halves keep created, last use, hits, priority and locks. O(size of the node).
        """
        parent, page, cut = _parent(node), self._page_bytes, at * TOKEN_BYTES
        self.created_nodes += 1
        upper = Node(self.created_nodes, node.tokens[:cut], node.packed[:cut], parent, node.created)
        upper.last_use, upper.hits, upper.priority, upper.locks = node.last_use, node.hits, node.priority, node.locks
        upper.below = 1 if node.packed else 0
        if node.states:
            halves = [
                (None, None) if state is None else component.split(state, at, node.size)
                for component, state in zip(self._components, node.states, strict=True)
            ]
            upper.states, node.states = tuple(half[0] for half in halves), tuple(half[1] for half in halves)
        if node.stored is not None and self._tier is not None:
            upper.stored, node.stored = self._tier.split(node.stored, at, node.size)
        parent.adopt(node.tokens[:page], upper)
        node.tokens, node.packed = node.tokens[cut:], node.packed[cut:]
        node.parent, node.start, node.size = upper, node.start + at, node.size - at
        upper.adopt(node.tokens[:page], node)
        self._version += 1
        if self._splits_rekey and node.is_evictable_leaf:
            self._heap.offer(node)
        if self._watcher is not None:
            self._watcher.split(upper, node)
        return upper

    # --- called by Lease ----------------------------------------------------------------------------------------

    def grow_lease(self, lease: Lease, tokens: bytes, slots: Slots) -> Grown:
        """See `Lease.grow`."""
        begin, count = lease.length, len(slots)
        count -= count % self.page_size
        if count <= begin or not self.enabled:
            return Grown(begin, EMPTY, EMPTY)
        node = lease.node or self._root(lease.namespace)
        page, position, end = self._page_bytes, begin * TOKEN_BYTES, count * TOKEN_BYTES
        there: list[Node] = []
        while position < end and (child := node.children.get(tokens[position : position + page])) is not None:
            segment = child.tokens
            stop = position + len(segment)
            if stop > end or not tokens.startswith(segment, position):
                limit = min(len(segment), end - position)
                same = self._whole_pages(common_prefix(tokens, position, segment, 0, limit))
                child = self._split(child, same // TOKEN_BYTES)
            there.append(child)
            position += child.size * TOKEN_BYTES
            node = child
        self._tick += 1
        canonical: list[bytes] = []
        for child in there:
            if child.packed:
                canonical.append(child.packed)
                self._lock(child, lease.priority)
            else:
                self._bring_back(child, slots[child.start : child.start + child.size].tobytes(), lease.priority)
        if position < end:
            packed = slots[position // TOKEN_BYTES : count].tobytes()
            node = self._hang(node, tokens[position:end], packed, lease.priority)
        lease.node, lease.length = node, count
        if not canonical:
            return Grown(begin, EMPTY, EMPTY)
        found = np.frombuffer(bytearray().join(canonical), dtype=np.int32)
        return Grown(begin, slots[begin : begin + len(found)].copy(), found)

    def _lock(self, node: Node, priority: int) -> None:
        """One more lease through `node`, which counts as an access."""
        if not node.locks:
            self.evictable -= node.size
            self.protected += node.size
            if node.entry is not None:
                self._heap.void(node)
        node.locks += 1
        node.last_use = self._tick
        node.priority = max(node.priority, priority)

    def _root(self, namespace: Namespace) -> Root:
        root = self._roots.get(namespace)
        if root is None:
            self.created_nodes += 1
            root = self._roots[namespace] = Root(self.created_nodes, namespace, self._tick)
        return root

    def _hang(self, parent: Node, tokens: bytes, packed: bytes, priority: int) -> Node:
        """A new leaf, locked once."""
        self.created_nodes += 1
        leaf = Node(self.created_nodes, tokens, packed, parent, self._tick)
        leaf.locks, leaf.priority = 1, priority
        parent.adopt(tokens[: self._page_bytes], leaf)
        parent.below += 1
        self.protected += leaf.size
        self._version += 1
        if self._watcher is not None:
            self._watcher.hung(leaf)
        if self._policy.on_insert is not None:
            self._policy.on_insert(leaf.view())
        return leaf

    def _bring_back(self, node: Node, packed: bytes, priority: int) -> None:
        """A node whose K/V was off the device has it again, and is locked once."""
        node.packed = packed
        _parent(node).below += 1
        self.evictable += node.size
        self._version += 1
        self._lock(node, priority)
        if self._watcher is not None:
            self._watcher.changed(node)
        if self._policy.on_insert is not None:
            self._policy.on_insert(node.view())

    def attach_state(self, lease: Lease, component: str, state: Any) -> bool:
        """See `Lease.attach`."""
        names = [each.name for each in self._components]
        at, node = names.index(component), lease.node
        if node is None or (node.states and node.states[at] is not None):
            return False
        states = list(node.states or [None] * len(names))
        states[at] = state
        node.states = tuple(states)
        self._version += 1
        if self._watcher is not None:
            self._watcher.changed(node)
        return True

    def release_lease(self, lease: Lease) -> None:
        """See `Lease.release`."""
        self._leases.remove(lease)
        node = deepest = lease.node
        if node is None or deepest is None:
            return
        given = 0
        while (parent := node.parent) is not None:
            node.locks -= 1
            if not node.locks:
                given += node.size
            node = parent
        self.protected -= given
        self.evictable += given
        if not deepest.locks and not deepest.below:
            self._heap.offer(deepest)

    # --- eviction -----------------------------------------------------------------------------------------------

    def evict(self, tokens: int, *, forget: bool = False) -> int:
        """Give at least `tokens` tokens of unlocked leaves back to the allocator, whole nodes, if there are as many.

        Returns the tokens given back. With `forget` the tier keeps no copy. O(log leaves) amortised for each node.
        """
        if tokens <= 0:
            return 0
        freed, told, now = 0, self._policy.on_evict, self._clock()
        while freed < tokens and (victim := self._heap.pop()) is not None:
            node, key = victim
            freed += node.size
            view = node.view() if told is not None else None
            try:
                self._vacate(node, now, forget=forget)
            except BaseException:
                if node.packed:
                    self._heap.offer(node)
                raise
            if view is not None and told is not None:
                told(view, key)
        return freed

    def _vacate(self, node: Node, now: float, *, forget: bool) -> None:
        """The one way off the device: the node's slots go back to the allocator.

        The node leaves the tree, with whatever hangs below it in the tier, unless the tier keeps a copy of its K/V.
        Others' code is called before the books change, or after: the node stays as it is, or is gone, if that fails.
        """
        if self._tier is not None and node.stored is None and not forget:
            node.stored = self._tier.store(node)
        self._allocator.release_packed(node.packed)
        parent, states = _parent(node), node.states
        self.evictable -= node.size
        self.evicted += node.size
        if not forget:
            self.evicted_by[self._policy.name] += node.size
        self._version += 1
        parent.below -= 1
        node.packed, node.states = b"", ()
        if not parent.below and not parent.locks and parent.parent is not None:
            self._heap.offer(parent)
        if node.stored is None or forget:
            self._take_out(parent, node, now)
        elif self._watcher is not None:
            self._watcher.changed(node)
        if states:
            self._free(states)

    def _take_out(self, parent: Node, node: Node, now: float) -> None:
        if self._watcher is not None:
            self._watcher.leaving(node)
        page = node.tokens[: self._page_bytes]
        place = parent.namespace if isinstance(parent, Root) else parent.id
        what = (place, node.id, node.tokens, self._tick, now, self._policy.name)
        self.log.add(tuple.__new__(Evicted, what))
        del parent.children[page]
        node.parent, node.tokens = None, b""  # a void entry of the heap may keep the node alive for a while
        if not parent.children:
            parent.children = NO_CHILDREN
            if isinstance(parent, Root):
                del self._roots[parent.namespace]
        if self._tier is not None:
            self._drop_copies(self._tier, node)

    def _drop_copies(self, tier: Tier, node: Node) -> None:
        """A node leaves the tree, and whatever hangs below it, all in the tier, leaves too."""
        stack = [node]
        while stack:
            node = stack.pop()
            if node.stored is not None:
                tier.drop(node.stored)
                node.stored = None
            stack += node.children.values()
            node.parent, node.children = None, NO_CHILDREN

    def _free(self, states: tuple[Any, ...]) -> None:
        for component, state in zip(self._components, states, strict=True):
            if state is not None:
                component.free(state)

    def flush(self) -> int:
        """Evict everything that is not locked and empty the tier of it; returns the tokens given back."""
        if self._tier is not None:
            now = self._clock()
            for node in [node for node in self.nodes() if not node.packed]:
                parent = node.parent
                if parent is not None and (parent.packed or isinstance(parent, Root)):
                    self._version += 1
                    self._take_out(parent, node, now)
        return self.evict(self.evictable, forget=True)

    # --- proving ------------------------------------------------------------------------------------------------

    def nodes(self) -> Iterator[Node]:
        """Every node but the roots, parents before children."""
        stack = [child for root in self._roots.values() for child in root.children.values()]
        while stack:
            node = stack.pop()
            yield node
            stack += node.children.values()

    def check(self) -> None:
        """Raise `AssertionError` unless every invariant of the tree and its books holds. O(tokens)."""
        through: dict[int, int] = {}
        for lease in self._leases:
            for node in lease.nodes():
                through[node.id] = through.get(node.id, 0) + 1
        evictable = protected = leaves = 0
        seen: set[int] = set()
        for node in self.nodes():
            node.check(self.page_size, through.get(node.id, 0))
            leaves += node.is_evictable_leaf
            if node.packed:
                seen.update(node.slots.tolist())
                evictable += 0 if node.locks else node.size
                protected += node.size if node.locks else 0
        assert (evictable, protected) == (self.evictable, self.protected), "evictable or protected is off"
        assert leaves == self._heap.valid, "the heap miscounts its valid entries"
        assert len(seen) == evictable + protected, "two nodes hold one slot"
        assert all(root.children for root in self._roots.values()), "an empty namespace was left behind"
        assert not NO_CHILDREN, "the empty dictionary that leaves share was written"


def _parent(node: Node) -> Node:
    assert node.parent is not None, "the root has no parent"
    return node.parent
