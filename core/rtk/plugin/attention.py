"""The attention contract: a backend lays out, writes and reads the KV pool; the host owns the memory and the pages.

One batch is flattened: T query tokens of B rows, one after the other. Row b computes positions
`kv_lens[b] - q_lens[b] .. kv_lens[b] - 1` of its sequence and sees everything up to and including each position.
"""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a backend can do. The host compares it with model, device and page size before it asks for anything else."""

    devices: frozenset[str]
    """Device types, as torch names them (`cpu`, `cuda`)."""
    dtypes: frozenset[str]
    """Types of K, V and Q, as torch names them without the prefix (`float32`)."""
    page_sizes: frozenset[int] | None = None
    """The page sizes it accepts, the smallest where none is configured; None accepts any, 1 where none is."""
    features: frozenset[str] = frozenset()
    """Of `sliding_window`, `softcap` and `sinks`, fields of `LayerCall`; what is not declared is never asked."""
    kinds: frozenset[str] = frozenset({"mha"})
    """Of `mha` (keys and values for each K/V head, grouped or not) and `mla` (`KVShape.mla`)."""
    compute_capabilities: frozenset[int] | None = None
    """Major CUDA compute capabilities that it has kernels for; None: any, and devices that have none."""
    preference: int = 0
    """Of the backends that can serve, `auto` takes the one with the highest; it takes none below 0."""
    graphs: bool = False
    """Whether `forward` of steps that only decode can be captured in a CUDA graph, which `replan` feeds."""


FEATURES = frozenset({"sliding_window", "softcap", "sinks"})
"""What a backend can declare beside plain causal attention: the fields of `LayerCall` by these names."""
KINDS = frozenset({"mha", "mla"})
"""The kinds of attention that a backend can declare."""


@dataclass(frozen=True, slots=True)
class KVShape:
    """The K/V of a model: what one token occupies in every layer."""

    layers: int
    kv_heads: int
    head_dim: int
    v_head_dim: int
    q_heads: int
    mla: bool = False
    """Multi-head latent attention, absorbed form: one latent a token, and its first `v_head_dim` entries are the value.

    `kv_heads` is 1. What `write` gets as v is that part of k, and a layout needs to keep it once only.
    """


@dataclass(frozen=True, slots=True)
class BufferSpec:
    """One named buffer of a layer: `[slots + page_size, *shape]`."""

    name: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, slots=True)
class KVLayout:
    """How a backend keeps K/V: the buffers of every layer. All layers are alike."""

    layers: int
    page_size: int
    buffers: tuple[BufferSpec, ...]

    @property
    def bytes_per_slot(self) -> int:
        """Bytes that one slot takes over all layers."""
        per_layer = sum(math.prod(b.shape) * DTYPE_BYTES[b.dtype] for b in self.buffers)
        return self.layers * per_layer

    @property
    def fingerprint(self) -> str:
        """Stable digest of the layout: K/V written under one fingerprint is never read under another."""
        return hashlib.sha256(repr((self.layers, self.page_size, self.buffers)).encode()).hexdigest()[:16]


DTYPE_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}


class SharedRun(NamedTuple):
    """Positions that several rows of a batch have in the same slots: a cached prefix, or a piece of one."""

    rows: NDArray[np.int32]
    """[n >= 2] which batch rows, ascending."""
    start: int
    stop: int
    """Positions `start .. stop - 1`; each lies before the first query of each of the rows."""


@dataclass(frozen=True, slots=True)
class BatchView:
    """One step, as a backend sees it. Host arrays are for planning, tensors live on the model's device."""

    q_lens: NDArray[np.int32]
    """[B] query tokens of each row, at least 1."""
    kv_lens: NDArray[np.int32]
    """[B] tokens visible at the row's last query, those of this step included."""
    req_rows: NDArray[np.int32]
    """[B] row of `req_to_token` of each batch row."""
    req_to_token: torch.Tensor
    """[rows, context] int32: the slot of every position of every running request."""
    slots: torch.Tensor
    """[T] int64: the slot each new token's K/V goes to; equals the table's entries at the new positions."""
    page_size: int
    shared: tuple[SharedRun, ...] = ()
    """What is worth reading once for several rows. Runs of one row do not overlap. Rows may share more than is told."""
    replayed: bool = False
    """Whether the plan is to serve other steps too, through `replan`. Then each row has one query, and none is told."""


