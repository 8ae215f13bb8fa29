"""Greedy dual size frequency (Cherkasova, HPL-98-69R1): worth of a node = inflation + uses * cost / size.

The cost of a node is what computing its tokens again takes: a token costs 1, and more the further back it looks. The
inflation is the worth of the last victim, fixed for a node when it is told of: so what was precious once, and is no
longer used, is overtaken by what comes. The upper half of a split is never told of: it counts as used now.
"""

from typing import Any

from rtk.plugin import EvictionPolicy, NodeView

from . import PolicyOptions


class Policy(EvictionPolicy):
    facts = frozenset({"hits", "size", "start"})

    def __init__(self, options: PolicyOptions) -> None:
        self._attention_tokens = options.attention_tokens
        self._inflation = 0.0
        self._since: dict[int, float] = {}  # the inflation when a node was last used, by id

    def key(self, node: NodeView) -> tuple[float]:
        cost_per_token = 1 + (node.start + node.size / 2) / self._attention_tokens
        return (self._since.get(node.id, self._inflation) + (1 + node.hits) * cost_per_token,)

    def on_insert(self, node: NodeView) -> None:
        self._since[node.id] = self._inflation

    def on_hit(self, node: NodeView) -> None:
        self._since[node.id] = self._inflation

    def on_evict(self, node: NodeView, key: tuple[Any, ...]) -> None:
        self._inflation = max(self._inflation, key[0])
        self._since.pop(node.id, None)
