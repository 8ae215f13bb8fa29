"""Steps that only decode, as CUDA graphs: the host launches one graph in place of every kernel of every layer.

A graph computes a fixed number of rows from memory that stays where it is. A step is padded to the next size with rows
that compute the token at position 0 of the table's row 0, which is padding and names a slot of the padding page. What
a graph reads is written before it is replayed: tokens, positions and slots here, what attention needs by the backend
(`AttentionBackend.replan`).
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from rtk.errors import one_line
from rtk.plugin import AttentionBackend, BatchView, Workspace
from rtk.plugin.foreign import contained

log = logging.getLogger(__name__)

LARGEST = 256
"""Rows of the largest graph. The more rows a step has, the longer kernels run, and launching them is hidden."""

Forward = Callable[[Any, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""(what `AttentionBackend.plan` made, slots, tokens, positions, which tokens get logits) to float32 logits."""
Replay = Callable[[], object]
Record = Callable[[Callable[[], None]], Replay]
"""Runs something while a device notes what it launches, and returns what launches the same again."""


def sizes(most: int) -> list[int]:
    """Rows of the graphs for steps of up to `most`, ascending: padding doubles few at most, and adds 15 to many."""
    most = min(most, LARGEST)
    usual = [1, 2, 4, *range(8, 64, 8), *range(64, LARGEST, 16)]
    return [*(size for size in usual if size < most), most]


def cuda_recorder(device: torch.device) -> Record:
    """Records on a CUDA device; what it records shares one pool of memory."""
    with torch.cuda.device(device):
        pool = torch.cuda.graph_pool_handle()

    def record(run: Callable[[], None]) -> Replay:
        graph = torch.cuda.CUDAGraph()
        # In this mode what other threads do with the device does no harm.
        with torch.cuda.device(device), torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            run()
        return graph.replay

    return record


def _out_of_memory(error: BaseException | None) -> bool:
    """Whether that is what it comes from: a capture that it has cut short may end with an error of its own."""
    return error is not None and (isinstance(error, torch.OutOfMemoryError) or _out_of_memory(error.__context__))


@dataclass(frozen=True, slots=True)
class _Graph:
    rows: int
    plan: Any
    replay: Replay
    scratch: tuple[torch.Tensor, ...]
    """Memory of the workspace that kernels were recorded with: it must not go when the workspace grows."""


class DecodeGraphs:
    """The graphs of one runner. Called from the executor's thread only."""

    def __init__(
        self,
        forward: Forward,
        backend: AttentionBackend,
        workspace: Workspace,
        table: torch.Tensor,
        page_size: int,
    ) -> None:
        self._forward = forward
        self._backend = backend
        self._workspace = workspace
        self._table = table
        self._page_size = page_size
        self._inputs = torch.zeros(3, LARGEST, dtype=torch.int64, device=table.device)
        """Token, position and slot of each row."""
        self._keep = torch.arange(LARGEST, device=table.device)
        self._logits: torch.Tensor | None = None
        self._graphs: list[_Graph] = []
        """By rows, ascending."""

    @property
    def captured(self) -> list[int]:
        """Rows of the graphs that there are, ascending."""
        return [graph.rows for graph in self._graphs]

    def capture(self, most: int, record: Record) -> None:
        """Capture graphs for steps of up to `most` rows, the largest first: the others find their memory there.

        Steps that do not get one, because memory does not suffice or something in them cannot be captured, are
        computed as if there were no graphs; the log says so.
        """
        failures = []
        for rows in reversed(sizes(most)):
            try:
                self._graphs.insert(0, self._captured(rows, record))
            except BaseException as error:  # whatever cannot be captured can be computed without
                if not contained(error):
                    raise
                if _out_of_memory(error):
                    failures.append(f"none for {rows} rows: memory does not suffice")
                    continue
                failures.append(f"none for {rows} rows or fewer: {one_line(error)}")
                break
        if self._graphs:
            log.info("CUDA graphs for steps of up to %d decoding rows", self._graphs[-1].rows)
        for failure in failures:
            log.warning("CUDA graphs: %s", failure)

    def _captured(self, rows: int, record: Record) -> _Graph:
        self._inputs.zero_()
        padding = np.zeros(rows, np.int32)
        plan = self._backend.plan(self._view(padding + 1, padding), self._workspace)
        self._run(rows, plan)  # compiles kernels, and makes what the first layer makes
        replay = record(lambda: self._run(rows, plan))
        return _Graph(rows, plan, replay, self._workspace.held())

    def _run(self, rows: int, plan: Any) -> None:
        tokens, positions, slots = self._inputs[:, :rows]
        logits = self._forward(plan, slots, tokens, positions, self._keep[:rows])
        if self._logits is None:
            self._logits = logits.new_empty(rows, logits.shape[1])
        self._logits[:rows].copy_(logits)

    def _view(self, kv_lens: np.ndarray, req_rows: np.ndarray) -> BatchView:
        rows = len(kv_lens)
        return BatchView(
            q_lens=np.ones(rows, np.int32),
            kv_lens=kv_lens,
            req_rows=req_rows,
            req_to_token=self._table,
            slots=self._inputs[2, :rows],
            page_size=self._page_size,
            replayed=True,
        )

    def compute(self, batch: BatchView, tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor | None:
        """Float32 logits [rows, vocab] of a step whose rows compute one token each; None: no graph has so many rows."""
        rows = len(tokens)
        graph = next((one for one in self._graphs if one.rows >= rows), None)
        if graph is None:
            return None
        self._inputs[:, rows : graph.rows].zero_()
        for own, given in zip(self._inputs, (tokens, positions, batch.slots), strict=True):
            own[:rows].copy_(given)
        more = graph.rows - rows
        view = self._view(np.pad(batch.kv_lens, (0, more), constant_values=1), np.pad(batch.req_rows, (0, more)))
        self._backend.replan(graph.plan, view)
        graph.replay()
        assert self._logits is not None, "every graph was run before"
        return self._logits[:rows].clone()  # the next step may be launched before this one is sampled
