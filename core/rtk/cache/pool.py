"""The memory that K/V lives in: the buffers of a layout, for every layer. Who owns which slot is not known here."""

import math
from collections.abc import Mapping

import torch

from rtk import huge_pages
from rtk.plugin.attention import DTYPE_BYTES, BufferSpec, KVLayout


def buffer_shape(layout: KVLayout, buffer: BufferSpec, slots: int) -> tuple[int, ...]:
    """Shape of one buffer of one layer: `slots` and the page of slot 0, which holds padding and is never given out."""
    return (slots + layout.page_size, *buffer.shape)


def buffer_bytes(layout: KVLayout, buffer: BufferSpec, slots: int) -> int:
    """Bytes of one buffer of one layer."""
    return math.prod(buffer_shape(layout, buffer, slots)) * DTYPE_BYTES[buffer.dtype]


def pool_bytes(layout: KVLayout, slots: int) -> int:
    """Bytes of the whole pool: every buffer of every layer."""
    return layout.layers * sum(buffer_bytes(layout, buffer, slots) for buffer in layout.buffers)


class KVPool:
    """Zeroed buffers for `slots` slots and one page more. On a CPU memory is taken as slots are first written."""

    def __init__(self, layout: KVLayout, slots: int, device: torch.device) -> None:
        """`slots` is a multiple of the layout's page size. Raises what torch raises when memory does not suffice."""
        assert slots % layout.page_size == 0, f"{slots} slots are no whole number of {layout.page_size}-slot pages"
        self.layout = layout
        self.slots = slots
        self.device = device
        self._layers = tuple(self._allocate() for _ in range(layout.layers))

    def _allocate(self) -> dict[str, torch.Tensor]:
        return {
            buffer.name: _zeros(
                buffer_shape(self.layout, buffer, self.slots), getattr(torch, buffer.dtype), self.device
            )
            for buffer in self.layout.buffers
        }

    def layer(self, index: int) -> Mapping[str, torch.Tensor]:
        """The buffers of one layer, by name."""
        return self._layers[index]

    @property
    def nbytes(self) -> int:
        """Bytes of all buffers."""
        return pool_bytes(self.layout, self.slots)


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Zeros; on a CPU as untouched pages of the operating system: `torch.zeros` takes 1.7 s for each gigabyte."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    return huge_pages.zeros(math.prod(shape) * dtype.itemsize).view(dtype).view(shape)
