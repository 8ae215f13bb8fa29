"""Where transformers' models meet rtk's attention: one attention function, registered once.

The function hands each call to whoever computes in the current context. It is a context variable and no argument of
the model, since not every model passes arguments it does not know on to its layers.
"""

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol, cast

import torch

from rtk.model.latent import Latent
from rtk.plugin import LayerCall

IMPLEMENTATION = "rtk_paged"
"""The name transformers knows it by. Words like 'flash', 'sdpa' or 'flex' in it would make transformers guess."""
WITH_MASKS = "rtk_paged_with_masks"
"""The same, except that models build the masks of their own attention; for looking at those."""

Rule = Callable[[int, int, torch.Tensor, torch.Tensor], torch.Tensor]
"""(batch, head, query position, key position) to whether the query sees the key, as transformers writes masks."""


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


class Watcher(Attention, Protocol):
    """Also looks at the masks that a model builds."""

    def built(self, mask: torch.Tensor, rule: Rule) -> None:
        """A mask that some layers are going to hand to `attend`. Its values mean nothing, `rule` is what it hides."""


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
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(IMPLEMENTATION, _attention)
    AttentionInterface.register(WITH_MASKS, _attention)
    AttentionMaskInterface.register(WITH_MASKS, _mask)
    return IMPLEMENTATION


def _mask(*, q_length: int, kv_length: int, mask_function: Rule, device: torch.device, **_: Any) -> torch.Tensor:
    """transformers' signature."""
    mask = torch.ones(1, 1, q_length, kv_length, dtype=torch.bool, device=device)
    cast("Watcher", current()).built(mask, mask_function)
    return mask


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
    latent = getattr(module, "expand_kv", None)
    if not isinstance(latent, Latent):
        latent = None
    queries = query[0] if latent is None else latent.query(query[0])
    v_head_dim = None if latent is None else value.shape[-1]
    call = LayerCall(module.layer_idx, scaling, sliding_window, softcap, s_aux, v_head_dim)  # type: ignore[arg-type]
    q, k, v = (t.transpose(0, 1) for t in (queries, key[0], value[0]))
    out = current().attend(module, q, k, v, call, {"attention_mask": attention_mask, **extras})
    if latent is not None:
        out = latent.answer(out.transpose(0, 1)).transpose(0, 1)
    return out.contiguous()[None], None  # some models ask for a view of it that only a contiguous one has


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


Head = Callable[[torch.Tensor], torch.Tensor]
"""From some batch indices [m] of a forward to float32 logits [m, vocab]."""


@torch.inference_mode()
def flat_logits_and_head(
    model: Any, attention: Attention, tokens: torch.Tensor, positions: torch.Tensor, keep: torch.Tensor
) -> tuple[torch.Tensor, Head]:
    """`flat_logits`, and what gives logits of further tokens of that forward, without computing their layers again.

    The model itself makes them from what its body answered, so whatever it does behind its last layer is done. A model
    that does not name its body computes all of them again each time.
    """
    body = model.get_decoder()
    if body is None or body is model:
        logits = flat_logits(model, attention, tokens, positions, keep)
        return logits, functools.partial(flat_logits, model, attention, tokens, positions)
    answers: list[Any] = []
    hook = body.register_forward_hook(lambda _module, _args, answer: answers.append(answer))
    try:
        logits = flat_logits(model, attention, tokens, positions, keep)
    finally:
        hook.remove()
    (answer,) = answers

    def head(which: torch.Tensor) -> torch.Tensor:
        own = vars(body).get("forward")
        body.forward = lambda *_, **__: answer
        try:
            return flat_logits(model, attention, tokens, positions, which)
        finally:
            if own is None:
                del body.forward
            else:
                body.forward = own

    return logits, head


@torch.inference_mode()
def cached_logits(model: Any, attention: Watcher, tokens: torch.Tensor, start: int) -> torch.Tensor:
    """As transformers' own `generate` would compute T tokens [T] after `start` others: float32 logits [1, vocab].

    The model gets a cache that holds the K/V of no token, only their number; `attention` sees the masks it builds.
    """
    from transformers import DynamicCache

    class Past(DynamicCache):
        def get_seq_length(self, layer_idx: int = 0) -> int:
            return start

        def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
            return query_length, start

        def update(
            self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any
        ) -> tuple[torch.Tensor, torch.Tensor]:
            return key_states, value_states

    parameters = inspect.signature(type(model).forward).parameters
    cache = {"cache" if "cache" in parameters else "past_key_values": Past()}
    positions = torch.arange(start, start + len(tokens), device=tokens.device)
    model.set_attn_implementation(WITH_MASKS)
    try:
        with attending(attention):
            answer = model(input_ids=tokens[None], position_ids=positions[None], use_cache=True, **cache)
    finally:
        model.set_attn_implementation(IMPLEMENTATION)
    logits: torch.Tensor = answer.logits[0, -1:].float()
    return logits
