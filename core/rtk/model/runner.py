"""Runs the model on a step: tables in, logits of the sampling rows out. Called from one thread only."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from rtk.cache.pool import KVPool
from rtk.errors import ModelError
from rtk.model.bridge import Head, flat_logits, flat_logits_and_head
from rtk.model.cuda_graphs import DecodeGraphs, Record
from rtk.model.loader import LoadedModel
from rtk.model.threads import one_thread
from rtk.model.transfer import on_device
from rtk.plugin import AttentionBackend, BatchView, LayerCall, SharedRun, Workspace
from rtk.schedule.batch import SAMPLED_LAST, StepPlan


@dataclass(slots=True)
class RunnerStats:
    """What was computed since the start."""

    forwards: int = 0
    query_rows: int = 0
    """Queries that attention computed, counted where it happens, in one layer; padding is not counted."""
    replayed: int = 0
    """Forwards that were replayed from a CUDA graph."""


class Computed(NamedTuple):
    """What a step computed, on the device."""

    logits: torch.Tensor
    """Float32 [sum of the rows' samples, vocab], row by row."""
    head: Head | None
    """Makes logits of its other tokens, where the plan scores some."""


class ModelRunner:
    """Owns the worker's slot table: what every position of every running request has for a slot."""

    @one_thread()
    def __init__(
        self,
        loaded: LoadedModel,
        backend: AttentionBackend,
        pool: KVPool,
        *,
        rows: int,
        context_length: int,
    ) -> None:
        """`rows` requests of at most `context_length` tokens run at once; their table takes four bytes a position."""
        self.stats = RunnerStats()
        self._loaded = loaded
        self._backend = backend
        self._pool = pool
        self._workspace = Workspace(loaded.device)
        self._table = torch.zeros(rows, context_length, dtype=torch.int32, device=loaded.device)
        self._sampled_last = torch.zeros(rows, dtype=torch.int64, device=loaded.device)
        self._verified = False
        self._graphs: DecodeGraphs | None = None

    @one_thread()
    def warm_up(self) -> None:
        """Compute steps of padding, as all later ones are: a prompt, decoding rows, and such that share a told prefix.

        What is compiled when it is first needed is compiled now, and what cannot compute shows. Row 0 of the table is
        never used. Raises what model and backend raise.
        """
        page_size, context = self._pool.layout.page_size, self._table.shape[1]
        self._pad(1, q_len=min(4, context), kv_len=min(4, context))
        self._pad(2, q_len=1, kv_len=min(page_size + 1, context))
        if page_size < context:
            prefix = SharedRun(np.arange(2, dtype=np.int32), 0, page_size)
            self._pad(2, q_len=1, kv_len=page_size + 1, shared=(prefix,))

    def _pad(self, rows: int, q_len: int, kv_len: int, shared: tuple[SharedRun, ...] = ()) -> None:
        count = rows * q_len
        nothing = torch.zeros(count, dtype=torch.int64, device=self._loaded.device)
        view = BatchView(
            q_lens=np.full(rows, q_len, np.int32),
            kv_lens=np.full(rows, kv_len, np.int32),
            req_rows=np.zeros(rows, np.int32),
            req_to_token=self._table,
            slots=nothing,
            page_size=self._pool.layout.page_size,
            shared=shared,
        )
        positions = self._tensor(np.tile(np.arange(kv_len - q_len, kv_len), rows))
        plan = self._backend.plan(view, self._workspace)
        self._forward(plan, view.slots, nothing, positions, torch.arange(count, device=nothing.device))

    def capture(self, most: int, record: Record) -> list[int]:
        """Capture graphs for steps of up to `most` decoding rows, before the first step; returns the rows of each.

        The backend declares `graphs`, and row 0 of the table is never used.
        """
        page_size = self._pool.layout.page_size
        self._graphs = DecodeGraphs(self._forward, self._backend, self._workspace, self._table, page_size)
        self._graphs.capture(most, record)
        return self._graphs.captured

    def _forward(
        self, plan: Any, slots: torch.Tensor, tokens: torch.Tensor, positions: torch.Tensor, keep: torch.Tensor
    ) -> torch.Tensor:
        step = _Step(self._backend, self._pool, slots, plan)
        logits = flat_logits(self._loaded.model, step, tokens, positions, keep)
        self._verify(step)
        return logits

    def compute(self, plan: StepPlan) -> Computed:
        """Compute a step. K/V is in the pool afterwards.

        One forward of T tokens, and O(sum of kv_lens) for attention. Raises what model and backend raise.
        """
        for write in plan.writes:
            self._table[write.req_row, write.start : write.start + len(write.slots)] = self._tensor(write.slots)
        view, tokens, positions = self._view(plan), self._tokens(plan), self._tensor(_positions(plan))
        self.stats.forwards += 1
        if self._graphs is not None and _only_decodes(plan):
            found = self._graphs.compute(view, tokens, positions)
            if found is not None:
                self.stats.replayed += 1
                self.stats.query_rows += len(plan.rows)
                return Computed(found, None)
        step = _Step(self._backend, self._pool, view.slots, self._backend.plan(view, self._workspace))
        given = self._loaded.model, step, tokens, positions, self._tensor(_sampling(plan))
        logits, head = flat_logits_and_head(*given) if plan.scored else (flat_logits(*given), None)
        self._verify(step)
        self.stats.query_rows += step.query_rows
        return Computed(logits, head)

    def remember(self, plan: StepPlan, ids: torch.Tensor) -> None:
        """Keep what a step sampled, [sum of the rows' samples] on the device, for steps that name `SAMPLED_LAST`."""
        samples = np.array([row.samples for row in plan.rows])
        last = np.cumsum(samples)[samples > 0] - 1
        rows = np.array([row.req_row for row in plan.rows])[samples > 0]
        self._sampled_last[self._tensor(rows)] = ids[self._tensor(last)]

    def _tokens(self, plan: StepPlan) -> torch.Tensor:
        """[T] the tokens to compute, those that the host has not seen among them."""
        tokens = self._tensor(plan.tokens.astype(np.int64))
        unseen = np.flatnonzero(plan.tokens == SAMPLED_LAST)
        if unseen.size:
            req_rows, _, q_lens, _ = np.array(plan.rows, np.int64).T
            tokens[self._tensor(unseen)] = self._sampled_last[self._tensor(np.repeat(req_rows, q_lens)[unseen])]
        return tokens

    def _tensor(self, array: NDArray[Any]) -> torch.Tensor:
        """On the device; where that computes by itself, nobody waits for it."""
        return on_device(array, self._loaded.device)

    def _view(self, plan: StepPlan) -> BatchView:
        """Enter the step's slots into the table, and describe the batch."""
        req_rows, starts, q_lens, _ = np.array(plan.rows, np.int64).T
        entries = np.repeat(req_rows, q_lens) * self._table.shape[1] + _positions(plan)
        slots = self._tensor(plan.slots)
        self._table.view(-1)[self._tensor(entries)] = slots.to(torch.int32)
        return BatchView(
            q_lens=q_lens.astype(np.int32),
            kv_lens=(starts + q_lens).astype(np.int32),
            req_rows=req_rows.astype(np.int32),
            req_to_token=self._table,
            slots=slots.long(),
            page_size=self._pool.layout.page_size,
            shared=plan.shared,
        )

    def _verify(self, step: "_Step") -> None:
        """A layer that bypasses attention would compute without its past; the probe's path may differ from this one."""
        if self._verified:
            return
        if step.calls != [1] * len(step.calls):
            raise ModelError(
                f"model type {self._loaded.facts.kind!r} cannot be served: "
                f"the attention function was called {sum(step.calls)} times for {len(step.calls)} layers"
            )
        self._verified = True


class _Step:
    """Attention of one step, over the pool."""

    def __init__(self, backend: AttentionBackend, pool: KVPool, slots: torch.Tensor, plan: Any) -> None:
        self.calls = [0] * pool.layout.layers
        self.query_rows = 0
        self._backend = backend
        self._pool = pool
        self._slots = slots
        self._plan = plan

    def attend(
        self,
        module: torch.nn.Module,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        call: LayerCall,
        extras: Mapping[str, Any],
    ) -> torch.Tensor:
        self.calls[call.layer] += 1
        if call.layer == 0:
            self.query_rows += len(q)
        kv = self._pool.layer(call.layer)
        self._backend.write(kv, k, v, self._slots)
        return self._backend.forward(q, kv, call, self._plan)


def _only_decodes(plan: StepPlan) -> bool:
    """Whether every row computes one token and samples the next."""
    return not plan.scored and all(row.q_len == row.samples == 1 for row in plan.rows)


def _positions(plan: StepPlan) -> NDArray[np.int64]:
    """[T] position of every token in its request."""
    return _ranges([(row.start, row.start + row.q_len) for row in plan.rows])


def _sampling(plan: StepPlan) -> NDArray[np.int64]:
    """Batch indices of the tokens after which something is sampled."""
    ends = np.cumsum([row.q_len for row in plan.rows])
    return _ranges([(end - row.samples, end) for end, row in zip(ends.tolist(), plan.rows, strict=True)])


def _ranges(bounds: list[tuple[int, int]]) -> NDArray[np.int64]:
    return np.concatenate([np.arange(*bound, dtype=np.int64) for bound in bounds])
