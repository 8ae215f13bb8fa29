"""Attention on a CPU by torch's flash kernel, in parts: some queries and some keys that all of them see, or a triangle.

The kernel also tells the logarithm of each softmax's sum, so that parts of one query's keys can be joined. What several
rows share is then read once for all of them, as one product for each K/V head; long stretches of consecutive slots are
read where they lie, and what is left of decoding rows is gathered for many rows at once. No part of a longer row needs
a mask.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from rtk.plugin import BatchView, LayerCall, Workspace
from rtk_attention.torch.plan import buckets

KERNEL: Any = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu", None)
"""What `scaled_dot_product_attention` calls on a CPU; private to torch, hence perhaps not there."""
VIEW = 512
"""Keys of one row that cost more to gather than one more call does."""
SHARED_VIEW = 256
"""The same for keys of several rows: what is gathered for them is read from a cache by many queries."""
BLOCK = 256
"""Queries of one triangle: what lies above its diagonal is computed too, in blocks of about this size."""

Slots = slice | torch.Tensor
Answer = tuple[torch.Tensor, torch.Tensor]
"""Outputs [n, kv_heads, group, dim], and logarithms of the sums [n, kv_heads, group]."""


class Part(Protocol):
    """One call of the kernel in every layer."""

    @property
    def queries(self) -> Slots:
        """Which of the step's queries."""

    @property
    def slots(self) -> Slots:
        """The slots of its keys."""

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scaling: float) -> Answer:
        """q [queries, kv_heads, group, dim], k and v [slots, kv_heads, dim]."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """Decoding rows, each with as many keys of its own; shorter ones are padded with slots that they see anyway."""

    queries: Slots
    slots: Slots
    rows: int
    mask: torch.Tensor | None
    """[rows, 1, 1, keys], added to the scores; None hides nothing."""

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scaling: float) -> Answer:
        k, v = (t.view(self.rows, -1, *t.shape[1:]).transpose(1, 2) for t in (k, v))
        mask = None if self.mask is None else self.mask.expand(-1, -1, q.shape[2], -1)
        out, lse = KERNEL(q, k, v, attn_mask=mask, scale=scaling)
        return out, lse


@dataclass(frozen=True, slots=True)
class Span:
    """Keys that all of the queries see, be they of one row or of several."""

    queries: Slots
    slots: Slots

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scaling: float) -> Answer:
        """Query heads that read one K/V head are further rows of one product."""
        n, kv_heads, group, dim = q.shape
        q = q.permute(1, 2, 0, 3).reshape(1, kv_heads, group * n, dim)  # a view of what lies head by head
        out, lse = KERNEL(q, k.transpose(0, 1)[None], v.transpose(0, 1)[None], scale=scaling)
        return out.view(kv_heads, group, n, dim).permute(2, 0, 1, 3), lse.view(kv_heads, group, n).permute(2, 0, 1)


@dataclass(frozen=True, slots=True)
class Triangle:
    """New tokens of a longer row, which see each other up to themselves."""

    queries: slice
    slots: Slots

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scaling: float) -> Answer:
        k, v = (t.transpose(0, 1)[:, None].expand(-1, q.shape[2], -1, -1) for t in (k, v))
        out, lse = KERNEL(q.permute(1, 2, 0, 3), k, v, 0.0, True, scale=scaling)
        return out.permute(2, 0, 1, 3), lse.permute(2, 0, 1)


class Parts:
    """The parts of one step, for all layers without a window, or with one that hides nothing."""

    def __init__(self, batch: BatchView, workspace: Workspace) -> None:
        self._batch = batch
        self._workspace = workspace
        self._table: NDArray[np.int32] = batch.req_to_token.numpy()
        self._firsts = np.cumsum(batch.q_lens, dtype=np.int64) - batch.q_lens
        self._order: torch.Tensor | None = None  # of the queries, such that each base has some that follow one another
        self._back: torch.Tensor | None = None
        self._bases: list[Part] | None = None
        self._further: list[Part] = []

    def suit(self, kv: Mapping[str, torch.Tensor], call: LayerCall) -> bool:
        """Whether the kernel can compute this layer: it wants values as long as keys, and a latent stands for both."""
        window = call.sliding_window
        hides = window is not None and window < int(self._batch.kv_lens.max())
        return call.softcap is None and not hides and kv["k"].shape == kv.get("v", kv["k"]).shape

    def attend(self, q: torch.Tensor, kv: Mapping[str, torch.Tensor], call: LayerCall) -> torch.Tensor:
        """One layer, see `AttentionBackend.forward`."""
        if self._bases is None:
            self._bases = list(self._plan(q.dtype))
        if self._order is not None:
            q = q.contiguous().index_select(0, self._order)  # of what lies in another order, selecting costs more
        elif q.stride(-1) != 1:
            q = q.contiguous()
        q = q.view(len(q), kv["k"].shape[1], -1, q.shape[2])
        out, sums = self._base(q, kv, call)
        for part in self._further:
            _join(out, sums, part.queries, *self._part(part, q, kv, call))
        if call.sinks is not None:
            out = out * torch.sigmoid(sums - call.sinks.to(sums.dtype).view(sums.shape[1:]))[..., None].to(out.dtype)
        out = out[..., : call.v_head_dim].flatten(1, 2)
        return out if self._back is None else out.index_select(0, self._back)

    def _base(self, q: torch.Tensor, kv: Mapping[str, torch.Tensor], call: LayerCall) -> Answer:
        """The first part of every query."""
        assert self._bases is not None, "planned"
        answers = [self._part(part, q, kv, call) for part in self._bases]
        if len(answers) == 1:
            return answers[0]
        outs, sums = zip(*answers, strict=True)
        return torch.cat(outs), torch.cat(sums)

    def _part(self, part: Part, q: torch.Tensor, kv: Mapping[str, torch.Tensor], call: LayerCall) -> Answer:
        k = self._read("k", kv["k"], part.slots)
        v = self._read("v", kv["v"], part.slots) if "v" in kv else k
        return part.attend(_pick(q, part.queries), k, v, call.scaling)

    def _read(self, name: str, buffer: torch.Tensor, slots: Slots) -> torch.Tensor:
        if isinstance(slots, slice):
            return buffer[slots]
        # Selecting flat rows copies whole rows at once; a fancy index is four times slower on a CPU.
        flat = buffer.view(len(buffer), -1)
        gathered = self._workspace.take(name, (len(slots), flat.shape[1]), buffer.dtype)
        return torch.index_select(flat, 0, slots, out=gathered).view(len(slots), *buffer.shape[1:])

    # --- planning -----------------------------------------------------------------------------------------------

    def _plan(self, dtype: torch.dtype) -> Iterator[Part]:
        """The parts that cover every query once, in order; the further ones are put aside.

        `dtype` is that of the masks. O(sum of kv_lens) at memory speed.
        """
        single = self._batch.q_lens == 1
        tails: dict[int, NDArray[np.int32]] = {}
        further: list[tuple[NDArray[Any], Slots]] = []
        for run in self._batch.shared:
            slots = self._slots(int(run.rows[0]), run.start, run.stop)
            further += ((run.rows, keys) for keys in _stretches(slots, SHARED_VIEW))
        for row, slots in self._own():
            if single[row] and len(slots) < VIEW:
                tails[row] = slots
                continue
            stretches = _cut(slots, VIEW)
            if single[row]:
                tails[row] = stretches.pop()
            further += ((np.array([row]), _run(stretch)) for stretch in stretches)
        rows, lens = np.array([*tails], np.int64), np.array([*map(len, tails.values())], np.int64)
        groups, longer = list(buckets(rows, lens)), np.flatnonzero(~single)
        self._arrange(np.concatenate([*groups, longer]))
        for group in groups:
            yield self._bucket(group, [tails[row] for row in group.tolist()], dtype)
        for row in longer.tolist():
            yield from self._triangles(row)
        self._further += (Span(self._queries(some), keys) for some, keys in further)

    def _arrange(self, rows: NDArray[np.int64]) -> None:
        """Put the queries into the order of these rows, which are all."""
        if (np.diff(rows) > 0).all():
            return
        counts = self._batch.q_lens[rows]
        firsts = np.cumsum(counts) - counts
        order = np.repeat(self._firsts[rows] - firsts, counts) + np.arange(int(counts.sum()))
        self._firsts[rows] = firsts
        self._order, self._back = torch.from_numpy(order), torch.from_numpy(np.argsort(order))

    def _own(self) -> Iterator[tuple[int, NDArray[np.int32]]]:
        """Slots of each row that no run tells of, without those of a longer row's new tokens."""
        batch = self._batch
        seen = np.zeros(len(batch.q_lens), np.int64)
        gaps: dict[int, list[tuple[int, int]]] = {}
        for run in sorted(batch.shared, key=lambda run: run.start):
            for row in run.rows[seen[run.rows] < run.start].tolist():
                gaps.setdefault(row, []).append((int(seen[row]), run.start))
            seen[run.rows] = run.stop
        stops = np.where(batch.q_lens == 1, batch.kv_lens, batch.kv_lens - batch.q_lens)
        for row, (start, stop) in enumerate(zip(seen.tolist(), stops.tolist(), strict=True)):
            parts = [self._slots(row, *bounds) for bounds in (*gaps.get(row, ()), (start, stop))]
            slots = np.concatenate(parts) if len(parts) > 1 else parts[0]
            if len(slots):
                yield row, slots

    def _bucket(self, rows: NDArray[np.int64], tails: list[NDArray[np.int32]], dtype: torch.dtype) -> Bucket:
        if len(rows) == 1:
            return Bucket(self._queries(rows), _run(tails[0]), 1, None)
        lens = np.array([*map(len, tails)])
        slots = np.empty((len(rows), int(lens.max())), np.int64)
        for into, own in zip(slots, tails, strict=True):
            into[: len(own)], into[len(own) :] = own, own[-1]
        hidden = np.arange(slots.shape[1]) >= lens[:, None]
        mask = torch.zeros(hidden.shape, dtype=dtype).masked_fill_(torch.from_numpy(hidden), -torch.inf)
        keys = torch.from_numpy(slots.reshape(-1))
        return Bucket(self._queries(rows), keys, len(rows), mask[:, None, None] if hidden.any() else None)

    def _triangles(self, row: int) -> Iterator[Part]:
        """Blocks of a row's new tokens; what lies before each block are further parts."""
        begin, q_len, kv_len = (int(of[row]) for of in (self._firsts, self._batch.q_lens, self._batch.kv_lens))
        slots = self._slots(row, kv_len - q_len, kv_len)
        for first in range(0, q_len, BLOCK):
            stop = min(first + BLOCK, q_len)
            queries = slice(begin + first, begin + stop)
            yield Triangle(queries, _run(slots[first:stop]))
            if first:
                self._further.append(Span(queries, _run(slots[:first])))

    def _slots(self, row: int, start: int, stop: int) -> NDArray[np.int32]:
        return self._table[self._batch.req_rows[row], start:stop]

    def _queries(self, rows: NDArray[Any]) -> Slots:
        """All queries of some rows; a slice where they follow one another."""
        rows = rows[np.argsort(self._firsts[rows])]
        firsts, counts = self._firsts[rows], self._batch.q_lens[rows]
        if int(firsts[-1] - firsts[0] + counts[-1]) == int(counts.sum()):
            return slice(int(firsts[0]), int(firsts[-1] + counts[-1]))
        ahead = np.cumsum(counts) - counts
        return torch.from_numpy(np.repeat(firsts - ahead, counts) + np.arange(int(counts.sum())))


