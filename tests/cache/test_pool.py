import pytest
import torch

from rtk.cache.pool import KVPool, pool_bytes
from rtk.plugin import BufferSpec, KVLayout


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
