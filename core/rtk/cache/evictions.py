"""What left the prefix cache lately, in bounded memory, so that a miss can be explained."""

from collections import deque
from typing import NamedTuple

from rtk.cache.key import Namespace

KEPT = 4096
"""Evictions that are remembered; the oldest is forgotten first."""


Place = int | Namespace
"""What an evicted node hung below: a node, by id, or the root of a namespace."""


class Evicted(NamedTuple):
    """One eviction."""

    below: Place
    page: bytes
    """The first page of the node's tokens, packed."""
    tokens: int
    """How many tokens the node had."""
    tick: int
    """The cache's tick."""
    time_s: float
    """By the cache's clock."""
    policy: str
    """The eviction policy that chose the node; the host's own order once it stood in for a faulty one."""


class EvictionLog:
    """The latest evictions, found by where they happened."""

    def __init__(self) -> None:
        self._recent: deque[Evicted] = deque(maxlen=KEPT)

    def __len__(self) -> int:
        return len(self._recent)

    def add(self, evicted: Evicted) -> None:
        """Remember an eviction. O(1)."""
        self._recent.append(evicted)

    def find(self, below: Place, page: bytes) -> Evicted | None:
        """The latest eviction, from below `below`, of a node with that first page. O(KEPT)."""
        return next((e for e in reversed(self._recent) if e.page == page and e.below == below), None)
