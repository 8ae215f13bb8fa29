"""Layers in one call give what the same layers give product by product, whoever computes what beside whom."""

import functools
import itertools
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from panels_here import needs_panels
from tiny_models import make_runner
from torch import nn

from rtk.model import layers, linear
from rtk.model.fused import fuse_layers
from rtk.model.kernels import Norm, Shape, TorchKernels
from rtk.model.layers import ByCalls, InOneCall, Maker, Parts, Product, Products
from rtk.model.linear import OneDnn
from rtk.model.record import record
from rtk.native import Unavailable
from rtk.schedule.batch import Row, Scored, StepPlan

SHAPES = [
    Shape(width=32, q_heads=4, kv_heads=2, head_dim=8, inner=48),
    Shape(width=101, q_heads=3, kv_heads=1, head_dim=6, inner=130),
    Shape(width=192, q_heads=5, kv_heads=5, head_dim=32, inner=500),
]
ROWS = [0, 1, 2, 7, 33, 300]
"""The last are some for each of a few threads, and several blocks."""


class Given(nn.Module):
    variance_epsilon = 1e-5


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def parts(shape, *, biased=False, head_norm=False, act=None, seed=0):
    seeds = itertools.count(100 * seed)
    width, q_heads, kv_heads, head_dim, inner = shape

    def product(depth, columns):
        weight = random(columns, depth, seed=next(seeds)) / math.sqrt(depth)
        return Product(weight, random(columns, seed=next(seeds)) if biased else None)

    products = Products(
        qkv=product(width, (q_heads + 2 * kv_heads) * head_dim),
        out=product(q_heads * head_dim, width),
        gate=product(width, inner),
        up=product(width, inner),
        down=product(inner, width),
    )
    return Parts(
        products,
        before=Norm(Given(), torch.ones(width), scaled=False),
        between=Norm(Given(), torch.ones(width), scaled=False),
        heads=Norm(Given(), random(q_heads + kv_heads, head_dim, seed=next(seeds))) if head_norm else None,
        act=act,
    )


def plain(weight, bias):
    return functools.partial(F.linear, weight=weight, bias=bias)


def in_torch(all_parts, shape):
    kernels = TorchKernels(shape)
    return [ByCalls(own, kernels, plain) for own in all_parts]


def in_one_call(all_parts, shape):
    maker = Maker()
    made = [maker.make(own, shape) for own in all_parts]
    assert all(type(layer) is InOneCall for layer in made)
    return made


