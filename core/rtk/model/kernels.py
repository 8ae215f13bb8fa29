"""What a fused layer computes between its linear layers: four passes in C++, or the same in torch.

A decode step has so few rows that the time is that of starting operations. Torch needs some thirty for a layer.
"""

import ctypes
import functools
import logging
import math
from pathlib import Path
from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import nn

from rtk.native import Unavailable, library

log = logging.getLogger(__name__)

SOURCE = Path(__file__).with_name("kernels.cpp")


class Shape(NamedTuple):
    """The sizes of a layer."""

    width: int
    q_heads: int
    kv_heads: int
    head_dim: int
    inner: int
    """Of what the MLP's gate and up give."""


class Norm:
    """x / sqrt(mean(x²) + ε) is x * √n / hypot(|x|, √(nε))."""

    def __init__(self, norm: nn.Module, weight: torch.Tensor, *, scaled: bool = True) -> None:
        """`weight` may be of several norms that differ in nothing else; unless `scaled`, others apply `scale`."""
        size = weight.shape[-1]
        self.least = math.sqrt(size * float(norm.variance_epsilon))  # type: ignore[arg-type]
        self.scale = (weight.detach() * math.sqrt(size)).contiguous()
        self.weight = self.scale if scaled else None


class Kernels(Protocol):
    """One object for all layers of a shape. What a function returns may be overwritten by its next call."""

    def prepare(self, cos: torch.Tensor, sin: torch.Tensor) -> None:
        """Take the model's rotation factors [1, T, head_dim] of this step; nothing to do from the second layer on."""

    def resize(self, rows: int) -> None:
        """From now on it is so many rows, and not T, that are computed; what depends on positions is over."""

    def norm(self, x: torch.Tensor, y: torch.Tensor | None, norm: Norm) -> torch.Tensor:
        """x += y, in place, and the norm of that: [T, width] each, contiguous."""

    def turn(self, qkv: torch.Tensor, norm: Norm | None) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """[T, all heads * head_dim] to q, k and v [T, heads, head_dim]: q and k normalised, and turned."""

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        """silu(gate) * up, of both beside each other."""


class TorchKernels:
    """In torch; a norm in three operations, where torch's own takes ten on a CPU."""

    def __init__(self, shape: Shape) -> None:
        self._heads = shape.q_heads, shape.kv_heads
        self._turned_and_not = shape.q_heads + shape.kv_heads, shape.kv_heads
        self._head_dim = shape.head_dim
        self._source: torch.Tensor | None = None

    def prepare(self, cos: torch.Tensor, sin: torch.Tensor) -> None:
        if self._source is not sin:
            self._source = sin
            low, high = sin[0].chunk(2, dim=-1)
            self._cos, self._sin = cos[0][:, None], torch.cat([-low, high], dim=-1)[:, None]

    def resize(self, rows: int) -> None:
        pass

    def norm(self, x: torch.Tensor, y: torch.Tensor | None, norm: Norm) -> torch.Tensor:
        return _normed(x if y is None else x.add_(y), norm)

    def turn(self, qkv: torch.Tensor, norm: Norm | None) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        qk, v = qkv.view(len(qkv), sum(self._turned_and_not), self._head_dim).split_with_sizes(self._turned_and_not, 1)
        if norm is not None:
            qk = _normed(qk, norm)
        turned = torch.addcmul(qk * self._cos, qk.roll(self._head_dim // 2, -1), self._sin)
        q, k = turned.split_with_sizes(self._heads, 1)
        return q, k, v

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        return F.silu(gate).mul_(up)


def _normed(x: torch.Tensor, norm: Norm) -> torch.Tensor:
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    found: torch.Tensor = x / torch.hypot(length, length.new_tensor(norm.least))
    return found if norm.weight is None else found.mul_(norm.weight)


class NativeKernels:
    """In C++, into buffers for as many rows as the largest step had."""

    def __init__(self, shape: Shape, functions: ctypes.CDLL) -> None:
        self._shape = shape
        self._add_norm, self._turn, self._silu_mul = functions.add_norm, functions.turn, functions.silu_mul
        self._source: torch.Tensor | None = None
        self._rows = self._most = -1

    def prepare(self, cos: torch.Tensor, sin: torch.Tensor) -> None:
        if self._source is sin:
            return
        self._source, self._cos, self._sin = sin, cos[0].contiguous(), sin[0].contiguous()
        self._factors = self._cos.data_ptr(), self._sin.data_ptr()
        self.resize(len(self._cos))

    def resize(self, rows: int) -> None:
        if rows == self._rows:
            return
        width, q_heads, kv_heads, head_dim, inner = self._shape
        if rows > self._most:
            self._most = rows
            sizes = (width,), (inner,), (q_heads, head_dim), (kv_heads, head_dim), (kv_heads, head_dim)
            self._buffers = [torch.empty(rows, *size) for size in sizes]
        self._rows = rows
        self._normed, self._gated, q, k, v = (buffer[:rows] for buffer in self._buffers)
        self._qkv = q, k, v
        self._to_normed, self._to_gated = self._normed.data_ptr(), self._gated.data_ptr()
        self._to_qkv = *(t.data_ptr() for t in self._qkv), rows, q_heads, kv_heads, head_dim

    def norm(self, x: torch.Tensor, y: torch.Tensor | None, norm: Norm) -> torch.Tensor:
        weight = None if norm.weight is None else norm.weight.data_ptr()
        more = None if y is None else y.data_ptr()
        self._add_norm(x.data_ptr(), more, weight, self._to_normed, self._rows, self._shape.width, norm.least)
        return self._normed

    def turn(self, qkv: torch.Tensor, norm: Norm | None) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        weight, least = (None, 0.0) if norm is None else (norm.scale.data_ptr(), norm.least)
        self._turn(qkv.data_ptr(), *self._factors, weight, *self._to_qkv, least)
        return self._qkv

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        self._silu_mul(gate_up.data_ptr(), self._to_gated, self._rows, self._shape.inner)
        return self._gated


def functions() -> ctypes.CDLL | None:
    """The functions of `kernels.cpp`; None where they cannot be had."""
    try:
        return _typed(library(SOURCE))
    except Unavailable as error:
        log.info("%s; layers take longer without them", error)
        return None


@functools.cache
def _typed(functions: ctypes.CDLL) -> ctypes.CDLL:
    pointer, size, real = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float
    functions.add_norm.argtypes = *[pointer] * 4, size, size, real
    functions.turn.argtypes = *[pointer] * 7, *[size] * 4, real
    functions.silu_mul.argtypes = pointer, pointer, size, size
    for function in (functions.add_norm, functions.turn, functions.silu_mul):
        function.restype = None
    return functions
