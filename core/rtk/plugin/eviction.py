"""The eviction contract: a policy ranks cached nodes; the host keeps tree, locks, pages, ticks and the heap."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple

FACTS = frozenset({"size", "start", "created", "last_use", "hits", "priority"})
"""Every fact of a node that a policy may read (and declare in `EvictionPolicy.facts`)."""


class NodeView(NamedTuple):
    """What a policy sees of a cached node. Times are logical ticks of the cache, never a wall clock."""

    id: int
    """Unique, ascending in order of creation; the host's final tie-break."""
    size: int
    """Tokens that the node holds (a multiple of the page size)."""
    start: int
    """Position in the sequence of the node's first token."""
    created: int
    """Tick at which the node's tokens entered the cache."""
    last_use: int
    """Tick of the latest access: a hit, or an insertion that ran through the node."""
    hits: int
    """Requests that reused the node's tokens from the cache."""
    priority: int = 0
    """The highest priority of the requests that the node's tokens were held by."""


class EvictionPolicy(ABC):
    """Ranks unlocked leaves. Built once with its options; called from the scheduler's thread only."""

    facts: ClassVar[frozenset[str]] = FACTS
    """The facts that `key` reads: the host asks again only when one of them changed."""

    @abstractmethod
    def key(self, node: NodeView) -> tuple[Any, ...]:
        """The node's place in the order of eviction: smaller goes first; ties go to the lower node id.

        Must depend on nothing but the declared facts and on what the `on_*` methods were told; between two events of a
        node its key may grow, but not shrink. Its parts are of type bool, int, float (no NaN) or str: as many in every
        key, and strings at the same places. Called O(1) times per event on an unlocked leaf, and again when an eviction
        looks at a node if the policy overrides an `on_*` method.
        """

    def on_insert(self, node: NodeView) -> None:
        """Told when tokens enter the cache as `node`, or come back to it after an eviction that kept a copy.

        Not told for the halves of a split: the lower keeps its id, the upper is new.
        """

    def on_hit(self, node: NodeView) -> None:
        """Told when a request reuses the whole node; `hits` and `last_use` have this use in them."""

    def on_evict(self, node: NodeView, key: tuple[Any, ...]) -> None:
        """Told after `node` was evicted, by a flush too, with the key that chose it."""
