import json
from pathlib import Path

import pytest
import torch

from rtk.cache.pool import KVPool, buffer_bytes, buffer_shape, pool_bytes
from rtk.plugin import BufferSpec, KVLayout

EXAMPLE = json.loads((Path(__file__).parents[1] / "data" / "worked_examples.json").read_text())["kv_pool"]


def test_the_worked_example_of_the_pool():
    head = (EXAMPLE["n_kv"], EXAMPLE["head_dim"])
    k, v = (BufferSpec(name, head, "bfloat16") for name in "kv")
    layout = KVLayout(EXAMPLE["layers"], EXAMPLE["page_size"], (k, v))
    assert buffer_shape(layout, k, EXAMPLE["slots"]) == tuple(EXAMPLE["k_buffer_shape"])
    assert buffer_bytes(layout, k, EXAMPLE["slots"]) == EXAMPLE["k_buffer_bytes"]
    assert layout.layers * len(layout.buffers) == EXAMPLE["buffers"]
    assert pool_bytes(layout, EXAMPLE["slots"]) == EXAMPLE["total_bytes"]


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
def test_buffers_have_a_page_more_than_slots(dtype):
    layout = KVLayout(3, 16, (BufferSpec("k", (2, 8), dtype), BufferSpec("v", (2, 4), dtype)))
    pool = KVPool(layout, 32, torch.device("cpu"))
    assert {name: tuple(t.shape) for name, t in pool.layer(2).items()} == {"k": (48, 2, 8), "v": (48, 2, 4)}
    tensors = [t for i in range(3) for t in pool.layer(i).values()]
    assert all(t.dtype == getattr(torch, dtype) and not t.any() for t in tensors)
    assert all(t.data_ptr() % 64 == 0 for t in tensors)
    assert len({t.data_ptr() for t in tensors}) == len(tensors)
    assert pool.nbytes == sum(t.numel() * t.element_size() for t in tensors) == pool_bytes(layout, 32)


def test_layers_do_not_share_memory():
    pool = KVPool(KVLayout(2, 1, (BufferSpec("k", (1, 2), "float32"),)), 4, torch.device("cpu"))
    pool.layer(0)["k"].fill_(torch.nan)
    assert not pool.layer(1)["k"].any()


def test_a_pool_has_whole_pages():
    with pytest.raises(AssertionError, match="33 slots"):
        KVPool(KVLayout(1, 16, (BufferSpec("k", (1, 2), "float32"),)), 33, torch.device("cpu"))
