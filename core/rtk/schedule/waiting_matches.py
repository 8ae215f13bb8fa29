"""How much of each waiting request is cached: kept up to date by what changes in the tree, instead of looked up anew.

A request waits at the *spot* where its way down the tree ends, filed by the page that would have to follow there. Most
changes concern one spot: a new leaf takes the requests along that wait for its first page, a split gives the spots of
the upper half to it, and a node that leaves sends its requests back to where it hung.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from rtk.cache.key import TOKEN_BYTES, Key, Namespace, common_prefix
from rtk.cache.node import Node, Root
from rtk.cache.tree import PrefixCache
from rtk.plugin.schedule import TreeView

Where = int | Namespace
"""A node by its id; a root, which may come and go, by its namespace."""


class Spot:
    """A position in the tree at which requests wait."""

    __slots__ = ("node", "number", "position", "waiting", "where")

    def __init__(self, number: int, where: Where, node: Node | None, position: int) -> None:
        self.number = number
        self.where = where
        self.node = node
        """None for a root."""
        self.position = position
        """In bytes, from the first token of the sequence."""
        self.waiting: dict[bytes, dict[int, Waiter]] = {}
        """By the page that would follow, and by place; those for whom nothing may follow under no bytes."""


class Waiter:
    """One waiting request."""

    __slots__ = ("end", "key", "limit", "page", "place", "spot")

    def __init__(self, place: int, key: Key, limit: int, end: int) -> None:
        self.place = place
        self.key = key
        self.limit = limit
        """Tokens that may be matched."""
        self.end = end
        """The same in whole pages, in bytes."""
        self.spot: Spot
        self.page: bytes


class WaitingMatches:
    """Watches a tree on behalf of the requests that wait. What it answers is what `PrefixCache.peek` would."""

    def __init__(self, cache: PrefixCache) -> None:
        self._cache = cache
        self._page = cache.page_size * TOKEN_BYTES
        self._spots: dict[Where, dict[int, Spot]] = {}
        self._waiters: dict[int, Waiter] = {}
        self._changed: dict[int, Waiter] = {}
        self._numbers: list[int] = []  # of spots that are gone
        self._spots_made = 0
        cache.watch(self)

    # --- the queue's side ---------------------------------------------------------------------------------------

    def add(self, place: int, key: Key, limit: int) -> None:
        """One more request waits; at most `limit` tokens of it may be matched. O(length + nodes on its path)."""
        end = max(0, min(len(key.tokens), limit * TOKEN_BYTES))
        waiter = self._waiters[place] = Waiter(place, key, limit, end - end % self._page)
        root = self._cache.root(key.namespace)
        if root is None:
            self._put(waiter, self._spot(key.namespace, None, 0))
        else:
            self._descend(waiter, root, 0)

    def remove(self, place: int) -> None:
        """It waits no more. O(1)."""
        waiter = self._waiters.pop(place)
        self._changed.pop(place, None)
        self._take_out(waiter)

    def changes(self) -> tuple[list[int], list[int], list[int], list[int]]:
        """Place, matched tokens, stored tokens and number of the spot, of all that changed since the last call.

        O(1) for each; a look-up for each where the cache has components or a tier.
        """
        changed, self._changed = list(self._changed.values()), {}
        if self._cache.plain:
            found = [(waiter.spot.position // TOKEN_BYTES, 0) for waiter in changed]
        else:
            matches = [self._cache.peek(waiter.key, waiter.limit) for waiter in changed]
            found = [(match.length, match.stored) for match in matches]
        return (
            [waiter.place for waiter in changed],
            [matched for matched, _ in found],
            [stored for _, stored in found],
            [waiter.spot.number for waiter in changed],
        )

    def tree(self, spots: NDArray[np.int64]) -> TreeView:
        """The nodes in which requests wait, and those above them; `spots` has the number of each request's spot.

        O(nodes) of these, and O(requests) at memory speed.
        """
        index: dict[Where, int] = {}
        parent: list[int] = []
        size: list[int] = []
        node_of = np.zeros(self._spots_made, dtype=np.int64)
        for where, by_position in self._spots.items():
            above, new = -1, []
            for step, length in _way(where, next(iter(by_position.values())).node):
                if step in index:
                    above = index[step]
                    break
                new.append((step, length))
            for step, length in reversed(new):
                parent.append(above)
                size.append(length)
                above = index[step] = len(index)
            node_of[[spot.number for spot in by_position.values()]] = above
        return TreeView(np.array(parent, np.int64), np.array(size, np.int64), node_of[spots])

    # --- the tree's side ----------------------------------------------------------------------------------------

    def hung(self, leaf: Node) -> None:
        """A new leaf: those who wait for it go on. O(1), and what a look-up below the parent costs for each of them."""
        parent = _parent(leaf)
        spot = self._spots.get(_where(parent), {}).get((parent.start + parent.size) * TOKEN_BYTES)
        group = spot.waiting.get(leaf.tokens[: self._page]) if spot else None
        if spot and group:
            self._forget(spot, leaf.tokens[: self._page])
            for waiter in group.values():
                self._descend(waiter, parent, spot.position)

    def split(self, upper: Node, lower: Node) -> None:
        """A node was cut, the lower half kept its id. O(spots in it)."""
        cut = (upper.start + upper.size) * TOKEN_BYTES
        here = self._spots.get(lower.id, {})
        for position in [position for position in here if position <= cut]:
            spot = self._spots.setdefault(upper.id, {})[position] = here.pop(position)
            spot.where, spot.node = upper.id, upper
        if not here:
            self._spots.pop(lower.id, None)
        if not self._cache.plain:
            self.changed(upper)

    def leaving(self, node: Node) -> None:
        """A node is about to leave the tree, with all that hangs below it. O(nodes below, spots and requests there)."""
        parent, page = _parent(node), node.tokens[: self._page]
        gone = [waiter for spot in self._below(node) for group in spot.waiting.values() for waiter in group.values()]
        for waiter in gone:
            self._take_out(waiter)
        if gone:
            root = isinstance(parent, Root)
            spot = self._spot(_where(parent), None if root else parent, (parent.start + parent.size) * TOKEN_BYTES)
            group = spot.waiting.setdefault(page, {})
            for waiter in gone:
                waiter.spot, waiter.page = spot, page
                group[waiter.place] = self._changed[waiter.place] = waiter

    def changed(self, node: Node) -> None:
        """What a node holds has changed, but not its tokens. O(nodes below, spots and requests there)."""
        for spot in self._below(node):
            for group in spot.waiting.values():
                self._changed |= group

    def _below(self, node: Node) -> list[Spot]:
        """The spots in a node and in all below it."""
        spots: list[Spot] = []
        stack = [node]
        while stack:
            node = stack.pop()
            spots += self._spots.get(node.id, {}).values()
            stack += node.children.values()
        return spots

    # --- spots --------------------------------------------------------------------------------------------------

    def _descend(self, waiter: Waiter, node: Node, position: int) -> None:
        """Put a request, which is nowhere, where its way down from `node` ends. Its first bytes lead to `node`."""
        tokens, end, page = waiter.key.tokens, waiter.end, self._page
        while position < end and (child := node.children.get(tokens[position : position + page])) is not None:
            segment, node = child.tokens, child
            stop = position + len(segment)
            if stop > end or not tokens.startswith(segment, position):
                same = common_prefix(tokens, position, segment, 0, min(len(segment), end - position))
                position += same - same % page
                break
            position = stop
        self._put(waiter, self._spot(_where(node), None if isinstance(node, Root) else node, position))

    def _spot(self, where: Where, node: Node | None, position: int) -> Spot:
        here = self._spots.setdefault(where, {})
        if position not in here:
            if not self._numbers:
                self._numbers.append(self._spots_made)
                self._spots_made += 1
            here[position] = Spot(self._numbers.pop(), where, node, position)
        return here[position]

    def _put(self, waiter: Waiter, spot: Spot) -> None:
        at = spot.position
        waiter.spot = spot
        waiter.page = waiter.key.tokens[at : at + self._page] if at < waiter.end else b""
        spot.waiting.setdefault(waiter.page, {})[waiter.place] = self._changed[waiter.place] = waiter

    def _take_out(self, waiter: Waiter) -> None:
        group = waiter.spot.waiting[waiter.page]
        del group[waiter.place]
        if not group:
            self._forget(waiter.spot, waiter.page)

    def _forget(self, spot: Spot, page: bytes) -> None:
        """Nobody waits at the spot for this page any more."""
        del spot.waiting[page]
        if spot.waiting:
            return
        here = self._spots[spot.where]
        del here[spot.position]
        self._numbers.append(spot.number)
        if not here:
            del self._spots[spot.where]


def _where(node: Node) -> Where:
    return node.namespace if isinstance(node, Root) else node.id


def _way(where: Where, node: Node | None) -> Iterator[tuple[Where, int]]:
    """Each node from a spot's to the root, with its size."""
    if node is None:
        yield where, 0
    while node is not None:
        yield _where(node), node.size
        node = node.parent


def _parent(node: Node) -> Node:
    assert node.parent is not None, "a node of the tree hangs nowhere"
    return node.parent
