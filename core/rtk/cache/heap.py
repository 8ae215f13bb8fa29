"""The host's one eviction heap: stays valid between calls, at O(log n) an event."""

import itertools
from heapq import heapify, heappop, heappush
from typing import Any

from rtk.cache.node import Node
from rtk.plugin.guard import GuardedEviction

_Entry = tuple[tuple[Any, ...], int, int, Node]


class EvictionHeap:
    """Unlocked leaves by the policy's key, then by node id.

    Invariant: every unlocked leaf has one valid entry, with the key it has now: that numbered `node.entry`. Whatever
    changes a fact locks the node, which voids its entry, or offers it again; void entries are passed over. Only a
    policy with a memory of its own may change its mind without that: its keys are asked for again at the top.
    """

    def __init__(self, policy: GuardedEviction) -> None:
        self._policy = policy
        self._heap: list[_Entry] = []
        self.valid = 0
        """Entries that are valid: one for each unlocked leaf."""
        self._numbers = itertools.count()
        self._own_order = False  # the keys are the host's, in place of those of a policy that was given up

    def __len__(self) -> int:
        return len(self._heap)

    def offer(self, node: Node) -> None:
        """`node` became an unlocked leaf, or is one whose facts changed. O(log n)."""
        key = self._policy.key(node.view())
        if self._policy.faulted and not self._own_order:
            self._rebuild()
        self._enter(node, key)

    def void(self, node: Node) -> None:
        """`node` is no unlocked leaf any more. O(1)."""
        node.entry = None
        self.valid -= 1

    def pop(self) -> tuple[Node, tuple[Any, ...]] | None:
        """Take out the unlocked leaf that goes first, with its key; None if there is none. O(log n) amortised.

        A key that grows each time it is asked for, though nothing happened, is a fault: nobody would go first.
        """
        first = next(self._numbers)  # entries from here on are made in this call
        while self._heap:
            key, _, number, node = self._heap[0]
            if node.entry != number:
                heappop(self._heap)
                continue
            if self._policy.remembers:
                current = self._policy.key(node.view())
                if self._policy.faulted and not self._own_order:
                    self._rebuild()
                    continue
                if current > key:
                    if number > first:
                        self._policy.fault("key() answers more each time it is asked")
                        self._rebuild()
                    else:
                        self._enter(node, current)
                    continue
            heappop(self._heap)
            self.void(node)
            return node, key
        return None

    def _enter(self, node: Node, key: tuple[Any, ...]) -> None:
        if node.entry is None:
            self.valid += 1
        node.entry = next(self._numbers)
        heappush(self._heap, (key, node.id, node.entry, node))
        if len(self._heap) > 2 * self.valid + 64:
            self._compact()

    def _compact(self) -> None:
        """Drop void entries. O(n), after at least n pushes."""
        self._heap = [entry for entry in self._heap if entry[3].entry == entry[2]]
        heapify(self._heap)

    def _rebuild(self) -> None:
        """Key every leaf anew, by the host's own order, after the policy was given up. O(n), once."""
        self._own_order = True
        valid = [(number, node) for _, _, number, node in self._heap if node.entry == number]
        self._heap = [(self._policy.key(node.view()), node.id, number, node) for number, node in valid]
        heapify(self._heap)
