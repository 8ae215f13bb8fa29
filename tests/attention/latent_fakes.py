"""FlashMLA and TensorRT-LLM's decoding without a GPU: they check what the real ones check, and compute from no more.

Their functions have the signatures of releases. What the real ones do not check but need is checked too.
"""

import importlib.machinery
import sys
from dataclasses import dataclass, replace
from types import ModuleType

import torch
from signatures import executing, signatures

from rtk.plugin import Plugin
from rtk.plugin.registry import Origin, Registered, Registry
from rtk_attention.torch.backend import TorchAttention


def attention(q, cache, tables, lens, scale, value, *, causal):
    """q [rows, q_len, heads, dim] over cache [pages, page_size, dim] in float64."""
    assert tables.min() >= 0, "a table names a page that is not there"
    assert tables.max() < len(cache), "a table names a page that is not there"
    out = torch.empty(*q.shape[:3], value, dtype=torch.float64)
    for row, length in enumerate(lens.tolist()):
        pages = tables[row, : -(-length // cache.shape[1])].long()
        k = cache[pages].flatten(0, 1)[:length].double()
        scores = torch.einsum("qhd,kd->hqk", q[row].double(), k) * scale
        if causal:
            first = length - q.shape[1]
            hidden = torch.arange(length) > first + torch.arange(q.shape[1])[:, None]
            scores.masked_fill_(hidden, -torch.inf)
        out[row] = torch.einsum("hqk,kd->qhd", scores.softmax(-1), k[:, :value])
    return out.to(q.dtype)


def module(name, functions):
    made = ModuleType(name)
    made.__spec__ = importlib.machinery.ModuleSpec(name, None)
    vars(made).update(functions)
    return made


class FlashMLA:
    """The package as one release has it; `made` counts how often work was cut."""

    def __init__(self, release):
        self.made = 0
        self.calls = []
        self.functions = {}
        self.lazy = False
        for name, signature in signatures(release).items():
            self.package, _, last = name.rpartition(".")
            self.functions[last] = executing(signature, getattr(self, last))
            self.lazy |= "use_legacy" in signature.parameters

    def install(self, monkeypatch):
        for name in ("flash_mla", "sgl_kernel", "sgl_kernel.flash_mla"):
            monkeypatch.delitem(sys.modules, name, raising=False)
        names = [self.package.partition(".")[0], self.package]
        for name in names:
            monkeypatch.setitem(sys.modules, name, module(name, self.functions if name == self.package else {}))
        return self

    def get_mla_metadata(self, given):
        if self.lazy:
            return Schedule(), None
        assert given.cache_seqlens.dtype == torch.int32
        assert (given.num_heads_k, given.is_fp8_kvcache, given.topk) == (1, False, None)
        return self.cut(given.cache_seqlens, given.num_q_tokens_per_head_k)

    def cut(self, lens, queries):
        """What real ones keep is told by the same two: how long the rows are, and how many queries a head has."""
        self.made += 1
        return torch.cat([lens, lens.new_tensor([queries])]), lens.new_zeros(len(lens) + 1)

    def flash_mla_with_kvcache(self, given):
        q, cache, tables, lens = given.q, given.k_cache, given.block_table, given.cache_seqlens
        assert given.indices is None
        assert not given.is_fp8_kvcache
        queries = q.shape[1] * q.shape[2]
        if self.lazy:
            kept = given.tile_scheduler_metadata
            assert isinstance(kept, Schedule)
            assert given.num_splits is None, "num_splits must be None"
            assert given.use_legacy, "Dense MLA decoding was removed from the current kernels; pass use_legacy=True"
            if kept.metadata is None:
                kept.metadata, kept.splits = self.cut(lens, queries)
            metadata, splits = kept.metadata, kept.splits
        else:
            metadata, splits = given.tile_scheduler_metadata, given.num_splits
        assert q.dtype in (torch.bfloat16, torch.float16)
        assert cache.dtype == q.dtype, "query and key must have the same dtype"
        assert lens.dtype == torch.int32, "seqlens_k must have dtype int32"
        assert tables.dtype == torch.int32, "block_table must have dtype torch.int32"
        assert q.stride(-1) == 1, "q must have contiguous last dimension"
        assert cache.stride(-1) == 1, "kcache must have contiguous last dimension"
        assert lens.is_contiguous()
        assert tables.stride(-1) == 1, "block_table must have contiguous last dimension"
        rows, _, _, dim = q.shape
        assert dim in (576, 512), "Only head_size_k == 576 or 512 is supported"
        assert given.head_dim_v == 512, "Only head_size_v == 512 is supported"
        assert cache.shape[1] == 64, "Currently page_block_size must be 64"
        assert cache.shape[2:] == (1, dim)
        assert rows > 0, "batch size must be positive"
        assert lens.shape == (rows,)
        assert tables.shape[0] == rows
        assert torch.equal(metadata, torch.cat([lens, lens.new_tensor([queries])])), "cut for other work"
        assert splits.shape == (rows + 1,)
        self.calls.append(q.shape[:2])
        causal = given.causal and q.shape[1] > 1
        out = attention(q, cache.squeeze(2), tables, lens, given.softmax_scale, given.head_dim_v, causal=causal)
        return out, torch.empty(rows, q.shape[2], q.shape[1])


@dataclass
class Schedule:
    """As `FlashMLASchedMeta`: empty until the kernel first sees it."""

    metadata: torch.Tensor | None = None
    splits: torch.Tensor | None = None


class TrtllmMLA:
    """FlashInfer's function as one release has it, on a device that has the kernels."""

    NAME = "flashinfer.mla.trtllm_batch_decode_with_kv_cache_mla"

    def __init__(self, release):
        self.calls = []
        signature = signatures(release)[self.NAME]
        self.function = executing(signature, self.run)
        self.defaults = {name: one.default for name, one in signature.parameters.items()}

    def install(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "flashinfer", module("flashinfer", {}))
        functions = {"trtllm_batch_decode_with_kv_cache_mla": self.function}
        monkeypatch.setitem(sys.modules, "flashinfer.mla", module("flashinfer.mla", functions))
        return self

    def run(self, given):
        q, cache, scratch, tables, lens = (
            getattr(given, name) for name in ("query", "kv_cache", "workspace_buffer", "block_tables", "seq_lens")
        )
        others = set(self.defaults) - {
            "query", "kv_cache", "workspace_buffer", "qk_nope_head_dim", "kv_lora_rank", "qk_rope_head_dim",
            "block_tables", "seq_lens", "max_seq_len", "bmm1_scale", "backend",
        }  # fmt: skip
        assert all(getattr(given, name) == self.defaults[name] for name in others), "asks for more than this knows"
        assert given.backend in ("auto", "trtllm-gen")
        assert (given.kv_lora_rank, given.qk_rope_head_dim) in ((512, 64), (256, 64)), "Unsupported MLA dimensions"
        assert q.ndim == 4, "Expected query.ndim == 3 or 4"
        assert cache.ndim == 3
        rows, _, heads, dim = q.shape
        page = cache.shape[1]
        assert dim == cache.shape[2] == given.kv_lora_rank + given.qk_rope_head_dim
        assert not 64 < heads < 128, "trtllm-gen MLA decode does not support 64 < num_heads_q < 128"
        assert page in (32, 64), "trtllm-gen requires block_size in (32, 64)"
        assert tables.shape[0] == rows
        assert tables.shape[1] % (128 / page) == 0, "Expected block_num % (128 / block_size) == 0"
        assert tables.dtype == lens.dtype == torch.int32
        assert tables.is_contiguous()
        assert lens.is_contiguous()
        assert lens.shape == (rows,)
        assert given.max_seq_len >= lens.max()
        assert tables.shape[1] * page >= given.max_seq_len
        assert q.dtype == cache.dtype == torch.bfloat16
        assert q.flatten(0, 1).stride(-1) == 1
        assert isinstance(given.bmm1_scale, float)
        assert not scratch.any(), "workspace_buffer must be zero-initialized"
        self.calls.append(q.shape[:2])
        return attention(q, cache, tables, lens, given.bmm1_scale, given.kv_lora_rank, causal=True)


class StandIn(TorchAttention):
    """What computes the longer rows, and rounds nothing but its answers; keeps the batches that it planned."""

    planned: list = []  # noqa: RUF012 - one for all: the backend under test makes its own

    def plan(self, batch, workspace):
        self.planned.append(batch)
        return super().plan(batch, workspace)

    def forward(self, q, kv, call, plan):
        return super().forward(q.float(), {name: t.float() for name, t in kv.items()}, call, plan).to(q.dtype)


class KnowsNoLatents(TorchAttention):
    capabilities = replace(TorchAttention.capabilities, kinds=frozenset({"mha"}))


def registry(**targets):
    """Attention plugins with these names."""
    plugins = [Plugin(kind="attention", name=name, summary="-", target=target) for name, target in targets.items()]
    return Registry([Registered(plugin, Origin(plugin.name, "test", "1")) for plugin in plugins])
