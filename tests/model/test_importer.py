"""GGUF to model folder: weights, configuration and tokenizer, against files whose content is known."""

import json
import math
import struct
from itertools import chain, pairwise

import gguf_writer as w
import numpy as np
import pytest
from gguf_writer import ARRAY, BOOL, FLOAT32, HEAD_DIM, HEADS, HIDDEN, KV_HEADS, LAYERS, STRING, UINT32
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from rtk import Engine
from rtk.errors import ModelError
from rtk.model.gguf_llama import llama3_divisors, restore_rows
from rtk.model.importer import plan_conversion, write_folder


def convert(file, tmp_path):
    """Import a file into a new folder."""
    source = file.write(tmp_path / "model.gguf")
    folder = tmp_path / "model"
    folder.mkdir(exist_ok=True)
    write_folder(plan_conversion(source), folder)
    return folder


def config_of(folder, name="config"):
    return json.loads((folder / f"{name}.json").read_text())


def refusal(file, tmp_path):
    """The one line with which a file is refused."""
    source = file.write(tmp_path / "model.gguf")
    with pytest.raises(ModelError) as caught:
        plan_conversion(source)
    message = str(caught.value)
    assert message.startswith(str(source)) and "\n" not in message and len(message) < len(str(source)) + 250
    return message


def changed(file, **metadata):
    """The file with other metadata; a dot is written as two underscores, None takes a key away."""
    for key, content in metadata.items():
        name = key.replace("__", ".")
        if content is None:
            del file.metadata[name]
        else:
            file.metadata[name] = content
    return file


def raw_weights(folder):
    """{name: (dtype, shape, bytes)} of model.safetensors, read without the library."""
    data = (folder / "model.safetensors").read_bytes()
    size = int.from_bytes(data[:8], "little")
    assert size % 8 == 0
    header = json.loads(data[8 : 8 + size])
    assert header.pop("__metadata__") == {"format": "pt"}
    body = data[8 + size :]
    places = sorted(entry["data_offsets"] for entry in header.values())
    assert [begin for begin, _ in places] == [0, *(end for _, end in places[:-1])] and places[-1][1] == len(body)
    return {
        name: (entry["dtype"], tuple(entry["shape"]), body[slice(*entry["data_offsets"])])
        for name, entry in header.items()
    }


# weights


def hugging_face_name(name):
    places = {
        "token_embd": "model.embed_tokens",
        "output_norm": "model.norm",
        "output": "lm_head",
        "attn_norm": "input_layernorm",
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj",
        "ffn_norm": "post_attention_layernorm",
        "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj",
    }
    *layer, name, _ = name.split(".")
    return f"model.layers.{layer[1]}.{places[name]}.weight" if layer else f"{places[name]}.weight"


