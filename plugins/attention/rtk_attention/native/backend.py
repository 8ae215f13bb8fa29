"""Attention on a CPU in float32: decoding rows by the kernels of `attention.cpp`, longer rows by torch."""

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rtk import native
from rtk.plugin import BatchView, Capabilities, LayerCall, Options, SharedRun, Workspace
from rtk_attention.pool import PlainPool
from rtk_attention.torch import backend as torch_backend
from rtk_attention.torch.backend import TorchAttention

SOURCE = Path(__file__).with_name("attention.cpp")
POINTER, INT = ctypes.c_void_p, ctypes.c_int64
SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "plan": (POINTER, [INT, *[POINTER] * 5, INT, *[POINTER] * 4, INT]),
    "drop": (None, [POINTER]),
    "sizes": (None, [POINTER, POINTER]),
    "answers": (INT, [POINTER]),
    "layer": (None, [POINTER, POINTER, INT]),
    "write": (None, [POINTER, INT, INT, POINTER, POINTER, INT, INT, POINTER, POINTER, *[INT] * 5]),
}


class Layer(ctypes.Structure):
    """`Layer` of the kernels."""

    _fields_ = (
        ("q", POINTER),
        ("q_token", INT),
        ("q_head", INT),
        ("k", POINTER),
        ("v", POINTER),
        ("k_slot", INT),
        ("v_slot", INT),
        ("out", POINTER),
        ("sinks", POINTER),
        ("answers", POINTER),
        ("scratch", POINTER),
        ("scratch_size", INT),
        ("heads", INT),
        ("kv_heads", INT),
        ("dim", INT),
        ("v_dim", INT),
        ("scaling", ctypes.c_float),
        ("softcap", ctypes.c_float),
    )


class Kernels:
    """The functions of `attention.cpp`. Raises `ImportError` where they cannot be built."""

    def __init__(self) -> None:
        library = native.library(SOURCE)
        for name, (result, arguments) in SIGNATURES.items():
            function = library[f"rtk_attention_{name}"]
            function.restype, function.argtypes = result, arguments
            setattr(self, name, function)

    plan: Any
    drop: Any
    sizes: Any
    answers: Any
    layer: Any
    write: Any


class Work:
    """What the kernels do in a step for layers alike in their window."""

    def __init__(
        self,
        kernels: Kernels,
        batch: BatchView,
        rows: NDArray[np.int64],
        window: int | None,
        workspace: Workspace,
    ) -> None:
        """`rows` are those with one query. What a window hides, it may hide of some rows of a run only."""
        self._kernels = kernels
        self._workspace = workspace
        self._table = batch.req_to_token
        self._threads = torch.get_num_threads()
        self._layers: dict[tuple[int, ...], tuple[Layer, list[torch.Tensor]]] = {}
        stops = batch.kv_lens[rows].astype(np.int64)
        starts = np.zeros_like(stops) if window is None else np.maximum(stops - window, 0)
        tokens = (np.cumsum(batch.q_lens, dtype=np.int64) - 1)[rows]
        firsts = batch.req_rows[rows].astype(np.int64) * self._table.stride(0)
        runs = () if window is not None else _among(batch.shared, rows, len(batch.q_lens))
        run_rows = np.concatenate([run.rows for run in runs], dtype=np.int64) if runs else rows[:0]
        ends = np.cumsum([len(run.rows) for run in runs], dtype=np.int64)
        bounds = np.array([(run.start, run.stop) for run in runs], np.int64).reshape(-1, 2).T.copy()
        arrays = (run_rows, ends, bounds[0], bounds[1])
        self._handle = kernels.plan(
            len(rows),
            *(array.ctypes.data for array in (tokens, starts, stops)),
            self._table.data_ptr(),
            firsts.ctypes.data,
            len(runs),
            *(array.ctypes.data for array in arrays),
            self._threads,
        )

    def __del__(self) -> None:
        self._kernels.drop(self._handle)

    def attend(self, q: torch.Tensor, kv: Mapping[str, torch.Tensor], call: LayerCall, out: torch.Tensor) -> None:
        """The rows' answers into `out` [T, q_heads, v_head_dim]."""
        k = kv["k"]
        v = k if call.v_head_dim else kv["v"]
        q = _rows(q)
        layer = self._layer(q, k, out)
        layer.q, layer.q_token, layer.q_head = q.data_ptr(), q.stride(0), q.stride(1)
        layer.k, layer.v, layer.k_slot, layer.v_slot = k.data_ptr(), v.data_ptr(), k.stride(0), v.stride(0)
        layer.out = out.data_ptr()
        sinks = None if call.sinks is None else call.sinks.to(torch.float32).contiguous()
        layer.sinks = None if sinks is None else sinks.data_ptr()
        layer.scaling, layer.softcap = call.scaling, call.softcap or 0.0
        self._kernels.layer(self._handle, ctypes.addressof(layer), self._threads)

    def _layer(self, q: torch.Tensor, k: torch.Tensor, out: torch.Tensor) -> Layer:
        """Of these shapes, with memory to work in."""
        sizes = q.shape[1], k.shape[1], q.shape[2], out.shape[2]
        if sizes not in self._layers:
            layer = Layer()
            layer.heads, layer.kv_heads, layer.dim, layer.v_dim = sizes
            self._kernels.sizes(self._handle, ctypes.addressof(layer))
            answers = self._kernels.answers(self._handle) * layer.heads * (layer.v_dim + 2)
            memory = [
                self._workspace.take(f"native {name}", (size,), torch.float32)
                for name, size in (("answers", answers), ("scratch", self._threads * layer.scratch_size))
            ]
            layer.answers, layer.scratch = (of.data_ptr() for of in memory)
            self._layers[sizes] = layer, memory
        return self._layers[sizes][0]


