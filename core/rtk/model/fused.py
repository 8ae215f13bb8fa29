"""Decoder layers with fewer, larger operations, for float32 on a CPU.

A step of few tokens is bound by reading the weights once; what many small operations cost beside that is lost. In
layers of known classes q, k, v and gate, up are computed as one product each, and norms and rotation in fewer steps.
Weights are shared with the original modules, not doubled.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from rtk.model import bridge
from rtk.model.loader import LoadedModel
from rtk.model.record import Recorded, record
from rtk.model.threads import one_thread

LAYERS = frozenset({"LlamaDecoderLayer", "MistralDecoderLayer", "Qwen2DecoderLayer"})
"""transformers' classes whose arithmetic is known to be this: a test on a few tokens shows no rule for the 10,000th."""
CLOSE = 1e-4
"""Largest relative difference of what a layer adds to its input; rounding gives 1e-6."""


@one_thread()
def fuse_layers(loaded: LoadedModel) -> int:
    """Replace what can be replaced of a model that was probed; returns how many layers.

    A layer is replaced only where the replacement adds the same to random input, so a layer that was changed, or a
    release of transformers that computes otherwise, goes without. Costs a forward of a few tokens and, one layer at a
    time, a copy of the weights.
    """
    if loaded.device.type != "cpu" or loaded.facts.dtype != "float32":
        return 0
    layers = {layer.self_attn: layer for layer in loaded.model.modules() if _is_known(layer)}
    given: dict[nn.Module, dict[str, Any]] = {}
    hooks = [
        layer.register_forward_pre_hook(lambda layer, args, kwargs: given.update({layer: kwargs}), with_kwargs=True)
        for layer in layers.values()
    ]
    recorder, _ = record(loaded)
    for hook in hooks:
        hook.remove()
    rope, fused = _Rope(), 0
    for recorded in tuple(recorder.calls):
        if recorded.module in layers:
            layer = layers[recorded.module]
            candidate = _FusedLayer(layer, recorded, rope)
            if _agree(layer, candidate, recorder, given[layer]):
                candidate.take_over(layer)
                fused += 1
    return fused


def _is_known(module: nn.Module) -> bool:
    kind = type(module)
    if not kind.__module__.startswith("transformers.models.") or kind.__name__ not in LAYERS:
        return False
    linear = [part for part in module.modules() if not list(part.children()) and hasattr(part, "in_features")]
    return len(linear) == 7 and all(type(part) is nn.Linear for part in linear)


@torch.inference_mode()
def _agree(layer: nn.Module, candidate: "_FusedLayer", attention: bridge.Attention, kwargs: dict[str, Any]) -> bool:
    """Whether both add the same to random input, at the positions of the recorded tokens."""
    tokens = kwargs["position_embeddings"][0].shape[-2]
    given = torch.randn(1, tokens, candidate.width, generator=torch.Generator().manual_seed(0))
    with bridge.attending(attention):
        wanted, got = layer(given, **kwargs), candidate(given, **kwargs)
    return bool((wanted - got).norm() <= CLOSE * (wanted - given).norm())


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
    """Several linear modules with one input as one product."""

    def __init__(self, *parts: nn.Linear) -> None:
        self._parts = parts
        self.weight = torch.cat(tuple(part.weight for part in parts))
        if torch.backends.cpu.get_cpu_capability() == "AVX512":
            # Column-major: a product with 4 to 64 rows is 10 to 30 % faster, one with a single row no slower.
            self.weight = self.weight.t().contiguous().t()
        biases = [part.bias for part in parts]
        self.bias = None if biases[0] is None else torch.cat(tuple(biases))
        self.sizes = [part.out_features for part in parts]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.weight, self.bias)

    def take_over(self) -> None:
        """Let the parts see the joint weight instead of their own."""
        for part, weight in zip(self._parts, torch.split(self.weight, self.sizes), strict=True):
            part.weight = nn.Parameter(weight, requires_grad=False)


def _rms_norm(norm: nn.Module) -> Callable[[torch.Tensor], torch.Tensor]:
    """x / sqrt(mean(x²) + ε) * weight in five operations; torch's own takes ten on a CPU."""
    weight: torch.Tensor = norm.weight  # type: ignore[assignment]
    epsilon, share = torch.tensor(norm.variance_epsilon), 1 / len(weight)

    def normalise(x: torch.Tensor) -> torch.Tensor:
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        return (x * torch.addcmul(epsilon, length, length, value=share).rsqrt_()).mul_(weight)

    return normalise


class _FusedLayer:
    """Takes and gives what the layer it replaces takes and gives; attention goes to the current context's."""

    @torch.no_grad()
    def __init__(self, layer: Any, recorded: Recorded, rope: _Rope) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self.width: int = attention.q_proj.in_features
        self.head_dim = recorded.head_dim
        self._rope = rope
        self._module, self._call = attention, recorded.call
        self._norms = _rms_norm(layer.input_layernorm), _rms_norm(layer.post_attention_layernorm)
        self._qkv = _Joint(attention.q_proj, attention.k_proj, attention.v_proj)
        self._out = _Joint(attention.o_proj)
        self._gate_up = _Joint(mlp.gate_proj, mlp.up_proj)
        self._down = _Joint(mlp.down_proj)
        self._act = mlp.act_fn
        self._heads = (recorded.q_heads, recorded.kv_heads)

    def __call__(
        self, hidden_states: torch.Tensor, *, position_embeddings: tuple[torch.Tensor, torch.Tensor], **_: Any
    ) -> torch.Tensor:
        """[1, T, width] to the same."""
        self._rope.prepare(*position_embeddings)
        x = hidden_states[0]
        x = x + self._out(self._attend(self._norms[0](x)))
        gate, up = self._gate_up(self._norms[1](x)).chunk(2, dim=-1)
        return (x + self._down(self._act(gate) * up))[None]

    def _attend(self, x: torch.Tensor) -> torch.Tensor:
        q_heads, kv_heads = self._heads
        qkv = self._qkv(x).view(len(x), -1, self.head_dim)
        qk = self._rope.turn(qkv[:, : q_heads + kv_heads])
        q, k, v = qk[:, :q_heads], qk[:, q_heads:], qkv[:, q_heads + kv_heads :]
        return bridge.current().attend(self._module, q, k, v, self._call, {}).flatten(1)

    def take_over(self, layer: Any) -> None:
        """Become the layer's forward. Refers to no module that holds the layer, so that a model is freed at once."""
        for joint in (self._qkv, self._out, self._gate_up, self._down):
            joint.take_over()
        layer.forward = self
