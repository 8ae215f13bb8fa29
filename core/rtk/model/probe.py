"""Learns what K/V a model keeps by running it on a few tokens, and refuses a model that cannot be paged."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from rtk.errors import ConfigError, ModelError, one_line
from rtk.model.loader import LoadedModel
from rtk.model.record import LENGTHS, Recorded, record
from rtk.model.threads import one_thread
from rtk.plugin import Capabilities, KVShape, LayerCall

DRIFT = {"float64": 1e-3, "float32": 1e-3, "float16": 3e-2, "bfloat16": 1e-1}
"""Relative difference of logits above which two sequences influence each other; rounding stays well below."""
HARMLESS = frozenset({"position_ids", "cache_position"})
"""Tensors that models pass on to attention functions without wanting anything of them."""


@dataclass(frozen=True, slots=True)
class Probe:
    """What a model needs of an attention backend."""

    shape: KVShape
    features: frozenset[str]
    """Of `rtk.plugin.attention.FEATURES`."""
    dtype: str
    """Type of K and V."""


class _Unservable(Exception):  # noqa: N818 - a reason, on its way to becoming a ModelError
    """Why the model cannot be served."""


@one_thread()
def probe(loaded: LoadedModel) -> Probe:
    """Run the model and look: two sequences apart and in one batch, three forwards of at most 12 tokens.

    Raises `ModelError` with the reason where paged attention would give wrong answers.
    """
    try:
        apart = [_record(loaded, [length])[1] for length in LENGTHS]
        calls, together = _record(loaded, LENGTHS)
        _check_calls(loaded, calls)
        _check_independence(loaded, torch.cat(apart), together)
    except _Unservable as reason:
        raise ModelError(f"model type {loaded.facts.kind!r} cannot be served: {reason}") from reason.__cause__
    first = calls[0]
    shape = KVShape(len(calls), first.kv_heads, first.head_dim, first.v_head_dim, first.q_heads)
    return Probe(shape, frozenset().union(*(_features(recorded.call) for recorded in calls)), first.dtype)


def check_backend(name: str, declared: Capabilities, needs: Probe, device: torch.device, page_size: int) -> None:
    """Raises `ConfigError` naming everything that the model, the device or the page size ask of a backend in vain."""
    conflicts = []
    if device.type not in declared.devices:
        conflicts.append(f"device {device.type} (it runs on {_listed(declared.devices)})")
    if needs.dtype not in declared.dtypes:
        conflicts.append(f"dtype {needs.dtype} (it computes {_listed(declared.dtypes)})")
    if declared.page_sizes is not None and page_size not in declared.page_sizes:
        conflicts.append(f"page size {page_size} (it takes {', '.join(map(str, sorted(declared.page_sizes)))})")
    if needs.features - declared.features:
        conflicts.append(f"the model's {_listed(needs.features - declared.features)}")
    if conflicts:
        raise ConfigError(f"attention backend {name!r} cannot serve {'; '.join(conflicts)}; see 'rtk plugins'")


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))


def _features(call: LayerCall) -> frozenset[str]:
    asked = {"sliding_window": call.sliding_window, "softcap": call.softcap, "sinks": call.sinks}
    return frozenset(name for name, value in asked.items() if value is not None)


def _record(loaded: LoadedModel, lengths: Sequence[int]) -> tuple[Sequence[Recorded], torch.Tensor]:
    try:
        recorder, logits = record(loaded, lengths)
    except Exception as error:
        raise _Unservable(f"a forward without cache and mask fails: {one_line(error)}") from error
    return recorder.calls, logits


def _check_calls(loaded: LoadedModel, calls: Sequence[Recorded]) -> None:
    """One call for each layer, all alike, nothing asked for that a `LayerCall` cannot say."""
    config = loaded.model.config.get_text_config(decoder=True)
    counts = Counter(recorded.call.layer for recorded in calls)
    expected = range(max([*counts, config.num_hidden_layers - 1]) + 1)
    if dict(counts) != dict.fromkeys(expected, 1):
        raise _Unservable(f"the attention function was called {len(calls)} times for {len(expected)} layers")
    if len({recorded.shape for recorded in calls}) > 1:
        raise _Unservable("its layers differ in the shape of their K/V")
    types = getattr(config, "layer_types", None) or ()
    for recorded in calls:
        _check_extras(recorded)
        layer = recorded.call.layer
        if layer < len(types) and types[layer] == "sliding_attention" and recorded.call.sliding_window is None:
            raise _Unservable(f"layer {layer} is sliding_attention, but its call names no window")


def _check_extras(recorded: Recorded) -> None:
    if recorded.extras.get("is_causal") is False or getattr(recorded.module, "is_causal", True) is False:
        raise _Unservable(f"layer {recorded.call.layer} attends to later tokens too")
    tensors = {name for name, value in recorded.extras.items() if isinstance(value, torch.Tensor)}
    if tensors - HARMLESS:
        raise _Unservable(f"its attention wants {_listed(tensors - HARMLESS)}, which rtk's does not know")


def _check_independence(loaded: LoadedModel, apart: torch.Tensor, together: torch.Tensor) -> None:
    drift = ((together - apart).norm(dim=-1) / apart.norm(dim=-1)).max().item()
    if not drift <= DRIFT[loaded.facts.dtype]:
        raise _Unservable(
            f"sequences in one batch change each other's logits by {drift:.1%}: "
            "it ignores position_ids, or keeps something of a sequence outside attention"
        )
