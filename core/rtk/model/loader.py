"""Loads a causal language model from a local folder through transformers, or says why it cannot be served."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from rtk.errors import ConfigError, ModelError, one_line
from rtk.model.bridge import IMPLEMENTATION, register
from rtk.model.files import read_object
from rtk.model.threads import one_thread
from rtk.plugin.attention import DTYPE_BYTES, KVShape

log = logging.getLogger(__name__)

LAYER_TYPES = frozenset({"full_attention", "sliding_attention"})
"""What a layer may be: all it keeps of a sequence is K/V by position."""


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What a model's files say about it."""

    kind: str
    """`model_type` of config.json."""
    vocab_size: int
    """Width of the logits; may exceed what the tokenizer knows."""
    context_length: int | None
    """Longest sequence that is computed as it is alone; None where config.json does not say."""
    bos_token: int | None
    end_tokens: tuple[int, ...]
    """Tokens that end a text, ascending."""
    generation_config: Mapping[str, Any]
    """generation_config.json as its authors wrote it, without nulls; empty where there is none."""
    dtype: str
    parameter_bytes: int


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model in evaluation mode whose attention goes through the bridge."""

    model: Any
    """A transformers `PreTrainedModel`."""
    facts: ModelFacts
    device: torch.device


@dataclass(frozen=True, slots=True)
class Outline:
    """What a model's files say about it without their weights."""

    kind: str
    context_length: int | None
    dtype: str | None
    """What it would be loaded as; None where only the weights tell."""
    features: frozenset[str] = frozenset()
    """What it surely asks of an attention backend; the rest shows when it runs, see `rtk.model.probe`."""
    mla: bool | None = None
    """Whether it is served by latents; None: perhaps, see `rtk.model.latent`."""
    shape: KVShape | None = None
    """Of its K/V, as far as its files tell; what holds is what `rtk.model.probe` finds. None: they do not tell."""


def read_outline(folder: Path, *, dtype: str, device: str, trust_remote_code: bool) -> Outline:
    """What `load_model` would begin with. Raises `ModelError` where it would fail before it reads weights."""
    wanted = _dtype(dtype, device)
    _check_folder(folder)
    with _one_line(folder), _quiet():
        config = _read_config(folder, trust_remote_code)
        refuse_unservable(config)
    found = getattr(config, "dtype", None) if wanted == "auto" else wanted
    name = None if found is None else str(found).removeprefix("torch.")
    text = config.get_text_config(decoder=True)
    length, own = _context_length(folder, text), getattr(text, "max_position_embeddings", None)
    if own is not None and length != own:
        log.warning(
            "%s: served up to %d of its %d tokens: one longer sequence changes rope type 'longrope' for all others",
            folder,
            length,
            own,
        )
    mla = None if hasattr(text, "kv_lora_rank") else False
    return Outline(config.model_type, length, name, _sure_features(text), mla, _likely_shape(text))


