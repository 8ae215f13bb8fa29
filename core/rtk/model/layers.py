"""What a decoder layer computes around its attention, for float32 on a CPU.

In one call of C++ from one attention to the next where every product is by panels, which needs AVX-512 and a compiler;
else product by product, and what is between these by `rtk.model.kernels`.
"""

import ctypes
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch

from rtk.model.kernels import Kernels, NativeKernels, Norm, Shape, TorchKernels, functions
from rtk.model.linear import Kernel, Linear, Packer
from rtk.model.panels import Pack, Panels
from rtk.native import Unavailable, library

SOURCE = Path(__file__).with_name("layers.cpp")
_POINTER, _LONG, _INT64, _FLOAT = ctypes.c_void_p, ctypes.c_long, ctypes.c_int64, ctypes.c_float
Heads = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""q, k and v [T, heads, head_dim], as attention takes them."""


class Product(NamedTuple):
    """x Wᵀ + b."""

    weight: torch.Tensor
    """[out, in]."""
    bias: torch.Tensor | None


class Products(NamedTuple):
    """Those of a layer. Weights of norms, and constants that a layer multiplies by, are in their weights."""

    qkv: Product
    out: Product
    gate: Product
    up: Product
    down: Product


class Parts(NamedTuple):
    """What a layer computes with."""

    products: Products
    before: Norm
    """Of attention."""
    between: Norm
    """Attention and MLP."""
    heads: Norm | None
    """Of q's heads and k's, one after the other, where they have one."""
    act: Linear | None
    """None: silu."""


class Common(Protocol):
    """What all layers of a shape have in common."""

    def prepare(self, cos: torch.Tensor, sin: torch.Tensor) -> None:
        """Take the model's rotation factors [1, T, head_dim] of this step; nothing to do from the second layer on."""

    def resize(self, rows: int) -> None:
        """From now on x has so many rows, and not T: some that are left of it behind the last attention."""

    def norm(self, x: torch.Tensor, owed: Any, norm: Norm) -> torch.Tensor:
        """Add to x, in place, what the last layer owes, and the norm of that [T, width]."""


class Layer(Protocol):
    """One layer of a step that was prepared. x [T, width] is what goes through all layers, and changed in place.

    What is to be added to it behind attention is owed, None in front of the first layer, until somebody needs x: the
    next layer, whose input it is, `Common.norm`, or `settle`.
    """

    @property
    def common(self) -> Common:
        """The same object for all layers of a shape."""

    def before(self, x: torch.Tensor, owed: Any) -> Heads:
        """What attention takes; overwritten by the next call."""

    def after(self, x: torch.Tensor, answer: torch.Tensor) -> Any:
        """What the layer owes after attention's answer [T, q_heads, head_dim]."""

    def settle(self, x: torch.Tensor, owed: Any) -> None:
        """Add what is owed."""


class ByCalls:
    """Product by product. It owes a tensor [T, width]."""

    def __init__(self, parts: Parts, kernels: Kernels, pack: Kernel) -> None:
        self.common = self._kernels = kernels
        self._before, self._between, self._heads = parts.before, parts.between, parts.heads
        qkv, out, gate, up, down = parts.products
        self._qkv, self._out, self._down = (pack(*product) for product in (qkv, out, down))
        bias = None if gate.bias is None or up.bias is None else torch.cat((gate.bias, up.bias))
        self._gate_up = pack(torch.cat((gate.weight, up.weight)), bias)
        self._gated: Linear = kernels.silu_mul if parts.act is None else functools.partial(_gated, parts.act)

    def before(self, x: torch.Tensor, owed: torch.Tensor | None) -> Heads:
        return self._kernels.turn(self._qkv(self._kernels.norm(x, owed, self._before)), self._heads)

    def after(self, x: torch.Tensor, answer: torch.Tensor) -> torch.Tensor:
        normed = self._kernels.norm(x, self._out(answer.flatten(1)), self._between)
        return self._down(self._gated(self._gate_up(normed)))

    def settle(self, x: torch.Tensor, owed: torch.Tensor) -> None:
        x.add_(owed)


def _gated(act: Linear, gate_up: torch.Tensor) -> torch.Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    return act(gate).mul_(up)


class _Norm(ctypes.Structure):
    _fields_ = (("weight", _POINTER), ("least", _FLOAT))

    @classmethod
    def of(cls, norm: Norm) -> "_Norm":
        return cls(None if norm.weight is None else norm.weight.data_ptr(), norm.least)


class _Heads(ctypes.Structure):
    _fields_ = (*((name, _INT64) for name in ("q", "kv", "dim")), ("norm", _Norm))


class _Layer(ctypes.Structure):
    _fields_ = (
        *((name, Pack) for name in Products._fields),
        *((name, _Norm) for name in ("before", "between")),
        ("heads", _Heads),
    )


class _Step(ctypes.Structure):
    _fields_ = (
        *((name, _POINTER) for name in ("cos", "sin", "q", "k", "v", "normed", "scratch")),
        *((name, _LONG) for name in ("rows", "threads")),
    )


