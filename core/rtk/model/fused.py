"""Decoder layers with fewer, larger operations, for float32 on a CPU.

A step of few tokens is bound by reading the weights once; what many small operations cost beside that is lost. So
layers of known classes are computed by `rtk.model.layers`; what they multiply by constants is multiplied into weights.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import nn

from rtk.model import bridge
from rtk.model.kernels import Norm, Shape
from rtk.model.layers import Layer, Maker, Parts, Product, Products
from rtk.model.linear import Quantizer, is_plain, let_go
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
def fuse_layers(loaded: LoadedModel, quantizer: Quantizer | None = None) -> int:
    """Replace what can be replaced of a model that was probed; returns how many layers.

    With a quantizer, weights of these layers are rounded.

    A layer is replaced only where the replacement adds the same to random input, so a layer that was changed, or a
    release of transformers that computes otherwise, goes without. Costs two forwards of a few tokens and, one layer at
    a time, two copies of the weights.
    """
    if loaded.device.type != "cpu" or loaded.facts.dtype != "float32":
        return 0
    uses = Counter(module for _, module in loaded.model.named_modules(remove_duplicate=False))
    layers = {layer.self_attn: layer for layer in loaded.model.modules() if _is_known(layer, uses)}
    given: dict[nn.Module, dict[str, Any]] = {}
    hooks = [
        layer.register_forward_pre_hook(lambda layer, args, kwargs: given.update({layer: kwargs}), with_kwargs=True)
        for layer in layers.values()
    ]
    recorder, wanted = record(loaded)
    for hook in hooks:
        hook.remove()
    maker = Maker()
    rounding = None if quantizer is None else Maker(quantizer)
    fused: dict[nn.Module, _FusedLayer] = {}
    for recorded in tuple(recorder.calls):
        if recorded.module in layers:
            layer = layers[recorded.module]
            candidate = _FusedLayer(layer, recorded, maker)
            if _agree(layer, candidate, recorder, given[layer]):
                if rounding is not None:  # only now: what was rounded is not to be compared with what was not
                    candidate = _FusedLayer(layer, recorded, rounding)
                candidate.take_over(layer)
                fused[layer] = candidate
    if rounding is not None:
        _, wanted = record(loaded)
    _fuse_body(loaded, fused, wanted)
    return len(fused)


def _is_known(module: Any, uses: Mapping[nn.Module, int]) -> bool:
    """`uses`: how often each module occurs in the model; others go on with what two layers have in common."""
    if not _is_one_of(module, LAYERS):
        return False
    linear = [part for part in module.modules() if not list(part.children()) and hasattr(part, "in_features")]
    norms = (module.input_layernorm, module.post_attention_layernorm)
    return (
        len(linear) == 7
        and all(is_plain(part) and uses[part] == 1 for part in linear)
        and all(hasattr(norm, "variance_epsilon") for norm in norms)
        and not any(_is_watched(part) for part in module.modules() if part is not module)
    )


def _is_watched(module: nn.Module) -> bool:
    """Whether somebody has hooks there, which run only where the module is called."""
    return bool(module._forward_hooks or module._forward_pre_hooks)


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
    """Also replace what calls the layers, where that is known, all were replaced and are alike, and logits stay."""
    model, body = loaded.model, loaded.model.get_decoder()
    if body is None or not _is_one_of(body, BODIES) or "forward" in vars(body):
        return
    embed = body.embed_tokens  # what it gives is changed in place
    if type(embed) is not nn.Embedding or "forward" in vars(embed) or not hasattr(body.norm, "variance_epsilon"):
        return
    if any(map(_is_watched, (body.norm, *body.layers))):
        return
    layers = [fused[layer] for layer in body.layers if layer in fused]
    if (
        not len(layers) == len(body.layers) == body.config.num_hidden_layers
        or len({own.around.common for own in layers}) > 1
    ):
        return
    own = _FusedBody(body, layers)
    body.forward = own
    if _is_one_of(model, MODELS) and "forward" not in vars(model) and not _is_watched(body):
        body.forward, model.forward = own.hidden, _FusedModel(body, model.lm_head)
    _, got = record(loaded)
    if not (wanted - got).norm() <= CLOSE * wanted.norm():
        del body.forward
        vars(model).pop("forward", None)


def _product(*parts: nn.Linear, scale: torch.Tensor | None = None, factor: float = 1.0) -> Product:
    """Several linear modules with one input as one product; what it computes of x is `factor` times it of x * scale."""
    weight = torch.cat(tuple(part.weight for part in parts))
    if scale is not None:
        weight *= scale
    biases = (part.weight.new_zeros(part.out_features) if part.bias is None else part.bias for part in parts)
    bias = None if all(part.bias is None for part in parts) else torch.cat(tuple(biases))
    if factor != 1:
        weight *= factor
        bias = None if bias is None else bias * factor
    return Product(weight, bias)


@torch.no_grad()
def _parts(layer: Any, recorded: Recorded) -> Parts:
    attention, mlp = layer.self_attn, layer.mlp
    before, between = (
        Norm(norm, norm.weight, scaled=False) for norm in (layer.input_layernorm, layer.post_attention_layernorm)
    )
    factor = getattr(layer, "residual_multiplier", 1.0)
    products = Products(
        qkv=_product(attention.q_proj, attention.k_proj, attention.v_proj, scale=before.scale),
        out=_product(attention.o_proj, factor=factor),
        gate=_product(mlp.gate_proj, scale=between.scale),
        up=_product(mlp.up_proj, scale=between.scale),
        down=_product(mlp.down_proj, factor=factor),
    )
    return Parts(
        products,
        before=before,
        between=between,
        heads=_norm_of_heads(attention, recorded) if hasattr(attention, "q_norm") else None,
        act=None if type(mlp.act_fn).__name__ in SILU else mlp.act_fn,
    )


def _norm_of_heads(attention: Any, recorded: Recorded) -> Norm:
    """Of q's heads and k's, one after the other."""
    weights = [
        norm.weight.expand(heads, -1)
        for norm, heads in ((attention.q_norm, recorded.q_heads), (attention.k_norm, recorded.kv_heads))
    ]
    return Norm(attention.q_norm, torch.cat(weights))


class _FusedLayer:
    """Takes and gives what the layer it replaces takes and gives; attention goes to the current context's."""

    def __init__(self, layer: Any, recorded: Recorded, maker: Maker) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self.width: int = attention.q_proj.in_features
        heads = recorded.q_heads, recorded.kv_heads
        shape = Shape(self.width, *heads, recorded.head_dim, mlp.gate_proj.out_features)
        self._module, self._call = attention, recorded.call
        self.around = maker.make(_parts(layer, recorded), shape)

    def __call__(
        self, hidden_states: torch.Tensor, *, position_embeddings: tuple[torch.Tensor, torch.Tensor], **_: Any
    ) -> torch.Tensor:
        """[1, T, width] to the same."""
        self.around.common.prepare(*position_embeddings)
        x = hidden_states[0].clone(memory_format=torch.contiguous_format)
        self.around.settle(x, self.around.after(x, self.attend(x, None, bridge.current())))
        return x[None]

    def attend(self, x: torch.Tensor, owed: Any, attention: bridge.Attention) -> torch.Tensor:
        """Attention's answer in this layer, from what the one in front of it owes x (see `rtk.model.layers.Layer`)."""
        q, k, v = self.around.before(x, owed)
        return attention.attend(self._module, q, k, v, self._call, {})

    def take_over(self, layer: Any) -> None:
        """Become the layer's forward. Refers to no module that holds the layer, so that a model is freed at once."""
        attention, mlp = layer.self_attn, layer.mlp
        for part in (attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj):
            let_go(part)
        for part in (mlp.gate_proj, mlp.up_proj, mlp.down_proj):
            let_go(part)
        layer.forward = self


