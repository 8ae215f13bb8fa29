"""Decoder layers with fewer, larger operations, for float32 on a CPU.

A step of few tokens is bound by reading the weights once; what many small operations cost beside that is lost. In
layers of known classes q, k, v and gate, up are computed as one product each, and what is between the products in few
passes, see `rtk.model.kernels`. What a layer multiplies by constants is multiplied into its weights, and those are
packed, see `rtk.model.linear`.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from rtk.model import bridge
from rtk.model.kernels import Kernels, NativeKernels, Norm, Shape, TorchKernels, functions
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
MODELS = frozenset({"LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"})
"""Those that do nothing but the body and a linear layer."""
SILU = frozenset({"SiLU", "SiLUActivation"})
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
    make, packer = _maker(), Packer()
    fused: dict[nn.Module, _FusedLayer] = {}
    for recorded in tuple(recorder.calls):
        if recorded.module in layers:
            layer = layers[recorded.module]
            candidate = _FusedLayer(layer, recorded, make)
            if _agree(layer, candidate, recorder, given[layer]):
                candidate.take_over(layer, packer)
                fused[layer] = candidate
    _fuse_body(loaded, fused, wanted)
    return len(fused)


def _maker() -> Callable[[Shape], Kernels]:
    """Makes the kernels of a shape; the same for all layers that have it."""
    native = functions()

    @functools.cache
    def make(shape: Shape) -> Kernels:
        return TorchKernels(shape) if native is None else NativeKernels(shape, native)

    return make


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


def _fuse_body(loaded: LoadedModel, fused: dict[nn.Module, "_FusedLayer"], wanted: torch.Tensor) -> None:
    """Also replace what calls the layers, where that is known, every layer was replaced, and logits stay."""
    model, body = loaded.model, loaded.model.get_decoder()
    if body is None or not _is_one_of(body, BODIES) or "forward" in vars(body):
        return
    if len(body.layers) != body.config.num_hidden_layers or not all(layer in fused for layer in body.layers):
        return
    body.forward = _FusedBody(body, [fused[layer] for layer in body.layers])
    if _is_one_of(model, MODELS) and "forward" not in vars(model):
        model.forward = _FusedModel(body, model.lm_head)
    _, got = record(loaded)
    if not (wanted - got).norm() <= CLOSE * wanted.norm():
        del body.forward
        vars(model).pop("forward", None)


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


class _FusedLayer:
    """Takes and gives what the layer it replaces takes and gives; attention goes to the current context's."""

    @torch.no_grad()
    def __init__(self, layer: Any, recorded: Recorded, make: Callable[[Shape], Kernels]) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self.width: int = attention.q_proj.in_features
        heads = recorded.q_heads, recorded.kv_heads
        self.kernels = make(Shape(self.width, *heads, recorded.head_dim, mlp.gate_proj.out_features))
        self._module, self._call = attention, recorded.call
        self._before, self._between = (
            Norm(norm, norm.weight, scaled=False) for norm in (layer.input_layernorm, layer.post_attention_layernorm)
        )
        factor = getattr(layer, "residual_multiplier", 1.0)
        self._qkv = _Joint(attention.q_proj, attention.k_proj, attention.v_proj, scale=self._before.scale)
        self._out = _Joint(attention.o_proj, factor=factor)
        self._gate_up = _Joint(mlp.gate_proj, mlp.up_proj, scale=self._between.scale)
        self._down = _Joint(mlp.down_proj, factor=factor)
        silu = type(mlp.act_fn).__name__ in SILU
        self._gated: Linear = self.kernels.silu_mul if silu else functools.partial(_gated, mlp.act_fn)
        self._head_norm = self._norm_of_heads(attention, recorded) if hasattr(attention, "q_norm") else None

    @staticmethod
    def _norm_of_heads(attention: Any, recorded: Recorded) -> Norm:
        """Of q's heads and k's, one after the other."""
        weights = [
            norm.weight.expand(heads, -1)
            for norm, heads in ((attention.q_norm, recorded.q_heads), (attention.k_norm, recorded.kv_heads))
        ]
        return Norm(attention.q_norm, torch.cat(weights))

    def __call__(
        self, hidden_states: torch.Tensor, *, position_embeddings: tuple[torch.Tensor, torch.Tensor], **_: Any
    ) -> torch.Tensor:
        """[1, T, width] to the same."""
        self.kernels.prepare(*position_embeddings)
        x = hidden_states[0].clone(memory_format=torch.contiguous_format)
        return x.add_(self.added(x, None))[None]

    def added(self, x: torch.Tensor, y: torch.Tensor | None) -> torch.Tensor:
        """What the layer adds to x + y, all [T, width], once the kernels are prepared; x holds its input then."""
        kernels = self.kernels
        q, k, v = kernels.turn(self._qkv.compute(kernels.norm(x, y, self._before)), self._head_norm)
        answer = bridge.current().attend(self._module, q, k, v, self._call, {})
        y = self._out.compute(answer.flatten(1))
        return self._down.compute(self._gated(self._gate_up.compute(kernels.norm(x, y, self._between))))

    def take_over(self, layer: Any, packer: Packer) -> None:
        """Become the layer's forward. Refers to no module that holds the layer, so that a model is freed at once."""
        for joint in (self._qkv, self._out, self._gate_up, self._down):
            joint.take_over(packer)
        layer.forward = self


def _gated(act: Linear, gate_up: torch.Tensor) -> torch.Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    return act(gate).mul_(up)


class _FusedBody:
    """Takes what `bridge.flat_logits` gives a model's body, and gives what that gives."""

    def __init__(self, body: Any, layers: list[_FusedLayer]) -> None:
        from transformers.modeling_outputs import BaseModelOutputWithPast

        self._answer = BaseModelOutputWithPast
        self._embed, self._factors, self._layers = body.embed_tokens, body.rotary_emb, layers
        self._kernels = {layer.kernels for layer in layers}
        self._norm = Norm(body.norm, body.norm.weight)

    def __call__(self, input_ids: torch.Tensor, position_ids: torch.Tensor, **_: Any) -> Any:
        """[1, T] each; the step's last hidden state [1, T, width] in what models of transformers answer."""
        x = self._embed(input_ids)
        factors = self._factors(x, position_ids)
        for kernels in self._kernels:
            kernels.prepare(*factors)
        x, y = x[0], None
        for layer in self._layers:
            y = layer.added(x, y)
        return self._answer(last_hidden_state=self._layers[-1].kernels.norm(x, y, self._norm).clone()[None])


class _Logits(NamedTuple):
    logits: torch.Tensor


class _FusedModel:
    """Takes what `bridge.flat_logits` gives a model, and gives what that reads. Refers to the model's parts alone."""

    def __init__(self, body: nn.Module, head: nn.Module) -> None:
        self._body, self._head = body, head

    def __call__(
        self, input_ids: torch.Tensor, position_ids: torch.Tensor, logits_to_keep: torch.Tensor, **_: Any
    ) -> _Logits:
        """[1, T] each, and batch indices [n]."""
        hidden: torch.Tensor = self._body(input_ids=input_ids, position_ids=position_ids).last_hidden_state
        return _Logits(self._head(hidden[0, logits_to_keep])[None])
