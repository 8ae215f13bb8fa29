"""The prefix cache: one radix tree per namespace over the slots of the KV pool.

A node holds a segment of tokens and the slots of their K/V, in whole pages; children are keyed by their first page.
A node is *evictable* while no lease runs through it and *protected* otherwise. Splitting slices indices and moves no
K/V. Times are logical ticks: one for each `acquire` and each `Lease.grow`.

Complexities: n is the length of a key in tokens (compared at memory speed), d the number of nodes on its path.
"""

from collections.abc import Iterator

import numpy as np

from rtk.cache.heap import EvictionHeap
from rtk.cache.key import TOKEN_BYTES, Key, Namespace, common_prefix
from rtk.cache.lease import Grown, Lease
from rtk.cache.node import NO_MATCH, LockLedger, Match, Node
from rtk.cache.slots import EMPTY, SlotAllocator, Slots
from rtk.plugin.guard import GuardedEviction


class PrefixCache:
    """The tree, its books and its eviction. Not thread-safe: it belongs to the scheduler's thread."""

    def __init__(self, allocator: SlotAllocator, policy: GuardedEviction, *, enabled: bool = True) -> None:
        """With `enabled` false nothing is ever cached: matches are empty and grown leases hold nothing."""
        self.enabled = enabled
        self.page_size = allocator.page_size
        self.evictable = 0
        """Tokens in nodes without locks."""
        self.protected = 0
        """Tokens in locked nodes."""
        self.evicted = 0
        """Tokens evicted since the start."""
        self._allocator = allocator
        self._policy = policy
        self._heap = EvictionHeap(policy)
        self._roots: dict[Namespace, Node] = {}
        self._leases: set[Lease] = set()
        self._tick = 0
        self._version = 0
        self._next_id = 0

    # --- asking -------------------------------------------------------------------------------------------------

    def peek(self, key: Key, limit: int | None = None) -> Match:
        """The longest cached prefix of `key`, at most `limit` tokens, in whole pages. Changes nothing. O(n + d)."""
        root = self._roots.get(key.namespace)
        if root is None:
            return NO_MATCH
        node, used, position = self._walk(root, key.tokens, self._whole_pages(key, limit))
        return Match(position // TOKEN_BYTES, node, used, self._version) if position else NO_MATCH

    def _whole_pages(self, key: Key, limit: int | None) -> int:
        """The usable length of a key, in bytes."""
        tokens = key.length if limit is None else max(0, min(limit, key.length))
        return (tokens - tokens % self.page_size) * TOKEN_BYTES

    def _walk(self, node: Node, tokens: bytes, end: int) -> tuple[Node, int, int]:
        """Follow `tokens[:end]` down: the deepest node reached, tokens used of it, bytes matched."""
        page = self.page_size * TOKEN_BYTES
        position = used = 0
        while position < end:
            child = node.children.get(tokens[position : position + page])
            if child is None:
                break
            size = len(child.tokens)
            same = common_prefix(tokens, position, child.tokens, 0, min(size, end - position))
            same -= same % page
            node, used = child, same // TOKEN_BYTES
            position += same
            if same < size:
                break
        return node, used, position

    def lock_cost(self, match: Match, ledger: LockLedger) -> int:
        """Evictable tokens that acquiring `match` would protect, beyond those the ledger has moved. O(d). Pure."""
        return sum(max(0, used - ledger.moved.get(node.id, 0)) for node, used in match.path() if not node.locks)

    # --- taking and giving --------------------------------------------------------------------------------------

    def acquire(self, key: Key, match: Match) -> Lease:
        """Lock the matched prefix and count the hit. Splits the last node where the match ends inside it. O(n + d).

        `match` may be of an older version of the tree, as long as its prefix is still cached; otherwise the lease is
        shorter than the match was.
        """
        if match.version != self._version:
            match = self.peek(key, match.length)
        self._tick += 1
        lease = Lease(self, key.namespace)
        self._leases.add(lease)
        if match.node is not None:
            lease.node = self._split(match.node, match.offset) if match.offset < len(match.node.slots) else match.node
            lease.length = match.length
            self._lock_path(lease.node)
        return lease

    def _lock_path(self, node: Node | None) -> None:
        while node is not None and node.parent is not None:
            self._lock(node)
            node.hits += 1
            self._policy.on_hit(node.view())
            node = node.parent

    def _lock(self, node: Node) -> None:
        """One more lease through `node`, which counts as an access."""
        if not node.locks:
            self.evictable -= len(node.slots)
            self.protected += len(node.slots)
        node.locks += 1
        node.last_use = self._tick

    def _unlock(self, node: Node) -> None:
        node.locks -= 1
        if not node.locks:
            self.protected -= len(node.slots)
            self.evictable += len(node.slots)
            if not node.children:
                self._heap.offer(node)

    def _split(self, node: Node, at: int) -> Node:
        """Cut `node` after `at` tokens; the new upper half is returned. The lower half keeps the id.

        Both halves keep created, last use, hits and locks. O(size of the node).
        """
        parent, page = _parent(node), self.page_size * TOKEN_BYTES
        cut = at * TOKEN_BYTES
        upper = self._new_node(node.namespace, node.tokens[:cut], node.slots[:at].copy(), parent)
        upper.created, upper.last_use, upper.hits, upper.locks = node.created, node.last_use, node.hits, node.locks
        parent.children[node.tokens[:page]] = upper
        node.tokens, node.slots = node.tokens[cut:], node.slots[at:].copy()
        node.parent, node.start = upper, node.start + at
        upper.children[node.tokens[:page]] = node
        self._version += 1
        if node.is_evictable_leaf:
            self._heap.offer(node)
        return upper

    def _new_node(self, namespace: Namespace, tokens: bytes, slots: Slots, parent: Node | None) -> Node:
        self._next_id += 1
        return Node(self._next_id, namespace, tokens, slots, parent, self._tick)

    # --- called by Lease ----------------------------------------------------------------------------------------

    def grow_lease(self, lease: Lease, tokens: bytes, slots: Slots) -> Grown:
        """See `Lease.grow`."""
        page = self.page_size * TOKEN_BYTES
        begin = position = lease.length
        end = len(slots) - len(slots) % self.page_size
        if end <= begin or not self.enabled:
            return Grown(begin, EMPTY, EMPTY)
        self._tick += 1
        node = lease.node or self._root(lease.namespace)
        canonical: list[Slots] = []
        while position < end:
            offset = position * TOKEN_BYTES
            child = node.children.get(tokens[offset : offset + page])
            if child is None:
                child = self._hang(node, tokens[offset : end * TOKEN_BYTES], slots[position:end].copy())
            else:
                limit = min(len(child.tokens), end * TOKEN_BYTES - offset)
                same = common_prefix(tokens, offset, child.tokens, 0, limit)
                same -= same % page
                if same < len(child.tokens):
                    child = self._split(child, same // TOKEN_BYTES)
                canonical.append(child.slots)
            self._lock(child)
            position += len(child.slots)
            node = child
        lease.node, lease.length = node, position
        found = sum(map(len, canonical))
        return Grown(begin, slots[begin : begin + found].copy(), _joined(canonical))

    def _root(self, namespace: Namespace) -> Node:
        root = self._roots.get(namespace)
        if root is None:
            root = self._roots[namespace] = self._new_node(namespace, b"", EMPTY, None)
        return root

    def _hang(self, parent: Node, tokens: bytes, slots: Slots) -> Node:
        """A new leaf. The tokens count as evictable until the caller locks it."""
        leaf = self._new_node(parent.namespace, tokens, slots, parent)
        parent.children[tokens[: self.page_size * TOKEN_BYTES]] = leaf
        self.evictable += len(slots)
        self._version += 1
        self._policy.on_insert(leaf.view())
        return leaf

    def release_lease(self, lease: Lease) -> None:
        """See `Lease.release`."""
        self._leases.remove(lease)
        node = lease.node
        while node is not None and node.parent is not None:
            self._unlock(node)
            node = node.parent

    # --- eviction -----------------------------------------------------------------------------------------------

    def evict(self, tokens: int) -> int:
        """Give at least `tokens` tokens of unlocked leaves back to the allocator, whole nodes, if there are as many.

        Returns the tokens given back. O(log leaves) amortised for each node.
        """
        freed = 0
        while freed < tokens and (victim := self._heap.pop()) is not None:
            node, key = victim
            freed += len(node.slots)
            view = node.view()
            self._remove(node)
            self._policy.on_evict(view, key)
        return freed

    def _remove(self, node: Node) -> None:
        parent = _parent(node)
        del parent.children[node.tokens[: self.page_size * TOKEN_BYTES]]
        node.parent = None
        self.evictable -= len(node.slots)
        self.evicted += len(node.slots)
        self._version += 1
        self._allocator.release(node.slots)
        if parent.is_evictable_leaf:
            self._heap.offer(parent)
        elif not parent.children and parent.parent is None:
            del self._roots[parent.namespace]

    def flush(self) -> int:
        """Evict everything that is not locked; returns the tokens given back."""
        return self.evict(self.evictable)

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
        evictable = protected = 0
        seen: set[int] = set()
        for node in self.nodes():
            self._check_node(node, through.get(node.id, 0))
            seen.update(node.slots.tolist())
            evictable += 0 if node.locks else len(node.slots)
            protected += len(node.slots) if node.locks else 0
        assert (evictable, protected) == (self.evictable, self.protected), "evictable or protected is off"
        assert len(seen) == evictable + protected, "two nodes hold one slot"
        assert all(root.children for root in self._roots.values()), "an empty namespace was left behind"

    def _check_node(self, node: Node, leases: int) -> None:
        parent, size = _parent(node), len(node.slots)
        assert size and len(node.tokens) == size * TOKEN_BYTES and size % self.page_size == 0, "key and slots differ"
        assert parent.children[node.tokens[: self.page_size * TOKEN_BYTES]] is node, "child under a wrong key"
        assert node.start == parent.start + len(parent.slots), "node starts elsewhere than its parent ends"
        assert node.locks == leases, f"{node.locks} locks for {leases} leases"
        assert not node.is_evictable_leaf or node.heap_key is not None, "an evictable leaf is missing from the heap"


def _parent(node: Node) -> Node:
    assert node.parent is not None, "the root has no parent"
    return node.parent


def _joined(parts: list[Slots]) -> Slots:
    return np.concatenate(parts) if parts else EMPTY
