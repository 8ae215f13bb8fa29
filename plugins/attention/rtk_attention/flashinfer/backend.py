"""Attention over the paged pool by FlashInfer's wrappers. Uses what versions 0.6.18 and 0.7 have in common.

Layers alike are planned once a step. Prefixes that rows share are attended to once for all of them and joined with what
the rows have of their own, by the weights of both (`merge_state`).
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F

from rtk.errors import PluginError
from rtk.plugin import AttentionBackend, BatchView, BufferSpec, Capabilities, KVLayout, KVShape, LayerCall, Workspace
from rtk_attention.flashinfer import FlashInferOptions
from rtk_attention.flashinfer.parts import Part, Step
from rtk_attention.latent import library

HEAD_DIMS = (64, 128, 256)
"""What the kernels are made for; heads of other sizes are padded with zeros, in the pool too."""
LATENT, ROPE = 512, 64
"""The parts of a latent that the MLA kernels are made for."""
MAX_LATENT_HEADS = 128
"""Query heads that the MLA kernels join in one tile."""
MATRIX_GROUP = 4
"""Query heads to a K/V head from which on matrix units decode faster; without them, not every group has a kernel."""
MIN_BUFFER = 128 * 2**20
"""Bytes of the buffer for partial results that FlashInfer recommends."""

Attend = Callable[[Part, bool], tuple[torch.Tensor, torch.Tensor | None]]
"""One part of one layer: outputs, and where they are wanted the sums of their weights, as exponents of 2."""


class FlashInferAttention(AttentionBackend):
    """Sums in float32. Pages of any size; the rows of a window are read slot by slot."""

    capabilities = Capabilities(
        devices=frozenset({"cuda"}),
        dtypes=frozenset({"bfloat16", "float16"}),
        features=frozenset({"sliding_window", "softcap", "sinks"}),
        kinds=frozenset({"mha", "mla"}),
        compute_capabilities=frozenset({8, 9, 10, 11, 12}),  # of 7 there is 7.5 only, without bfloat16 and without MLA
        preference=20,
    )

    def __init__(self, options: FlashInferOptions) -> None:
        """Raises `ImportError` where FlashInfer is not installed, or cannot be loaded."""
        library("flashinfer.mla", extra="flashinfer")
        self._library = library("flashinfer", extra="flashinfer")
        self._kernels = options.kernels
        self._wrappers: Wrappers | None = None

    def layout(self, shape: KVShape, page_size: int, kv_dtype: str) -> KVLayout:
        """As other backends keep K/V, unless they are padded: then the names of the buffers tell the real sizes."""
        names: tuple[str, ...]
        if shape.mla:
            _check_latent(shape)
            names, dim = ("k",), LATENT + ROPE
            if (shape.head_dim, shape.v_head_dim) != (dim, LATENT):
                names = (f"k {shape.head_dim} {shape.v_head_dim}",)
        else:
            dim = _padded(shape)
            names = tuple(
                name if own == dim else f"{name} {own}"
                for name, own in (("k", shape.head_dim), ("v", shape.v_head_dim))
            )
        buffers = tuple(BufferSpec(name, (shape.kv_heads, dim), kv_dtype) for name in names)
        return KVLayout(shape.layers, page_size, buffers)

    def plan(self, batch: BatchView, workspace: Workspace) -> Step:
        return Step(batch, workspace)

    def write(self, kv: Mapping[str, torch.Tensor], k: torch.Tensor, v: torch.Tensor, slots: torch.Tensor) -> None:
        keys, _ = _buffer(kv, "k")
        if len(kv) == 1:
            keys.index_copy_(0, slots, torch.cat(_latent(k, v.shape[2]), dim=2))
            return
        values, _ = _buffer(kv, "v")
        keys.index_copy_(0, slots, _wide(k, keys.shape[2]))
        values.index_copy_(0, slots, _wide(v, values.shape[2]))

    def forward(self, q: torch.Tensor, kv: Mapping[str, torch.Tensor], call: LayerCall, plan: Step) -> torch.Tensor:
        """O(kv_len) memory traffic for each row, of which a shared run is read once for all its rows."""
        if q.stride(2) != 1:
            q = q.contiguous()
        if len(kv) == 1:
            return self._latents(q, kv, call, plan)
        k, _ = _buffer(kv, "k")
        v, v_head_dim = _buffer(kv, "v")
        q, kv_heads = _wide(q, k.shape[2]), k.shape[1]

        def attend(part: Part, weighted: bool) -> tuple[torch.Tensor, torch.Tensor | None]:
            wrapper = self._planned(part, call, plan, q.shape[1], kv_heads, q.shape[2], q.dtype)
            pages = tuple(t.view(-1, part.page_size, *t.shape[1:]) for t in (k, v))
            done = wrapper.run(q[part.queries], pages, return_lse=weighted)
            return done if weighted else (done, None)

        return self._joined(attend, q, call, plan)[..., :v_head_dim]

    def _latents(self, q: torch.Tensor, kv: Mapping[str, torch.Tensor], call: LayerCall, plan: Step) -> torch.Tensor:
        """Latents are read once for all heads; their first part is the value, too."""
        assert call.v_head_dim is not None
        if call.sliding_window is not None or call.softcap is not None:
            raise PluginError(
                "attention plugin 'flashinfer' knows neither window nor softcap for latents, and the model asks for "
                "one; use attention.backend = torch"
            )
        latents, _ = _buffer(kv, "k")
        nope, rope = _latent(q, call.v_head_dim)
        heads = q.shape[1]

        def attend(part: Part, weighted: bool) -> tuple[torch.Tensor, torch.Tensor | None]:
            # The causal kernels skip keys of a query whose heads two tiles share, so no two tiles share one.
            extra = 2 ** math.ceil(math.log2(heads)) - heads if part.kind == "extend" else 0
            wrapper = self._planned_latents(part, call, plan, heads + extra, q.dtype)
            pages = latents.view(-1, part.page_size, latents.shape[2])
            done = wrapper.run(
                q_nope=F.pad(nope[part.queries], (0, 0, 0, extra)) if extra else nope[part.queries],
                q_pe=F.pad(rope[part.queries], (0, 0, 0, extra)) if extra else rope[part.queries],
                ckv_cache=pages[:, :, :LATENT],
                kpe_cache=pages[:, :, LATENT:],
                return_lse=weighted,
            )
            out, weights = done if weighted else (done, None)
            return out[:, :heads], None if weights is None else weights[:, :heads]

        return self._joined(attend, nope, call, plan)[..., : call.v_head_dim]

    def _joined(self, attend: Attend, q: torch.Tensor, call: LayerCall, plan: Step) -> torch.Tensor:
        """All parts of a layer; `q` is as wide as the outputs."""
        parts = plan.parts(call.sliding_window)
        weighted = call.sinks is not None or parts[-1].kind == "shared"
        if len(parts) == 1:
            out, weights = attend(parts[0], weighted)
        else:
            out = q.new_empty(q.shape)
            weights = q.new_empty(q.shape[:2], dtype=torch.float32) if weighted else None
            for part in parts:
                some, of_some = attend(part, weighted)
                if part.kind == "shared":
                    assert weights is not None
                    some, of_some = self._library.merge_state(out[part.queries], weights[part.queries], some, of_some)
                out[part.queries] = some
                if weights is not None and of_some is not None:
                    weights[part.queries] = of_some
        if call.sinks is None:
            return out
        assert weights is not None
        return (out * torch.sigmoid(weights * math.log(2) - call.sinks.float())[..., None]).to(q.dtype)

    def _planned(
        self, part: Part, call: LayerCall, step: Step, heads: int, kv_heads: int, dim: int, dtype: torch.dtype
    ) -> Any:
        """The wrapper that is planned for such a part and layer."""
        key = part, call.scaling, call.softcap
        if key not in step.planned:
            rows = 128 if dim < 256 else 64
            programs = max(2 * self.multiprocessors(step.device) // kv_heads, 1)
            pool = self._pool(step, heads * programs * rows * (dim + 1) * 4)
            matrices = part.kind == "decode" and heads // kv_heads >= MATRIX_GROUP
            wrapper = pool.take("decode by matrices" if matrices else part.kind, step)
            about = {
                "sm_scale": call.scaling,
                "logits_soft_cap": call.softcap,
                "q_data_type": dtype,
                "kv_data_type": dtype,
            }
            shape = heads, kv_heads, dim, part.page_size
            if part.kind == "decode":  # reads nothing but what it sees, windows included
                wrapper.plan(part.indptr, part.pages, part.last, *shape, **about)
            else:
                window = step.window(call.sliding_window)
                wrapper.plan(
                    part.q_indptr, part.indptr, part.pages, part.last, *shape, causal=part.kind == "extend",
                    window_left=-1 if window is None else window - 1, **about,
                )  # fmt: skip
            step.planned[key] = wrapper
        return step.planned[key]

    def _planned_latents(self, part: Part, call: LayerCall, step: Step, heads: int, dtype: torch.dtype) -> Any:
        key = part, call.scaling
        if key not in step.planned:
            wrapper = self._pool(step, 0).take("latents", step)
            wrapper.plan(
                qo_indptr=part.q_indptr, kv_indptr=part.indptr, kv_indices=part.pages, kv_len_arr=part.lens,
                num_heads=heads, head_dim_ckv=LATENT, head_dim_kpe=ROPE, page_size=part.page_size,
                causal=part.kind == "extend", sm_scale=call.scaling, q_data_type=dtype, kv_data_type=dtype,
            )  # fmt: skip
            step.planned[key] = wrapper
        return step.planned[key]

    def _pool(self, step: Step, buffer_bytes: int) -> "Wrappers":
        """The wrappers of a workspace: they share its buffer for partial results, which no result outlives."""
        buffer = step.workspace.take("flashinfer", (max(buffer_bytes, MIN_BUFFER),), torch.uint8)
        if self._wrappers is None or not self._wrappers.have(buffer):
            hopper = self.compute_capability(step.device) == 9
            latents = ("fa3" if hopper else "fa2") if self._kernels == "auto" else self._kernels
            self._wrappers = Wrappers(self._library, buffer, self._kernels, latents)
        return self._wrappers

    def multiprocessors(self, device: torch.device) -> int:
        """How many the device has."""
        return int(torch.cuda.get_device_properties(device).multi_processor_count)

    def compute_capability(self, device: torch.device) -> int:
        """The device's major one."""
        return torch.cuda.get_device_capability(device)[0]


