"""Decoder layers with fewer, larger operations, for float32 on a CPU.

A step of few tokens is bound by reading the weights once; what many small operations cost beside that is lost. In
layers of known classes q, k, v and gate, up are computed as one product each, and norms and rotation in fewer steps.
What a layer multiplies by constants is multiplied into its weights, and those are packed, see `rtk.model.linear`.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from rtk.model import bridge
from rtk.model.linear import Linear, Packer, is_plain, let_go
from rtk.model.loader import LoadedModel
from rtk.model.record import Recorded, record
from rtk.model.threads import one_thread

LAYERS = frozenset(
    {
        "GraniteDecoderLayer",
        "LlamaDecoderLayer",
        "MistralDecoderLayer",
        "Qwen2DecoderLayer",
        "Qwen3DecoderLayer",
    }
)
"""transformers' classes whose arithmetic is known to be this: a test on a few tokens shows no rule for the 10,000th."""
BODIES = frozenset({"LlamaModel", "MistralModel", "Qwen2Model", "Qwen3Model"})
"""Those that do nothing but embedding, rotation factors, layers one after the other, and a norm."""
CLOSE = 1e-4
"""Largest relative difference of what a layer adds to its input; rounding gives 1e-6."""


@one_thread()
def fuse_layers(loaded: LoadedModel) -> int:
    """Replace what can be replaced of a model that was probed; returns how many layers.

    A layer is replaced only where the replacement adds the same to random input, so a layer that was changed, or a
    release of transformers that computes otherwise, goes without. Costs two forwards of a few tokens and, one layer at
    a time, two copies of the weights.
    """
    if loaded.device.type != "cpu" or loaded.facts.dtype != "float32":
        return 0
    layers = {layer.self_attn: layer for layer in loaded.model.modules() if _is_known(layer)}
    given: dict[nn.Module, dict[str, Any]] = {}
    hooks = [
        layer.register_forward_pre_hook(lambda layer, args, kwargs: given.update({layer: kwargs}), with_kwargs=True)
        for layer in layers.values()
    ]
    recorder, wanted = record(loaded)
    for hook in hooks:
        hook.remove()
    rope, packer = _Rope(), Packer()
    fused: dict[nn.Module, _FusedLayer] = {}
    for recorded in tuple(recorder.calls):
        if recorded.module in layers:
            layer = layers[recorded.module]
            candidate = _FusedLayer(layer, recorded, rope)
            if _agree(layer, candidate, recorder, given[layer]):
                candidate.take_over(layer, packer)
                fused[layer] = candidate
    _fuse_body(loaded, fused, rope, wanted)
    return len(fused)


def _is_known(module: nn.Module) -> bool:
    if not _is_one_of(module, LAYERS):
        return False
    linear = [part for part in module.modules() if not list(part.children()) and hasattr(part, "in_features")]
    return len(linear) == 7 and all(map(is_plain, linear))


def _is_one_of(module: nn.Module, names: frozenset[str]) -> bool:
    kind = type(module)
    return kind.__module__.startswith("transformers.models.") and kind.__name__ in names


@torch.inference_mode()
def _agree(layer: nn.Module, candidate: "_FusedLayer", attention: bridge.Attention, kwargs: dict[str, Any]) -> bool:
    """Whether both add the same to random input, at the positions of the recorded tokens."""
    tokens = kwargs["position_embeddings"][0].shape[-2]
    given = torch.randn(1, tokens, candidate.width, generator=torch.Generator().manual_seed(0))
    with bridge.attending(attention):
        wanted, got = layer(given, **kwargs), candidate(given, **kwargs)
    return bool((wanted - got).norm() <= CLOSE * (wanted - given).norm())


def _fuse_body(loaded: LoadedModel, fused: dict[nn.Module, "_FusedLayer"], rope: "_Rope", wanted: torch.Tensor) -> None:
    """Also replace what calls the layers, where that is known, every layer was replaced, and logits stay."""
    body = loaded.model.get_decoder()
    if body is None or not _is_one_of(body, BODIES) or "forward" in vars(body):
        return
    if len(body.layers) != body.config.num_hidden_layers or not all(layer in fused for layer in body.layers):
        return
    body.forward = _FusedBody(body, [fused[layer] for layer in body.layers], rope)
    _, got = record(loaded)
    if not (wanted - got).norm() <= CLOSE * wanted.norm():
        del body.forward


