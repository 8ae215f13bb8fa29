"""`req_to_token`: for every running request, the slot of each of its positions. The scheduler's copy of the table."""

import numpy as np
from numpy.typing import NDArray

from rtk.cache.slots import Slots


class ReqTable:
    """An int32 table of `max_running + 1` rows by `context_length` positions. Row 0 is padding, never given out."""

    def __init__(self, max_running: int, context_length: int) -> None:
        self._table: NDArray[np.int32] = np.zeros((max_running + 1, context_length), dtype=np.int32)
        self._free = list(range(max_running, 0, -1))

    @property
    def nbytes(self) -> int:
        """Bytes of the table."""
        return self._table.nbytes

    @property
    def free_rows(self) -> int:
        """Rows that no request holds."""
        return len(self._free)

    def alloc(self) -> int:
        """A free row. O(1). Raises `IndexError` when there is none."""
        return self._free.pop()

    def release(self, row: int) -> None:
        """Give a row back. O(rows). Raises on a double release."""
        if row in self._free or not 0 < row < len(self._table):
            raise ValueError(f"request row {row} is not taken")
        self._free.append(row)

    def write(self, row: int, start: int, slots: Slots) -> None:
        """Set the slots of positions `start ..`."""
        self._table[row, start : start + len(slots)] = slots

    def slots(self, row: int, start: int, stop: int) -> Slots:
        """The slots of positions `start .. stop - 1`: a view, to be copied by whoever keeps it."""
        return self._table[row, start:stop]
