"""Packed linear layers give what `F.linear` gives, or `F.linear` is what computes."""

import functools

import pytest
import torch
import torch.nn.functional as F
from panels_here import needs_panels

from rtk.model import linear
from rtk.model.linear import Mkl, OneDnn, Packer, pack_linears
from rtk.model.panels import Arena, Panels
from rtk.model.record import record

SHAPES = [(1, 1), (1, 7), (3, 1), (17, 5), (33, 64), (96, 40), (100, 200), (50, 3100)]
"""[out, in]."""


def panels(weight, bias):
    return Panels(weight, bias, Arena())


HERE = [
    pytest.param(panels, marks=needs_panels),
    pytest.param(
        Mkl, marks=pytest.mark.skipif(not hasattr(torch.ops.mkl, "_mkl_linear"), reason="this torch has no MKL")
    ),
    pytest.param(
        OneDnn,
        marks=pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN"),
    ),
]


def close(got: torch.Tensor, wanted: torch.Tensor) -> None:
    assert got.shape == wanted.shape
    assert (got - wanted).norm() <= 1e-5 * wanted.norm()


def given(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.fixture
def only(monkeypatch):
    """Lets the given kernels be tried."""
    return lambda *tried: monkeypatch.setattr(linear, "kernels", lambda: tried)


@pytest.mark.parametrize("kernel", HERE)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("biased", [False, True], ids=["no bias", "bias"])
@torch.inference_mode()
def test_every_number_of_rows(kernel, shape, biased):
    weight, bias = given(*shape), given(shape[0]) if biased else None
    compute = kernel(weight, bias)
    for rows in (*range(12), 15, 16, 17, 64, 255, 256, 257, 600):
        x = given(rows, shape[1])
        close(compute(x), F.linear(x, weight, bias))


@pytest.mark.parametrize("kernel", HERE)
@torch.inference_mode()
def test_inputs_of_any_layout(kernel):
    weight = given(24, 8)
    compute = kernel(weight, None)
    wide = given(6, 24)
    for x in (wide[:, 8:16], wide[::2, :8], given(8, 5).t(), given(2, 3, 8), given(1, 5, 8), wide[:1, :8].expand(4, 8)):
        close(compute(x), F.linear(x, weight))


@pytest.mark.parametrize("kernel", HERE)
def test_a_pack_is_independent_of_the_weight(kernel):
    weight, x = given(9, 8), given(3, 8)
    compute = kernel(weight, None)
    wanted = F.linear(x, weight)
    weight.fill_(torch.nan)
    close(compute(x), wanted)


def test_the_processor_decides(monkeypatch):
    for capability, vendor, wanted in (
        ("AVX512", "GenuineIntel", (Panels, Mkl, OneDnn)),
        ("AVX512", "AuthenticAMD", (Panels, OneDnn)),
        ("AVX2", "GenuineIntel", (OneDnn,)),
        ("AVX2", "AuthenticAMD", (OneDnn,)),
        ("DEFAULT", "GenuineIntel", ()),
        ("SVE256", "", ()),
    ):
        monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda capability=capability: capability)
        monkeypatch.setattr(linear, "_vendor", lambda vendor=vendor: vendor)
        assert tuple(getattr(kernel, "func", kernel) for kernel in linear.kernels()) == wanted


def doubled(weight, bias):
    """A kernel that is wrong."""
    return lambda x: 2 * F.linear(x, weight, bias)


def wrong_for_many(weight, bias):
    """A kernel that is wrong for some numbers of rows."""
    return lambda x: F.linear(x, weight, bias) * (2 if len(x) == 20 else 1)


def missing(weight, bias):
    """A kernel of another torch."""
    return torch.ops.mkl.no_such_operator(weight)


def failing(weight, bias):
    """A kernel that packs, and then takes no input."""
    return lambda x: torch.ops.aten.mm(x, x, x)


def no_numbers(weight, bias):
    return lambda x: F.linear(x, weight, bias) * torch.nan


@pytest.mark.parametrize("wrong", [doubled, wrong_for_many, missing, failing, no_numbers])
def test_kernels_that_are_not_there_or_wrong_are_passed_over(only, wrong):
    weight, bias = given(6, 5), given(6)
    right = functools.partial(F.linear, weight=weight, bias=bias)
    only(wrong, lambda weight, bias: right)
    assert Packer().pack(weight, bias) is right
    only(wrong)
    made = Packer().pack(weight, bias)
    assert torch.equal(made(given(3, 5)), F.linear(given(3, 5), weight, bias))


def test_every_weight_is_compared_and_the_first_of_a_shape_at_several_numbers_of_rows(only):
    seen = []

    def watched(weight, bias):
        def compute(x):
            seen.append(len(x))
            return F.linear(x, weight, bias)

        return compute

    only(watched)
    packer = Packer()
    for shape in ((4, 3), (4, 3), (3, 4)):
        packer.pack(given(*shape), None)
    assert seen == [1, 4, 20, 64, 300, 1, 1, 4, 20, 64, 300]