class _Hidden(NamedTuple):
    """A step's last hidden state, of which only what is read is computed from the last attention on."""

    x: torch.Tensor
    """[T, width] what went into the last layer."""
    answer: torch.Tensor
    """[T, q_heads, head_dim] attention's in it."""
    last: Layer
    norm: Norm

    def of(self, rows: torch.Tensor) -> torch.Tensor:
        """[n, width] of batch indices [n]; overwritten by whatever is computed next."""
        x, answer = (of.index_select(0, rows) for of in (self.x, self.answer))
        self.last.common.resize(len(x))
        return self.last.common.norm(x, self.last.after(x, answer), self.norm)


class _FusedBody:
    """Takes what `bridge.flat_logits` gives a model's body, and gives what that gives, or the same to be read."""

    def __init__(self, body: Any, layers: list[_FusedLayer]) -> None:
        from transformers.modeling_outputs import BaseModelOutputWithPast

        self._made = BaseModelOutputWithPast
        self._embed, self._factors = body.embed_tokens, body.rotary_emb
        *self._layers, self._last = layers
        self._norm = Norm(body.norm, body.norm.weight)

    def __call__(self, **given: Any) -> Any:
        """The step's last hidden state [1, T, width] in what models of transformers answer."""
        hidden = self.hidden(**given)
        return self._made(last_hidden_state=hidden.of(torch.arange(len(hidden.x))).clone()[None])

    def hidden(self, input_ids: torch.Tensor, position_ids: torch.Tensor, **_: Any) -> _Hidden:
        """[1, T] each."""
        x = self._embed(input_ids)
        self._last.around.common.prepare(*self._factors(x, position_ids))
        x, owed, attention = x[0], None, bridge.current()
        for layer in self._layers:
            owed = layer.around.after(x, layer.attend(x, owed, attention))
        return _Hidden(x, self._last.attend(x, owed, attention), self._last.around, self._norm)


class _Logits(NamedTuple):
    logits: torch.Tensor


class _FusedModel:
    """Takes what `bridge.flat_logits` gives a model, and gives what that reads. Refers to the model's parts alone.

    Its body is one whose forward is `_FusedBody.hidden`.
    """

    def __init__(self, body: nn.Module, head: nn.Module) -> None:
        self._body, self._head = body, head

    def __call__(
        self, input_ids: torch.Tensor, position_ids: torch.Tensor, logits_to_keep: torch.Tensor, **_: Any
    ) -> _Logits:
        """[1, T] each, and batch indices [n]."""
        hidden: _Hidden = self._body(input_ids=input_ids, position_ids=position_ids)
        return _Logits(self._head(hidden.of(logits_to_keep))[None])
