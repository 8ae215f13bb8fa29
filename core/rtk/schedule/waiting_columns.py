"""Facts of the waiting requests as arrays that live from step to step, sorted by each request's place in the queue."""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.generic]
Places = NDArray[np.int64]

FIRST = 64
"""Rows that there is room for at first."""

FEW = 64
"""So many rows at most are taken out one by one, and are left where they are for as long as nobody looks."""


class WaitingColumns:
    """One array per fact; `place` is one of them, unique and ascending.

    A new last row is O(1) amortised. What leaves is marked and taken out by the next `settle`, or once it is more than
    what stays; that moves the rows of the shorter side: O(n) at memory speed, once for any number of them. A row
    elsewhere than at the end is O(n).
    """

    def __init__(self, kinds: dict[str, type]) -> None:
        """The facts beside `place`, with their types."""
        self._arrays: dict[str, Array] = {
            name: np.zeros(FIRST, dtype=kind) for name, kind in {"place": int, **kinds}.items()
        }
        self._begin = self._end = FIRST // 2
        self._gone: list[int] = []

    def __len__(self) -> int:
        return self._end - self._begin - len(self._gone)

    def column(self, name: str) -> Array:
        """One fact of all rows, by place. Of rows that have left too, until `settle`."""
        return self._arrays[name][self._begin : self._end]

    def add(self, place: int, **facts: float) -> None:
        """One more row; `facts` that are not given are 0."""
        if self._end > self._begin and place <= self._arrays["place"][self._end - 1]:
            self.settle()
        at = self._begin + int(np.searchsorted(self.column("place"), place)) if self._end > self._begin else self._end
        if at == self._end or self._begin == 0:
            at += self._make_room()
            self._move(at, self._end, 1)
            self._end += 1
        else:
            self._move(self._begin, at, -1)
            self._begin -= 1
            at -= 1
        facts["place"] = place
        for name, array in self._arrays.items():
            array[at] = facts.get(name, 0)

    def remove(self, place: int) -> None:
        """The row leaves. O(1) amortised."""
        self._gone.append(place)
        if len(self._gone) > max(FEW, len(self)):  # nobody may look for long
            self.settle()

    def settle(self) -> None:
        """Take the rows out that have left."""
        if not self._gone:
            return
        gone = np.sort(self.positions(self._gone)) + self._begin
        self._gone = []
        if len(gone) > FEW:
            self._take_out_many(gone)
            return
        middle = (self._begin + self._end) // 2
        low, high = gone[gone < middle].tolist(), gone[gone >= middle].tolist()
        for by, (row, following) in enumerate(zip(high, [*high[1:], self._end], strict=False), 1):
            self._move(row + 1, following, -by)
        for by, (row, before) in enumerate(zip(low[::-1], [*low[-2::-1], self._begin - 1], strict=False), 1):
            self._move(before + 1, row, by)
        self._begin += len(low)
        self._end -= len(high)

    def _take_out_many(self, gone: Places) -> None:
        for array in self._arrays.values():
            left = np.delete(array[self._begin : self._end], gone - self._begin)
            array[self._begin : self._begin + len(left)] = left
        self._end -= len(gone)

    def positions(self, places: Sequence[int] | Places) -> Places:
        """Where in the columns the rows of these places are. O(log n) for each."""
        return np.searchsorted(self.column("place"), np.asarray(places, dtype=np.int64))

    def write(self, name: str, at: Places, values: Iterable[float]) -> None:
        """Set one fact of the rows at these positions."""
        column = self.column(name)
        column[at] = np.fromiter(values, dtype=column.dtype, count=len(at))

    def _move(self, first: int, stop: int, by: int) -> None:
        """Rows first .. stop - 1 move by so many rows. NumPy takes care of the overlap."""
        if first < stop:
            for array in self._arrays.values():
                array[first + by : stop + by] = array[first:stop]

    def _make_room(self) -> int:
        """See to it that a row fits behind the last; answers by how much all rows moved. O(1) amortised."""
        capacity, count = len(self._arrays["place"]), self._end - self._begin
        if self._end < capacity:
            return 0
        begin = max(count, FIRST) // 2
        for name, array in self._arrays.items():
            wider = np.zeros(2 * begin + 2 * max(count, FIRST), dtype=array.dtype)
            wider[begin : begin + count] = array[self._begin : self._end]
            self._arrays[name] = wider
        moved = begin - self._begin
        self._begin, self._end = begin, begin + count
        return moved