Owed = tuple[int, torch.Tensor]
"""The address of a `_Layer`, and attention's answer in it."""


class Between:
    """From one attention to the next in one call, into buffers for as many rows as the largest step had."""

    def __init__(self, shape: Shape) -> None:
        """Raises `rtk.native.Unavailable`."""
        found = library(SOURCE)
        self._call = found.between
        self._call.argtypes, self._call.restype = [_POINTER] * 6, None
        found.scratch.argtypes, found.scratch.restype = [_LONG, _LONG], _LONG
        self._shape = shape
        heads = shape.q_heads + 2 * shape.kv_heads
        self._scratch_size = found.scratch(shape.width, max(heads * shape.head_dim, shape.inner))
        self._source: torch.Tensor | None = None
        self._step = _Step(rows=-1)
        self._most = -1
        self._address = ctypes.addressof(self._step)

    def prepare(self, cos: torch.Tensor, sin: torch.Tensor) -> None:
        if self._source is sin:
            return
        self._source, self._cos, self._sin = sin, cos[0].contiguous(), sin[0].contiguous()
        step, threads = self._step, torch.get_num_threads()
        step.cos, step.sin = self._cos.data_ptr(), self._sin.data_ptr()
        if threads != step.threads:
            self._scratch = torch.empty(threads, self._scratch_size)
            step.scratch, step.threads = self._scratch.data_ptr(), threads
        self.resize(len(self._cos))

    def resize(self, rows: int) -> None:
        step = self._step
        if rows == step.rows:
            return
        if rows > self._most:
            self._most = rows
            width, q_heads, kv_heads, head_dim, _ = self._shape
            sizes = (q_heads, head_dim), (kv_heads, head_dim), (kv_heads, head_dim), (width,)
            self._buffers = [torch.empty(rows, *size) for size in sizes]
            step.q, step.k, step.v, step.normed = (buffer.data_ptr() for buffer in self._buffers)
        step.rows = rows
        q, k, v, self._normed = (buffer[:rows] for buffer in self._buffers)
        self._heads = q, k, v

    def norm(self, x: torch.Tensor, owed: Owed, norm: Norm) -> torch.Tensor:
        last = _Norm.of(norm)
        self.settle(x, owed, ctypes.addressof(last))
        return self._normed

    def heads(self, x: torch.Tensor, owed: Owed | None, following: int) -> Heads:
        """q, k and v of the layer at that address, which owes nothing yet."""
        done, answer = owed or (None, None)
        self._call(done, following, None, self._address, x.data_ptr(), None if answer is None else answer.data_ptr())
        return self._heads

    def settle(self, x: torch.Tensor, owed: Owed, last: int | None = None) -> None:
        """Add what is owed; and normalise that, where there is a `_Norm`."""
        done, answer = owed
        self._call(done, None, last, self._address, x.data_ptr(), answer.data_ptr())


class InOneCall:
    """A layer whose work is done together with what comes in front of the next. It owes what it did not begin with."""

    def __init__(self, parts: Parts, packs: list[Panels], common: Between, shape: Shape) -> None:
        """`packs` are those of the products, in their order."""
        self.common = common
        norm = _Norm() if parts.heads is None else _Norm.of(parts.heads)
        heads = _Heads(shape.q_heads, shape.kv_heads, shape.head_dim, norm)
        self._layer = _Layer(*(pack.pack for pack in packs), _Norm.of(parts.before), _Norm.of(parts.between), heads)
        self._address = ctypes.addressof(self._layer)
        self._packs, self._parts = packs, (parts.before, parts.between, parts.heads)

    def before(self, x: torch.Tensor, owed: Owed | None) -> Heads:
        return self.common.heads(x, owed, self._address)

    def after(self, _: torch.Tensor, answer: torch.Tensor) -> Owed:
        return self._address, answer.contiguous()

    def settle(self, x: torch.Tensor, owed: Owed) -> None:
        self.common.settle(x, owed)


class Maker:
    """Makes the layers of a model."""

    def __init__(self, packer: Packer | None = None) -> None:
        """`packer` makes products; None: of float32."""
        self._packer = packer or Packer()
        native = functions()
        self._kernels: Callable[[Shape], Kernels] = functools.cache(
            lambda shape: TorchKernels(shape) if native is None else NativeKernels(shape, native)
        )
        self._between = functools.cache(Between)

    def make(self, parts: Parts, shape: Shape) -> Layer:
        """The fastest there is; holds copies of the weights only. Costs a copy of them while it packs."""
        packs = self._panels(parts.products) if parts.act is None else []
        if len(packs) == len(parts.products):
            try:
                return InOneCall(parts, packs, self._between(shape), shape)
            except Unavailable:
                pass
        return ByCalls(parts, self._kernels(shape), self._packer.pack)

    def _panels(self, products: Products) -> list[Panels]:
        """Of the products, up to the first that another kernel is for."""
        found = []
        for product in products:
            pack = self._packer.pack(*product)
            if not isinstance(pack, Panels):
                break
            found.append(pack)
        return found
