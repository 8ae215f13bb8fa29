"""What the probe learns about models, and which ones it refuses."""

import copy
from dataclasses import replace

import pytest
import torch

from rtk.errors import ModelError
from rtk.model.loader import LoadedModel, read_outline
from rtk.model.probe import Probe, probe
from rtk.plugin import KVShape


@pytest.mark.parametrize(
    ("kind", "shape", "features"),
    [
        ("llama", (2, 2, 8, 8, 4), set()),
        ("llama tied", (2, 1, 8, 8, 4), set()),
        ("qwen3", (2, 2, 16, 16, 4), set()),
        ("mistral", (2, 2, 8, 8, 4), {"sliding_window"}),
        ("gemma2", (2, 2, 8, 8, 4), {"sliding_window", "softcap"}),
        ("gpt2", (2, 4, 8, 8, 4), set()),
        ("gpt_oss", (2, 2, 8, 8, 4), {"sliding_window", "sinks"}),
        ("deepseek_v3", (2, 4, 16, 12, 4), set()),
    ],
)
def test_what_a_model_keeps_and_asks_for(zoo, kind, shape, features):
    assert probe(zoo.load(kind)) == Probe(KVShape(*shape), frozenset(features), "float32")
    outline = read_outline(zoo.folder(kind), dtype="auto", device="cpu", trust_remote_code=False)
    assert outline.features == features - ({"sliding_window"} if kind == "mistral" else set())  # has no layer_types
    assert outline.shape == (None if kind == "deepseek_v3" else KVShape(*shape))


@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "float16"])
def test_other_types(zoo, dtype):
    assert probe(zoo.load("llama", dtype=dtype)).dtype == dtype


def refusal(loaded: LoadedModel) -> str:
    with pytest.raises(ModelError) as error:
        probe(loaded)
    message = str(error.value)
    assert message.startswith(f"model type {loaded.facts.kind!r} cannot be served: ")
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("bloom", "the attention function was called 0 times for 2 layers"),
        ("mpt", "a forward without cache and mask fails: AttributeError: "),
    ],
)
def test_a_model_without_the_attention_interface(zoo, kind, reason):
    assert reason in refusal(zoo.load(kind))


def test_a_model_that_looks_ahead(zoo):
    assert "layer 0 attends to later tokens too" in refusal(zoo.load("bert"))


def wrap(monkeypatch, owner, name, change):
    """Replace a method by `change(original)`."""
    monkeypatch.setattr(owner, name, change(getattr(owner, name)))


def test_a_model_that_counts_positions_itself(zoo, monkeypatch):
    loaded = zoo.load("llama")

    def ignore_positions(forward):
        return lambda **kwargs: forward(**{**kwargs, "position_ids": None})

    wrap(monkeypatch, loaded.model, "forward", ignore_positions)
    assert "it ignores position_ids" in refusal(loaded)


@pytest.mark.parametrize("share", [0.1, 0.003])
def test_a_model_that_mixes_neighbouring_tokens(zoo, monkeypatch, share):
    loaded = zoo.load("llama")

    def convolve(forward):
        return lambda x: forward(x) + share * forward(x).roll(1, dims=1)

    wrap(monkeypatch, loaded.model.model.layers[0].mlp, "forward", convolve)
    assert "keeps something of a sequence outside attention" in refusal(loaded)


def test_a_model_that_counts_positions_by_its_cache(zoo):
    reason = "without transformers' cache its logits change by "
    assert reason in refusal(zoo.load("llama4 unchunked"))  # scales queries from position 15 on


def test_a_model_that_looks_at_the_positions_of_the_whole_batch(zoo):
    loaded = zoo.load("longrope")
    probe(loaded)
    further = replace(loaded, facts=replace(loaded.facts, context_length=513))
    assert "sequences in one batch change each other's logits" in refusal(further)


def test_a_layer_that_attends_twice(zoo, monkeypatch):
    loaded = zoo.load("llama")

    def twice(forward):
        return lambda *args, **kwargs: (forward(*args, **kwargs), forward(*args, **kwargs))[0]

    wrap(monkeypatch, loaded.model.model.layers[1].self_attn, "forward", twice)
    assert "the attention function was called 3 times for 2 layers" in refusal(loaded)