class _Rope:
    """Rotation factors of the current step, made once for all layers: x turned is x * cos + roll(x, half) * sin."""

    def __init__(self) -> None:
        self._source: torch.Tensor | None = None

    def prepare(self, cos: torch.Tensor, sin: torch.Tensor) -> None:
        """Take the model's factors [1, T, head_dim] of this step; nothing to do from the second layer on."""
        if self._source is not sin:
            self._source = sin
            low, high = sin[0].chunk(2, dim=-1)
            self.cos, self.sin = cos[0][:, None], torch.cat([-low, high], dim=-1)[:, None]

    def turn(self, x: torch.Tensor) -> torch.Tensor:
        """x [T, heads, head_dim] at the positions of the step."""
        return torch.addcmul(x * self.cos, x.roll(x.shape[-1] // 2, -1), self.sin)


class _Joint:
    """Several linear modules with one input as one product; what it computes of x is `factor` times it of x * scale."""

    def __init__(self, *parts: nn.Linear, scale: torch.Tensor | None = None, factor: float = 1.0) -> None:
        self._parts = parts
        self._weight = torch.cat(tuple(part.weight for part in parts))
        if scale is not None:
            self._weight *= scale
        biases = [part.bias for part in parts]
        self._bias = None if biases[0] is None else torch.cat(tuple(biases))
        if factor != 1:
            self._weight *= factor
            self._bias = None if self._bias is None else self._bias * factor
        self.compute: Linear = functools.partial(F.linear, weight=self._weight, bias=self._bias)

    def take_over(self, packer: Packer) -> None:
        """Compute by a packed weight from now on, in place of the parts."""
        self.compute = packer.pack(self._weight, self._bias)
        for part in self._parts:
            let_go(part)
        del self._parts, self._weight, self._bias


class _Lengths:
    """x / sqrt(mean(x²) + ε) is x * √n / hypot(|x|, √(nε)): three operations; torch's own norm takes ten on a CPU."""

    def __init__(self, norm: nn.Module, weight: torch.Tensor) -> None:
        size = weight.shape[-1]
        self._least = torch.tensor(math.sqrt(size * float(norm.variance_epsilon)))  # type: ignore[arg-type]
        self.scale = weight * math.sqrt(size)
        """What is left to multiply by, for those that have no weight behind them that it can go to."""

    def divide(self, x: torch.Tensor) -> torch.Tensor:
        """x without its length."""
        length: torch.Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        return x / length.hypot_(self._least)

    def normalise(self, x: torch.Tensor) -> torch.Tensor:
        """All of the norm."""
        return self.divide(x).mul_(self.scale)


class _FusedLayer:
    """Takes and gives what the layer it replaces takes and gives; attention goes to the current context's."""

    @torch.no_grad()
    def __init__(self, layer: Any, recorded: Recorded, rope: _Rope) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self.width: int = attention.q_proj.in_features
        self.head_dim = recorded.head_dim
        self._rope = rope
        self._module, self._call = attention, recorded.call
        before, between = (
            _Lengths(norm, norm.weight) for norm in (layer.input_layernorm, layer.post_attention_layernorm)
        )
        factor = getattr(layer, "residual_multiplier", 1.0)
        self._qkv = _Joint(attention.q_proj, attention.k_proj, attention.v_proj, scale=before.scale)
        self._out = _Joint(attention.o_proj, factor=factor)
        self._gate_up = _Joint(mlp.gate_proj, mlp.up_proj, scale=between.scale)
        self._down = _Joint(mlp.down_proj, factor=factor)
        self._before, self._between = before.divide, between.divide
        self._act: Linear = getattr(mlp.act_fn, "forward", mlp.act_fn)  # a module's call costs more than small products
        self._heads = recorded.q_heads, recorded.kv_heads
        self._turned_and_not = recorded.q_heads + recorded.kv_heads, recorded.kv_heads
        self._norm = self._head_norm(attention, recorded) if hasattr(attention, "q_norm") else None

    @staticmethod
    def _head_norm(attention: Any, recorded: Recorded) -> Callable[[torch.Tensor], torch.Tensor]:
        """Of q's heads and k's, one after the other."""
        weights = [
            norm.weight.expand(heads, -1)
            for norm, heads in ((attention.q_norm, recorded.q_heads), (attention.k_norm, recorded.kv_heads))
        ]
        return _Lengths(attention.q_norm, torch.cat(weights)).normalise

    def __call__(
        self, hidden_states: torch.Tensor, *, position_embeddings: tuple[torch.Tensor, torch.Tensor], **_: Any
    ) -> torch.Tensor:
        """[1, T, width] to the same."""
        self._rope.prepare(*position_embeddings)
        return self.add(hidden_states[0])[None]

    def add(self, x: torch.Tensor) -> torch.Tensor:
        """[T, width] to the same, once the rotation is prepared."""
        x = self._out.compute(self._attend(self._qkv.compute(self._before(x)))).add_(x)
        gate, up = self._gate_up.compute(self._between(x)).chunk(2, dim=-1)
        return self._down.compute(self._act(gate).mul_(up)).add_(x)

    def _attend(self, qkv: torch.Tensor) -> torch.Tensor:
        qk, v = qkv.view(qkv.shape[0], -1, self.head_dim).split_with_sizes(self._turned_and_not, 1)
        if self._norm is not None:
            qk = self._norm(qk)
        q, k = self._rope.turn(qk).split_with_sizes(self._heads, 1)
        return bridge.current().attend(self._module, q, k, v, self._call, {}).flatten(1)

    def take_over(self, layer: Any, packer: Packer) -> None:
        """Become the layer's forward. Refers to no module that holds the layer, so that a model is freed at once."""
        for joint in (self._qkv, self._out, self._gate_up, self._down):
            joint.take_over(packer)
        layer.forward = self


class _FusedBody:
    """Takes what `bridge.flat_logits` gives a model's body, and gives what that gives."""

    def __init__(self, body: Any, layers: list[_FusedLayer], rope: _Rope) -> None:
        from transformers.modeling_outputs import BaseModelOutputWithPast

        self._answer = BaseModelOutputWithPast
        self._embed, self._factors, self._layers, self._rope = body.embed_tokens, body.rotary_emb, layers, rope
        self._norm = _Lengths(body.norm, body.norm.weight).normalise

    def __call__(self, input_ids: torch.Tensor, position_ids: torch.Tensor, **_: Any) -> Any:
        """[1, T] each."""
        x = self._embed(input_ids)
        self._rope.prepare(*self._factors(x, position_ids))
        x = x[0]
        for layer in self._layers:
            x = layer.add(x)
        return self._answer(last_hidden_state=self._norm(x)[None])
