"""Which slots one step reads, as few pieces as possible: a piece is one attention call of every layer.

Rows with one query are joined into buckets of similar length; longer rows are cut into blocks of queries, and a block
reads only the keys that some query of it sees.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from rtk.plugin import BatchView

BLOCK = 256
"""Queries of one row in one call: as fast as a causal kernel from 64 to 4,096 tokens, and its mask stays small."""
BUCKET_SLOTS = 8192
"""Slots that one bucket of single-query rows gathers at most, one row excepted; bounds the workspace."""
FREE_WASTE = 256
"""Padding that costs less than one more call per layer, in slots."""


@dataclass(frozen=True, slots=True)
class Piece:
    """`rows` rows of `q_len` queries over `kv_len` keys each; `q_len` is 1 or `rows` is 1."""

    queries: slice | torch.Tensor
    """Where the rows * q_len queries lie in the flattened batch."""
    rows: int
    q_len: int
    kv_len: int
    slots: slice | torch.Tensor
    """The rows * kv_len slots to read, row by row; a slice where one row's slots follow one another."""
    mask: torch.Tensor | None
    """Added to the scores: [rows, 1, 1, kv_len] of single queries, [q_len, kv_len] of a block; None hides nothing."""


class StepIndex:
    """Pieces of one step, made once for each sliding window that the layers ask for. O(sum of kv_lens) each."""

    def __init__(self, batch: BatchView) -> None:
        self._batch = batch
        self._table = batch.req_to_token.view(-1)
        self._device = batch.req_to_token.device
        self._ends = np.cumsum(batch.q_lens, dtype=np.int64)
        self._made: dict[tuple[int | None, torch.dtype], tuple[Piece, ...]] = {}

    @property
    def tokens(self) -> int:
        """T: queries of the step."""
        return int(self._ends[-1])

    def pieces(self, window: int | None, dtype: torch.dtype) -> tuple[Piece, ...]:
        """Every query of the batch is in exactly one piece. `dtype` is that of the masks."""
        if window is not None and window >= int(self._batch.kv_lens.max()):
            window = None
        key = (window, dtype)
        if key not in self._made:
            self._made[key] = (*self._single_queries(window, dtype), *self._blocks(window, dtype))
        return self._made[key]

    def _single_queries(self, window: int | None, dtype: torch.dtype) -> Iterator[Piece]:
        single = np.flatnonzero(self._batch.q_lens == 1)
        lens = self._batch.kv_lens.astype(np.int64)
        starts = np.zeros_like(lens) if window is None else np.maximum(lens - window, 0)
        for rows in buckets(single, (lens - starts)[single]):
            yield self._bucket(rows, starts[rows], (lens - starts)[rows], dtype)

    def _bucket(
        self, rows: NDArray[np.int64], starts: NDArray[np.int64], lens: NDArray[np.int64], dtype: torch.dtype
    ) -> Piece:
        """Rows are padded with their own last slot, which the mask hides."""
        longest = int(lens.max())
        columns = np.minimum(np.arange(longest), lens[:, None] - 1)
        mask = None
        if int(lens.min()) < longest:
            hidden = torch.from_numpy(np.arange(longest) >= lens[:, None]).to(self._device, non_blocking=True)
            mask = torch.zeros(hidden.shape, dtype=dtype, device=self._device).masked_fill_(hidden, -torch.inf)
            mask = mask[:, None, None, :]
        slots = self._slots(rows[:, None], starts[:, None] + columns)
        return Piece(self._where(self._ends[rows] - 1), len(rows), 1, longest, slots, mask)

    def _blocks(self, window: int | None, dtype: torch.dtype) -> Iterator[Piece]:
        batch = self._batch
        many = np.flatnonzero(batch.q_lens > 1)
        if not many.size:
            return
        band = self._band(many, window, dtype)
        for row in many:
            kv_len, end = int(batch.kv_lens[row]), int(self._ends[row])
            for ahead in range(int(batch.q_lens[row]), 0, -BLOCK):
                q_len = min(ahead, BLOCK)
                stop = kv_len - ahead + q_len
                start = 0 if window is None else max(0, stop - q_len - window + 1)
                length = stop - start
                slots = self._slots(np.asarray(row), np.arange(start, stop))
                queries = slice(end - ahead, end - ahead + q_len)
                yield Piece(queries, 1, q_len, length, slots, band[-q_len:, -length:])

    def _band(self, rows: NDArray[np.int64], window: int | None, dtype: torch.dtype) -> torch.Tensor:
        """One mask for all blocks: what a query sees depends only on how far query and key are from the block's end."""
        height = min(int(self._batch.q_lens[rows].max()), BLOCK)
        width = int(self._batch.kv_lens[rows].max())
        if window is not None:
            width = min(width, height + window - 1)
        queries = torch.arange(height - 1, -1, -1, device=self._device)[:, None]
        keys = torch.arange(width - 1, -1, -1, device=self._device)
        distance = keys - queries
        hidden = distance < 0
        if window is not None:
            hidden |= distance >= window
        return torch.zeros(height, width, dtype=dtype, device=self._device).masked_fill_(hidden, -torch.inf)

    def _slots(self, rows: NDArray[np.int64], positions: NDArray[np.int64]) -> slice | torch.Tensor:
        """Slots of the batch rows' positions, flat. On a CPU, a run of slots of one row becomes a slice: no copy."""
        entries = self._batch.req_rows[rows].astype(np.int64) * self._batch.req_to_token.shape[1] + positions
        slots = self._table[torch.from_numpy(entries.reshape(-1)).to(self._device, non_blocking=True)]
        if self._device.type == "cpu" and (rows.ndim == 0 or len(rows) == 1):
            first, last = int(slots[0]), int(slots[-1])
            if last - first == len(slots) - 1 and bool((slots.diff() == 1).all()):
                return slice(first, last + 1)
        return slots.long()

    def _where(self, queries: NDArray[np.int64]) -> slice | torch.Tensor:
        """A slice where the queries follow one another."""
        first, last = int(queries[0]), int(queries[-1])
        if last - first == len(queries) - 1:
            return slice(first, last + 1)
        return torch.from_numpy(queries).to(self._device, non_blocking=True)


def buckets(rows: NDArray[np.int64], lens: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """Split `rows`, of the given lengths, so that padding to the longest of a bucket wastes little. O(n log n).

    A bucket pads at most a quarter of what it uses plus `FREE_WASTE` slots, and gathers at most `BUCKET_SLOTS` unless
    one row alone is longer. Rows keep their order inside a bucket.
    """
    order = np.argsort(-lens, kind="stable")
    begin, used = 0, 0
    for i, row in enumerate(order):
        padded = (i - begin + 1) * int(lens[order[begin]])
        used += int(lens[row])
        if i > begin and (padded > BUCKET_SLOTS or padded - used > used // 4 + FREE_WASTE):
            yield np.sort(rows[order[begin:i]])
            begin, used = i, int(lens[row])
    if len(rows):
        yield np.sort(rows[order[begin:]])
