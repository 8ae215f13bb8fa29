"""Where transformers' models meet rtk's attention: one attention function, registered once under one name.

The function hands each call to whoever computes in the current context. It is a context variable and no argument of
the model, since not every model passes arguments it does not know on to its layers.
"""

import functools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

import torch

from rtk.plugin import LayerCall

IMPLEMENTATION = "rtk_paged"
"""The name transformers knows it by. Words like 'flash', 'sdpa' or 'flex' in it would make transformers guess."""


class Attention(Protocol):
    """Computes what a model's attention layers ask for, layer by layer."""

    def attend(
        self,
        module: torch.nn.Module,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        call: LayerCall,
        extras: Mapping[str, Any],
    ) -> torch.Tensor:
        """q [T, q_heads, head_dim], k [T, kv_heads, head_dim], v [T, kv_heads, v_head_dim], positions already applied.

        `extras` are the arguments that a `LayerCall` has no field for. Returns [T, q_heads, v_head_dim].
        """


_current: ContextVar[Attention] = ContextVar("rtk_attention")


@contextmanager
def attending(attention: Attention) -> Iterator[None]:
    """Models run inside compute their attention through `attention`."""
    token = _current.set(attention)
    try:
        yield
    finally:
        _current.reset(token)


def current() -> Attention:
    """What attention goes through right now. Raises `LookupError` outside of `attending`."""
    return _current.get()


@functools.cache
def register() -> str:
    """Make the attention function known to transformers; returns its name.

    No mask function is registered under the name: models then build no mask, and sequence boundaries stay ours.
    """
    from transformers import AttentionInterface

    AttentionInterface.register(IMPLEMENTATION, _attention)
    return IMPLEMENTATION


def _attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **extras: Any,
) -> tuple[torch.Tensor, None]:
    """transformers' signature: q, k, v [1, heads, T, dim] in, [1, T, heads, dim] and no weights out."""
    if scaling is None:
        scaling = query.shape[-1] ** -0.5
    call = LayerCall(module.layer_idx, scaling, sliding_window, softcap, s_aux)  # type: ignore[arg-type]
    q, k, v = (t[0].transpose(0, 1) for t in (query, key, value))
    out = current().attend(module, q, k, v, call, {"attention_mask": attention_mask, **extras})
    return out[None], None


@torch.inference_mode()
def flat_logits(
    model: Any, attention: Attention, tokens: torch.Tensor, positions: torch.Tensor, keep: torch.Tensor
) -> torch.Tensor:
    """One forward of T tokens [T] at positions [T]: float32 logits [n, vocab] of the n batch indices in `keep`.

    The model keeps no cache of its own; where sequences begin and end only `attention` knows.
    """
    with attending(attention):
        answer = model(
            input_ids=tokens[None],
            position_ids=positions[None],
            use_cache=False,
            logits_to_keep=keep,
        )
    logits: torch.Tensor = answer.logits[0].float()
    return logits
