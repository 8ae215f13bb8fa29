"""Named prefixes that stay cached: leases that no request holds, on a budget and for a time."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from rtk.cache.key import Namespace
from rtk.cache.lease import Lease
from rtk.cache.node import Match, Node


@dataclass(frozen=True, slots=True)
class Pin:
    """One pinned prefix."""

    name: str
    lease: Lease
    expires_s: float | None
    """By the pins' clock; None keeps it until it is taken off."""

    @property
    def tokens(self) -> int:
        """Tokens pinned, in whole pages."""
        return self.lease.length

    @property
    def namespace(self) -> Namespace:
        """Where the prefix is cached."""
        return self.lease.namespace


class Pins:
    """The pins of one cache. What they hold counts as protected."""

    def __init__(self, budget: int, clock: Callable[[], float]) -> None:
        """`budget` is the most tokens that all pins together may hold."""
        self.budget = budget
        self.tokens = 0
        """Tokens that are pinned; what two pins share counts once."""
        self.changes = 0
        """How often a pin came or went."""
        self._clock = clock
        self._pins: dict[str, Pin] = {}
        self._nodes: frozenset[int] = frozenset()  # ids of the nodes pinned,
        self._as_of = (0, 0)  # as of a version of the tree, and so many changes
        self._due = math.inf  # when the first pin expires

    def __iter__(self) -> Iterator[Pin]:
        return iter(self._pins.values())

    def __len__(self) -> int:
        return len(self._pins)

    def __contains__(self, name: str) -> bool:
        return name in self._pins

    def shared(self, match: Match) -> int:
        """Tokens of a match of now that are pinned already. O(d); O(nodes pinned) after the tree or pins changed."""
        if match.node is None:
            return 0
        as_of = match.version, self.changes
        if self._as_of != as_of:
            self._nodes = frozenset(node.id for pin in self for node in pin.lease.nodes())
            self._as_of = as_of
        return sum(used for node, used in match.path() if node.id in self._nodes)

    def add(self, name: str, lease: Lease, ttl_s: float | None) -> Pin:
        """Keep a lease under a name that is free, for `ttl_s` seconds. O(nodes pinned)."""
        assert name not in self._pins, f"there is a pin {name!r} already"
        expires = None if ttl_s is None else self._clock() + ttl_s
        pin = self._pins[name] = Pin(name, lease, expires)
        self._count()
        return pin

    def remove(self, name: str) -> Pin:
        """Take a pin off; what it held becomes evictable. O(nodes pinned). Raises `KeyError`."""
        pin = self._pins[name]
        self._take_off([pin])
        return pin

    def expire(self) -> None:
        """Take off the pins whose time is over. O(1), and O(nodes pinned) where there are any."""
        now = self._clock()
        if now >= self._due:
            self._take_off([pin for pin in self if pin.expires_s is not None and pin.expires_s <= now])

    def _take_off(self, pins: list[Pin]) -> None:
        for pin in pins:
            del self._pins[pin.name]
            pin.lease.release()
        self._count()

    def _count(self) -> None:
        self.changes += 1
        self._due = min((pin.expires_s for pin in self if pin.expires_s is not None), default=math.inf)
        nodes: dict[int, Node] = {node.id: node for pin in self for node in pin.lease.nodes()}
        self.tokens = sum(node.size for node in nodes.values())
