"""Learns what K/V a model keeps by running it on a few tokens, and refuses a model that cannot be paged."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from rtk.errors import ModelError, one_line
from rtk.model.latent import drop_latents, use_latents
from rtk.model.loader import LoadedModel
from rtk.model.record import LENGTHS, Recorded, Recorder, record, record_cached, visible
from rtk.model.threads import one_thread
from rtk.plugin import KVShape, LayerCall

T = TypeVar("T")
DRIFT = {"float64": 1e-3, "float32": 1e-3, "float16": 3e-2, "bfloat16": 1e-1}
"""Relative difference of logits above which two sequences influence each other; rounding stays well below."""
HARMLESS = frozenset({"position_ids", "cache_position", "logits_to_keep"})
"""Tensors that models pass on to attention functions without wanting anything of them."""
FAR = 2**20
"""Masks are looked at up to here where the model's files name no context length."""


@dataclass(frozen=True, slots=True)
class Probe:
    """What a model needs of an attention backend."""

    shape: KVShape
    features: frozenset[str]
    """Of `rtk.plugin.attention.FEATURES`."""
    dtype: str
    """Type of K and V."""

    @property
    def mla(self) -> bool:
        """Whether its K/V are latents."""
        return self.shape.mla


class _Unservable(Exception):  # noqa: N818 - a reason, on its way to becoming a ModelError
    """Why the model cannot be served."""


@one_thread()
def probe(loaded: LoadedModel, kinds: Collection[str] = ("mha",)) -> Probe:
    """Run the model and look: two sequences apart and in one batch, and one of them as transformers would generate.

    `kinds` are what the attention backend can serve, of `rtk.plugin.attention.KINDS`: where `mla` is one of them, a
    model that can be is from now on served by its latents, else by K/V of every head.

    Four forwards of at most 12 tokens. Raises `ModelError` with the reason where paged attention would give wrong
    answers.
    """
    drop_latents(loaded.model)
    mla = "mla" in kinds and use_latents(loaded.model)
    try:
        apart = [_run(record, loaded, [length])[1] for length in LENGTHS]
        recorder, together = _run(record, loaded, LENGTHS)
        _check_calls(loaded, recorder.calls)
        if torch.isnan(together).any():
            raise _Unservable("its logits are no numbers (NaN): its weights are damaged, or model.dtype is too narrow")
        _check_drift(loaded, torch.cat(apart), together, "sequences in one batch change each other's logits")
        generating, cached = _run(record_cached, loaded)
        _check_masks(loaded, generating)
        _check_drift(loaded, cached, apart[-1], "without transformers' cache its logits change")
    except _Unservable as reason:
        raise ModelError(f"model type {loaded.facts.kind!r} cannot be served: {reason}") from reason.__cause__
    first = recorder.calls[0]
    shape = KVShape(len(recorder.calls), first.kv_heads, first.head_dim, first.v_head_dim, first.q_heads, mla)
    return Probe(shape, frozenset().union(*(_features(recorded.call) for recorded in recorder.calls)), first.dtype)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))


def _features(call: LayerCall) -> frozenset[str]:
    asked = {"sliding_window": call.sliding_window, "softcap": call.softcap, "sinks": call.sinks}
    return frozenset(name for name, value in asked.items() if value is not None)


def _run(function: Callable[..., T], *args: Any) -> T:
    try:
        return function(*args)
    except Exception as error:
        kind = "without" if function is record else "with"
        raise _Unservable(f"a forward {kind} cache and mask fails: {one_line(error)}") from error


def _check_calls(loaded: LoadedModel, calls: Sequence[Recorded]) -> None:
    """One call for each layer, all alike, nothing asked for that a `LayerCall` cannot say."""
    config = loaded.model.config.get_text_config(decoder=True)
    counts = Counter(recorded.call.layer for recorded in calls)
    expected = range(max([*counts, config.num_hidden_layers - 1]) + 1)
    if dict(counts) != dict.fromkeys(expected, 1):
        raise _Unservable(
            f"the attention function was called {len(calls)} times for {len(expected)} layers, and not once for each"
        )
    if len({recorded.shape for recorded in calls}) > 1:
        raise _Unservable("its layers differ in the shape of their K/V")
    for recorded in calls:
        _check_extras(recorded)


def _check_extras(recorded: Recorded) -> None:
    if recorded.extras.get("is_causal") is False or getattr(recorded.module, "is_causal", True) is False:
        raise _Unservable(f"layer {recorded.call.layer} attends to later tokens too")
    tensors = {name for name, value in recorded.extras.items() if isinstance(value, torch.Tensor)}
    if tensors - HARMLESS:
        raise _Unservable(f"its attention wants {_listed(tensors - HARMLESS)}, which rtk's does not know")


def _check_masks(loaded: LoadedModel, recorder: Recorder) -> None:
    """The masks that the model builds hide what its calls say, no more and no less, anywhere in the context."""
    for recorded in recorder.calls:
        call, mask = recorded.call, recorded.extras["attention_mask"]
        positions = _positions(loaded.facts.context_length or FAR, call.sliding_window).to(loaded.device)
        query, key = positions[:, None], positions
        asked = visible(query - key, call.sliding_window)
        if mask is None:
            shown = visible(query - key, None)
        elif rule := recorder.rule(mask):
            shown = _run(rule, 0, 0, query, key).expand_as(asked)
        else:
            raise _Unservable(f"layer {call.layer} attends under a mask of its own")
        if not torch.equal(asked, shown):
            i, j = torch.nonzero(asked != shown)[0].tolist()
            window = "no window" if call.sliding_window is None else f"a window of {call.sliding_window}"
            lets = "does not let" if asked[i, j] else "lets"
            example = f"its mask {lets} token {positions[i]} see token {positions[j]}"
            raise _Unservable(f"layer {call.layer} asks for {window}, but {example}")


def _positions(context: int, window: int | None) -> torch.Tensor:
    """Where masks are looked at: around powers of two, both ends of the context, and a window's edge behind each."""
    edges = [0, context - 1, *(2**i for i in range(context.bit_length()))]
    around = {edge + i for edge in edges for i in (-1, 0, 1)}
    around |= {position - (window or 0) + i for position in around for i in (0, 1)}
    return torch.tensor(sorted(position for position in around if 0 <= position < context))


def _check_drift(loaded: LoadedModel, expected: torch.Tensor, got: torch.Tensor, happening: str) -> None:
    drift = ((got - expected).norm(dim=-1) / expected.norm(dim=-1)).max().item()
    if not drift <= DRIFT[loaded.facts.dtype]:
        raise _Unservable(
            f"{happening} by {drift:.1%}: it ignores position_ids, or keeps something of a sequence outside attention"
        )
