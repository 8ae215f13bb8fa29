"""Weights of 8 bits compute what they mean, and what cannot be held so is refused."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from panels_here import needs_panels

from rtk.config.load import config_from
from rtk.errors import ConfigError, ModelError
from rtk.model.bridge import flat_logits
from rtk.model.fused import fuse_layers
from rtk.model.latent import use_latents
from rtk.model.linear import Quantizer, pack_linears
from rtk.model.loader import load_model
from rtk.model.panels import GROUP, Arena, Int8, Panels
from rtk.model.record import Recorder, record
from rtk.model.store import fetch
from rtk.native import Unavailable
from rtk.plugin.host import installed
from rtk.serve.computing import choose_backend, load


def given(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def test_rounding():
    weight = torch.zeros(3, GROUP + 2)
    weight[0, :6] = torch.tensor([127.0, -126.5, 0.5, 1.5, -1.49, 3.0])
    weight[0, GROUP:] = torch.tensor([-0.25, 0.125])
    weight[1, 1] = -1e-3
    ints, scales = Int8.of(weight)
    assert (ints.dtype, scales.dtype, ints.is_contiguous()) == (torch.int8, torch.float32, True)
    assert ints[0, :6].tolist() == [127, -126, 0, 2, -1, 3]  # halves to the even
    assert ints[0, GROUP:].tolist() == [-127, 64]
    assert ints[1].tolist() == [0, -127] + [0] * GROUP
    assert not ints[2].any()
    expected = torch.tensor([[127.0, 0.25], [1e-3, 0.0], [0.0, 0.0]]) / 127
    assert torch.equal(scales, expected)
    meant = Int8(ints, scales).weight()
    assert meant.shape == weight.shape
    assert meant[0, :6].tolist() == [127, -126, 0, 2, -1, 3]
    assert meant[2].tolist() == [0] * (GROUP + 2)


def test_no_weight_is_further_from_what_it_becomes_than_half_a_step():
    weight = given(40, 300)
    ints, scales = Int8.of(weight)
    steps = scales.repeat_interleave(GROUP, 1)[:, :300]
    assert ((Int8(ints, scales).weight() - weight).abs() <= steps * 0.5001).all()
    assert int(ints.min()) == -127 or int(ints.max()) == 127


def int8(weight: Int8, bias: torch.Tensor | None) -> Panels:
    return Panels(weight, bias, Arena())


SHAPES = [(1, 1), (3, 7), (47, 128), (48, 129), (49, 127), (97, 256), (100, 700)]
"""[out, in]."""


@needs_panels
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("biased", [False, True], ids=["no bias", "bias"])
@torch.inference_mode()
def test_products_are_those_of_what_integers_mean(shape, biased):
    weight, bias = Int8.of(given(*shape)), given(shape[0]) if biased else None
    meant = weight.ints.double() * weight.scales.double().repeat_interleave(GROUP, 1)[:, : shape[1]]
    compute, x = int8(weight, bias), given(300, shape[1])
    wanted = F.linear(x.double(), meant, None if bias is None else bias.double())
    whole = compute(x)
    assert (whole - wanted).norm() <= 1e-6 * wanted.norm()
    for rows in range(1, 300):
        assert torch.equal(compute(x[:rows]), whole[:rows])
    assert torch.equal(compute(x[37:38]), whole[37:38])
    assert compute(x[:0]).shape == (0, shape[0])


@needs_panels
def test_products_are_the_same_by_any_number_of_threads():
    compute, x, threads = int8(Int8.of(given(200, 300)), given(200)), given(70, 300), torch.get_num_threads()
    answers = []
    for n in (1, 2, 5):
        torch.set_num_threads(n)
        answers.append(compute(x))
    torch.set_num_threads(threads)
    assert torch.equal(answers[0], answers[1])
    assert torch.equal(answers[0], answers[2])


def exact(weight: torch.Tensor, scale: torch.Tensor | float = 1.0) -> torch.Tensor:
    """What a weight means once it was rounded, with `scale` in it."""
    return Int8.of(weight * scale).weight() / scale


@needs_panels
@pytest.mark.parametrize("kind", ["llama", "llama tied", "qwen2", "qwen3", "mistral", "granite", "gemma2"])
def test_models_compute_with_what_integers_mean(zoo, kind):
    loaded, plain = zoo.load(kind), zoo.load(kind)
    _, unrounded = record(plain)
    factor = getattr(plain.model.config, "residual_multiplier", 1.0)
    for name, module in plain.model.named_modules():
        if isinstance(module, torch.nn.Linear):
            own = exact(module.weight.detach(), factor if name.endswith(("o_proj", "down_proj")) else 1.0)
            module.weight = torch.nn.Parameter(own, requires_grad=False)
    _, wanted = record(plain)
    embedding = loaded.model.get_input_embeddings().weight.clone()
    quantizer = Quantizer()
    assert fuse_layers(loaded, quantizer=quantizer) == (0 if kind == "gemma2" else 2)
    assert pack_linears(loaded, quantizer=quantizer) == (15 if kind == "gemma2" else 1)
    _, got = record(loaded)
    assert (got - wanted).norm() <= 1e-5 * wanted.norm()
    assert (got - unrounded).norm() >= 1e-4 * wanted.norm()
    assert torch.equal(loaded.model.get_input_embeddings().weight, embedding)
    assert ("forward" in vars(loaded.model.model)) == (kind not in ("granite", "gemma2"))
    plain_size = sum(module.weight.numel() for module in plain.model.modules() if isinstance(module, torch.nn.Linear))
    scales = sum(4 * len(module.weight) for module in plain.model.modules() if isinstance(module, torch.nn.Linear))
    assert quantizer.size == plain_size + scales  # no weight of these has a row of more than one group


@needs_panels
@pytest.mark.parametrize(
    ("kind", "weight", "more"),
    [("gpt2", "transformer.h.0.attn.c_attn.weight", 7), ("gpt_oss", "model.layers.0.mlp.router.weight", 9)],
)
def test_models_with_weights_that_would_stay_are_refused(zoo, kind, weight, more):
    loaded, quantizer = zoo.load(kind), Quantizer()
    fuse_layers(loaded, quantizer=quantizer)
    with pytest.raises(ModelError, match=rf"^model.quantize = 'int8': models of type '{kind}' have weights") as refused:
        pack_linears(loaded, quantizer=quantizer)
    assert f"{weight!r} and {more} more; leave it out" in str(refused.value)


@needs_panels
def test_models_that_are_served_by_their_latents_are_refused(zoo):
    loaded = zoo.load("deepseek_v3")
    assert use_latents(loaded.model)
    with pytest.raises(ModelError, match=r"'model.layers.0.self_attn.kv_b_proj.weight' and 1 more; leave it out"):
        pack_linears(loaded, quantizer=Quantizer())


@needs_panels
def test_weights_that_somebody_else_reads_are_not_taken_away(zoo):
    loaded, quantizer = zoo.load("llama"), Quantizer()
    mlp = loaded.model.model.layers[0].mlp
    mlp.forward = lambda x: mlp.down_proj(mlp.act_fn(F.linear(x, mlp.gate_proj.weight)) * mlp.up_proj(x))
    with pytest.raises(ModelError, match=r"'model.layers.0.self_attn.q_proj.weight' and 14 more"):
        pack_linears(loaded, quantizer=quantizer)


@needs_panels
@pytest.mark.parametrize("odd", [torch.nan, torch.inf])
def test_weights_that_are_not_finite_cannot_be_rounded(odd):
    weight = given(3, 5)
    weight[1, 2] = odd
    with pytest.raises(ModelError, match="a weight of 3 x 5 cannot be rounded"):
        Quantizer().pack(weight, None)


def test_processors_without_avx512_are_refused(monkeypatch):
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    with pytest.raises(ConfigError, match=r"^model.quantize = 'int8': its kernel needs a processor with AVX-512"):
        Quantizer()


def test_machines_without_a_compiler_are_refused(monkeypatch):
    def none(_):
        raise Unavailable("panels kernels need a C++ compiler; install g++ or clang++")

    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    monkeypatch.setattr("rtk.model.linear.library", none)
    with pytest.raises(ConfigError, match=r"need a C\+\+ compiler; install g\+\+ or clang\+\+, or leave it out"):
        Quantizer()


@needs_panels
def test_an_engine_says_what_its_weights_are(zoo):
    config = config_from({"model.quantize": "int8", "model.device": "cpu", "cache.pool_tokens": 64})
    served = load(config, choose_backend(config, installed()), zoo.folder("llama"), 99)
    assert "llama: llama, float32 with int8 weights on cpu, 0 MiB" in served.summary
    quantizer, model = Quantizer(), zoo.load("llama")
    before = quantizer.held(model.model)
    pack_linears(model, quantizer=quantizer)
    gone = sum(module.weight.numel() for module in model.model.modules() if isinstance(module, torch.nn.Linear))
    linears = sum(isinstance(module, torch.nn.Linear) for module in model.model.modules())
    assert before - quantizer.held(model.model) == 4 * gone - quantizer.size - 4 * linears


@pytest.mark.model
@needs_panels
@torch.inference_mode()
def test_the_demo_model_says_what_its_integers_mean():
    """Against transformers' own model, whose weights were changed to what the integers mean."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = fetch()
    plain = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    head = exact(plain.lm_head.weight.detach().clone())
    plain.lm_head.weight = torch.nn.Parameter(head)
    for layer in plain.model.layers:
        attention, mlp = layer.self_attn, layer.mlp
        for norm, parts in (
            (layer.input_layernorm, (attention.q_proj, attention.k_proj, attention.v_proj)),
            (layer.post_attention_layernorm, (mlp.gate_proj, mlp.up_proj)),
        ):
            for part in parts:
                part.weight.data = exact(part.weight, norm.weight)
        for part in (attention.o_proj, mlp.down_proj):
            part.weight.data = exact(part.weight)
    loaded, quantizer = load_model(folder), Quantizer()
    assert fuse_layers(loaded, quantizer=quantizer) == 30
    assert pack_linears(loaded, quantizer=quantizer) == 1
    tokenizer = AutoTokenizer.from_pretrained(folder)
    said = []
    for prompt in ("The capital of France is", "1, 2, 3, 4, 5,", "Water boils at 100 degrees"):
        ids = tokenizer(prompt)["input_ids"]
        begin = len(ids)
        for _ in range(8):
            given, positions = torch.tensor(ids), torch.arange(len(ids))
            recorder = Recorder(torch.zeros_like(given), positions)
            got = flat_logits(loaded.model, recorder, given, positions, positions[-1:])[0]
            wanted = plain(given[None]).logits[0, -1]
            assert (got - wanted).norm() <= 1e-3 * wanted.norm()
            assert int(got.argmax()) == int(wanted.argmax())
            ids.append(int(got.argmax()))
        said.append(tokenizer.decode(np.array(ids[begin:])))
    assert said[0].startswith(" Paris")
    assert said[1].startswith(" 6, 7")
