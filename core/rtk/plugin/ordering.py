"""The order that sort keys give, found as far as somebody asks for it: who admits ten of 100,000 sorts no 100,000."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

Keys = tuple[NDArray[np.generic], ...]
Positions = NDArray[np.int64]

AT_ONCE = (64, 1024)
"""How many are sorted first, and next; then all."""


class Ordering:
    """Positions 0 .. n - 1 by keys, the most important key first, smaller goes first; ties by position."""

    def __init__(self, count: int, keys: Keys = (), held: NDArray[np.bool_] | None = None) -> None:
        """`keys` are arrays of shape [count] without NaN; who is `held` is left out."""
        self._keys = tuple(key.view(np.uint8) if key.dtype == np.bool_ else key for key in keys)
        self._among = np.arange(count) if held is None else np.flatnonzero(~held)

    def __len__(self) -> int:
        return len(self._among)

    def __iter__(self) -> Iterator[int]:
        """The positions in order. O(n) for the first few, O(n log n) for all."""
        done = 0
        for size in (*AT_ONCE, len(self)):
            if done < len(self):
                yield from _first(self._keys, self._among, size)[done:].tolist()
                done = size

    def tolist(self) -> list[int]:
        """All positions in order."""
        return list(self)


def _first(keys: Keys, among: Positions, count: int) -> Positions:
    """The first `count` of `among`, in order. O(n) for each key, O(count log count)."""
    if not keys:
        return among[:count]
    if count >= len(among):
        return _sorted(keys, among)
    key = keys[0][among]
    bound = np.partition(key, count - 1)[count - 1]
    before = _sorted(keys, among[key < bound])
    return np.concatenate([before, _first(keys[1:], among[key == bound], count - len(before))])


def _sorted(keys: Keys, among: Positions) -> Positions:
    return among[np.lexsort([key[among] for key in reversed(keys)])]
