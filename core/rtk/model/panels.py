"""Linear layers of our own for float32 and AVX-512, for the 1 to 64 rows that steps of decoding requests have.

Libraries are made for many rows. With few of them a product is bound by reading the weights once, which they do at a
part of what the memory gives, or do first and compute then. This one does both at the same time. Weights of 8 bits are
a quarter of that.
"""

import ctypes
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F

from rtk import huge_pages
from rtk.native import library

SOURCE = Path(__file__).with_name("panels.cpp")
GROUP = 128
"""Neighbours in a row of a weight that have one scale, where they are integers; also `panels.h`'s."""
_POINTER, _LONG = ctypes.c_void_p, ctypes.c_long


class Arena:
    """Memory for packs, in blocks: a pack alone would half fill its last page. They go with their packs."""

    BLOCK = 1 << 26
    """Bytes of a block."""
    LINE = 64

    def __init__(self) -> None:
        self._left = torch.empty(0, dtype=torch.uint8)

    def take(self, count: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """[count], uninitialised, from the start of a cache line."""
        size = -(-count * dtype.itemsize // self.LINE) * self.LINE
        if self._left.numel() < size:
            self._left = huge_pages.zeros(max(size, self.BLOCK))
        taken, self._left = self._left[:size].view(dtype)[:count], self._left[size:]
        return taken


class Int8(NamedTuple):
    """A weight as integers of -127 to 127, of which each group in a row is to be multiplied by its scale."""

    ints: torch.Tensor
    """int8 [out, in]."""
    scales: torch.Tensor
    """float32 [out, groups]; a row's last group may be shorter than `GROUP`."""

    @classmethod
    def of(cls, weight: torch.Tensor) -> "Int8":
        """The nearest to a float32 weight [out, in] with which the largest of each group is 127 or -127."""
        out, width = weight.shape
        groups = F.pad(weight, (0, -width % GROUP)).view(out, -1, GROUP)
        scales = groups.abs().amax(2) / 127
        ints = (groups / torch.where(scales == 0, 1, scales)[..., None]).round().to(torch.int8)
        return cls(ints.view(out, -1)[:, :width].contiguous(), scales)

    def weight(self) -> torch.Tensor:
        """What it means, float32 [out, in]."""
        return self.ints * self.scales.repeat_interleave(GROUP, 1)[:, : self.ints.shape[1]]


class Pack(ctypes.Structure):
    """`Pack` of `panels.h`."""

    _fields_ = (
        *((name, _POINTER) for name in ("weights", "ints", "scales", "bias")),
        ("n", _LONG),
        ("depth", _LONG),
    )


class Panels:
    """x Wᵀ + b of a weight that is packed as `panels.h` says; the original is not kept."""

    def __init__(self, weight: torch.Tensor | Int8, bias: torch.Tensor | None, arena: Arena) -> None:
        """`weight` [out, in] and `bias` [out] are float32 on a CPU. Raises `rtk.native.Unavailable`."""
        functions = library(SOURCE)
        functions.panel_columns.restype = _LONG
        self._product = functions.product
        self._product.argtypes = [_POINTER, _POINTER, _LONG, _POINTER, _LONG, _LONG]
        self._product.restype = None
        panel = functions.panel_columns()
        given = weight.ints if isinstance(weight, Int8) else weight.contiguous()
        self._columns, self._depth = given.shape
        panels = -(-self._columns // panel)
        beyond = panels * panel - self._columns
        self.pack = Pack(n=self._columns, depth=self._depth)
        """For C++ that multiplies by it; valid as long as this object is."""
        self._address = ctypes.addressof(self.pack)
        self._held = [arena.take(panels * panel * self._depth, given.dtype)]
        if isinstance(weight, Int8):
            groups = weight.scales.shape[1]
            self._held.append(arena.take(panels * panel * groups))
            for packed, rows in zip(self._held, weight, strict=True):
                lines = F.pad(rows, (0, 0, 0, beyond)).view(panels, panel, -1).transpose(1, 2)
                packed.view(lines.shape).copy_(lines)
            self.pack.ints, self.pack.scales = (packed.data_ptr() for packed in self._held)
        else:
            functions.pack.argtypes = [_POINTER, _POINTER, _LONG, _LONG, _LONG]
            functions.pack.restype = None
            self.pack.weights = self._held[0].data_ptr()
            functions.pack(given.data_ptr(), self.pack.weights, *given.shape, torch.get_num_threads())
        if bias is not None:
            self._held.append(F.pad(bias, (0, beyond)))
            self.pack.bias = self._held[-1].data_ptr()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[..., in] to [..., out]."""
        rows = x if x.dim() == 2 and x.stride(1) == 1 else x.reshape(-1, x.shape[-1]).contiguous()
        if rows.dtype != torch.float32 or rows.shape[1] != self._depth or rows.device.type != "cpu":
            raise TypeError(f"{rows.dtype} {tuple(x.shape)} on {x.device} by float32 [{self._depth}, {self._columns}]")
        y = rows.new_empty(rows.shape[0], self._columns)
        threads = torch.get_num_threads()
        self._product(self._address, rows.data_ptr(), rows.stride(0), y.data_ptr(), rows.shape[0], threads)
        return y if x.dim() == 2 else y.view(*x.shape[:-1], self._columns)