def pair_up(rows, heads):
    """What a writer of GGUF does: in each head, row i of the first half and row i of the second become neighbours."""
    per_head = len(rows) // heads
    order = []
    for head in range(heads):
        for i in range(per_head // 2):
            order += [head * per_head + i, head * per_head + per_head // 2 + i]
    return rows[order]


def llama_of(kind, **options):
    """A model in one kind, or of one layer in all K-quants and two that stand in for them where rows are narrow."""
    if kind != "K":
        return w.llama(kind, **options)
    return w.llama(*w.K_QUANTS, "IQ4_NL", "Q8_0", head_dim=64, hidden=256, inner=256, layers=1, **options)


@pytest.mark.parametrize("kind", [*(kind for kind in w.BLOCK_BYTES if kind not in w.K_QUANTS), "K"])
@pytest.mark.parametrize("tied", [True, False])
def test_every_tensor_arrives_exactly(tmp_path, kind, tied):
    file = llama_of(kind, tied=tied)
    written = raw_weights(convert(file, tmp_path))
    assert written.keys() == {hugging_face_name(name) for name in file.tensors}
    for name, (shape, tensor_kind, data) in file.tensors.items():
        dtype, written_shape, content = written[hugging_face_name(name)]
        assert written_shape == shape
        assert dtype == (tensor_kind if tensor_kind in ("F32", "F16", "BF16") else "F32")
        values = w.decode(dtype, content).reshape(shape)
        if ".attn_q." in name or ".attn_k." in name:
            values = pair_up(values, HEADS if ".attn_q." in name else KV_HEADS)
        assert np.array_equal(values, w.decode(tensor_kind, data).reshape(shape))


@pytest.mark.parametrize(
    ("kind", "dtype"), [("F16", "float16"), ("BF16", "bfloat16"), ("F32", "float32"), ("Q8_0", "float32")]
)
def test_the_dtype_is_the_one_that_all_matrices_share(tmp_path, kind, dtype):
    file = w.llama(kind)
    assert config_of(convert(file, tmp_path))["dtype"] == dtype
    shape, _, _ = file.tensors["blk.1.ffn_up.weight"]
    file.tensors["blk.1.ffn_up.weight"] = (shape, "Q4_0", w.random_tensor("Q4_0", shape))
    assert config_of(convert(file, tmp_path))["dtype"] == "float32"


@given(st.integers(1, 6), st.integers(1, 9), st.integers(1, 5))
def test_restored_rows_pair_up_to_the_rows_of_the_file(heads, half, width):
    rows = np.arange(heads * 2 * half * width, dtype=np.uint32).astype(np.uint8).reshape(-1, width)
    assert np.array_equal(pair_up(restore_rows(rows, heads), heads), rows)


def test_values_that_are_not_finite_are_refused(tmp_path):
    file = w.llama("Q8_0")
    shape, kind, data = file.tensors["blk.0.ffn_up.weight"]
    file.tensors["blk.0.ffn_up.weight"] = (shape, kind, struct.pack("<e", float("nan")) + data[2:])
    with pytest.raises(ModelError, match=r"tensor 'blk.0.ffn_up.weight' holds values that are not finite"):
        convert(file, tmp_path)


@pytest.mark.parametrize(
    ("name", "tensor", "problem"),
    [
        ("blk.1.attn_k.weight", None, "has no tensor 'blk.1.attn_k.weight'"),
        ("token_embd.weight", None, "has no tensor 'token_embd.weight'"),
        ("blk.0.attn_q.bias", ((HIDDEN,), "F32", bytes(4 * HIDDEN)), "has 1 tensors that a Llama model does not have"),
        ("blk.0.ffn_up.weight", ((HIDDEN, HIDDEN), "F32", bytes(4 * HIDDEN**2)), "has shape [64, 64], its metadata"),
        ("token_embd.weight", ((HIDDEN,), "F32", bytes(4 * HIDDEN)), "has shape [64], its metadata says [64, 6"),
        ("output.weight", ((5, HIDDEN), "F32", bytes(20 * HIDDEN)), "'output.weight' has shape [5, 64]"),
    ],
)  # fmt: skip
def test_tensors_that_are_missing_or_do_not_fit_are_refused(tmp_path, name, tensor, problem):
    file = w.llama()
    file.tensors[name] = tensor
    file.tensors = {key: entry for key, entry in file.tensors.items() if entry}
    assert problem in refusal(file, tmp_path)


# the model as a whole


def reference_logits(file, tokens, eps=1e-5, theta=100000.0):
    """A Llama forward pass in float64 with GGUF's weights and its rotation, of neighbouring pairs: [tokens, vocab]."""
    tensors = {name: w.decode(kind, data).reshape(shape) for name, (shape, kind, data) in file.tensors.items()}
    tensors = {name: values.astype(np.float64) for name, values in tensors.items()}
    positions = np.arange(len(tokens))
    angles = positions[:, None] * theta ** (-np.arange(0, HEAD_DIM, 2) / HEAD_DIM)
    turn = np.exp(1j * angles)[:, None, :]

    def norm(x, weight):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight

    def rotate(x, heads):
        x = x.reshape(len(tokens), heads, HEAD_DIM // 2, 2)
        turned = (x[..., 0] + 1j * x[..., 1]) * turn
        return np.stack([turned.real, turned.imag], -1).reshape(len(tokens), heads, HEAD_DIM)

    x = tensors["token_embd.weight"][tokens]
    for layer in range(LAYERS):
        prefix = f"blk.{layer}."
        t = {name.split(".")[2]: values for name, values in tensors.items() if name.startswith(prefix)}
        h = norm(x, t["attn_norm"])
        q, k = rotate(h @ t["attn_q"].T, HEADS), rotate(h @ t["attn_k"].T, KV_HEADS)
        v = (h @ t["attn_v"].T).reshape(len(tokens), KV_HEADS, HEAD_DIM)
        k, v = (np.repeat(a, HEADS // KV_HEADS, axis=1) for a in (k, v))
        scores = np.einsum("qhd,khd->hqk", q, k) / HEAD_DIM**0.5
        scores = np.where(positions[None, None, :] <= positions[None, :, None], scores, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        x = x + np.einsum("hqk,khd->qhd", weights, v).reshape(len(tokens), -1) @ t["attn_output"].T
        h = norm(x, t["ffn_norm"])
        gate = h @ t["ffn_gate"].T
        x = x + (gate / (1 + np.exp(-gate)) * (h @ t["ffn_up"].T)) @ t["ffn_down"].T
    return norm(x, tensors["output_norm.weight"]) @ tensors.get("output.weight", tensors["token_embd.weight"]).T


PROMPT = [5, 17, 80, 3, 3, 200, 41]


@pytest.mark.parametrize(("kind", "tied"), [("Q4_1", True), ("Q5_0", False), ("F32", True)])
def test_transformers_computes_what_the_file_says(tmp_path, kind, tied):
    import torch
    from transformers import AutoModelForCausalLM

    file = w.llama(kind, tied=tied)
    for name, (shape, _, _) in file.tensors.items():
        if "norm" in name:  # random norms as small as weights would hide everything behind them
            file.tensors[name] = (shape, "F32", struct.pack(f"<{shape[0]}f", *np.linspace(0.5, 1.5, shape[0])))
    tokens = PROMPT
    model = AutoModelForCausalLM.from_pretrained(convert(file, tmp_path), dtype=torch.float32)
    with torch.inference_mode():
        logits = model(torch.tensor([tokens])).logits[0].double().numpy()
    expected = reference_logits(file, tokens)
    assert np.abs(logits - expected).max() < 1e-4 * np.abs(expected).max()


def test_a_model_in_k_quants_answers_as_the_one_in_their_values(tmp_path):
    file = llama_of("K")
    values = llama_of("K")
    for name, (shape, kind, data) in file.tensors.items():
        values.tensors[name] = (shape, "F32", w.decode(kind, data).tobytes())
    answers = []
    for folder, model in [(tmp_path / "k", file), (tmp_path / "f", values)]:
        folder.mkdir()
        with Engine({"model.path": str(convert(model, folder)), "cache.pool_tokens": 256}) as engine:
            answers.append(engine.generate(PROMPT, {"max_new_tokens": 12, "temperature": 0, "ignore_eos": True}))
    assert answers[0] == answers[1] and len(answers[0].token_ids) == 12
    assert (tmp_path / "k/model/model.safetensors").read_bytes() == (
        tmp_path / "f/model/model.safetensors"
    ).read_bytes()


# configuration


def test_config_holds_the_file_s_sizes(tmp_path):
    config = config_of(convert(w.llama(head_dim=32), tmp_path))
    assert config == {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 268,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-05,
        "rope_parameters": {"rope_type": "default", "rope_theta": 100000.0},
        "tie_word_embeddings": True,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "dtype": "float32",
        "bos_token_id": 1,
        "eos_token_id": 2,
    }


def test_defaults_of_the_format(tmp_path):
    file = changed(w.llama(), llama__rope__freq_base=None, llama__rope__dimension_count=None)
    assert config_of(convert(file, tmp_path))["rope_parameters"] == {"rope_type": "default", "rope_theta": 10000.0}


def test_more_embedding_rows_than_tokens(tmp_path):
    folder = convert(w.llama(rows=288), tmp_path)
    assert config_of(folder)["vocab_size"] == 288
    assert Tokenizer.from_file(str(folder / "tokenizer.json")).get_vocab_size() == 268
    assert "has 268 tokens and only 260 embedding rows" in refusal(w.llama(rows=260), tmp_path)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"type": (STRING, "linear"), "factor": (FLOAT32, 4.0)}, {"rope_type": "linear", "factor": 4.0}),
        ({"factor": (FLOAT32, 2.0)}, {"rope_type": "linear", "factor": 2.0}),
        ({"factor": (FLOAT32, 0.0)}, {"rope_type": "default"}),
        ({"type": (STRING, "none"), "factor": (FLOAT32, 4.0)}, {"rope_type": "default"}),
        ({"factor": (FLOAT32, 1.0), "finetuned": (BOOL, True)}, {"rope_type": "default"}),
    ],
)
def test_linear_rope_scaling(tmp_path, changes, expected):
    file = changed(w.llama(), **{f"llama__rope__scaling__{key}": content for key, content in changes.items()})
    assert config_of(convert(file, tmp_path))["rope_parameters"] == {"rope_theta": 100000.0, **expected}


def test_the_older_key_of_linear_scaling(tmp_path):
    file = changed(w.llama(), llama__rope__scale_linear=(FLOAT32, 8.0))
    assert config_of(convert(file, tmp_path))["rope_parameters"]["factor"] == 8.0


def with_rope_freqs(divisors, head_dim=HEAD_DIM, **changes):
    file = changed(w.llama(head_dim=head_dim), llama__rope__freq_base=(FLOAT32, 500000.0), **changes)
    file.tensors["rope_freqs.weight"] = ((len(divisors),), "F32", struct.pack(f"<{len(divisors)}f", *divisors))
    return file


def llama3_divisor(wavelength, factor, low=1.0, high=4.0, original=8192):
    """The rule as Llama 3.1 was published with it, one wavelength at a time."""
    if wavelength < original / high:
        return 1.0
    if wavelength > original / low:
        return factor
    smooth = (original / wavelength - low) / (high - low)
    return 1 / ((1 - smooth) / factor + smooth)


@pytest.mark.parametrize("factor", [8.0, 32.0])
@pytest.mark.parametrize("original", [8192, 4096])
def test_llama3_rope_scaling_is_recovered(tmp_path, factor, original):
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    frequencies = 500000.0 ** (-np.arange(0, 32, 2) / 32)
    divisors = [llama3_divisor(2 * np.pi / frequency, factor, original=original) for frequency in frequencies]
    assert len(set(divisors)) > 2
    key = "llama__rope__scaling__original_context_length"
    stated = {} if original == 8192 else {key: (UINT32, original)}
    config = config_of(convert(with_rope_freqs(divisors, 32, **stated), tmp_path))
    assert config["rope_parameters"] == {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": original,
    }
    used = LlamaRotaryEmbedding(LlamaConfig(**config)).inv_freq.double().numpy()
    assert np.allclose(used, frequencies / divisors, rtol=1e-5, atol=0)


def test_rope_freqs_that_change_nothing(tmp_path):
    rope = config_of(convert(with_rope_freqs([1.0] * 8), tmp_path))["rope_parameters"]
    assert rope == {"rope_type": "default", "rope_theta": 500000.0}


GOOD = llama3_divisors(500000.0, HEAD_DIM, 8.0, 8192).tolist()


@pytest.mark.parametrize(
    "divisors",
    [GOOD[:-1], [*GOOD, 8.0], [*GOOD[:-1], 9.0], *([content] * 8 for content in (2.0, 0.5, 0.0, math.nan, math.inf))],
)
def test_other_rope_freqs_are_refused(tmp_path, divisors):
    assert "'rope_freqs.weight' is not llama3's rope scaling" in refusal(with_rope_freqs(divisors), tmp_path)


def test_rope_scaled_twice_is_refused(tmp_path):
    file = with_rope_freqs(GOOD, llama__rope__scaling__factor=(FLOAT32, 2.0))
    assert "scales rope twice, linearly by 2.0 and by 'rope_freqs.weight'" in refusal(file, tmp_path)


@pytest.mark.parametrize(
    ("key", "content", "problem"),
    [
        ("llama.rope.scaling.type", (STRING, "yarn"), "rope scaling 'yarn' cannot be imported; rtk imports none,"),
        ("llama.rope.dimension_count", (UINT32, 8), "'llama.rope.dimension_count' is 8; rtk imports models where"),
        ("llama.attention.value_length", (UINT32, 8), "'llama.attention.value_length' is 8"),
        ("llama.attention.key_length", (UINT32, 15), "heads of length 15 cannot be rotated"),
        ("llama.attention.head_count", (UINT32, 3), "embedding length 64, 3 heads and 2 key-value heads do not fit"),
        ("llama.attention.head_count", (UINT32, 0), "'llama.attention.head_count' is 0, it must be positive"),
        ("llama.attention.head_count", (ARRAY, (UINT32, [4, 4])), "head_count' should be int, found an array of 2"),
        ("llama.attention.head_count_kv", (UINT32, 3), "do not fit together"),
        ("llama.block_count", (UINT32, 2**32 - 1), "has no tensor 'blk.2.attn_norm.weight'"),
        ("llama.block_count", (UINT32, 1), "has 9 tensors that a Llama model does not have, the first: 'blk.1.attn_k"),
        ("llama.context_length", None, "has no 'llama.context_length'"),
        ("llama.rope.freq_base", (FLOAT32, float("nan")), "'llama.rope.freq_base' is nan, it must be positive"),
        ("llama.rope.freq_base", (FLOAT32, -1.0), "'llama.rope.freq_base' is -1.0"),
        ("llama.attention.layer_norm_rms_epsilon", (FLOAT32, 0.0), "is 0.0, it must be positive and finite"),
        ("llama.expert_count", (UINT32, 8), "sets 'llama.expert_count' to 8, which rtk cannot reproduce"),
        ("llama.attention.causal", (BOOL, False), "sets 'llama.attention.causal' to False"),
        ("llama.attention.sliding_window", (UINT32, 64), "sets 'llama.attention.sliding_window' to 64"),
        ("general.type", (STRING, "adapter"), "holds a 'adapter', not a model"),
        ("split.count", (UINT32, 2), "is one of 2 parts; rtk imports single-file models only"),
        ("general.architecture", (STRING, "gemma"), "architecture 'gemma' cannot be imported"),
    ],
)  # fmt: skip
def test_what_cannot_be_reproduced_is_refused(tmp_path, key, content, problem):
    assert problem in refusal(changed(w.llama(), **{key.replace(".", "__"): content}), tmp_path)


def test_keys_without_effect_are_accepted(tmp_path):
    neutral = {
        "llama__expert_count": (UINT32, 0),
        "llama__attention__causal": (BOOL, True),
        "llama__rope__scaling__attn_factor": (FLOAT32, 1.0),
        "llama__vocab_size": (UINT32, 5),
        "llama__tensor_data_layout": (STRING, "Meta AI original pth"),
        "split__count": (UINT32, 0),
        "general__type": (STRING, "model"),
        "general__anything": (STRING, "else"),
    }
    plain = config_of(convert(w.llama(), tmp_path))
    assert config_of(convert(changed(w.llama(), **neutral), tmp_path)) == plain


# tokenizers


def tokenizer_of(tokenizer, tmp_path):
    folder = convert(w.llama(tokenizer=tokenizer), tmp_path)
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


def ids_of(metadata, *tokens):
    known = metadata["tokenizer.ggml.tokens"][1][1]
    return [known.index(token) for token in tokens]


@pytest.mark.parametrize(
    ("pre", "text", "tokens"),
    [
        ("smollm", "hello w12", ["hello", "Ġw", "1", "2"]),
        ("gpt-2", "hello w12 123!!", ["hello", "Ġw", "12", "Ġ1", "2", "3", "!!"]),
        ("default", "hello 123!!", ["hello", "Ġ", "123", "!!"]),
        ("default", "1234", ["123", "4"]),
        ("llama-bpe", "hello w123!!1", ["<|im_start|>", "hello", "Ġw", "123", "!!", "1"]),
        ("smollm", "hell<|im_end|>he", ["hell", "<|im_end|>", "he"]),
    ],
)
def test_byte_level_splitting_rules(tmp_path, pre, text, tokens):
    metadata = w.byte_level(pre)
    assert tokenizer_of(metadata, tmp_path).encode(text).ids == ids_of(metadata, *tokens)


def test_a_word_that_is_a_token_needs_no_merges_under_llama3_s_rule(tmp_path):
    extra = [("xyz", 1)]
    for pre, tokens in [("llama-bpe", ["<|im_start|>", "xyz"]), ("gpt-2", ["x", "y", "z"])]:
        metadata = w.byte_level(pre, extra=extra)
        assert tokenizer_of(metadata, tmp_path).encode("xyz").ids == ids_of(metadata, *tokens)


ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
LIKELY_TEXT = st.text("hel o123!'st\n\t日é🙂<|>im_end", max_size=40)


@settings(deadline=None)
@given(ANY_TEXT | LIKELY_TEXT)
@example("")
@example("  two  spaces\r\n\r\n and\ttabs  ")
def test_byte_level_texts_come_back(tmp_path_factory, text):
    for pre in ("smollm", "llama-bpe", "gpt-2", "default"):
        folder = tmp_path_factory.getbasetemp() / f"trip-{pre}"
        if not folder.exists():
            folder.mkdir()
            convert(w.llama(tokenizer=w.byte_level(pre)), folder)
        tokenizer = Tokenizer.from_file(str(folder / "model" / "tokenizer.json"))
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        assert tokenizer.decode(ids, skip_special_tokens=False) == text


def sentence_piece_ids(metadata, text):
    """SentencePiece's BPE as defined: join the neighbours that score best, leftmost first; bytes for the rest."""
    tokens, scores = metadata["tokenizer.ggml.tokens"][1][1], metadata["tokenizer.ggml.scores"][1][1]
    types = metadata["tokenizer.ggml.token_type"][1][1]
    ids = {token: i for i, token in enumerate(tokens) if types[i] == 1}
    symbols = list(("\u2581" + text).replace(" ", "\u2581")) if text else []
    while True:
        joins = [(-scores[ids[a + b]], i) for i, (a, b) in enumerate(pairwise(symbols)) if a + b in ids]
        if not joins:
            break
        at = min(joins)[1]
        symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]
    encoded = [[ids[symbol]] if symbol in ids else [3 + byte for byte in symbol.encode()] for symbol in symbols]
    return list(chain(*encoded))


@pytest.fixture(scope="module")
def sentence_piece(tmp_path_factory):
    metadata = w.sentence_piece()
    return metadata, tokenizer_of(metadata, tmp_path_factory.mktemp("spm"))


@settings(deadline=None)
@given(st.text("abcl xé日\n", max_size=30))
def test_sentence_piece_tokens_are_those_of_the_definition(sentence_piece, text):
    metadata, tokenizer = sentence_piece
    assert tokenizer.encode(text).ids == [1, *sentence_piece_ids(metadata, text)]
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_sentence_piece_without_the_first_space(tmp_path):
    metadata = w.sentence_piece() | {"tokenizer.ggml.add_space_prefix": (BOOL, False)}
    tokenizer = tokenizer_of(metadata, tmp_path)
    ids = tokenizer.encode("ab ab").ids
    assert ids == ids_of(metadata, "<s>", "ab", "\u2581ab") and tokenizer.decode(ids) == "ab ab"


def test_tokens_of_the_user_are_found_and_kept_in_decoded_text(tmp_path):
    metadata = w.byte_level(extra=[("[tool]", 4), ("<|x|>", 3)])
    tokenizer = tokenizer_of(metadata, tmp_path)
    ids = tokenizer.encode("he[tool]<|x|>").ids
    assert ids == ids_of(metadata, "he", "[tool]", "<|x|>")
    assert tokenizer.decode(ids) == "he[tool]" and tokenizer.decode(ids, skip_special_tokens=False) == "he[tool]<|x|>"


@pytest.mark.parametrize(
    ("make", "bos", "eos", "tokens"),
    [
        (w.byte_level, None, None, ["he"]),
        (w.byte_level, True, None, ["<|im_start|>", "he"]),
        (w.byte_level, False, True, ["he", "<|im_end|>"]),
        (lambda: w.byte_level("llama-bpe"), False, None, ["he"]),
        (lambda: w.byte_level("llama-bpe"), None, True, ["<|im_start|>", "he", "<|im_end|>"]),
    ],
)
def test_what_a_text_begins_and_ends_with(tmp_path, make, bos, eos, tokens):
    metadata = make()
    for key, flag in (("add_bos_token", bos), ("add_eos_token", eos)):
        if flag is not None:
            metadata[f"tokenizer.ggml.{key}"] = (BOOL, flag)
    tokenizer = tokenizer_of(metadata, tmp_path)
    assert tokenizer.encode("he").ids == ids_of(metadata, *tokens)
    assert tokenizer.encode("he", "he").ids == ids_of(metadata, *tokens, *tokens)


def test_every_token_that_ends_a_turn_is_an_end(tmp_path):
    metadata = w.byte_level(specials=("<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>", "<|eom_id|>", "<|stop|>"))
    metadata |= {"tokenizer.ggml.eos_token_id": (UINT32, 2), "tokenizer.ggml.eot_token_id": (UINT32, 4)}
    metadata["tokenizer.ggml.padding_token_id"] = (UINT32, 1)
    folder = convert(w.llama(tokenizer=metadata), tmp_path)
    expected = {"bos_token_id": 1, "eos_token_id": [2, 4, 1, 3], "pad_token_id": 1}
    assert config_of(folder, "generation_config") == expected
    assert expected.items() <= config_of(folder).items()
    assert config_of(folder, "tokenizer_config")["eos_token"] == "<|eot_id|>"


def test_a_name_alone_does_not_end_a_turn(tmp_path):
    metadata = w.byte_level(extra=[("<|end|>", 1)])
    assert config_of(convert(w.llama(tokenizer=metadata), tmp_path), "generation_config")["eos_token_id"] == 2


def test_chat_templates_arrive(tmp_path):
    metadata = w.byte_level() | {"tokenizer.chat_template": (STRING, "{{ 'a' }}\n")}
    folder = convert(w.llama(tokenizer=metadata), tmp_path)
    assert config_of(folder, "tokenizer_config")["chat_template"] == "{{ 'a' }}\n"
    metadata["tokenizer.chat_template.tool_use"] = (STRING, "b")
    folder = convert(w.llama(tokenizer=metadata), tmp_path)
    assert config_of(folder, "tokenizer_config")["chat_template"] == [
        {"name": "default", "template": "{{ 'a' }}\n"},
        {"name": "tool_use", "template": "b"},
    ]
    assert "chat_template" not in config_of(convert(w.llama(), tmp_path), "tokenizer_config")


@pytest.mark.parametrize("make", [w.byte_level, lambda: w.byte_level("llama-bpe"), w.sentence_piece])
def test_transformers_loads_the_same_tokenizer(tmp_path, make):
    from transformers import AutoTokenizer

    metadata = make() | {"tokenizer.chat_template": (STRING, "{% for m in messages %}[{{ m.content }}]{% endfor %}")}
    folder = convert(w.llama(tokenizer=metadata), tmp_path)
    loaded, plain = AutoTokenizer.from_pretrained(folder), Tokenizer.from_file(str(folder / "tokenizer.json"))
    for text in ("hello w123!! abc", "", " a  b\n", "é日🙂", "<s>he</s><|im_end|>"):
        ids = plain.encode(text).ids
        assert loaded(text)["input_ids"] == ids
        assert loaded.decode(ids) == plain.decode(ids, skip_special_tokens=False)
    assert loaded.bos_token_id == 1 and loaded.eos_token_id == 2 and loaded.model_max_length == 128
    assert loaded.apply_chat_template([{"role": "user", "content": "x"}], tokenize=False) == "[x]"


@pytest.mark.parametrize(
    ("make", "changes", "problem"),
    [
        (w.byte_level, {"model": (STRING, "bert")}, "tokenizer 'bert' cannot be imported; rtk imports 'gpt2' and"),
        (w.byte_level, {"model": None}, "has no 'tokenizer.ggml.model'"),
        (w.byte_level, {"pre": (STRING, "qwen2")}, "pre-tokenizer 'qwen2' cannot be imported; rtk imports default,"),
        (w.byte_level, {"pre": None}, "has no 'tokenizer.ggml.pre'"),
        (w.byte_level, {"tokens": (ARRAY, (UINT32, [1]))}, "'tokenizer.ggml.tokens' should be list, found an array"),
        (w.byte_level, {"tokens": (ARRAY, (ARRAY, [(STRING, ["a"])] * 268))}, "holds something else than strings"),
        (w.byte_level, {"tokens": w.strings(["a"] * 268)}, "'tokenizer.ggml.tokens' holds a token twice"),
        (w.byte_level, {"token_type": (ARRAY, (UINT32, [1]))}, "'tokenizer.ggml.token_type' has 1 entries for 268"),
        (w.byte_level, {"token_type": None}, "has no 'tokenizer.ggml.token_type'"),
        (w.byte_level, {"eos_token_id": None}, "names no end token ('tokenizer.ggml.eos_token_id')"),
        (w.byte_level, {"eos_token_id": (UINT32, 268)}, "'tokenizer.ggml.eos_token_id' is 268, there are 268 tokens"),
        (w.byte_level, {"merges": None}, "has no 'tokenizer.ggml.merges'"),
        (w.byte_level, {"merges": w.strings(["h e", "h q"])}, "merge 'h q' in 'tokenizer.ggml.merges' does not join"),
        (w.byte_level, {"merges": w.strings(["he"])}, "merge 'he' in"),
        (w.byte_level, {"merges": (ARRAY, (ARRAY, [(STRING, ["h e"])]))}, "merge an array of 1 in"),
        (w.byte_level, {"add_bos_token": (BOOL, True), "bos_token_id": None}, "begins texts with a token that it"),
        (w.sentence_piece, {"scores": None}, "has no 'tokenizer.ggml.scores'"),
        (w.sentence_piece, {"scores": (ARRAY, (FLOAT32, [1.0]))}, "'tokenizer.ggml.scores' has 1 entries for 272"),
        (w.sentence_piece, {"token_type": (ARRAY, (UINT32, [1] * 272))}, "needs the 256 byte tokens <0x00> to"),
        (w.sentence_piece, {"remove_extra_whitespaces": (BOOL, True)}, "its tokenizer removes extra whitespace"),
        (lambda: w.sentence_piece([*w.PIECES, "x" * 600]), {}, "has 600 characters, the limit is 512"),
    ],
)  # fmt: skip
def test_tokenizers_that_cannot_be_rebuilt_are_refused(tmp_path, make, changes, problem):
    file = w.llama(tokenizer=make())
    assert problem in refusal(changed(file, **{f"tokenizer__ggml__{key}": v for key, v in changes.items()}), tmp_path)


# damage


@settings(deadline=None, max_examples=200)
@given(st.sampled_from([w.byte_level(), w.sentence_piece()]), st.data())
def test_any_changed_header_byte_is_refused_or_imported(tmp_path_factory, tokenizer, data):
    file = w.llama("Q8_0", tokenizer=tokenizer)
    content, size = bytearray(file.to_bytes()), len(file.header())
    content[data.draw(st.integers(0, size - 1))] ^= data.draw(st.integers(1, 255))
    source = tmp_path_factory.getbasetemp() / "damaged.gguf"
    source.write_bytes(content)
    try:
        plan_conversion(source)
    except ModelError as error:
        assert "\n" not in str(error) and len(str(error)) < len(str(source)) + 250
