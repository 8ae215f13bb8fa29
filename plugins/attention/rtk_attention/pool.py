"""K/V as they come: one buffer of keys and one of values, a row for each slot; of latents, one buffer."""

from collections.abc import Mapping

import torch

from rtk.plugin import AttentionBackend, BufferSpec, KVLayout, KVShape


class PlainPool(AttentionBackend):
    """How a backend keeps K/V that reads them by slot: whatever the page size, and interchangeable with the others."""

    def layout(self, shape: KVShape, page_size: int, kv_dtype: str) -> KVLayout:
        k = BufferSpec("k", (shape.kv_heads, shape.head_dim), kv_dtype)
        if shape.mla:
            return KVLayout(shape.layers, page_size, (k,))
        v = BufferSpec("v", (shape.kv_heads, shape.v_head_dim), kv_dtype)
        return KVLayout(shape.layers, page_size, (k, v))

    def write(self, kv: Mapping[str, torch.Tensor], k: torch.Tensor, v: torch.Tensor, slots: torch.Tensor) -> None:
        kv["k"].index_copy_(0, slots, k)
        if "v" in kv:
            kv["v"].index_copy_(0, slots, v)
