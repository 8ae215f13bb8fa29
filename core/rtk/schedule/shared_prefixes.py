"""Which waiting requests begin like an earlier one, for the in-batch prefix check of policies."""

import heapq

from rtk.cache.key import TOKEN_BYTES, Key, Namespace

Beginning = tuple[Namespace, bytes]

FEW = 64
"""So many places that are out of date are no matter."""


class SharedPrefixes:
    """Waiting requests by their first tokens. The first of each group leads it, the others share its prefix."""

    def __init__(self, tokens: int) -> None:
        """Two requests share a prefix if as many first tokens of theirs are equal, in one namespace."""
        self._bytes = tokens * TOKEN_BYTES
        self._groups: dict[Beginning, list[int]] = {}  # heaps of places, some of them out of date
        self._of: dict[int, Beginning] = {}
        self._filed = 0  # places in all heaps
        self.changed: dict[int, bool] = {}
        """Whether each request, by its place, shares a prefix; those that changed since somebody cleared this."""

    def add(self, place: int, key: Key) -> None:
        """One more request waits. O(tokens to compare + log n) amortised."""
        if len(key.tokens) < self._bytes:
            return
        beginning = key.namespace, key.tokens[: self._bytes]
        group = self._groups.setdefault(beginning, [])
        first = group[0] if group else place
        heapq.heappush(group, place)
        self._of[place] = beginning
        self._filed += 1
        if place < first:
            self.changed[first] = True
        self.changed[place] = place > first
        if self._filed > 2 * len(self._of) + FEW:
            self._refile()

    def _refile(self) -> None:
        """Drop what is out of date: the first of a group may wait long, while others come and go. O(n log n)."""
        self._groups.clear()
        for place in sorted(self._of):
            self._groups.setdefault(self._of[place], []).append(place)
        self._filed = len(self._of)

    def remove(self, place: int) -> None:
        """It waits no more. O(log n) amortised."""
        self.changed.pop(place, None)
        beginning = self._of.pop(place, None)
        if beginning is None:
            return
        group = self._groups[beginning]
        if group[0] != place:
            return
        while group and self._of.get(group[0]) != beginning:
            heapq.heappop(group)
            self._filed -= 1
        if group:
            self.changed[group[0]] = False
        else:
            del self._groups[beginning]
