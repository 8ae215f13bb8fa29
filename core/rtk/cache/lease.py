"""A locked prefix, held by one request."""

from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np

from rtk.cache.key import Namespace
from rtk.cache.node import Node
from rtk.cache.slots import Slots

RELEASED = "the lease has been released already"


class LeaseError(RuntimeError):
    """A lease was used after its release."""


class Segment(NamedTuple):
    """A stretch of a lease that lies in one node; requests whose leases share a node share its slots."""

    node: Node
    start: int
    """Position in the sequence of its first token."""
    length: int
    """Tokens."""


class Grown(NamedTuple):
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

    def attach_state(self, lease: "Lease", component: str, state: Any) -> bool:
        """See `Lease.attach`."""

    def release_lease(self, lease: "Lease") -> None:
        """See `Lease.release`."""


class Lease:
    """Keeps the first `length` tokens of a request in the cache. Released exactly once."""

    __slots__ = ("_lessor", "length", "namespace", "node", "priority")

    def __init__(self, lessor: Lessor, namespace: Namespace, priority: int) -> None:
        self._lessor: Lessor | None = lessor  # None once released
        self.namespace = namespace
        self.priority = priority
        """What the nodes it runs through are raised to."""
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

    def segments(self) -> list[Segment]:
        """What is held, in the order of the sequence. O(d)."""
        return [Segment(node, node.start, node.size) for node in self.nodes()][::-1]

    def slots(self) -> Slots:
        """The slots of the tokens held, [length] int32. O(length)."""
        parts, node = [], self.node
        while node is not None:
            parts.append(node.packed)
            node = node.parent
        parts.reverse()
        return np.frombuffer(bytearray().join(parts), dtype=np.int32)

    def grow(self, tokens: bytes, slots: Slots) -> Grown:
        """Cache more of the request's sequence and hold that too.

        `tokens` is the packed sequence from its first token, `slots` [n] the slot of each of its n tokens; only whole
        pages enter. Where the tree has a stretch already, the request's slots are returned as duplicates, for the
        caller to free and to replace by the tree's. O(n + d). Raises `LeaseError` after the release.
        """
        if self._lessor is None:
            raise LeaseError(RELEASED)
        return self._lessor.grow_lease(self, tokens, slots)

    def attach(self, component: str, state: Any) -> bool:
        """Keep what a component has computed at the end of what is held.

        False if the tree has that state already, or nothing is held: the caller keeps it. Raises `LeaseError` after the
        release.
        """
        if self._lessor is None:
            raise LeaseError(RELEASED)
        return self._lessor.attach_state(self, component, state)

    def release(self) -> None:
        """Unlock exactly what is held. O(d). Raises `LeaseError` the second time."""
        if self._lessor is None:
            raise LeaseError(RELEASED)
        lessor, self._lessor = self._lessor, None
        lessor.release_lease(self)