@pytest.mark.parametrize(
    ("kind", "count"), [("llama", 15), ("llama tied", 15), ("gemma2", 15), ("gpt2", 1), ("deepseek_v3", 15)]
)
def test_the_linear_modules_of_any_model(zoo, kind, count):
    loaded = zoo.load(kind)
    _, wanted = record(loaded)
    embedding = loaded.model.get_input_embeddings().weight
    before = embedding.clone()
    assert pack_linears(loaded) == count
    _, got = record(loaded)
    close(got, wanted)
    assert torch.equal(embedding, before)
    assert pack_linears(loaded) == 0
    head = loaded.model.lm_head
    assert head.weight.isnan().all()
    assert head.weight.shape == (99, 32)
    assert head.weight.untyped_storage().nbytes() == 4


def test_nothing_is_packed_whose_weight_somebody_else_reads(zoo):
    loaded = zoo.load("llama")
    mlp = loaded.model.model.layers[0].mlp
    mlp.forward = lambda x: mlp.down_proj(mlp.act_fn(F.linear(x, mlp.gate_proj.weight)) * mlp.up_proj(x))
    _, wanted = record(loaded)
    weights = [p.clone() for p in loaded.model.parameters()]
    assert pack_linears(loaded) == 0
    assert all(torch.equal(p, w) for p, w in zip(loaded.model.parameters(), weights, strict=True))
    assert torch.equal(record(loaded)[1], wanted)


def test_experts_are_left_alone(zoo):
    loaded = zoo.load("llama")
    layer = loaded.model.model.layers[0]
    layer.mlp.experts = torch.nn.ModuleList([torch.nn.Linear(4, 4, bias=False)])
    assert pack_linears(loaded) == 15
    assert not layer.mlp.experts[0].weight.isnan().any()


def of_width_0():
    return torch.nn.Linear(0, 4)


def of_another_type():
    return torch.nn.Linear(4, 4).to(torch.bfloat16)


def with_a_bias_of_another_type():
    part = torch.nn.Linear(4, 4)
    part.bias.data = part.bias.data.to(torch.bfloat16)
    return part


def made_anew_in_every_forward():
    part = torch.nn.Linear(4, 4)
    weight = part.weight.detach()
    del part.weight
    part.register_forward_pre_hook(lambda part, _: setattr(part, "weight", 2 * weight))
    part.weight = weight
    return part


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
@pytest.mark.parametrize("odd", [of_width_0, of_another_type, with_a_bias_of_another_type, made_anew_in_every_forward])
def test_linear_modules_that_are_something_else_stay_as_they_are(zoo, odd):
    loaded = zoo.load("llama")
    part = odd()
    dtype, shape = part.weight.dtype, part.weight.shape
    loaded.model.model.layers[0].self_attn.odd = part
    assert pack_linears(loaded) == 15
    assert (part.weight.dtype, part.weight.shape, "forward" in vars(part)) == (dtype, shape, False)
    assert not part.weight.isnan().any()


def test_other_types_and_processors_without_a_kernel_are_left_alone(zoo, only):
    assert pack_linears(zoo.load("llama", dtype="float64")) == 0
    only()
    assert pack_linears(zoo.load("llama")) == 0


@needs_panels
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_panels_take_nothing_but_what_they_are_for(dtype):
    compute = panels(given(6, 5), None)
    with pytest.raises(TypeError, match=r"by float32 \[5, 6\]"):
        compute(given(3, 5).to(dtype))
    with pytest.raises(TypeError, match=r"by float32 \[5, 6\]"):
        compute(given(3, 4))


@needs_panels
def test_panels_give_the_same_by_any_number_of_threads():
    compute, x, threads = panels(given(200, 70), given(200)), given(70, 70), torch.get_num_threads()
    answers = []
    for n in (1, 2, 3):
        torch.set_num_threads(n)
        answers.append(compute(x))
    torch.set_num_threads(threads)
    assert torch.equal(answers[0], answers[1])
    assert torch.equal(answers[0], answers[2])


@needs_panels
@pytest.mark.parametrize("biased", [False, True], ids=["no bias", "bias"])
def test_panels_give_a_row_the_same_beside_any_others(biased):
    """However many passes a product is computed in, which their number decides."""
    compute, x = panels(given(100, 400), given(100) if biased else None), given(300, 400)
    whole = compute(x)
    for first, rows in ((0, 1), (1, 2), (5, 30), (0, 47), (7, 48), (250, 50), (10, 280)):
        assert torch.equal(compute(x[first : first + rows]), whole[first : first + rows])
