import math

import pytest
import torch
from torch import nn

from rtk.model.fused import fuse_layers
from rtk.model.kernels import NativeKernels, Norm, Shape, TorchKernels, functions
from rtk.model.record import record
from rtk.native import built_in

SHAPES = [
    Shape(width=32, q_heads=4, kv_heads=2, head_dim=8, inner=48),
    Shape(width=577, q_heads=3, kv_heads=1, head_dim=6, inner=1),
    Shape(width=1, q_heads=1, kv_heads=1, head_dim=2, inner=33),
    Shape(width=576, q_heads=9, kv_heads=3, head_dim=64, inner=1536),
]
ROWS = [0, 1, 2, 7, 70]  # the last of the widest is computed by several threads


@pytest.fixture(scope="module")
def native(tmp_path_factory):
    with built_in(tmp_path_factory.mktemp("native")):
        found = functions()
    if found is None:
        pytest.skip("no compiler")
    return found


class Given(nn.Module):
    def __init__(self, epsilon=1e-5):
        super().__init__()
        self.variance_epsilon = epsilon


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def both(shape, native, rows):
    cos, sin = random(1, rows, shape.head_dim, seed=8), random(1, rows, shape.head_dim, seed=9)
    made = TorchKernels(shape), NativeKernels(shape, native)
    for kernels in made:
        kernels.prepare(cos, sin)
    return made


def same(got, wanted):
    torch.testing.assert_close(got, wanted, rtol=1e-6, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_native_kernels_compute_what_torch_computes(native, shape, rows):
    torch_kernels, native_kernels = both(shape, native, rows)
    x, y = random(rows, shape.width), random(rows, shape.width, seed=1)
    weight = random(shape.width, seed=2)
    for norm, more in [
        (Norm(Given(), weight), y),
        (Norm(Given(), weight), None),
        (Norm(Given(0.5), weight, scaled=False), y),
    ]:
        streams = x.clone(), x.clone()
        wanted, got = (k.norm(s, more, norm) for k, s in zip((torch_kernels, native_kernels), streams, strict=True))
        same(got, wanted)
        assert torch.equal(*streams)
        assert torch.equal(streams[0], x if more is None else x + y)
    heads = shape.q_heads + 2 * shape.kv_heads
    qkv = random(rows, heads * shape.head_dim, seed=3)
    head_norm = Norm(Given(), random(shape.q_heads + shape.kv_heads, shape.head_dim, seed=4))
    for own in (None, head_norm):
        for got, wanted in zip(native_kernels.turn(qkv, own), torch_kernels.turn(qkv, own), strict=True):
            same(got, wanted)
    gate_up = 5 * random(rows, 2 * shape.inner, seed=5)
    same(native_kernels.silu_mul(gate_up), torch_kernels.silu_mul(gate_up))


def test_silu_is_exact_over_the_whole_range(native):
    """Relative to what float64 gives; below -87 there is nothing but 0, of which torch's last bits are as far."""
    gate = torch.cat([torch.linspace(-86, 100, 20001), torch.tensor([0.0, -0.0, 1e-30, -1e-30, 1e30])])
    (got,) = _silu(native, gate)
    wanted = torch.nn.functional.silu(gate.double())
    assert ((got - wanted).abs() <= 4e-7 * wanted.abs()).all()
    low = torch.tensor([-88.0, -100.0, -1e30])
    assert _silu(native, low)[0].abs().max() < 1e-35


def _silu(native, gate):
    shape = Shape(1, 1, 1, 2, len(gate))
    _, kernels = both(shape, native, 1)
    return kernels.silu_mul(torch.cat([gate, torch.ones_like(gate)])[None])


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e30, -1e30])
@pytest.mark.parametrize("place", [0, 15, 16, 47])
def test_what_is_not_finite_comes_out_where_torch_has_it(native, value, place):
    shape = Shape(width=48, q_heads=4, kv_heads=1, head_dim=8, inner=24)
    torch_kernels, native_kernels = both(shape, native, 3)
    x = random(3, 48)
    x[1, place] = value
    head_norm, norm = Norm(Given(), torch.ones(5, 8)), Norm(Given(), torch.ones(48))
    same(native_kernels.norm(x.clone(), None, norm), torch_kernels.norm(x.clone(), None, norm))
    same(native_kernels.norm(torch.ones(3, 48), x, norm), torch_kernels.norm(torch.ones(3, 48), x, norm))
    same(native_kernels.silu_mul(x), torch_kernels.silu_mul(x))
    for own in (None, head_norm):
        for got, wanted in zip(native_kernels.turn(x, own), torch_kernels.turn(x, own), strict=True):
            same(got, wanted)


def test_a_step_with_other_rows_has_buffers_of_its_own(native):
    shape = SHAPES[0]
    _, kernels = both(shape, native, 3)
    norm = Norm(Given(), torch.ones(32))
    for rows in (3, 1, 5):
        factors = torch.ones(1, rows, 8)
        kernels.prepare(factors, factors.clone())
        assert kernels.norm(random(rows, 32), None, norm).shape == (rows, 32)
        assert [t.shape for t in kernels.turn(random(rows, 64), None)] == [(rows, 4, 8), (rows, 2, 8), (rows, 2, 8)]


@pytest.mark.parametrize("kind", ["llama", "qwen3", "granite"])
def test_without_a_compiler_layers_are_fused_in_torch(zoo, kind, native, monkeypatch, tmp_path, caplog):
    loaded, other = zoo.load(kind), zoo.load(kind)
    assert fuse_layers(loaded) == 2
    _, wanted = record(loaded)
    monkeypatch.setattr("rtk.native.shutil.which", lambda _: None)
    caplog.set_level("INFO", "rtk.model.kernels")
    with built_in(tmp_path):
        assert fuse_layers(other) == 2
    said = [line.getMessage() for line in caplog.records]
    assert said == ["kernels kernels need a C++ compiler; install g++ or clang++; layers take longer without them"]
    _, got = record(other)
    assert (got - wanted).norm() <= 1e-5 * wanted.norm()
    assert not torch.equal(got, wanted)  # or both went the same way


def test_other_activations_than_silu_stay_in_torch(zoo):
    loaded, plain = zoo.load("llama"), zoo.load("llama")
    for model in (loaded.model, plain.model):
        for layer in model.model.layers:
            layer.mlp.act_fn = nn.GELU()
    assert fuse_layers(loaded) == 2
    (_, got), (_, wanted) = record(loaded), record(plain)
    assert (got - wanted).norm() <= 1e-5 * wanted.norm()
