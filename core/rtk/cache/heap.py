"""The host's one eviction heap: stays valid between calls and is repaired only where an eviction looks."""

import heapq
import itertools
from collections.abc import Iterable
from typing import Any

from rtk.cache.node import Node
from rtk.plugin.guard import GuardedEviction

_Entry = tuple[tuple[Any, ...], int, int, Node]


class EvictionHeap:
    """Unlocked leaves by the policy's key, then by node id.

    Invariant: every unlocked leaf has an entry whose key (`node.heap_key`) is at most the node's key of now. An entry
    whose node was touched, locked or extended since is found out when it comes to the top: re-keyed or dropped. A key
    that became *more* urgent is entered at once; the entry it replaces is recognised by identity.
    """

    def __init__(self, policy: GuardedEviction) -> None:
        self._policy = policy
        self._keys_are_fixed = not policy.facts - {"created"}
        self._heap: list[_Entry] = []
        self._live = 0  # entries that are some node's heap_key
        self._serial = itertools.count()
        self._void = False  # the keys in the heap are those of a policy that was given up

    def __len__(self) -> int:
        return len(self._heap)

    def offer(self, node: Node) -> None:
        """`node` became an unlocked leaf, or is one whose facts changed. O(log n)."""
        if self._keys_are_fixed and node.heap_key is not None:
            return
        key = self._policy.key(node.view())
        if self._policy.faulted and not self._void:
            self._rebuild()
        if node.heap_key is None:
            self._live += 1
        elif not key < node.heap_key:
            return
        self._push(node, key)

    def pop(self) -> tuple[Node, tuple[Any, ...]] | None:
        """Take out the unlocked leaf that goes first, with its key; None if there is none. O(log n) amortised."""
        while self._heap:
            key, _, _, node = heapq.heappop(self._heap)
            if node.heap_key is not key:
                continue
            if not node.is_evictable_leaf:
                self._forget(node)
                continue
            current = self._policy.key(node.view())
            if self._policy.faulted and not self._void:
                self._rebuild(node)
            elif current > key:
                self._push(node, current)
            else:
                self._forget(node)
                return node, current
        return None

    def _push(self, node: Node, key: tuple[Any, ...]) -> None:
        node.heap_key = key
        heapq.heappush(self._heap, (key, node.id, next(self._serial), node))
        if len(self._heap) > 2 * self._live + 64:
            self._compact()

    def _forget(self, node: Node) -> None:
        node.heap_key = None
        self._live -= 1

    def _compact(self) -> None:
        """Drop replaced entries. O(n), after at least n pushes."""
        self._heap = [entry for entry in self._heap if entry[3].heap_key is entry[0]]
        heapq.heapify(self._heap)

    def _rebuild(self, *also: Node) -> None:
        """Enter every leaf anew, by the host's own order, after the policy was given up. O(n log n), once."""
        self._void = True
        self._refill([*(node for *_, node in self._heap), *also])

    def _refill(self, nodes: Iterable[Node]) -> None:
        unique = {node.id: node for node in nodes if node.heap_key is not None}
        self._heap = []
        for node in unique.values():
            key = self._policy.key(node.view())
            node.heap_key = key
            self._heap.append((key, node.id, next(self._serial), node))
        heapq.heapify(self._heap)