class Step:
    """One step: which rows are the kernels', and torch's plan of the others."""

    def __init__(self, kernels: Kernels, others: TorchAttention, batch: BatchView, workspace: Workspace) -> None:
        self._kernels = kernels
        self._batch = batch
        self._workspace = workspace
        self._works: dict[int | None, Work] = {}
        single = batch.q_lens == 1
        self._single = np.flatnonzero(single)
        self._longest = int(batch.kv_lens[self._single].max(initial=0))
        self._others = others
        self.longer: torch_backend.Plan | None = None
        self.queries: slice | torch.Tensor = slice(None)
        """Of the longer rows."""
        if len(self._single) == len(single):
            return
        if len(self._single):
            longer = np.flatnonzero(~single)
            self.queries = _where(np.flatnonzero(np.repeat(~single, batch.q_lens)))
            batch = replace(
                batch,
                q_lens=batch.q_lens[longer],
                kv_lens=batch.kv_lens[longer],
                req_rows=batch.req_rows[longer],
                slots=batch.slots[self.queries],
                shared=_among(batch.shared, longer, len(single)),
            )
        self.longer = others.plan(batch, workspace)

    def work(self, window: int | None) -> Work | None:
        """The kernels' work for a layer with that window; None: there is none."""
        if not len(self._single):
            return None
        if window is not None and window >= self._longest:
            window = None
        if window not in self._works:
            self._works[window] = Work(self._kernels, self._batch, self._single, window, self._workspace)
        return self._works[window]


class NativeAttention(PlainPool):
    """Reads the slots of decoding rows where they lie, those of a told run once for all its rows."""

    capabilities = Capabilities(
        devices=frozenset({"cpu"}),
        dtypes=frozenset({"float32"}),
        features=TorchAttention.capabilities.features,
        kinds=TorchAttention.capabilities.kinds,
        preference=10,
    )

    def __init__(self, options: Options) -> None:
        """Builds the kernels, unless they are there. Raises `ImportError` on machines that cannot."""
        self._kernels = Kernels()
        self._torch = TorchAttention(options)

    def plan(self, batch: BatchView, workspace: Workspace) -> Step:
        return Step(self._kernels, self._torch, batch, workspace)

    def write(self, kv: Mapping[str, torch.Tensor], k: torch.Tensor, v: torch.Tensor, slots: torch.Tensor) -> None:
        tokens, heads, dim = k.shape
        k, slots = _rows(k), slots.contiguous()
        keys = k.data_ptr(), k.stride(0), k.stride(1), kv["k"].data_ptr()
        values: tuple[int | None, ...] = (None, 0, 0, None)
        if "v" in kv:
            v = _rows(v)
            values = v.data_ptr(), v.stride(0), v.stride(1), kv["v"].data_ptr()
        threads = torch.get_num_threads() if tokens > 1 else 1
        self._kernels.write(*keys, *values, slots.data_ptr(), tokens, heads, dim, v.shape[2], threads)

    def forward(self, q: torch.Tensor, kv: Mapping[str, torch.Tensor], call: LayerCall, plan: Step) -> torch.Tensor:
        work = plan.work(call.sliding_window)
        if work is None:
            assert plan.longer is not None
            return self._torch.forward(q, kv, call, plan.longer)
        out = q.new_empty(len(q), q.shape[1], call.v_head_dim or kv["v"].shape[2])
        work.attend(q, kv, call, out)
        if plan.longer is not None:
            out[plan.queries] = self._torch.forward(q[plan.queries], kv, call, plan.longer)
        return out


def _rows(t: torch.Tensor) -> torch.Tensor:
    """The same, with the numbers of each head next to each other."""
    return t if t.stride(2) == 1 else t.contiguous()


def _among(runs: Sequence[SharedRun], rows: NDArray[np.int64], of: int) -> tuple[SharedRun, ...]:
    """The runs of at least two of some rows of a batch of `of`, by their start; rows numbered as `rows` has them."""
    number = np.full(of, -1, np.int32)
    number[rows] = np.arange(len(rows), dtype=np.int32)
    left = (run._replace(rows=numbers[numbers >= 0]) for run in runs for numbers in [number[run.rows]])
    return tuple(sorted((run for run in left if len(run.rows) > 1), key=lambda run: run.start))


def _where(queries: NDArray[np.int64]) -> slice | torch.Tensor:
    """A slice where the queries follow one another."""
    first, last = int(queries[0]), int(queries[-1])
    return slice(first, last + 1) if last - first == len(queries) - 1 else torch.from_numpy(queries)
