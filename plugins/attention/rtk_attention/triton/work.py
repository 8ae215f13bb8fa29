"""What the kernels of one step have to do, as tables of integers: made on the host, once for all layers alike."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rtk.plugin import BatchView, Workspace

PIECE = 128
"""Keys that a piece of a decoding row has at least; pieces begin at multiples of it within the row's window."""


@dataclass(frozen=True, slots=True)
class Pieces:
    """The decoding rows, cut into pieces."""

    work: torch.Tensor
    """[pieces, 4]: the query's place in the batch, its row of the table, begin and end of the keys.

    Of a step that is replayed there are always as many, and the last may be empty.
    """
    rows: torch.Tensor
    """[rows, 3]: the query's place, the row's first piece and how many there are."""


class Step:
    """The work of one step. Tables are made when the first layer asks for them, and kept for the others."""

    def __init__(self, batch: BatchView, workspace: Workspace, *, programs: int, max_splits: int) -> None:
        """`programs` is how many the device should have to run at once, `max_splits` the most pieces of a row."""
        self.table = batch.req_to_token
        self.workspace = workspace
        self._batch = batch
        self._programs = programs
        self._max_splits = max_splits
        self._first = np.cumsum(batch.q_lens) - batch.q_lens
        self._blocks: dict[int, torch.Tensor | None] = {}
        self._pieces: dict[tuple[int | None, int], Pieces | None] = {}

    def extend(self, block: int) -> torch.Tensor | None:
        """[blocks, 4] for `extend_kernel`, most keys first: rows of several queries, in blocks of `block`."""
        if block not in self._blocks:
            self._blocks[block] = self._extend(block)
        return self._blocks[block]

    def decode(self, window: int | None, heads: int) -> Pieces | None:
        """For `decode_kernel` of `heads` programs a piece: pieces that are alike, and enough of them."""
        if window is not None and window >= int(self._batch.kv_lens.max()) and not self._batch.replayed:
            window = None
        key = window, heads
        if key not in self._pieces:
            made = self._decode(window, heads)
            self._pieces[key] = None if made is None else Pieces(*(self._to_device(table) for table in made))
        return self._pieces[key]

    def replan(self, batch: BatchView) -> None:
        """Write the work of another step into the tables that there are. Both only decode, as many rows."""
        self._batch = batch
        for (window, heads), pieces in self._pieces.items():
            made = self._decode(window, heads)
            assert pieces is not None and made is not None, "every row decodes"
            for own, table in zip((pieces.work, pieces.rows), made, strict=True):
                own.copy_(self._to_device(table))

    def _extend(self, block: int) -> torch.Tensor | None:
        many = np.flatnonzero(self._batch.q_lens > 1)
        if not many.size:
            return None
        q_lens = self._batch.q_lens[many]
        counts = -(-q_lens // block)
        at = (np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)) * block
        rows = np.repeat(many, counts)
        first = self._batch.kv_lens[rows] - self._batch.q_lens[rows] + at
        queries = np.minimum(self._batch.q_lens[rows] - at, block)
        work = np.stack([self._first[rows] + at, queries, self._batch.req_rows[rows], first], axis=1)
        return self._to_device(work[np.argsort(-first, kind="stable")])

    def _decode(self, window: int | None, heads: int) -> tuple[NDArray[Any], NDArray[Any]] | None:
        one = np.flatnonzero(self._batch.q_lens == 1)
        if not one.size:
            return None
        ends = self._batch.kv_lens[one].astype(np.int64)
        starts = np.zeros_like(ends) if window is None else np.maximum(ends - window, 0)
        lens = ends - starts
        size = _up(-(-int(lens.sum()) * heads // self._programs))
        sizes = np.maximum(size, _up(-(-lens // self._max_splits)))
        counts = -(-lens // sizes)
        firsts = np.cumsum(counts) - counts
        rows = np.repeat(np.arange(len(one)), counts)
        begin = starts[rows] + (np.arange(counts.sum()) - firsts[rows]) * sizes[rows]
        stop = np.minimum(begin + sizes[rows], ends[rows])
        work = np.stack([self._first[one][rows], self._batch.req_rows[one][rows], begin, stop], axis=1)
        if self._batch.replayed:  # more than that it cannot be, whatever the lengths
            work = np.pad(work, ((0, self._programs // heads + len(one) - len(work)), (0, 0)))
        return work, np.stack([self._first[one], firsts, counts], axis=1)

    def _to_device(self, table: NDArray[Any]) -> torch.Tensor:
        """From pinned memory where there is a device, which the host does not wait for."""
        host = torch.from_numpy(table.astype(np.int32))
        if self.table.is_cuda:
            host = host.pin_memory()
        return host.to(self.table.device, non_blocking=True)


def _up(tokens: Any) -> Any:
    """The next multiple of `PIECE`."""
    return -(-tokens // PIECE) * PIECE
