"""Python's garbage collector beside a large prefix tree.

A full collection walks everything that lives: at a million nodes it stops the process for over a second. What lives
long is therefore *frozen*, out of the collector's sight, after a last look at it. What is frozen is still freed when
nothing refers to it any more. The tree breaks its own cycles when a node leaves; those of connections that were open at
the time would stay, so now and then, while the engine is idle, everything is looked at again.
"""

import gc

EVERY = 10_000
"""New nodes between two freezes. They bound what a collection has to walk."""

FULL = 100
"""Freezes after which everything is looked at again, as soon as the engine is idle."""


class Collector:
    """Freezes what has come to live since it last did. For a process that ends with its engine."""

    def __init__(self) -> None:
        self._nodes = 0
        self._freezes = 0

    def after_step(self, nodes: int, *, idle: bool) -> None:
        """`nodes`: made in the prefix tree since the start. O(1), and a collection of the young every `EVERY` nodes."""
        if nodes - self._nodes >= EVERY:
            self._nodes = nodes
            self.freeze()
        if idle and self._freezes >= FULL:
            gc.unfreeze()
            self._freezes = 0
            self.freeze()

    def freeze(self) -> None:
        """Collect, and take what is left out of the collector's sight."""
        gc.collect()
        gc.freeze()
        self._freezes += 1

    def thaw(self) -> None:
        """Give everything back, before the process ends: extension modules complain of what nobody collects there."""
        gc.unfreeze()
