"""Attention over the paged pool by the kernels of `kernels`: rows of several queries in one launch, decoding in two."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
import triton

from rtk.errors import PluginError
from rtk.plugin import BatchView, Capabilities, KVLayout, KVShape, LayerCall, Workspace
from rtk_attention.pool import PlainPool
from rtk_attention.triton import TritonOptions
from rtk_attention.triton.kernels import decode_kernel, extend_kernel, join_kernel
from rtk_attention.triton.work import Pieces, Step

MAX_HEAD_DIM = 256
"""Beyond it, the tiles do not fit into the shared memory of every device."""
MAX_LATENT = 512, 64
"""The same for latents: entries that are the value, and others."""
PROGRAMS = 4
"""Decoding programs for each multiprocessor of the device: some run at once, and the rest levels them out."""
HEADS = 16
"""The least that a matrix unit multiplies, and the query heads of one program that joins pieces."""


@dataclass(frozen=True, slots=True)
class Tiles:
    """Sizes of one kernel's blocks, and how it is launched: made for 99 KiB of shared memory."""

    rows: int
    """Queries, or query heads when decoding, of one program."""
    keys: int
    warps: int
    stages: int


class TritonAttention(PlainPool):
    """Sums in float32; weights of half-precision values are rounded to the type of the values."""

    capabilities = Capabilities(
        devices=frozenset({"cuda"}),
        dtypes=frozenset({"float32", "bfloat16", "float16"}),
        features=frozenset({"sliding_window", "softcap", "sinks"}),
        kinds=frozenset({"mha", "mla"}),
        preference=10,
        graphs=True,
    )

    def __init__(self, options: TritonOptions) -> None:
        self._max_splits = options.max_kv_splits

    def layout(self, shape: KVShape, page_size: int, kv_dtype: str) -> KVLayout:
        if shape.mla:
            value, rest = shape.v_head_dim, shape.head_dim - shape.v_head_dim
            if value > MAX_LATENT[0] or rest > MAX_LATENT[1]:
                raise PluginError(
                    f"attention plugin 'triton' takes latents of up to {MAX_LATENT[0]} + {MAX_LATENT[1]} dimensions, "
                    f"and the model's have {value} + {rest}; use attention.backend = torch"
                )
        elif (longest := max(shape.head_dim, shape.v_head_dim)) > MAX_HEAD_DIM:
            raise PluginError(
                f"attention plugin 'triton' takes heads of up to {MAX_HEAD_DIM} dimensions, and the model's have "
                f"{longest}; use attention.backend = torch"
            )
        return super().layout(shape, page_size, kv_dtype)

    def plan(self, batch: BatchView, workspace: Workspace) -> Step:
        programs = PROGRAMS * self.multiprocessors(batch.req_to_token.device)
        return Step(batch, workspace, programs=programs, max_splits=self._max_splits)

    def replan(self, plan: Step, batch: BatchView) -> None:
        """O(pieces) on the host."""
        plan.replan(batch)

    def multiprocessors(self, device: torch.device) -> int:
        """How many the device has."""
        return int(torch.cuda.get_device_properties(device).multi_processor_count)

    def forward(self, q: torch.Tensor, kv: Mapping[str, torch.Tensor], call: LayerCall, plan: Step) -> torch.Tensor:
        """O(kv_len) memory traffic for each row, and for each block of queries of a longer row."""
        k, heads = Keys.of(kv, call), q.shape[1]
        out = q.new_empty(q.shape[0], heads, k.v_dim)
        tiles = extend_tiles(k, q.dtype)
        if (blocks := plan.extend(tiles.rows)) is not None:
            _extend(q, k, call, plan, blocks, tiles, out)
        group = heads // k.heads
        tiles = decode_tiles(k, q.dtype, group)
        programs = k.heads * triton.cdiv(group, tiles.rows)
        if (pieces := plan.decode(call.sliding_window, programs)) is not None:
            _decode(q, k, call, plan, pieces, programs, tiles, out)
        return out


@dataclass(frozen=True, slots=True)
class Keys:
    """K/V of one layer as kernels take them."""

    k: torch.Tensor
    v: torch.Tensor
    """[slots, K/V heads, at least `v_dim`]."""
    dim: int
    """Entries of a key in the first product with the query: all, or those of a latent that are its value."""
    rest: int
    """Further entries of a latent."""
    v_dim: int

    @classmethod
    def of(cls, kv: Mapping[str, torch.Tensor], call: LayerCall) -> "Keys":
        k = kv["k"]
        if call.v_head_dim is None:
            return cls(k, kv["v"], k.shape[2], 0, kv["v"].shape[2])
        return cls(k, k, call.v_head_dim, k.shape[2] - call.v_head_dim, call.v_head_dim)

    @property
    def heads(self) -> int:
        return self.k.shape[1]

    @property
    def width(self) -> int:
        """Of the widest tile."""
        return padded(max(self.dim, self.v_dim))

    @property
    def sizes(self) -> dict[str, int]:
        """What both kernels are compiled for."""
        return {
            "head_dim": self.dim,
            "rest_dim": self.rest,
            "v_head_dim": self.v_dim,
            "block_d": padded(self.dim),
            "block_r": padded(self.rest),
            "block_v": padded(self.v_dim),
        }


