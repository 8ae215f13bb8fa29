"""A GGUF file of the `llama` architecture as a Hugging Face Llama model: which tensors, which names, which config.

llama.cpp rotates neighbouring pairs of a head's dimensions, Hugging Face rotates the two halves against each other; the
rows of the query and key projections were reordered for that when the file was written, and are put back here.
Every key and every tensor of the file is either used or known to change nothing: an unknown one is refused, because a
model that ignores it would answer wrongly without a sign.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from rtk.model.gguf import GgufFile, Tensor, short
from rtk.model.gguf_quants import Bytes, Floats

ARCHITECTURE = "llama"

#: Keys (after `llama.`) that are read below.
_USED_KEYS = {
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.layer_norm_rms_epsilon",
    "attention.value_length",
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "rope.dimension_count",
    "rope.freq_base",
    "rope.scale_linear",
    "rope.scaling.factor",
    "rope.scaling.original_context_length",
    "rope.scaling.type",
}
#: Keys that say nothing about the computation; the vocabulary's size is that of the embedding matrix.
_INFORMATIVE_KEYS = {"rope.scaling.finetuned", "tensor_data_layout", "vocab_size"}
#: Keys that change nothing as long as they have this value.
_NEUTRAL_VALUES: dict[str, Any] = {
    "attention.causal": True,
    "expert_count": 0,
    "expert_used_count": 0,
    "rope.scaling.attn_factor": 1.0,
}

#: The part of Llama 3's scaling that no GGUF states: see `llama3_divisors`.
_LOW_FREQ_FACTOR, _HIGH_FREQ_FACTOR, _ORIGINAL_CONTEXT = 1.0, 4.0, 8192


@dataclass(frozen=True)
class LlamaShape:
    """The sizes of a Llama model, in field-standard terms; `vocab_size` is the number of embedding rows."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    context_length: int
    norm_eps: float


@dataclass(frozen=True)
class TensorPlan:
    """One tensor to write: where it comes from, its name there, and the heads whose rows must be put back (0: none)."""

    source: Tensor
    target: str
    rotary_heads: int = 0


@dataclass(frozen=True)
class LlamaModel:
    """A checked plan: everything that a conversion needs to know about the model's weights."""

    shape: LlamaShape
    rope: dict[str, Any]
    tied: bool
    plans: list[TensorPlan]

    @property
    def dtype(self) -> str:
        """The dtype that the matrices share on disk: a 16-bit one if all of them have it, else float32."""
        kinds = {plan.source.kind.name for plan in self.plans if len(plan.source.shape) == 2}
        return {"F16": "float16", "BF16": "bfloat16"}.get(kinds.pop(), "float32") if len(kinds) == 1 else "float32"

    def config(self) -> dict[str, Any]:
        """The fields of config.json, without the tokens' ids."""
        shape = self.shape
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "vocab_size": shape.vocab_size,
            "hidden_size": shape.hidden_size,
            "intermediate_size": shape.intermediate_size,
            "num_hidden_layers": shape.layers,
            "num_attention_heads": shape.heads,
            "num_key_value_heads": shape.kv_heads,
            "head_dim": shape.head_dim,
            "max_position_embeddings": shape.context_length,
            "rms_norm_eps": shape.norm_eps,
            "rope_parameters": self.rope,
            "tie_word_embeddings": self.tied,
            "hidden_act": "silu",
            "attention_bias": False,
            "mlp_bias": False,
            "dtype": self.dtype,
        }


def read_llama(gguf: GgufFile) -> LlamaModel:
    """Check that a file of this architecture can be reproduced exactly as a Llama model, and plan its conversion.

    Raises:
        ModelError: a key or a tensor is unknown, missing, or contradicts the others.
    """
    _check_foreign(gguf)
    shape = _read_shape(gguf)
    plans = list(_plan_tensors(gguf, shape))
    _check_no_other_tensors(gguf, plans)
    tied = "output.weight" not in gguf.tensors
    return LlamaModel(shape, _read_rope(gguf, shape), tied, plans)


def _check_foreign(gguf: GgufFile) -> None:
    kind = gguf.get("general.type", str, "model")
    if kind != "model":
        raise gguf.error(f"holds a {short(kind)}, not a model")
    if gguf.metadata.get("split.count", 1) not in (0, 1):
        raise gguf.error(f"is one of {short(gguf.metadata['split.count'])} parts; rtk imports single-file models only")
    for key, value in gguf.metadata.items():
        name = key.removeprefix(f"{ARCHITECTURE}.")
        if name == key or name in _USED_KEYS | _INFORMATIVE_KEYS:
            continue
        if name not in _NEUTRAL_VALUES or not np.array_equal(value, _NEUTRAL_VALUES[name]):
            raise gguf.error(f"sets {short(key)} to {short(value)}, which rtk cannot reproduce in a Llama model")


