"""Histograms as plain numbers: what is measured in one process, travels in a message, and is rendered in another."""

import math
from bisect import bisect_left

import msgspec

WAIT_S = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0,
)  # fmt: skip
"""Bounds of what requests wait for, in seconds."""
STEP_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Bounds of what one step takes, or one token."""
PAUSE_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)
"""Bounds of pauses that nobody should notice."""


class Distribution(msgspec.Struct, frozen=True, array_like=True):
    """A histogram as it was at one moment."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    """Values up to each bound and above the one before; one more for those above the last. Not cumulative."""
    total: float
    """The sum of the values."""

    @property
    def count(self) -> int:
        """How many values there are."""
        return sum(self.counts)


class Histogram:
    """Counts values by size, in memory that does not grow."""

    __slots__ = ("_bounds", "_counts", "_total", "skipped")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._total = 0.0
        self.skipped = 0
        """Values that were none: below 0, because a clock went back, or no number."""

    def observe(self, value: float, times: int = 1) -> None:
        """Count a value. O(log bounds)."""
        if not 0 <= value < math.inf:
            self.skipped += times
            return
        self._counts[bisect_left(self._bounds, value)] += times
        self._total += value * times

    def read(self) -> Distribution:
        """What was counted so far."""
        return Distribution(self._bounds, tuple(self._counts), self._total)