class Wrappers:
    """FlashInfer's wrappers, kept from step to step: each has one plan at a time, and 8 MiB on device and host."""

    def __init__(self, library: Any, buffer: torch.Tensor, kernels: str, latents: str) -> None:
        self._library = library
        self._buffer = buffer
        self._kernels = kernels
        self._latents = latents
        self._kept: dict[tuple[str, int], Wrapper] = {}
        self._step: Step | None = None
        self._taken: dict[str, int] = {}

    def have(self, buffer: torch.Tensor) -> bool:
        """Whether they were made for that buffer."""
        return (self._buffer.data_ptr(), len(self._buffer)) == (buffer.data_ptr(), len(buffer))

    def take(self, kind: str, step: Step) -> "Wrapper":
        """One that was not taken in this step. Kinds: `latents`, `decode by matrices`, and those of parts."""
        if self._step is not step:
            self._step, self._taken = step, {}
        number = self._taken.get(kind, 0)
        self._taken[kind] = number + 1
        if (kind, number) not in self._kept:
            self._kept[kind, number] = Wrapper(self._made(kind), self._buffer.is_cuda)
        return self._kept[kind, number]

    def _made(self, kind: str) -> Any:
        if kind == "latents":
            return self._library.mla.BatchMLAPagedAttentionWrapper(self._buffer, backend=self._latents)
        if kind.startswith("decode"):
            return self._library.BatchDecodeWithPagedKVCacheWrapper(
                self._buffer, "NHD", use_tensor_cores=kind != "decode", backend="fa2"
            )
        return self._library.BatchPrefillWithPagedKVCacheWrapper(self._buffer, "NHD", backend=self._kernels)