@dataclass(frozen=True, slots=True)
class LayerCall:
    """What the model asks of one attention layer, beyond q, k and v."""

    layer: int
    scaling: float
    sliding_window: int | None = None
    """A key at position j is visible to a query at i iff j > i - sliding_window (and j <= i)."""
    softcap: float | None = None
    """Scores become softcap * tanh(scores / softcap)."""
    sinks: torch.Tensor | None = None
    """[q_heads] logits that join every softmax and carry no value."""
    v_head_dim: int | None = None
    """With MLA, how many entries of a latent are its value; None where values come by themselves."""


@dataclass(slots=True)
class Workspace:
    """Scratch memory that lives as long as the engine: a backend takes named tensors and gets the same memory again."""

    device: torch.device
    _taken: dict[str, torch.Tensor] = field(default_factory=dict)

    def take(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """An uninitialised tensor of that shape; grows the memory behind `name` when it is too small."""
        import torch

        size = int(np.prod(shape))
        held = self._taken.get(name)
        if held is None or held.numel() < size or held.dtype != dtype:
            held = self._taken[name] = torch.empty(size, dtype=dtype, device=self.device)
        return held[:size].view(shape)

    def held(self) -> tuple[torch.Tensor, ...]:
        """The memory that is held at the moment; it stays where it is for whoever keeps these."""
        return tuple(self._taken.values())

    @property
    def nbytes(self) -> int:
        """Bytes held at the moment."""
        return sum(t.numel() * t.element_size() for t in self._taken.values())


class AttentionBackend(ABC):
    """Computes attention over the paged pool. Built once with its options; called from the executor's thread only.

    Tensors come with any strides, and they and the arrays are the caller's: none is changed but the buffers, and those
    by `write` only.
    """

    capabilities: ClassVar[Capabilities]

    @abstractmethod
    def layout(self, shape: KVShape, page_size: int, kv_dtype: str) -> KVLayout:
        """The buffers that the host must allocate. Pure."""

    @abstractmethod
    def plan(self, batch: BatchView, workspace: Workspace) -> Any:
        """Prepare one step; called once before the first layer. What it returns is handed to `forward` as `plan`.

        It may keep views of the batch's arrays: they stay as they are until the last layer of the step.

        One plan serves every layer of the step, and layers differ in their `LayerCall`.
        """

    def replan(self, plan: Any, batch: BatchView) -> None:
        """Make a plan that was made for `replayed` steps the plan of another one, in the memory that it has.

        What `forward` launched for the plan, launched again, then computes this step, whose rows are as many, whose
        table and slots are the same tensors, and whose lengths may be any. Nothing else of `forward` happens again. The
        host does not wait for the device. Only asked where `graphs` is declared.
        """
        raise NotImplementedError

    @abstractmethod
    def write(self, kv: Mapping[str, torch.Tensor], k: torch.Tensor, v: torch.Tensor, slots: torch.Tensor) -> None:
        """Store the new tokens of one layer: k [T, kv_heads, head_dim], v [T, kv_heads, v_head_dim] to slots [T]."""

    @abstractmethod
    def forward(self, q: torch.Tensor, kv: Mapping[str, torch.Tensor], call: LayerCall, plan: Any) -> torch.Tensor:
        """Attention of one layer: q [T, q_heads, head_dim] to [T, q_heads, v_head_dim], after `write` of that layer.

        The answer has the dtype of q. Query head h reads K/V head h // (q_heads // kv_heads). Scores are q·k scaled by
        `call.scaling`, whatever the head_dim, then capped, then masked; sinks join as they are.

        `kv` are the layer's buffers by name; other layers may have been written in between. Reads no slot but those of
        the rows' visible positions: what lies in others, and outside every query's window, may be anything, even NaN.
        """
