"""Which rows of a batch have which positions in the same slots, as the cache's tree tells it."""

from dataclasses import dataclass

import numpy as np

from rtk.cache.node import Node
from rtk.plugin.attention import SharedRun
from rtk.schedule.request import Request

WORTH = 512
"""Reads of a slot that a run saves at least. One more call for each layer costs as much on a CPU as 256 of two rows do,
448 of eight, and 700 of 32."""


@dataclass(slots=True)
class _Run:
    """Nodes one below the other that the same rows run through."""

    rows: list[int]
    start: int
    stop: int
    above: "_Run | None"

    @property
    def pays(self) -> bool:
        return (len(self.rows) - 1) * (self.stop - self.start) >= WORTH


class Sharing:
    """Finds the runs of each step's batch, and keeps them: from one decode step to the next they rarely change."""

    def __init__(self) -> None:
        self._nodes: list[Node | None] = []
        self._runs: tuple[SharedRun, ...] = ()

    def runs(self, batch: list[Request]) -> tuple[SharedRun, ...]:
        """The runs of a batch, those nearest to the root first. O(rows); O(nodes on their paths) for another batch.

        A row's lease ends before its first query, and its table has the slots of the nodes on its path. Which tokens
        the paths of two nodes have in common never changes while somebody holds both: a split moves no token.
        """
        nodes = [request.lease.node if request.lease else None for request in batch]
        if nodes != self._nodes:
            self._nodes, self._runs = nodes, tuple(_find(nodes))
        return self._runs


def _find(nodes: list[Node | None]) -> list[SharedRun]:
    through: dict[Node, list[int]] = {}
    for row, node in enumerate(nodes):
        while node is not None and node.parent is not None:
            through.setdefault(node, []).append(row)
            node = node.parent
    ends: dict[Node | None, _Run] = {}  # the run that each node is a part of
    runs: list[_Run] = []
    for node in sorted((node for node, rows in through.items() if len(rows) > 1), key=lambda node: node.start):
        run = ends.get(node.parent)
        if run is None or len(run.rows) > len(through[node]):
            run = _Run(through[node], node.start, node.start, run)
            runs.append(run)
        run.stop = node.start + node.size
        ends[node] = run
    for run in runs:
        if run.above is not None and not run.above.pays:
            run.start = run.above.start  # those of its rows have that in common too
    return [SharedRun(np.array(run.rows, np.int32), run.start, run.stop) for run in runs if run.pays]
