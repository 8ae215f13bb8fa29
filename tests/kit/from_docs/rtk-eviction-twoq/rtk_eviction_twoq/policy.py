"""Two queues, after 2Q (Johnson and Shasha, 1994): first come, first out for what is new; by last use for the rest."""

from rtk.plugin import EvictionPolicy, NodeView

from . import PolicyOptions


class TwoQueues(EvictionPolicy):
    facts = frozenset({"created", "last_use", "hits"})

    def __init__(self, options: PolicyOptions) -> None:
        self._burst = options.burst
        self._lead = options.lead

    def key(self, node: NodeView) -> tuple[bool, int]:
        if not self._came_back(node):
            return False, node.created
        if self._lead is None:
            return True, node.last_use
        return False, node.last_use + self._lead

    def _came_back(self, node: NodeView) -> bool:
        """Whether it was reused after the burst of requests that brought it."""
        return node.hits > 0 and node.last_use - node.created > self._burst
