"""What left the prefix cache lately, in bounded memory, so that a miss can be explained."""

from collections import deque
from typing import NamedTuple

from rtk.cache.key import TOKEN_BYTES, Namespace

KEPT = 4096
KEPT_BYTES = 16 * 1024 * 1024
"""How many evictions are remembered, and how much of tokens and salts for that; the oldest is forgotten first."""


Place = int | Namespace
"""What an evicted node hung below: a node, by id, or the root of a namespace."""


class Evicted(NamedTuple):
    """One eviction."""

    below: Place
    id: int
    """The node's."""
    packed: bytes
    """The node's tokens."""
    tick: int
    """The cache's tick."""
    time_s: float
    """By the cache's clock."""
    policy: str
    """The eviction policy that chose the node; the host's own order once it stood in for a faulty one."""

    @property
    def tokens(self) -> int:
        """How many tokens the node had."""
        return len(self.packed) // TOKEN_BYTES


class EvictionLog:
    """The latest evictions, found by where they happened."""

    def __init__(self) -> None:
        self._recent: deque[Evicted] = deque()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._recent)

    def add(self, evicted: Evicted) -> None:
        """Remember an eviction. O(1) amortised."""
        self._recent.append(evicted)
        self._bytes += len(evicted.packed) if type(evicted.below) is int else _bytes_of(evicted)
        if len(self._recent) > KEPT or self._bytes > KEPT_BYTES:
            self._forget()

    def _forget(self) -> None:
        while len(self._recent) > KEPT or self._bytes > KEPT_BYTES:
            self._bytes -= _bytes_of(self._recent.popleft())

    def find(self, places: dict[Place, int], tokens: bytes, at: int, page: int) -> Evicted | None:
        """The latest eviction of a node that held the page that follows on `tokens[:at]`, as `tokens` goes on.

        `places`: where nodes on the way of `tokens` end, in bytes. Those of evicted nodes are added: what hung below
        one left before it did. `page` is in bytes. O(KEPT_BYTES) at memory speed.
        """
        for evicted in reversed(self._recent):
            begin = places.get(evicted.below)
            if begin is None or begin > at:
                continue
            end = begin + len(evicted.packed)
            if at < end and tokens.startswith(evicted.packed[: at + page - begin], begin):
                return evicted
            if end <= at and tokens.startswith(evicted.packed, begin):
                places[evicted.id] = end
        return None


def _bytes_of(evicted: Evicted) -> int:
    """What clients can make large."""
    below = evicted.below
    names = () if isinstance(below, int) else (below.salt, below.extra, below.tenant)
    return len(evicted.packed) + sum(4 * len(name) for name in names if name)