def attention(q, k, v):
    """Something of q, k and v that is of a row alone."""
    return q * k.repeat_interleave(q.shape[1] // k.shape[1], 1) + v.mean(1, keepdim=True)


def compute(made, shape, x, positions, last=None):
    """All of them one after the other: what attention was given in each, and what comes out of the last."""
    angles = positions[:, None] * random(shape.head_dim // 2, seed=9)
    cos, sin = (torch.cat([t, t], dim=-1)[None] for t in (angles.cos(), angles.sin()))
    x, owed, seen = x.clone(), None, []
    made[0].common.prepare(cos, sin)
    for layer in made:
        given = layer.before(x, owed)
        seen += [t.clone() for t in given]
        owed = layer.after(x, attention(*given))
    if last is None:
        made[-1].settle(x, owed)
        return [*seen, x]
    return [*seen, made[-1].common.norm(x, owed, last).clone(), x]


def close(got, wanted):
    for a, b in zip(got, wanted, strict=True):
        assert a.shape == b.shape
        torch.testing.assert_close(a, b, rtol=2e-5, atol=2e-5, equal_nan=True)


@needs_panels
@pytest.mark.parametrize("options", [{}, {"biased": True}, {"head_norm": True}], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@torch.inference_mode()
def test_in_one_call_or_product_by_product(shape, options):
    several = [parts(shape, seed=seed, **options) for seed in range(3)]
    wanted, got = in_torch(several, shape), in_one_call(several, shape)
    for rows in ROWS:
        given = random(rows, shape.width, seed=rows), torch.arange(rows)
        for last in (None, Norm(Given(), random(shape.width, seed=5))):
            close(compute(got, shape, *given, last), compute(wanted, shape, *given, last))
        close(compute(got[:1], shape, *given), compute(wanted[:1], shape, *given))


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@needs_panels
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@torch.inference_mode()
def test_a_row_is_the_same_by_any_number_of_threads_and_beside_any_others(shape, threads):
    made = in_one_call([parts(shape, biased=True, head_norm=True, seed=seed) for seed in range(2)], shape)
    x, positions = random(300, shape.width), torch.arange(300)
    wanted = compute(made, shape, x, positions)
    for count in (1, 2, 5):
        threads(count)
        for first, rows in ((0, 1), (1, 2), (5, 7), (20, 33), (3, 130), (0, 300)):
            part = slice(first, first + rows)
            got = compute(made, shape, x[part], positions[part])
            assert all(torch.equal(a, b[part]) for a, b in zip(got, wanted, strict=True))


@needs_panels
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e30])
@torch.inference_mode()
def test_what_is_not_finite_stays_in_its_row(value):
    shape = SHAPES[1]
    several = [parts(shape, biased=True, seed=seed) for seed in range(2)]
    x = random(9, shape.width)
    x[4, 17] = value
    got, wanted = (compute(make(several, shape), shape, x, torch.arange(9)) for make in (in_one_call, in_torch))
    close(got, wanted)
    assert got[-1][:4].isfinite().all()
    assert math.isfinite(value) or not got[-1][4].isfinite().any()


def one_dnn(weight, bias):
    return OneDnn(weight, bias)


@pytest.mark.parametrize("why", ["another activation", "other packs", "no packs", "no kernels"])
@torch.inference_mode()
def test_where_one_call_is_not_to_be_had_it_goes_product_by_product(monkeypatch, why):
    def none(*_):
        raise Unavailable("none here")

    if why == "no kernels":
        monkeypatch.setattr(layers, "library", none)
    elif why != "another activation":
        monkeypatch.setattr(linear, "kernels", lambda: (one_dnn,) if why == "other packs" else ())
    shape = SHAPES[1]
    own = parts(shape, biased=True, act=nn.GELU() if why == "another activation" else None)
    made = Maker().make(own, shape)
    assert type(made) is ByCalls
    given = random(7, shape.width), torch.arange(7)
    close(compute([made], shape, *given), compute(in_torch([own], shape), shape, *given))


def test_layers_that_are_not_alike_are_called_by_the_model_itself(zoo):
    loaded, other = zoo.load("llama"), zoo.load("llama")
    for model in (loaded.model, other.model):
        mlp = model.model.layers[1].mlp
        for name, size in (("gate_proj", (24, 32)), ("up_proj", (24, 32)), ("down_proj", (32, 24))):
            setattr(mlp, name, nn.Linear(size[1], size[0], bias=False))
            getattr(mlp, name).weight = nn.Parameter(random(*size, seed=3))
    _, wanted = record(other)
    assert fuse_layers(loaded) == 2
    assert "forward" not in vars(loaded.model.model)
    _, got = record(loaded)
    assert (got - wanted).norm() <= 1e-5 * wanted.norm()


def share_mlp(first, second):
    second.mlp = first.mlp


def share_product(first, second):
    second.mlp.up_proj = first.mlp.up_proj


def bias_of_queries_alone(first, _):
    first.self_attn.q_proj.bias = nn.Parameter(random(32))


def bias_of_keys_alone(first, _):
    first.self_attn.k_proj.bias = nn.Parameter(random(16))


def another_norm(first, _):
    first.post_attention_layernorm = nn.LayerNorm(32)


@pytest.mark.parametrize(
    ("change", "fused"),
    [(share_mlp, 0), (share_product, 0), (bias_of_queries_alone, 2), (bias_of_keys_alone, 2), (another_norm, 1)],
    ids=lambda of: getattr(of, "__name__", None),
)
def test_layers_that_somebody_changed_compute_what_they_did(zoo, change, fused):
    loaded, other = zoo.load("llama"), zoo.load("llama")
    for model in (loaded.model, other.model):
        change(*model.model.layers)
    assert fuse_layers(loaded) == fused
    (_, got), (_, wanted) = record(loaded), record(other)
    assert (got - wanted).norm() <= 1e-5 * wanted.norm()


@pytest.mark.parametrize(
    ("place", "fused"),
    [
        ("model", 2),
        ("model.norm", 2),
        ("model.layers.1", 2),
        ("model.layers.1.mlp", 1),
        ("model.layers.1.mlp.up_proj", 1),
    ],
)
def test_who_watches_a_module_goes_on_seeing_it(zoo, place, fused):
    loaded, seen = zoo.load("llama"), []
    watched = loaded.model.get_submodule(place)
    watched.register_forward_hook(lambda module, args, answer: seen.append(answer))
    _, wanted = record(loaded)
    assert fuse_layers(loaded) == fused
    seen.clear()
    _, got = record(loaded)
    (answer,) = seen
    assert place != "model" or answer.last_hidden_state.shape == (1, 12, 32)
    assert (got - wanted).norm() <= 1e-5 * wanted.norm()


def another_embedding(body):
    body.embed_tokens.forward = functools.partial(F.embedding, weight=body.embed_tokens.weight)


def another_last_norm(body):
    body.norm = nn.LayerNorm(32)


@pytest.mark.parametrize("change", [another_embedding, another_last_norm])
def test_bodies_that_somebody_changed_call_their_layers_themselves(zoo, change):
    loaded, other = zoo.load("llama"), zoo.load("llama")
    for model in (loaded.model, other.model):
        change(model.model)
    assert fuse_layers(loaded) == 2
    assert "forward" not in vars(loaded.model.model)
    (_, got), (_, wanted) = record(loaded), record(other)
    assert (got - wanted).norm() <= 1e-5 * wanted.norm()


@needs_panels
def test_behind_the_last_attention_only_the_tokens_that_are_asked_for_are_computed(zoo, monkeypatch):
    loaded = zoo.load("llama")
    runner = make_runner(loaded)
    fuse_layers(loaded)
    rows, compute = [], layers.Between.norm
    monkeypatch.setattr(layers.Between, "norm", lambda self, x, *more: rows.append(len(x)) or compute(self, x, *more))
    record(loaded, (5, 9))
    tokens = np.arange(1, 8, dtype=np.int32)
    scored = Scored(0, 2, np.array([4, 5, 6], np.int32), 1)
    _, head = runner.compute(StepPlan(0, (Row(0, 0, 7, 1),), tokens, tokens, scored=(scored,)))
    head(torch.tensor([2, 3, 4]))
    assert rows == [2, 1, 3]
