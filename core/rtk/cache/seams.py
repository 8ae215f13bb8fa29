"""What a node can hold beside the slots of full attention, and where K/V goes that leaves the device.

Neither is filled yet. The tree calls them and knows nothing of their kinds: sliding-window layers and recurrent layers
will each be a `Component`, host memory a `Tier`.
"""

from collections.abc import Sequence
from typing import Any, Protocol

from rtk.cache.node import Node

Path = Sequence[tuple[Node, int]]
"""(node, tokens of it that are used), from the first to the deepest."""


class Component(Protocol):
    """One more kind of cached state.

    A node has a state for the end of its tokens or for all of them, as the component sees fit, or None.
    """

    name: str

    def usable(self, path: Path) -> int:
        """How many tokens of the path this component can serve, at most the sum of what is used; pure."""

    def split(self, state: Any, at: int, size: int) -> tuple[Any, Any]:
        """The states of the first `at` of a node's `size` tokens, and of the rest."""

    def free(self, state: Any) -> None:
        """Give back what a node held. Called once for each state that `split` and `Lease.attach` put in."""


class Tier(Protocol):
    """Keeps copies of K/V that leaves the device. A handle is whatever the tier likes, except None."""

    def store(self, node: Node) -> Any:
        """Copy the K/V of `node`, which is on the device still; None when there is no room."""

    def split(self, handle: Any, at: int, size: int) -> tuple[Any, Any]:
        """The handles of the first `at` of a node's `size` tokens, and of the rest."""

    def drop(self, handle: Any) -> None:
        """Forget a copy."""