def _cut(slots: NDArray[np.int32], least: int) -> list[NDArray[np.int32]]:
    """Stretches of at least so many consecutive slots, then all others; or only stretches, where nothing is left."""
    bounds = np.concatenate([[0], np.flatnonzero(np.diff(slots) != 1) + 1, [len(slots)]])
    if len(bounds) == 2:
        return [slots]
    left = np.ones(len(slots), np.bool_)
    views = []
    for i in np.flatnonzero(np.diff(bounds) >= least).tolist():
        where = slice(int(bounds[i]), int(bounds[i + 1]))
        views.append(slots[where])
        left[where] = False
    return [*views, slots[left]] if left.any() else views


def _stretches(slots: NDArray[np.int32], least: int) -> Iterator[Slots]:
    return map(_run, _cut(slots, least))


def _run(slots: NDArray[np.int32]) -> Slots:
    """A slice where the slots follow one another: nothing is copied then."""
    first, last = int(slots[0]), int(slots[-1])
    if last - first == len(slots) - 1 and bool((np.diff(slots) == 1).all()):
        return slice(first, last + 1)
    return torch.from_numpy(slots.astype(np.int64))


def _join(out: torch.Tensor, sums: torch.Tensor, queries: Slots, more: torch.Tensor, more_sums: torch.Tensor) -> None:
    """Weight what some queries have seen so far, and what they see in one more part, by the sums of both."""
    seen = _pick(sums, queries)
    weight = torch.sigmoid(more_sums - seen)[..., None].to(out.dtype)
    if isinstance(queries, slice):
        out[queries].lerp_(more, weight)
        sums[queries] = torch.logaddexp(seen, more_sums)
    else:
        out.index_copy_(0, queries, _pick(out, queries).lerp_(more, weight))
        sums.index_copy_(0, queries, torch.logaddexp(seen, more_sums))


def _pick(whole: torch.Tensor, queries: Slots) -> torch.Tensor:
    return whole[queries] if isinstance(queries, slice) else whole.index_select(0, queries)