class Wrapper:
    """One of FlashInfer's, which is not planned anew while the device still copies its last plan from the host."""

    def __init__(self, made: Any, on_device: bool) -> None:
        self._made = made
        self._on_device = on_device
        self._copied: torch.cuda.Event | None = None
        self.run = made.run

    def plan(self, *args: Any, **options: Any) -> None:
        if self._copied is not None:
            self._copied.synchronize()
        self._made.plan(*args, **options)
        if self._on_device:
            self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._copied.record()


def _padded(shape: KVShape) -> int:
    longest = max(shape.head_dim, shape.v_head_dim)
    for dim in HEAD_DIMS:
        if longest <= dim:
            return dim
    raise PluginError(
        f"attention plugin 'flashinfer' takes heads of up to {HEAD_DIMS[-1]} dimensions, and the model's have "
        f"{longest}; use attention.backend = torch"
    )


def _check_latent(shape: KVShape) -> None:
    rope = shape.head_dim - shape.v_head_dim
    if shape.v_head_dim > LATENT or rope > ROPE:
        raise PluginError(
            f"attention plugin 'flashinfer' takes latents of up to {LATENT} and {ROPE} dimensions, and the model's "
            f"have {shape.v_head_dim} and {rope}; use attention.backend = torch"
        )
    if shape.q_heads > MAX_LATENT_HEADS:
        raise PluginError(
            f"attention plugin 'flashinfer' takes up to {MAX_LATENT_HEADS} query heads of latents, and the model has "
            f"{shape.q_heads}; use attention.backend = torch"
        )


def _buffer(kv: Mapping[str, torch.Tensor], which: str) -> tuple[torch.Tensor, int]:
    """The buffer of keys or of values, and how much of its width is no padding."""
    for name, buffer in kv.items():
        first, *widths = name.split()
        if first == which:
            return buffer, int(widths[0]) if widths else buffer.shape[2]
    raise KeyError(which)


def _wide(heads: torch.Tensor, dim: int) -> torch.Tensor:
    """Heads with zeros behind them."""
    return heads if heads.shape[2] == dim else F.pad(heads, (0, dim - heads.shape[2]))


def _latent(k: torch.Tensor, v_head_dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The two parts of latents, or of queries for them."""
    return _wide(k[..., :v_head_dim], LATENT), _wide(k[..., v_head_dim:], ROPE)
