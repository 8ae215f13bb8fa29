"""The nodes of the prefix cache's trees, and what a look-up finds among them."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from rtk.cache.key import TOKEN_BYTES, Namespace
from rtk.cache.slots import Slots
from rtk.plugin.eviction import NodeView

NO_CHILDREN: dict[bytes, "Node"] = {}
"""Shared by all leaves, and never written: a dictionary of its own would cost each of them 64 bytes."""


class Node:
    """An edge of the tree and what hangs below it.

    Invariants: `tokens` and, where its K/V is on the device, `packed` have 4 bytes for each of `size` tokens, whole
    pages; `locks` is the number of leases that run through the node, hence never less than any child's; a node on the
    device has a parent on the device.
    """

    __slots__ = (
        "below",
        "children",
        "created",
        "entry",
        "hits",
        "id",
        "last_use",
        "locks",
        "packed",
        "parent",
        "priority",
        "size",
        "start",
        "states",
        "stored",
        "tokens",
    )

    def __init__(self, id: int, tokens: bytes, packed: bytes, parent: "Node | None", tick: int):
        self.id = id
        self.tokens = tokens
        self.packed = packed
        """The slots of the tokens, packed like tokens; empty while the K/V is not on the device."""
        self.size = len(tokens) // TOKEN_BYTES
        self.parent = parent
        self.start: int = parent.start + parent.size if parent is not None else 0
        self.children: dict[bytes, Node] = NO_CHILDREN
        """By first page."""
        self.below = 0
        """Children whose K/V is on the device."""
        self.locks = 0
        self.created = self.last_use = tick
        self.hits = 0
        self.priority = 0
        self.entry: int | None = None
        """The number of the heap's valid entry for the node."""
        self.states: tuple[Any, ...] = ()
        """What the cache's components keep for these tokens, one entry each, or nothing at all."""
        self.stored: Any = None
        """The tier's handle of a copy of the K/V."""

    @property
    def slots(self) -> Slots:
        """The slots of the tokens, [size] int32, read-only; [0] while the K/V is not on the device."""
        return np.frombuffer(self.packed, dtype=np.int32)

    @property
    def is_evictable_leaf(self) -> bool:
        """Whether the node may be evicted now."""
        return not self.locks and not self.below and self.parent is not None and bool(self.packed)

    def view(self) -> NodeView:
        """The facts that a policy sees."""
        facts = (self.id, self.size, self.start, self.created, self.last_use, self.hits, self.priority)
        return tuple.__new__(NodeView, facts)  # half the time of NodeView(*facts)

    def adopt(self, page: bytes, child: "Node") -> None:
        """Hang `child` below, or in the place of the child with the same first page. O(1)."""
        if self.children is NO_CHILDREN:
            self.children = {page: child}
        else:
            self.children[page] = child

    def check(self, page_size: int, leases: int) -> None:
        """Raise `AssertionError` unless the invariants hold, for a node that `leases` leases run through."""
        parent, size, page = self.parent, self.size, page_size * TOKEN_BYTES
        assert parent is not None, "a node of the tree has no parent"
        assert size and len(self.tokens) == size * TOKEN_BYTES and size % page_size == 0, "key and size differ"
        assert len(self.packed) in (0, len(self.tokens)), "key and slots differ"
        assert self.packed or (self.stored is not None and not self.locks), "a node is neither here nor in the tier"
        assert parent.children[self.tokens[:page]] is self, "child under a wrong key"
        assert self.start == parent.start + parent.size, "node starts elsewhere than its parent ends"
        assert self.locks == leases, f"{self.locks} locks for {leases} leases"
        assert self.below == sum(bool(child.packed) for child in self.children.values()), "children are miscounted"
        assert self.packed or not self.below, "a node on the device hangs below one that is not"
        assert self.is_evictable_leaf == (self.entry is not None), "the heap has other nodes than the evictable leaves"


class Root(Node):
    """Where the sequences of one namespace begin. Holds no tokens."""

    __slots__ = ("namespace",)

    def __init__(self, id: int, namespace: Namespace, tick: int) -> None:
        super().__init__(id, b"", b"", None, tick)
        self.namespace = namespace


class Match(NamedTuple):
    """What `peek` found: the longest cached prefix, in whole pages. Valid for the tree's `version` of then."""

    length: int
    """Tokens whose state is on the device and complete."""
    node: Node | None
    """The deepest node of the prefix; None when the length is 0."""
    offset: int
    """Tokens of `node` that belong to the prefix, at least one page."""
    version: int
    stored: int = 0
    """Tokens that follow the prefix and lie in the tier."""

    def path(self) -> Iterator[tuple[Node, int]]:
        """(node, tokens of it that belong to the prefix), from the deepest to the first. O(d)."""
        node, used = self.node, self.offset
        while node is not None and node.parent is not None:
            yield node, used
            node = node.parent
            used = node.size


NO_MATCH = Match(0, None, 0, -1)


class LockLedger:
    """A plan's own account of which evictable tokens would be protected. The tree is not touched."""

    __slots__ = ("moved",)

    def __init__(self) -> None:
        self.moved: dict[int, int] = {}
        """Tokens from the start of a node (by id) that earlier candidates of this plan already lock."""

    def move(self, match: Match) -> None:
        """Count the path of an admitted candidate as locked. O(d)."""
        for node, used in match.path():
            self.moved[node.id] = max(used, self.moved.get(node.id, 0))
