"""What a node can hold beside the slots of full attention, where K/V goes that leaves the device, and who is told.

Components and tiers are not filled yet. The tree calls them and knows nothing of their kinds: sliding-window layers and
recurrent layers will each be a `Component`, host memory a `Tier`. A `Watcher` keeps account of matches.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from rtk.cache.node import Node


class Stretch(NamedTuple):
    """What a component has of one node on a path."""

    state: Any
    """None where the component has nothing."""
    used: int
    """Tokens of the node that the path runs through, at least a page."""
    size: int
    """Tokens of the node."""


class Component(Protocol):
    """One more kind of cached state.

    A node has a state for the end of its tokens or for all of them, as the component sees fit, or None.
    """

    name: str

    def usable(self, path: Sequence[Stretch]) -> int:
        """How many tokens of a path, from its first, this component can serve: at most the sum of `used`. Pure."""

    def split(self, state: Any, at: int, size: int) -> tuple[Any, Any]:
        """The states of the first `at` of a node's `size` tokens, and of the rest. `state` itself is used up."""

    def free(self, state: Any) -> None:
        """Give back what a node held. Called once for each state that `Lease.attach` and `split` put in."""


class Tier(Protocol):
    """Keeps copies of K/V that leaves the device. A handle is whatever the tier likes, except None."""

    def store(self, node: Node) -> Any:
        """Copy the K/V of `node`, which is on the device still; None when there is no room."""

    def split(self, handle: Any, at: int, size: int) -> tuple[Any, Any]:
        """The handles of the first `at` of a node's `size` tokens, and of the rest. `handle` itself is used up."""

    def drop(self, handle: Any) -> None:
        """Forget a copy. Called once for each handle that `store` and `split` answered."""


class Watcher(Protocol):
    """Told of every change that can make a match longer or shorter. Must not raise, nor change the tree."""

    def hung(self, leaf: Node) -> None:
        """A new leaf hangs below its parent."""

    def split(self, upper: Node, lower: Node) -> None:
        """A node was cut in two, `lower` below `upper`; `lower` kept the id."""

    def leaving(self, node: Node) -> None:
        """A node is about to leave the tree, with all that hangs below it."""

    def changed(self, node: Node) -> None:
        """A node's K/V left the device for the tier, or came back, or a component's state was attached."""
