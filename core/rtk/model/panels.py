"""Linear layers of our own for float32 and AVX-512, for the 1 to 64 rows that steps of decoding requests have.

Libraries are made for many rows. With few of them a product is bound by reading the weights once, which they do at a
part of what the memory gives, or do first and compute then. This one does both at the same time.
"""

import ctypes
from pathlib import Path

import torch

from rtk import huge_pages
from rtk.native import library

SOURCE = Path(__file__).with_name("panels.cpp")
_POINTER, _LONG = ctypes.c_void_p, ctypes.c_long


class Arena:
    """Float32 memory for packs, in blocks: a pack alone would half fill its last page. They go with their packs."""

    BLOCK = 1 << 24
    """Entries of a block."""

    def __init__(self) -> None:
        self._left = torch.empty(0)

    def take(self, count: int) -> torch.Tensor:
        """[count], uninitialised."""
        if self._left.numel() < count:
            self._left = huge_pages.zeros(4 * max(count, self.BLOCK)).view(torch.float32)
        taken, self._left = self._left[:count], self._left[count:]
        return taken


class Pack(ctypes.Structure):
    """`Pack` of `panels.h`."""

    _fields_ = (("weights", _POINTER), ("bias", _POINTER), ("n", _LONG), ("depth", _LONG))


class Panels:
    """x Wᵀ + b of a weight that is packed as `panels.cpp` says; the original is not kept."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, arena: Arena) -> None:
        """`weight` [out, in] and `bias` [out] are float32 on a CPU. Raises `rtk.native.Unavailable`."""
        functions = library(SOURCE)
        functions.panel_columns.restype = _LONG
        self._product = functions.product
        self._product.argtypes = [_POINTER, _POINTER, _LONG, _POINTER, _LONG, _LONG]
        self._product.restype = None
        functions.pack.argtypes = [_POINTER, _POINTER, _LONG, _LONG, _LONG]
        functions.pack.restype = None
        self._columns, self._depth = weight.shape
        columns = -(-self._columns // functions.panel_columns()) * functions.panel_columns()
        weight = weight.contiguous()
        self._packed = arena.take(columns * self._depth)
        functions.pack(weight.data_ptr(), self._packed.data_ptr(), *weight.shape, torch.get_num_threads())
        self._bias = None if bias is None else torch.nn.functional.pad(bias, (0, columns - self._columns))
        added = None if self._bias is None else self._bias.data_ptr()
        self.pack = Pack(self._packed.data_ptr(), added, self._columns, self._depth)
        """For C++ that multiplies by it; valid as long as this object is."""
        self._address = ctypes.addressof(self.pack)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[..., in] to [..., out]."""
        rows = x if x.dim() == 2 and x.stride(1) == 1 else x.reshape(-1, x.shape[-1]).contiguous()
        if rows.dtype != torch.float32 or rows.shape[1] != self._depth or rows.device.type != "cpu":
            raise TypeError(f"{rows.dtype} {tuple(x.shape)} on {x.device} by float32 [{self._depth}, {self._columns}]")
        y = rows.new_empty(rows.shape[0], self._columns)
        threads = torch.get_num_threads()
        self._product(self._address, rows.data_ptr(), rows.stride(0), y.data_ptr(), rows.shape[0], threads)
        return y if x.dim() == 2 else y.view(*x.shape[:-1], self._columns)
