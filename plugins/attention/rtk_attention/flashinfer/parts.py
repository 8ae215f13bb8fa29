"""What FlashInfer is asked for in one step: queries over lists of pages, made once for all layers alike."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from rtk.plugin import BatchView, SharedRun, Workspace

Ints = NDArray[np.int64]
Kind = Literal["decode", "extend", "shared"]
Segment = tuple[int, int, int]
"""A row of the batch, and the positions `start .. stop - 1` of it."""


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """Requests for one call of a layer: each has some queries, and the pages that they read.

    `decode`: one query a request, which sees all it reads. `extend`: the queries are the last of what they read, and
    see what precedes them. `shared`: the queries of several rows, which see all that they read.
    """

    kind: Kind
    queries: slice | torch.Tensor
    """Where they lie in the flattened batch, request by request."""
    q_indptr: torch.Tensor
    """[requests + 1] int32, on the host as are the next three: where each request's queries begin."""
    indptr: torch.Tensor
    """[requests + 1] where each request's pages begin."""
    last: torch.Tensor
    """[requests] slots of the last page that are read."""
    lens: torch.Tensor
    """[requests] slots that are read."""
    pages: torch.Tensor
    """[pages] int32, on the device."""
    page_size: int


class Step:
    """The parts of one step. They are made when the first layer asks for them, and kept for the others."""

    def __init__(self, batch: BatchView, workspace: Workspace) -> None:
        self.workspace = workspace
        self.device = batch.req_to_token.device
        self.planned: dict[Any, Any] = {}
        """Filled by the backend: what was planned for a part and a kind of layer."""
        self._batch = batch
        self._first = np.cumsum(batch.q_lens, dtype=np.int64) - batch.q_lens
        self._parts: dict[int | None, list[Part]] = {}

    def window(self, window: int | None) -> int | None:
        """None where it hides nothing."""
        return None if window is None or window >= int(self._batch.kv_lens.max()) else window

    def parts(self, window: int | None) -> list[Part]:
        """Every query is in one part that is not `shared`, and these come first. The parts of a query never overlap."""
        window = self.window(window)
        if window not in self._parts:
            self._parts[window] = self._whole() if window is None else self._windowed(window)
        return self._parts[window]

    def _whole(self) -> list[Part]:
        """What runs tell is read once, and each row reads what remains of its own."""
        batch, page = self._batch, self._batch.page_size
        runs = [run for run in (_in_pages(run, page) for run in batch.shared) if run.start < run.stop]
        cuts: list[list[SharedRun]] = [[] for _ in batch.q_lens]
        for run in sorted(runs, key=lambda run: run.start):
            for row in run.rows:
                cuts[row].append(run)
        own = [
            [
                (row, start, stop)
                for start, stop in zip(
                    [0, *(run.stop for run in cut)], [*(run.start for run in cut), int(kv_len)], strict=True
                )
                if start < stop
            ]
            for row, (cut, kv_len) in enumerate(zip(cuts, batch.kv_lens, strict=True))
        ]
        parts = self._own(own, page)
        for level in levels(runs):
            rows = [run.rows.tolist() for run in level]
            segments = [[(int(run.rows[0]), run.start, run.stop)] for run in level]
            parts.append(self._part("shared", rows, segments, page))
        return parts

    def _windowed(self, window: int) -> list[Part]:
        """Pages of one slot: what lies in the slots of a page before the window may be anything, and is not read.

        A window that hides something hides it in the prefix, so runs are not worth much and are left alone.
        """
        batch = self._batch
        starts = np.maximum(batch.kv_lens.astype(np.int64) - batch.q_lens - window + 1, 0)
        own = [[(row, int(starts[row]), int(batch.kv_lens[row]))] for row in range(len(starts))]
        return self._own(own, 1)

    def _own(self, segments: Sequence[Sequence[Segment]], page: int) -> list[Part]:
        parts = []
        kinds: tuple[tuple[Kind, NDArray[np.bool_]], ...] = (
            ("decode", self._batch.q_lens == 1),
            ("extend", self._batch.q_lens > 1),
        )
        for kind, chosen in kinds:
            if rows := np.flatnonzero(chosen).tolist():
                parts.append(self._part(kind, [[row] for row in rows], [segments[row] for row in rows], page))
        return parts

    def _part(
        self, kind: Kind, rows: Sequence[Sequence[int]], segments: Sequence[Sequence[Segment]], page: int
    ) -> Part:
        """A request for each entry of `rows`: the queries of those rows, over the segments of one row.

        Segments begin and end with pages, but for the last of a request.
        """
        q_lens = [sum(int(self._batch.q_lens[row]) for row in some) for some in rows]
        lens = [sum(stop - start for _, start, stop in some) for some in segments]
        table = np.array([one for some in segments for one in some], np.int64)
        counts = -(-(table[:, 2] - table[:, 1]) // page)
        owner = np.repeat(np.arange(len(segments)), [len(some) for some in segments])
        pages = np.bincount(owner, weights=counts, minlength=len(segments)).astype(np.int64)
        return Part(
            kind=kind,
            queries=self._queries(np.array([row for some in rows for row in some], np.int64)),
            q_indptr=_host(_indptr(q_lens)),
            indptr=_host(_indptr(pages)),
            last=_host((np.array(lens) - 1) % page + 1),
            lens=_host(np.array(lens)),
            pages=self._pages(table, counts, page),
            page_size=page,
        )

    def _queries(self, rows: Ints) -> slice | torch.Tensor:
        """The queries of some rows, one row after the other; a slice where the rows follow one another."""
        if (np.diff(rows) == 1).all():
            last = int(rows[-1])
            return slice(int(self._first[rows[0]]), int(self._first[last] + self._batch.q_lens[last]))
        lens = self._batch.q_lens[rows]
        within = np.arange(lens.sum()) - np.repeat(np.cumsum(lens) - lens, lens)
        return self._to_device(np.repeat(self._first[rows], lens) + within, torch.int64)

    def _pages(self, segments: Ints, counts: Ints, page: int) -> torch.Tensor:
        """The pages of all segments, in order: the host sends what each segment is, and the device looks them up."""
        rows = self._batch.req_rows[segments[:, 0]].astype(np.int64)
        before = np.cumsum(counts) - counts
        sent = self._to_device(np.stack([rows, segments[:, 1] - before * page, counts]), torch.int64)
        total = int(counts.sum())
        row, offset = sent[:2].repeat_interleave(sent[2], dim=1, output_size=total)
        positions = torch.arange(total, device=self.device) * page + offset
        return self._batch.req_to_token[row, positions].div(page, rounding_mode="floor").to(torch.int32)

    def _to_device(self, table: NDArray[Any], dtype: torch.dtype) -> torch.Tensor:
        """From pinned memory where there is a device, which the host does not wait for."""
        host = torch.from_numpy(table).to(dtype)
        if self.device.type == "cuda":
            host = host.pin_memory()
        return host.to(self.device, non_blocking=True)


def levels(runs: Sequence[SharedRun]) -> list[list[SharedRun]]:
    """Runs that no row has two of, as few lists as a tree of them is deep."""
    found: list[tuple[set[int], list[SharedRun]]] = []
    for run in runs:
        rows = set(run.rows.tolist())
        for taken, level in found:
            if not taken & rows:
                taken |= rows
                level.append(run)
                break
        else:
            found.append((rows, [run]))
    return [level for _, level in found]


def _in_pages(run: SharedRun, page: int) -> SharedRun:
    """What of a run is whole pages."""
    return SharedRun(run.rows, -(-run.start // page) * page, run.stop // page * page)


def _indptr(counts: Any) -> Ints:
    return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])


def _host(numbers: NDArray[Any]) -> torch.Tensor:
    return torch.from_numpy(numbers.astype(np.int32))
