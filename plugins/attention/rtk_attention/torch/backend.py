"""Attention over the paged pool in plain torch: gather the visible K/V of a piece of the batch, then attend.

Nothing is read but the slots of visible positions; padding repeats a row's own slot, so other slots may hold NaN.
"""

from collections.abc import Mapping
from dataclasses import replace

import torch
import torch.nn.functional as F

from rtk.plugin import BatchView, Capabilities, LayerCall, Options, Workspace
from rtk_attention.pool import PlainPool
from rtk_attention.torch.parts import KERNEL, Parts
from rtk_attention.torch.plan import Piece, StepIndex

Plan = tuple[StepIndex, Workspace, Parts | None]


class TorchAttention(PlainPool):
    """Works in whatever type the model works in, float64 included. On a CPU by `parts`, where its kernel can."""

    capabilities = Capabilities(
        devices=frozenset({"cpu", "cuda"}),
        dtypes=frozenset({"float64", "float32", "bfloat16", "float16"}),
        features=frozenset({"sliding_window", "softcap", "sinks"}),
        kinds=frozenset({"mha", "mla"}),
    )

    def __init__(self, options: Options) -> None:
        """It has no options of its own."""

    def plan(self, batch: BatchView, workspace: Workspace) -> Plan:
        parts = Parts(batch, workspace) if KERNEL is not None and batch.req_to_token.device.type == "cpu" else None
        return StepIndex(batch), workspace, parts

    def forward(self, q: torch.Tensor, kv: Mapping[str, torch.Tensor], call: LayerCall, plan: Plan) -> torch.Tensor:
        """O(kv_len) memory traffic for each row, and for each block of queries of a longer row."""
        index, workspace, parts = plan
        if parts is not None and parts.suit(kv, call):
            return parts.attend(q, kv, call)
        pieces = index.pieces(call.sliding_window, q.dtype)
        if len(pieces) == 1:
            return _attend(q, kv, call, pieces[0], workspace)
        out = q.new_empty(index.tokens, q.shape[1], call.v_head_dim or kv["v"].shape[2])
        for piece in pieces:
            out[piece.queries] = _attend(q[piece.queries], kv, call, piece, workspace)
        return out


class PlainTorchAttention(TorchAttention):
    """Without the kernel and the parts: what the other one is compared with."""

    capabilities = replace(TorchAttention.capabilities, preference=-1)

    def plan(self, batch: BatchView, workspace: Workspace) -> Plan:
        return StepIndex(batch), workspace, None


def _attend(
    q: torch.Tensor, kv: Mapping[str, torch.Tensor], call: LayerCall, piece: Piece, workspace: Workspace
) -> torch.Tensor:
    """One piece: q [rows * q_len, q_heads, head_dim] to [rows * q_len, q_heads, v_head_dim].

    Query heads that share a K/V head are neighbours: they are the third last dimension of single queries, so that a
    head's keys are read once for all of them, and a dimension of stride 0 in the keys of a block.
    """
    k = _read("k", kv["k"], piece, workspace)
    v = k[..., : call.v_head_dim] if call.v_head_dim else _read("v", kv["v"], piece, workspace)
    kv_heads = k.shape[2]
    q = q.view(q.shape[0], kv_heads, -1, q.shape[2])
    if piece.q_len == 1:
        out = _attention(q, k.transpose(1, 2), v.transpose(1, 2), call, piece.mask, (kv_heads, -1, 1))
        return out.flatten(1, 2)
    group = q.shape[2]
    k, v = (t[0].transpose(0, 1)[:, None].expand(-1, group, -1, -1) for t in (k, v))
    out = _attention(q.permute(1, 2, 0, 3), k, v, call, piece.mask, (kv_heads, group, 1, 1))
    return out.permute(2, 0, 1, 3).flatten(1, 2)


def _read(name: str, buffer: torch.Tensor, piece: Piece, workspace: Workspace) -> torch.Tensor:
    """The piece's rows of one buffer: [rows, kv_len, heads, dim]."""
    shape = (piece.rows, piece.kv_len, *buffer.shape[1:])
    if isinstance(piece.slots, slice):
        return buffer[piece.slots].view(shape)
    # Selecting flat rows copies whole rows at once; a fancy index is four times slower on a CPU.
    flat = buffer.view(len(buffer), -1)
    gathered = workspace.take(name, (piece.rows * piece.kv_len, flat.shape[1]), buffer.dtype)
    return torch.index_select(flat, 0, piece.slots, out=gathered).view(shape)


def _attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    call: LayerCall,
    mask: torch.Tensor | None,
    sinks_shape: tuple[int, ...],
) -> torch.Tensor:
    """Four-dimensional attention; by torch's own kernel unless the layer wants what that kernel does not know."""
    if call.softcap is None and call.sinks is None:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=call.scaling)
    exact = torch.promote_types(q.dtype, torch.float32)
    scores = (q.to(exact) @ k.to(exact).transpose(-1, -2)) * call.scaling
    if call.softcap is not None:
        scores = torch.tanh(scores / call.softcap) * call.softcap
    if mask is not None:
        scores = scores + mask
    if call.sinks is not None:
        sinks = call.sinks.to(exact).reshape(sinks_shape).expand(*scores.shape[:-1], 1)
        scores = torch.cat([scores, sinks], dim=-1)
    weights = scores.softmax(dim=-1)[..., : k.shape[-2]]
    return (weights @ v.to(exact)).to(q.dtype)