def _extend(
    q: torch.Tensor,
    k: Keys,
    call: LayerCall,
    step: Step,
    blocks: torch.Tensor,
    tiles: Tiles,
    out: torch.Tensor,
) -> None:
    heads = q.shape[1]
    scale, cap = exponents(call)
    extend_kernel[(len(blocks) * heads,)](
        q, k.k, k.v, out, _sinks(call, out), step.table, blocks, scale, cap, call.sliding_window or 0,
        heads, heads // k.heads, step.table.stride(0), *q.stride(), *k.k.stride(), *k.v.stride(),
        out.stride(0), out.stride(1), 0 if call.sinks is None else call.sinks.stride(0),
        **k.sizes, block_m=tiles.rows, block_n=tiles.keys, windowed=call.sliding_window is not None,
        capped=call.softcap is not None, sinking=call.sinks is not None,
        num_warps=tiles.warps, num_stages=tiles.stages,
    )  # fmt: skip


def _decode(
    q: torch.Tensor,
    k: Keys,
    call: LayerCall,
    step: Step,
    pieces: Pieces,
    programs: int,
    tiles: Tiles,
    out: torch.Tensor,
) -> None:
    """Attention of each piece, and then the sum of each row's pieces."""
    heads, count = q.shape[1], len(pieces.work)
    scale, cap = exponents(call)
    parts = step.workspace.take("triton parts", (count, heads, k.v_dim), torch.float32)
    weights = step.workspace.take("triton weights", (count, heads), torch.float32)
    decode_kernel[(count * programs,)](
        q, k.k, k.v, parts, weights, step.table, pieces.work, scale, cap, k.heads, heads // k.heads,
        step.table.stride(0), *q.stride(), *k.k.stride(), *k.v.stride(),
        **k.sizes, block_h=tiles.rows, block_n=tiles.keys, capped=call.softcap is not None,
        num_warps=tiles.warps, num_stages=tiles.stages,
    )  # fmt: skip
    join_kernel[(len(pieces.rows) * triton.cdiv(heads, HEADS),)](
        parts, weights, out, _sinks(call, out), pieces.rows, heads, out.stride(0), out.stride(1),
        0 if call.sinks is None else call.sinks.stride(0), v_head_dim=k.v_dim, block_h=HEADS,
        block_v=padded(k.v_dim), sinking=call.sinks is not None,
    )  # fmt: skip


def exponents(call: LayerCall) -> tuple[float, float]:
    """Scale and cap of scores that are exponents of 2; scale goes into `1 - 2 / (2 ** x + 1)`, tanh, with a cap."""
    log2e = math.log2(math.e)
    if call.softcap is None:
        return call.scaling * log2e, 0.0
    return call.scaling * 2 / call.softcap * log2e, call.softcap * log2e


def _sinks(call: LayerCall, other: torch.Tensor) -> torch.Tensor:
    """The sinks; where there are none, what a kernel gets for a pointer that it does not follow."""
    return other if call.sinks is None else call.sinks


def padded(dim: int) -> int:
    """The power of two that a head is padded to inside a program; in memory it is as long as it is."""
    return max(16, int(triton.next_power_of_2(dim)))


def extend_tiles(k: Keys, dtype: torch.dtype) -> Tiles:
    """Such that registers suffice, but for a few bytes, on sm_80, sm_90a and sm_100a; nothing is tuned at run time."""
    if dtype == torch.float32:
        return Tiles(32, 32, 4, 1) if k.width <= 64 else Tiles(16, 32 if k.width <= MAX_HEAD_DIM else 16, 8, 1)
    if k.width <= 64:
        return Tiles(128, 64, 8, 2)
    if k.width <= MAX_HEAD_DIM:
        return Tiles(64, 64 if k.width <= 128 else 32, 8, 2)
    return Tiles(32, 32, 8, 2)


def decode_tiles(k: Keys, dtype: torch.dtype, group: int) -> Tiles:
    """Query heads that share a K/V head are read together, up to 32 of them."""
    if dtype == torch.float32:
        return Tiles(HEADS, 32 if k.width <= MAX_HEAD_DIM else 16, 4 if k.width <= 64 else 8, 1)
    heads = min(max(HEADS, triton.next_power_of_2(group)), 32)
    if k.width <= MAX_HEAD_DIM:
        return Tiles(heads, 64 if k.width <= 128 else 32, 4, 2)
    return Tiles(heads, 32, 8, 2)
