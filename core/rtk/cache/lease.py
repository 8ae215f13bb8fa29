"""A locked prefix, held by one request."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from rtk.cache.key import Namespace
from rtk.cache.node import Node
from rtk.cache.slots import EMPTY, Slots


class LeaseError(RuntimeError):
    """A lease was used after its release."""


@dataclass(frozen=True, slots=True)
class Grown:
    """What `Lease.grow` found in the tree already: the request's own copies, and the slots to use in their place."""

    start: int
    """Position of the first of them."""
    duplicates: Slots
    """The request's slots, no longer needed."""
    canonical: Slots
    """The tree's slots for the same positions."""


class Lessor(Protocol):
    """Who gives leases out: the prefix cache."""

    def grow_lease(self, lease: "Lease", tokens: bytes, slots: Slots) -> Grown:
        """See `Lease.grow`."""

    def release_lease(self, lease: "Lease") -> None:
        """See `Lease.release`."""


class Lease:
    """Keeps the first `length` tokens of a request in the cache. Released exactly once."""

    __slots__ = ("_lessor", "_released", "length", "namespace", "node")

    def __init__(self, lessor: Lessor, namespace: Namespace) -> None:
        self._lessor = lessor
        self._released = False
        self.namespace = namespace
        self.node: Node | None = None
        """The deepest node held; None while the lease holds nothing."""
        self.length = 0
        """Tokens held, from the first of the sequence; a multiple of the page size."""

    def nodes(self) -> Iterator[Node]:
        """The nodes held, from the deepest to the first. O(d)."""
        node = self.node
        while node is not None and node.parent is not None:
            yield node
            node = node.parent

    def slots(self) -> Slots:
        """The slots of the tokens held, [length] int32. O(length)."""
        parts = [node.slots for node in self.nodes()]
        return np.concatenate(parts[::-1]) if parts else EMPTY

    def grow(self, tokens: bytes, slots: Slots) -> Grown:
        """Cache more of the request's sequence and hold that too.

        `tokens` is the packed sequence from its first token, `slots` [n] the slot of each of its n tokens; only whole
        pages enter. Where the tree has a stretch already, the request's slots are returned as duplicates, for the
        caller to free and to replace by the tree's. O(n + d). Raises `LeaseError` after the release.
        """
        self._require()
        return self._lessor.grow_lease(self, tokens, slots)

    def release(self) -> None:
        """Unlock exactly what is held. O(d). Raises `LeaseError` the second time."""
        self._require()
        self._released = True
        self._lessor.release_lease(self)

    def _require(self) -> None:
        if self._released:
            raise LeaseError("the lease has been released already")
