"""Attention by a loop over requests: gather what a few queries see, score it in float32, and sum the values."""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from rtk.plugin import AttentionBackend, BatchView, BufferSpec, Capabilities, KVLayout, KVShape, LayerCall, Workspace

from . import BackendOptions


class Row(NamedTuple):
    q_len: int
    slots: torch.Tensor  # of every position that the row's last query may see


class Loops(AttentionBackend):
    capabilities = Capabilities(
        devices=frozenset({"cpu", "cuda"}),
        dtypes=frozenset({"float32", "bfloat16", "float16"}),
        features=frozenset({"sliding_window", "softcap", "sinks"}),
    )

    def __init__(self, options: BackendOptions) -> None:
        self._block = options.block

    def layout(self, shape: KVShape, page_size: int, kv_dtype: str) -> KVLayout:
        k = BufferSpec("k", (shape.kv_heads, shape.head_dim), kv_dtype)
        v = BufferSpec("v", (shape.kv_heads, shape.v_head_dim), kv_dtype)
        return KVLayout(shape.layers, page_size, (k, v))

    def plan(self, batch: BatchView, workspace: Workspace) -> list[Row]:
        rows = zip(batch.q_lens.tolist(), batch.kv_lens.tolist(), batch.req_rows.tolist(), strict=True)
        return [Row(q_len, batch.req_to_token[row, :kv_len].long()) for q_len, kv_len, row in rows]

    def write(self, kv: Mapping[str, torch.Tensor], k: torch.Tensor, v: torch.Tensor, slots: torch.Tensor) -> None:
        kv["k"][slots] = k
        kv["v"][slots] = v

    def forward(
        self, q: torch.Tensor, kv: Mapping[str, torch.Tensor], call: LayerCall, plan: list[Row]
    ) -> torch.Tensor:
        k, v = kv["k"], kv["v"]
        out = q.new_empty(q.shape[0], q.shape[1], v.shape[-1])
        row_start = 0
        for row in plan:
            before = len(row.slots) - row.q_len  # positions that were there before this step
            for start in range(0, row.q_len, self._block):
                stop = min(start + self._block, row.q_len)
                first = before + start  # position of the block's first query, which looks back the furthest
                oldest = 0 if call.sliding_window is None else max(0, first - call.sliding_window + 1)
                seen = row.slots[oldest : before + stop]
                here = slice(row_start + start, row_start + stop)
                out[here] = attend(q[here], k[seen], v[seen], call)
            row_start += row.q_len
        return out


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, call: LayerCall) -> torch.Tensor:
    """Attention of the last n of m positions: q [n, q_heads, d], k [m, kv_heads, d], v [m, kv_heads, d_v]."""
    n, m, kv_heads = len(q), len(k), k.shape[1]
    grouped = q.float().reshape(n, kv_heads, -1, q.shape[-1])  # neighbouring query heads share a K/V head
    scores = torch.einsum("nhgd,mhd->hgnm", grouped, k.float()) * call.scaling
    if call.softcap is not None:
        scores = call.softcap * torch.tanh(scores / call.softcap)
    scores = scores.masked_fill(hidden(n, m, call.sliding_window, q.device), -torch.inf)
    if call.sinks is not None:
        sinks = call.sinks.float().reshape(kv_heads, -1, 1, 1).expand(-1, -1, n, 1)
        scores = torch.cat([scores, sinks], dim=-1)
    weights = scores.softmax(dim=-1)[..., :m]
    return torch.einsum("hgnm,mhd->nhgd", weights, v.float()).flatten(1, 2).to(q.dtype)


def hidden(n: int, m: int, window: int | None, device: torch.device) -> torch.Tensor:
    """[n, m]: which of m positions the last n of them must not see."""
    keys = torch.arange(m, device=device)
    queries = keys[m - n :, None]
    future = keys > queries
    return future if window is None else future | (keys <= queries - window)