def _likely_shape(config: Any) -> KVShape | None:
    """What most models make of these names; those of latents have K/V of several shapes."""
    names = ("num_hidden_layers", "num_attention_heads", "num_key_value_heads", "hidden_size", "head_dim")
    try:
        layers, heads, kv_heads, width, dim = (getattr(config, name, None) for name in names)
    except RuntimeError:  # what differs from layer to layer: transformers tells it of single layers only
        return None
    dim = dim or (width // heads if width and heads else None)
    if hasattr(config, "kv_lora_rank") or not (layers and heads and dim):
        return None
    return KVShape(layers, kv_heads or heads, dim, dim, heads)


def _sure_features(config: Any) -> frozenset[str]:
    """Some of what the model will ask of an attention backend: configurations have no one word for each of them."""
    asked = {
        "sliding_window": "sliding_attention" in (getattr(config, "layer_types", None) or ()),
        "softcap": getattr(config, "attn_logit_softcapping", None) is not None,
        "sinks": config.model_type == "gpt_oss",
    }
    return frozenset(name for name, is_asked in asked.items() if is_asked)


@one_thread()
def load_model(
    folder: Path, *, dtype: str = "auto", device: str = "cpu", trust_remote_code: bool = False
) -> LoadedModel:
    """Load safetensors weights. `auto` is float32 on a CPU and the checkpoint's own type elsewhere.

    Raises `ModelError` where something is missing or broken, or where the model is of a kind that paged attention
    cannot serve correctly. Half types are two to four times slower than float32 on a CPU without units for them.
    """
    wanted = _dtype(dtype, device)
    _check_folder(folder)
    defaults = _generation_config(folder)
    with _one_line(folder), _quiet():
        config = _read_config(folder, trust_remote_code)
        refuse_unservable(config)
        model = _read_weights(folder, config, wanted, trust_remote_code)
    model = model.to(device).eval().requires_grad_(False)
    return LoadedModel(model, _facts(folder, model, defaults), torch.device(device))


def _dtype(name: str, device: str) -> torch.dtype | str:
    if name == "auto":
        return torch.float32 if device == "cpu" else "auto"
    if name not in DTYPE_BYTES:
        raise ConfigError(f"unknown dtype {name!r}; choose auto, {', '.join(DTYPE_BYTES)}")
    found: torch.dtype = getattr(torch, name)
    return found


def _check_folder(folder: Path) -> None:
    if not (folder / "config.json").is_file():
        raise ModelError(f"{folder} holds no model: there is no config.json in it; see 'rtk model'")
    read_object(folder / "config.json")  # transformers' own messages on broken ones say less
    if not any(folder.glob("*.safetensors")):
        raise ModelError(f"{folder} holds no *.safetensors file; other weight formats are not loaded")


@contextmanager
def _one_line(folder: Path) -> Iterator[None]:
    """What goes wrong inside transformers is the model's fault: one line, with theirs in it."""
    try:
        yield
    except (ModelError, MemoryError):
        raise
    except Exception as error:
        raise ModelError(f"{folder} cannot be loaded: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    text = str(error)
    if "trust_remote_code" in text:
        return "it needs Python code that comes with it; set model.trust_remote_code to run that code"
    if IMPLEMENTATION in text:
        return "its attention cannot be replaced through transformers' attention interface"
    return one_line(error)


@contextmanager
def _quiet() -> Iterator[None]:
    """Nothing of transformers' on the terminal: neither bars nor its reports of many lines on what it found."""
    from transformers.utils import logging as library_logging

    library: Any = library_logging
    shown, level = library.is_progress_bar_enabled(), library.get_verbosity()
    library.disable_progress_bar()
    library.set_verbosity_error()
    try:
        yield
    finally:
        library.set_verbosity(level)
        if shown:
            library.enable_progress_bar()


def _read_config(folder: Path, trust_remote_code: bool) -> Any:
    from transformers import AutoConfig

    return AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=trust_remote_code)


def _read_weights(folder: Path, config: Any, dtype: torch.dtype | str, trust_remote_code: bool) -> Any:
    from transformers import AutoModelForCausalLM

    loaded: Any = AutoModelForCausalLM.from_pretrained(
        folder,
        config=config,
        dtype=dtype,
        attn_implementation=register(),
        use_safetensors=True,
        ignore_mismatched_sizes=True,  # told of, instead of an error that refers to a report
        local_files_only=True,
        trust_remote_code=trust_remote_code,
        output_loading_info=True,
    )
    model, found = loaded
    _check_weights(folder, found)
    if getattr(model.config, "quantization_config", None) and getattr(model, "hf_quantizer", None) is None:
        raise ModelError(f"{folder} cannot be loaded: its weights are quantized in a way that transformers cannot read")
    return model


def _check_weights(folder: Path, found: Mapping[str, Any]) -> None:
    """Whether the files hold what config.json describes. What they hold beyond that is told of, and left out."""
    if mismatched := sorted(found["mismatched_keys"]):
        name, stored, wanted = mismatched[0]
        raise ModelError(
            f"{folder} does not fit its config.json: weight {name!r} is {_shape(stored)} in the files "
            f"and {_shape(wanted)} by config.json{_more(mismatched)}; fetch it again"
        )
    if missing := sorted(found["missing_keys"]):
        raise ModelError(
            f"{folder} is incomplete: its files hold no weight {missing[0]!r}{_more(missing)}; fetch it again"
        )
    if unexpected := sorted(found["unexpected_keys"]):
        log.warning(
            "%s: its files hold weights that the model by config.json does not have, so without effect: %s%s",
            folder,
            unexpected[0],
            _more(unexpected),
        )


def _more(names: Sequence[Any]) -> str:
    return f" and {len(names) - 1} more" if len(names) > 1 else ""


def _shape(sizes: Sequence[int]) -> str:
    return " x ".join(map(str, sizes))


def refuse_unservable(config: Any) -> None:
    """Raises `ModelError` with the reason where K/V by position is not all that a model keeps of a sequence.

    Judges by the configuration; what only shows when the model runs is for `rtk.model.probe`.
    """
    text = config.get_text_config(decoder=True)
    for reason in (_no_decoder(config), _other_layers(text), _stateful(config, text)):
        if reason:
            raise ModelError(f"model type {config.model_type!r} cannot be served: {reason}")


def _no_decoder(config: Any) -> str | None:
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    if config.is_encoder_decoder:
        return "it has an encoder; rtk serves decoder-only models"
    if config.model_type not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES and not hasattr(config, "auto_map"):
        return "transformers has no causal language model of that type"
    return None


def _other_layers(config: Any) -> str | None:
    other = sorted(set(getattr(config, "layer_types", None) or ()) - LAYER_TYPES)
    if other:
        return f"it has {', '.join(other)} layers; rtk pages the K/V of {' and '.join(sorted(LAYER_TYPES))} layers only"
    return None


def _stateful(config: Any, text: Any) -> str | None:
    """By its class, which may have layers with and without state; where it lists them, they were judged already."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

    model = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    if getattr(model, "_is_stateful", False) and not getattr(text, "layer_types", None):
        return "it keeps a recurrent state beside K/V"
    return None


def _context_length(folder: Path, config: Any) -> int | None:
    length: int | None = getattr(config, "max_position_embeddings", None)
    if length is not None and length < 1:
        raise ModelError(f"{folder}: max_position_embeddings = {length} in config.json: must be at least 1")
    return min((n for n in (length, *_rope_borders(config)) if n is not None), default=None)


def _rope_borders(config: Any) -> Iterator[int]:
    """Lengths past which one sequence changes the frequencies of a whole batch.

    Those of type 'dynamic' change only past `max_position_embeddings`, where nothing is served.
    """
    rope = getattr(config, "rope_parameters", None) or {}
    for parameters in (rope, *rope.values()):
        if isinstance(parameters, dict) and parameters.get("rope_type") == "longrope":
            yield parameters["original_max_position_embeddings"]


def _facts(folder: Path, model: Any, defaults: Mapping[str, Any]) -> ModelFacts:
    config = model.config.get_text_config(decoder=True)
    bos = defaults.get("bos_token_id", getattr(config, "bos_token_id", None))
    if not (bos is None or _is_id(bos)):
        raise ModelError(f"{folder}: bos_token_id = {bos!r}: must be a token id")
    ends = defaults.get("eos_token_id", getattr(config, "eos_token_id", None))
    return ModelFacts(
        kind=model.config.model_type,
        vocab_size=config.vocab_size,
        context_length=_context_length(folder, config),
        bos_token=bos,
        end_tokens=_end_tokens(folder, ends, config.vocab_size),
        generation_config=defaults,
        dtype=str(model.dtype).removeprefix("torch."),
        parameter_bytes=sum(p.numel() * p.element_size() for p in model.parameters()),
    )


def _end_tokens(folder: Path, given: Any, vocab_size: int) -> tuple[int, ...]:
    """Ascending. Those outside of the vocabulary can never be sampled: told of, and left out."""
    ids = [] if given is None else given if isinstance(given, list) else [given]
    if not all(map(_is_id, ids)):
        raise ModelError(f"{folder}: eos_token_id = {given!r}: must be a token id or a list of them")
    outside = sorted(token for token in ids if not 0 <= token < vocab_size)
    if outside:
        log.warning("%s: eos_token_id without effect, outside of the vocabulary of %d: %s", folder, vocab_size, outside)
    return tuple(sorted(set(ids) - set(outside)))


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _generation_config(folder: Path) -> dict[str, Any]:
    """As the file says, without the values that transformers fills in for what is not there."""
    found = read_object(folder / "generation_config.json")
    return {key: value for key, value in found.items() if value is not None}