def _read_shape(gguf: GgufFile) -> LlamaShape:
    embedding = _tensor(gguf, "token_embd.weight")
    hidden = _size(gguf, "embedding_length")
    heads = _size(gguf, "attention.head_count")
    kv_heads = _size(gguf, "attention.head_count_kv", heads)
    if hidden % heads or heads % kv_heads:
        raise gguf.error(f"embedding length {hidden}, {heads} heads and {kv_heads} key-value heads do not fit together")
    head_dim = _size(gguf, "attention.key_length", hidden // heads)
    if head_dim % 2:
        raise gguf.error(f"heads of length {head_dim} cannot be rotated: the length must be even")
    for key in ("attention.value_length", "rope.dimension_count"):
        if (length := _size(gguf, key, head_dim)) != head_dim:
            raise gguf.error(f"'llama.{key}' is {length}; rtk imports models where it is the head length, {head_dim}")
    return LlamaShape(
        vocab_size=embedding.shape[0],
        hidden_size=hidden,
        intermediate_size=_size(gguf, "feed_forward_length"),
        layers=_size(gguf, "block_count"),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        context_length=_size(gguf, "context_length"),
        norm_eps=_positive(gguf, "attention.layer_norm_rms_epsilon"),
    )


def _size(gguf: GgufFile, key: str, *default: int) -> int:
    size: int = gguf.get(f"{ARCHITECTURE}.{key}", int, *default)
    if size < 1:
        raise gguf.error(f"'{ARCHITECTURE}.{key}' is {size}, it must be positive")
    return size


def _positive(gguf: GgufFile, key: str, *default: float) -> float:
    """A float32 of the file, written with the fewest digits that give it back: 1e-05, not 9.999999747378752e-06."""
    value = gguf.get(f"{ARCHITECTURE}.{key}", float, *default)
    if not (math.isfinite(value) and value > 0):
        raise gguf.error(f"'{ARCHITECTURE}.{key}' is {value}, it must be positive and finite")
    return float(str(np.float32(value)))


def _tensor(gguf: GgufFile, name: str) -> Tensor:
    if name not in gguf.tensors:
        raise gguf.error(f"has no tensor {name!r}")
    return gguf.tensors[name]


# tensors


def _plan_tensors(gguf: GgufFile, shape: LlamaShape) -> Iterator[TensorPlan]:
    for name, target, expected, rotary_heads in _expected_tensors(shape, tied="output.weight" not in gguf.tensors):
        source = _tensor(gguf, name)
        if source.shape != expected:
            raise gguf.error(f"tensor {name!r} has shape {list(source.shape)}, its metadata says {list(expected)}")
        yield TensorPlan(source, target, rotary_heads)


def _expected_tensors(shape: LlamaShape, *, tied: bool) -> Iterator[tuple[str, str, tuple[int, ...], int]]:
    """Yield (name in GGUF, name in Hugging Face, shape, heads to put back)."""
    hidden, vocab = shape.hidden_size, shape.vocab_size
    yield "token_embd.weight", "model.embed_tokens.weight", (vocab, hidden), 0
    for layer in range(shape.layers):
        for name, target, expected, rotary_heads in _layer_tensors(shape):
            yield f"blk.{layer}.{name}.weight", f"model.layers.{layer}.{target}.weight", expected, rotary_heads
    yield "output_norm.weight", "model.norm.weight", (hidden,), 0
    if not tied:
        yield "output.weight", "lm_head.weight", (vocab, hidden), 0


def _layer_tensors(shape: LlamaShape) -> list[tuple[str, str, tuple[int, ...], int]]:
    hidden, inner = shape.hidden_size, shape.intermediate_size
    q_rows, kv_rows = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    return [
        ("attn_norm", "input_layernorm", (hidden,), 0),
        ("attn_q", "self_attn.q_proj", (q_rows, hidden), shape.heads),
        ("attn_k", "self_attn.k_proj", (kv_rows, hidden), shape.kv_heads),
        ("attn_v", "self_attn.v_proj", (kv_rows, hidden), 0),
        ("attn_output", "self_attn.o_proj", (hidden, q_rows), 0),
        ("ffn_norm", "post_attention_layernorm", (hidden,), 0),
        ("ffn_gate", "mlp.gate_proj", (inner, hidden), 0),
        ("ffn_up", "mlp.up_proj", (inner, hidden), 0),
        ("ffn_down", "mlp.down_proj", (hidden, inner), 0),
    ]


def _check_no_other_tensors(gguf: GgufFile, plans: list[TensorPlan]) -> None:
    others = sorted(gguf.tensors.keys() - {plan.source.name for plan in plans} - {"rope_freqs.weight"})
    if others:
        raise gguf.error(f"has {len(others)} tensors that a Llama model does not have, the first: {short(others[0])}")


def restore_rows(rows: Bytes, heads: int) -> Bytes:
    """Put the rows of a query or key projection back into Hugging Face's order.

    Within a head of d rows, the file's row 2i + j is row j * d/2 + i (j in {0, 1}): pairs become halves.

    Args:
        rows: [heads * d, bytes a row]; whole rows move, so they may still be quantised.
    """
    pairs = rows.reshape(heads, -1, 2, rows.shape[1])
    return pairs.swapaxes(1, 2).reshape(rows.shape)


# rotary embedding


def _read_rope(gguf: GgufFile, shape: LlamaShape) -> dict[str, Any]:
    theta = _positive(gguf, "rope.freq_base", 10000.0)
    kind = gguf.get("llama.rope.scaling.type", str, "linear")
    if kind not in ("none", "linear"):
        raise gguf.error(f"rope scaling {short(kind)} cannot be imported; rtk imports none, linear and llama3's")
    factor = 1.0 if kind == "none" else _linear_factor(gguf)
    if "rope_freqs.weight" in gguf.tensors:
        if factor != 1.0:
            raise gguf.error(f"scales rope twice, linearly by {factor} and by 'rope_freqs.weight'; rtk imports either")
        return _read_llama3_rope(gguf, shape, theta)
    if factor != 1.0:
        return {"rope_type": "linear", "rope_theta": theta, "factor": factor}
    return {"rope_type": "default", "rope_theta": theta}


def _linear_factor(gguf: GgufFile) -> float:
    """Positions are divided by it. Two keys were in use, and 0 stands for none in both."""
    for key in ("rope.scaling.factor", "rope.scale_linear"):
        if gguf.metadata.get(f"{ARCHITECTURE}.{key}", 0.0) != 0.0:
            return _positive(gguf, key)
    return 1.0


def _read_llama3_rope(gguf: GgufFile, shape: LlamaShape, theta: float) -> dict[str, Any]:
    """Recover Llama 3's parameters from the divisors that they gave, and refuse divisors that they do not give.

    A GGUF stores one divisor a frequency and not what it was computed from. The largest is the factor itself; with the
    constants that every Llama 3 model has, the rest must follow (relative error 1e-4, for the writer's float32).
    """
    stored = gguf.values(_tensor(gguf, "rope_freqs.weight")).reshape(-1)
    original_context = _size(gguf, "rope.scaling.original_context_length", _ORIGINAL_CONTEXT)
    factor = float(stored.max())
    if not _follows_llama3(stored, theta, shape.head_dim, factor, original_context):
        raise gguf.error("'rope_freqs.weight' is not llama3's rope scaling; rtk imports none, linear and llama3's")
    if factor == 1.0:
        return {"rope_type": "default", "rope_theta": theta}
    return {
        "rope_type": "llama3",
        "rope_theta": theta,
        "factor": factor,
        "low_freq_factor": _LOW_FREQ_FACTOR,
        "high_freq_factor": _HIGH_FREQ_FACTOR,
        "original_max_position_embeddings": original_context,
    }


def _follows_llama3(stored: Floats, theta: float, head_dim: int, factor: float, original_context: int) -> bool:
    if not (1.0 <= factor < math.inf) or len(stored) != head_dim // 2:
        return False
    return np.allclose(stored, llama3_divisors(theta, head_dim, factor, original_context), rtol=1e-4, atol=0.0)


def llama3_divisors(theta: float, head_dim: int, factor: float, original_context: int) -> Floats:
    """What Llama 3.1 divides each rotary frequency by, float32 [head_dim / 2], smallest wavelength first.

    With turns = original_context / wavelength, a frequency of more than `high` = 4 turns is left alone, one of less
    than `low` = 1 turn is divided by `factor`, and in between its multiplier is interpolated linearly in turns between
    1 / factor and 1 (the reference implementation published with Llama 3.1).
    """
    frequencies = theta ** (-np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    turns = original_context * frequencies / (2 * np.pi)
    share = np.clip((turns - _LOW_FREQ_FACTOR) / (_HIGH_FREQ_FACTOR - _LOW_FREQ_FACTOR), 0.0, 1.0)
    divisors: Floats = (1.0 / ((1.0 - share) / factor + share)).astype(np.float32)
    return divisors
