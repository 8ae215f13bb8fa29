"""The kernels of the attention plugin `native`, beside the contract that they keep: their sizes, and doing without."""

import platform
from dataclasses import replace

import pytest
import torch
from quick_checks import passed

from rtk import native
from rtk.config.load import load_config
from rtk.errors import PluginError
from rtk.model.probe import Probe
from rtk.plugin import KVShape, Options
from rtk.plugin.host import installed
from rtk.plugin.testing.attention_cases import Case
from rtk.plugin.testing.attention_scene import Scene
from rtk.serve.computing import choose_backend
from rtk_attention.native.backend import SOURCE, NativeAttention

PLAIN = Probe(KVShape(2, 2, 8, 8, 4), frozenset(), "float32")
HEADS = KVShape(layers=1, kv_heads=3, head_dim=64, v_head_dim=64, q_heads=9)
SHAPES = {
    "64": HEADS,
    "128": replace(HEADS, kv_heads=2, head_dim=128, v_head_dim=128, q_heads=2),
    "odd": replace(HEADS, kv_heads=1, head_dim=20, v_head_dim=11, q_heads=3),
    "wide": replace(HEADS, kv_heads=1, head_dim=96, v_head_dim=160, q_heads=5),
    "many heads": replace(HEADS, kv_heads=1, q_heads=71),
}
MANY = (*((1, 101 + n % 7) for n in range(21)), (4, 120), (1, 130))
CASES = [
    *(
        Case(name=f"heads {name}", shape=shape, rows=((1, 300), (1, 1), (1, 65), (1, 32)))
        for name, shape in SHAPES.items()
    ),
    *(
        Case(name=f"told, heads {name}", shape=shape, rows=MANY, shared=100, told=((tuple(range(23)), 0, 100),))
        for name, shape in SHAPES.items()
    ),
    *(
        Case(name=f"told to {n}", shape=HEADS, rows=MANY[:n], shared=100, told=((tuple(range(n)), 3, 90),))
        for n in (2, 4, 6, 11, 16)
    ),
    Case(
        name="told, a softcap and sinks",
        shape=HEADS,
        rows=MANY,
        shared=100,
        told=(((0, 4, 9), 0, 70), (tuple(range(5)), 70, 99)),
        softcap=3.0,
        sinks=True,
    ),
    Case(name="many keys", rows=((1, 5000), (1, 4900), (5, 20)), scattered=False),
]


@pytest.fixture(scope="module")
def backend():
    try:
        return NativeAttention(Options())
    except native.Unavailable as reason:
        pytest.skip(str(reason))


@pytest.fixture(params=[1, 3])
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_equals_the_oracle(backend, threads, case):
    scene = Scene(backend, case)
    for row, got in enumerate(scene.run()):
        scene.assert_close(got, scene.expected(row), f"row {row} {case.rows[row]}")


def test_a_row_alone_of_its_run_is_an_ordinary_one(backend):
    case = Case(name="alone", rows=((3, 40), (1, 50), (2, 45)), shared=32, told=(((0, 1, 2), 0, 32),))
    scene = Scene(backend, case)
    for row, got in enumerate(scene.run()):
        scene.assert_close(got, scene.expected(row), f"row {row}")


@pytest.mark.parametrize("told", [(), (((0, 1, 2, 3, 4), 0, 64),)], ids=["alone", "told"])
def test_what_is_not_a_number_does_not_get_lost(backend, told):
    """Whoever looks for a broken model looks for it in the answers."""
    scene = Scene(backend, Case(name="broken", shape=HEADS, rows=((1, 70),) * 5, shared=64, told=told))

    def spoil(buffers):
        buffers["k"][scene.slots_of(1, range(66, 67))] = torch.nan

    for row, got in enumerate(scene.run(spoil=spoil)):
        assert got.isnan().all() if row == 1 else got.isfinite().all()

    def spoil_all(buffers):
        buffers["k"][scene.slots_of(1, range(9, 10)), 2] = torch.nan

    for got in scene.run(spoil=spoil_all):
        assert got[:, 6:].isnan().all()
        assert got[:, :6].isfinite().all()


@pytest.mark.parametrize("tokens", [1, 5, 700])
def test_keys_and_values_of_any_strides_are_written(backend, tokens):
    random = torch.Generator().manual_seed(tokens)
    both = torch.randn(3, tokens, 120, generator=random).transpose(0, 1)
    k, v = both[..., :64], both[..., 64:].flip(-1)[..., ::2]
    slots = torch.randperm(tokens + 9, generator=random)[:tokens]
    for new_k, new_v, where in ((k, v, slots), (k.contiguous(), v.contiguous(), slots.repeat_interleave(2)[::2])):
        kv = {name: torch.full((tokens + 9, *new.shape[1:]), torch.nan) for name, new in (("k", k), ("v", v))}
        expected = {name: kv[name].index_copy(0, slots, new) for name, new in (("k", k), ("v", v))}
        backend.write(kv, new_k, new_v, where)
        for name, buffer in kv.items():
            torch.testing.assert_close(buffer, expected[name], rtol=0, atol=0, equal_nan=True)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="of this processor's family there is no smaller one")
def test_kernels_for_a_smaller_processor_keep_the_contract(backend, tmp_path, monkeypatch):
    """Vectors of 4 instead of 8 or 16: what is compiled for x86 without AVX, or for ARM."""
    flags = [flag.replace("=native", "=x86-64") for flag in native.FLAGS]
    monkeypatch.setattr(native, "FLAGS", flags)
    with native.built_in(tmp_path):
        backend = NativeAttention(Options())
    assert len(list(tmp_path.glob("attention-*.so"))) == 1
    assert len(passed(backend)) > 40
    for case in CASES:
        test_equals_the_oracle(backend, 1, case)


@pytest.fixture
def no_compiler(monkeypatch):
    monkeypatch.setattr(native, "COMPILERS", ())
    native._library.cache_clear()
    yield
    native._library.cache_clear()


def choose(**keys):
    registry = installed()
    sets = [f"{key.replace('__', '.')}={value}" for key, value in {"model__device": "cpu", **keys}.items()]
    return choose_backend(load_config(registry, {}, {}, sets).config, registry)


def test_auto_takes_it_where_there_is_a_compiler(backend):
    found = choose().settled(lambda kinds: PLAIN)
    assert found.name == "native"
    assert "native" not in found.told.partition(";")[2]
    assert choose().settled(lambda kinds: replace(PLAIN, dtype="bfloat16")).name == "torch"


def test_without_a_compiler_auto_takes_torch(no_compiler, caplog):
    found = choose().settled(lambda kinds: PLAIN)
    assert found.name == "torch"
    assert "native" in found.told.partition("absent: ")[2].split(", ")
    assert not [record for record in caplog.records if "native" in record.message]


def test_without_a_compiler_who_asks_for_it_is_told(no_compiler):
    with pytest.raises(PluginError, match="attention kernels need a C\\+\\+ compiler; install g\\+\\+ or clang\\+\\+"):
        choose(attention__backend="native")


def test_the_source_comes_with_the_package():
    from importlib.resources import files

    assert files("rtk_attention.native").joinpath(SOURCE.name).is_file()
