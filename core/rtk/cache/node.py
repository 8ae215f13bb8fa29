"""The nodes of the prefix cache's trees, and what a look-up finds among them."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from rtk.cache.key import Namespace
from rtk.cache.slots import Slots
from rtk.plugin.eviction import NodeView


class Node:
    """An edge of the tree and what hangs below it.

    Invariants: `len(tokens) == TOKEN_BYTES * len(slots)`, a multiple of the page size; `locks` is the number of leases
    that run through the node, hence never less than any child's.
    """

    __slots__ = (
        "children",
        "created",
        "heap_key",
        "hits",
        "id",
        "last_use",
        "locks",
        "namespace",
        "parent",
        "slots",
        "start",
        "tokens",
    )

    def __init__(self, id: int, namespace: Namespace, tokens: bytes, slots: Slots, parent: "Node | None", tick: int):
        self.id = id
        self.namespace = namespace
        self.tokens = tokens
        self.slots = slots
        self.parent = parent
        self.start: int = parent.start + len(parent.slots) if parent else 0
        self.children: dict[bytes, Node] = {}
        self.locks = 0
        self.created = self.last_use = tick
        self.hits = 0
        self.heap_key: tuple[Any, ...] | None = None

    @property
    def is_evictable_leaf(self) -> bool:
        """Whether the node may be evicted now."""
        return not self.locks and not self.children and self.parent is not None

    def view(self) -> NodeView:
        """The facts that a policy sees."""
        return NodeView(self.id, len(self.slots), self.start, self.created, self.last_use, self.hits)


@dataclass(frozen=True, slots=True)
class Match:
    """What `peek` found: the longest cached prefix, in whole pages. Valid for the tree's `version` of then."""

    length: int
    """Tokens."""
    node: Node | None
    """The deepest node of the prefix; None when the length is 0."""
    offset: int
    """Tokens of `node` that belong to the prefix, at least one page."""
    version: int

    def path(self) -> Iterator[tuple[Node, int]]:
        """(node, tokens of it that belong to the prefix), from the deepest to the first. O(d)."""
        node, used = self.node, self.offset
        while node is not None and node.parent is not None:
            yield node, used
            node = node.parent
            used = len(node.slots)


NO_MATCH = Match(0, None, 0, -1)


@dataclass(slots=True)
class LockLedger:
    """A plan's own account of which evictable tokens would be protected. The tree is not touched."""

    moved: dict[int, int] = field(default_factory=dict)
    """Tokens from the start of a node (by id) that earlier candidates of this plan already lock."""

    def move(self, match: Match) -> None:
        """Count the path of an admitted candidate as locked. O(d)."""
        for node, used in match.path():
            self.moved[node.id] = max(used, self.moved.get(node.id, 0))
