"""What left the prefix cache lately, in bounded memory, so that a miss can be explained."""

from collections import deque
from typing import NamedTuple
from zlib import crc32

from rtk.cache.key import TOKEN_BYTES, Namespace

KEPT = 4096
KEPT_BYTES = 4 * 1024 * 1024
"""How many evictions are remembered, and how much of pages and salts for that; the oldest is forgotten first."""


Place = int | Namespace
"""What an evicted node hung below: a node, by id, or the root of a namespace."""


class Evicted(NamedTuple):
    """One eviction."""

    below: Place
    id: int
    """The node's."""
    page: bytes
    """The first page of the node's tokens, packed."""
    tokens: int
    """How many tokens the node had."""
    checksum: int
    """Of these tokens, see `checksum`."""
    tick: int
    """The cache's tick."""
    time_s: float
    """By the cache's clock."""
    policy: str
    """The eviction policy that chose the node; the host's own order once it stood in for a faulty one."""


def checksum(tokens: bytes) -> int:
    """What tells a node's tokens from others with the same first page. O(n) at memory speed."""
    return crc32(tokens)


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
        self._bytes += _bytes_of(evicted)
        while len(self._recent) > KEPT or self._bytes > KEPT_BYTES:
            self._bytes -= _bytes_of(self._recent.popleft())

    def find(self, places: dict[Place, int], tokens: bytes, at: int) -> Evicted | None:
        """The latest eviction of a node that held what follows on `tokens[:at]`, as `tokens` goes on.

        `places`: where nodes on the way of `tokens` end, in bytes. Those of evicted nodes are added: what hung below
        one left before it did. O(KEPT) checksums.
        """
        for e in reversed(self._recent):
            begin = places.get(e.below)
            if begin is None or begin > at or not tokens.startswith(e.page, begin):
                continue
            end = begin + e.tokens * TOKEN_BYTES
            if begin == at:
                return e
            if checksum(tokens[begin:end]) == e.checksum:
                if at < end:
                    return e
                places[e.id] = end
        return None


def _bytes_of(evicted: Evicted) -> int:
    """What clients can make large."""
    salt = None if isinstance(evicted.below, int) else evicted.below.salt
    return len(evicted.page) + (4 * len(salt) if salt else 0)