def test_a_layer_that_does_not_attend(zoo, monkeypatch):
    loaded = zoo.load("llama")
    wrap(monkeypatch, loaded.model.model.layers[0].self_attn, "forward", lambda _: lambda hidden_states, **_: (0, None))
    assert "the attention function was called 1 times for 2 layers" in refusal(loaded)


def test_layers_of_different_shape(zoo, monkeypatch):
    loaded = zoo.load("llama")
    attention = loaded.model.model.layers[1].self_attn
    attention.k_proj, attention.v_proj = (torch.nn.Linear(32, 8) for _ in range(2))
    assert "its layers differ in the shape of their K/V" in refusal(loaded)


def test_attention_that_wants_more_than_rtk_knows(zoo, monkeypatch):
    loaded = zoo.load("llama")

    def biased(forward):
        return lambda *args, **kwargs: forward(*args, position_bias=torch.zeros(1), **kwargs)

    wrap(monkeypatch, loaded.model.model.layers[0].self_attn, "forward", biased)
    assert "its attention wants position_bias, which rtk's does not know" in refusal(loaded)


def test_a_mask_that_hides_more_than_the_call_says(zoo):
    reason = "layer 0 asks for no window, but its mask does not let token 9 see token 0"
    assert refusal(zoo.load("phimoe")).endswith(reason)


@pytest.mark.parametrize(
    ("window", "reason"),
    [
        (6, "layer 1 asks for a window of 6, but its mask lets token 7 see token 1"),
        (8, "layer 1 asks for a window of 8, but its mask does not let token 7 see token 0"),
        (None, "layer 1 asks for no window, but its mask does not let token 7 see token 0"),
        (2047, "layer 1 asks for a window of 2047, but its mask does not let token 7 see token 0"),
    ],
)
def test_a_window_that_differs_from_the_mask(zoo, window, reason):
    loaded = zoo.load("mistral")
    attention = loaded.model.model.layers[1].self_attn
    attention.config = copy.copy(attention.config)
    attention.config.sliding_window = window
    assert refusal(loaded).endswith(reason)


def with_mask(monkeypatch, loaded, change):
    def changed(forward):
        return lambda *args, attention_mask, **kwargs: forward(*args, attention_mask=change(attention_mask), **kwargs)

    wrap(monkeypatch, loaded.model.model.layers[0].self_attn, "forward", changed)


def test_a_layer_that_changes_its_mask(zoo, monkeypatch):
    loaded = zoo.load("llama")
    with_mask(monkeypatch, loaded, lambda mask: None if mask is None else ~mask)
    assert refusal(loaded).endswith("layer 0 attends under a mask of its own")


def test_a_part_of_the_model_s_mask(zoo, monkeypatch):
    loaded = zoo.load("llama")
    with_mask(monkeypatch, loaded, lambda mask: None if mask is None else mask[:, :, :, -3:])
    probe(loaded)


def test_a_layer_without_mask_has_no_window(zoo, monkeypatch):
    for kind in ("llama", "mistral"):
        loaded = zoo.load(kind)
        with_mask(monkeypatch, loaded, lambda mask: None)
        if kind == "llama":
            probe(loaded)
        else:
            assert "layer 0 asks for a window of 7, but its mask lets token 7 see token 0" in refusal(loaded)


def test_a_forward_that_fails(zoo, monkeypatch):
    loaded = zoo.load("llama")

    def fail(**kwargs):
        raise RuntimeError("no cache given\nsecond line")

    monkeypatch.setattr(loaded.model, "forward", fail)
    assert refusal(loaded).endswith("a forward without cache and mask fails: RuntimeError: no cache given second line")


def test_a_forward_that_fails_with_a_cache(zoo, monkeypatch):
    loaded = zoo.load("llama")

    def needs_none(forward):
        def run(use_cache, **kwargs):
            assert not use_cache, "no cache please"
            return forward(**kwargs, use_cache=False)

        return run

    wrap(monkeypatch, loaded.model, "forward", needs_none)
    assert "a forward with cache and mask fails: AssertionError: no cache please" in refusal(loaded)
    assert loaded.model.config._attn_implementation == "rtk_paged"


def test_a_model_that_answers_no_numbers_is_told_apart(zoo):
    loaded = zoo.load("llama")
    with torch.no_grad():
        loaded.model.get_output_embeddings().weight.fill_(float("nan"))
    assert "its logits are no numbers (NaN)" in refusal(loaded)
