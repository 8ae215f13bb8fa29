"""Attention on a CPU in float32, by the kernels of `attention.cpp`."""

import ctypes
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rtk import native
from rtk.plugin import BatchView, Capabilities, LayerCall, Options, SharedRun, Workspace
from rtk_attention.pool import PlainPool

SOURCE = Path(__file__).with_name("attention.cpp")
POINTER, INT = ctypes.c_void_p, ctypes.c_int64
SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "plan": (POINTER, [POINTER, INT, *[POINTER] * 5, INT, INT, *[POINTER] * 4]),
    "drop": (None, [POINTER]),
    "layer": (None, [POINTER, POINTER]),
    "write": (None, [POINTER]),
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
        ("answer_count", INT),
        ("scratch", POINTER),
        ("scratch_size", INT),
        ("heads", INT),
        ("kv_heads", INT),
        ("dim", INT),
        ("v_dim", INT),
        ("threads", INT),
        ("scaling", ctypes.c_float),
        ("softcap", ctypes.c_float),
    )


class Write(ctypes.Structure):
    """`Write` of the kernels."""

    _fields_ = (
        ("k", POINTER),
        ("k_token", INT),
        ("k_head", INT),
        ("keys", POINTER),
        ("v", POINTER),
        ("v_token", INT),
        ("v_head", INT),
        ("values", POINTER),
        ("slots", POINTER),
        ("tokens", INT),
        ("heads", INT),
        ("dim", INT),
        ("v_dim", INT),
        ("threads", INT),
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
    layer: Any
    write: Any


class Work:
    """What the kernels do in a step for layers alike in their window and their heads."""

    def __init__(
        self,
        kernels: Kernels,
        batch: BatchView,
        window: int | None,
        shape: tuple[int, int, int, int],
        workspace: Workspace,
    ) -> None:
        """`shape`: query heads, K/V heads, entries of a key, entries of a value."""
        self._kernels = kernels
        self._table = batch.req_to_token
        q_lens, kv_lens = batch.q_lens.astype(np.int64), batch.kv_lens.astype(np.int64)
        firsts = np.cumsum(q_lens) - q_lens
        offsets = batch.req_rows.astype(np.int64) * self._table.stride(0)
        # What a window hides, it may hide of some rows of a run only.
        runs = sorted(_of_decoding_rows(batch), key=lambda run: run.start) if window is None else []
        run_rows = np.concatenate([run.rows for run in runs], dtype=np.int64) if runs else firsts[:0]
        run_ends = np.cumsum([len(run.rows) for run in runs], dtype=np.int64)
        bounds = np.array([(run.start, run.stop) for run in runs], np.int64).reshape(-1, 2).T.copy()
        layer = self._layer = Layer()
        layer.heads, layer.kv_heads, layer.dim, layer.v_dim = shape
        layer.threads = torch.get_num_threads()
        self._handle = kernels.plan(
            ctypes.addressof(layer),
            len(q_lens),
            *(array.ctypes.data for array in (firsts, q_lens, kv_lens)),
            self._table.data_ptr(),
            offsets.ctypes.data,
            window or 0,
            len(runs),
            *(array.ctypes.data for array in (run_rows, run_ends, bounds[0], bounds[1])),
        )
        self._memory = [
            workspace.take(f"native {name}", (size,), torch.float32)
            for name, size in (
                ("answers", layer.answer_count * (layer.v_dim + 2)),
                ("scratch", layer.threads * layer.scratch_size),
            )
        ]
        layer.answers, layer.scratch = (of.data_ptr() for of in self._memory)

    def __del__(self) -> None:
        self._kernels.drop(self._handle)

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, call: LayerCall, out: torch.Tensor) -> None:
        """The answers into `out` [T, q_heads, v_head_dim]."""
        layer = self._layer
        q = _rows(q)
        layer.q, layer.k, layer.v, layer.out = q.data_ptr(), k.data_ptr(), v.data_ptr(), out.data_ptr()
        layer.q_token, layer.q_head, _ = q.stride()
        layer.k_slot, layer.v_slot = k.stride(0), v.stride(0)
        sinks = None if call.sinks is None else call.sinks.to(torch.float32).contiguous()
        layer.sinks = None if sinks is None else sinks.data_ptr()
        layer.scaling, layer.softcap = call.scaling, call.softcap or 0.0
        self._kernels.layer(self._handle, ctypes.addressof(layer))


class Step:
    """One step; planned anew for each kind of layer in it."""

    def __init__(self, kernels: Kernels, batch: BatchView, workspace: Workspace) -> None:
        self._kernels = kernels
        self._batch = batch
        self._workspace = workspace
        self._longest = int(batch.kv_lens.max())
        self._works: dict[tuple[int | None, tuple[int, int, int, int]], Work] = {}

    def work(self, window: int | None, shape: tuple[int, int, int, int]) -> Work:
        """For layers with that window and that shape, see `Work`."""
        if window is not None and window >= self._longest:
            window = None
        work = self._works.get((window, shape))
        if work is None:
            work = self._works[window, shape] = Work(self._kernels, self._batch, window, shape, self._workspace)
        return work


class NativeAttention(PlainPool):
    """Reads the slots where they lie, those that a run tells of once for all its decoding rows."""

    capabilities = Capabilities(
        devices=frozenset({"cpu"}),
        dtypes=frozenset({"float32"}),
        features=frozenset({"sliding_window", "softcap", "sinks"}),
        kinds=frozenset({"mha", "mla"}),
        preference=10,
    )

    def __init__(self, options: Options) -> None:
        """Builds the kernels, unless they are there. Raises `ImportError` on machines that cannot."""
        self._kernels = Kernels()
        self._write = Write()

    def plan(self, batch: BatchView, workspace: Workspace) -> Step:
        return Step(self._kernels, batch, workspace)

    def write(self, kv: Mapping[str, torch.Tensor], k: torch.Tensor, v: torch.Tensor, slots: torch.Tensor) -> None:
        k, slots = _rows(k), slots.contiguous()
        write = self._write
        write.tokens, write.heads, write.dim = k.shape
        write.k_token, write.k_head, _ = k.stride()
        write.k, write.keys, write.slots = k.data_ptr(), kv["k"].data_ptr(), slots.data_ptr()
        write.v = None
        if "v" in kv:
            v = _rows(v)
            write.v_token, write.v_head, _ = v.stride()
            write.v, write.values, write.v_dim = v.data_ptr(), kv["v"].data_ptr(), v.shape[2]
        write.threads = torch.get_num_threads()
        self._kernels.write(ctypes.addressof(write))

    def forward(self, q: torch.Tensor, kv: Mapping[str, torch.Tensor], call: LayerCall, plan: Step) -> torch.Tensor:
        tokens, heads, dim = q.shape
        k = kv["k"]
        v = k if call.v_head_dim else kv["v"]
        v_dim = call.v_head_dim or v.shape[2]
        out = q.new_empty(tokens, heads, v_dim)
        plan.work(call.sliding_window, (heads, k.shape[1], dim, v_dim)).attend(q, k, v, call, out)
        return out


def _rows(t: torch.Tensor) -> torch.Tensor:
    """The same, with the numbers of each head next to each other."""
    return t if t.stride(2) == 1 else t.contiguous()


def _of_decoding_rows(batch: BatchView) -> Iterator[SharedRun]:
    """The runs of at least two decoding rows, without others."""
    for run in batch.shared:
        rows = run.rows[batch.q_lens[run.rows] == 1]
        if len(rows) > 1:
            yield run._replace(rows=rows)
