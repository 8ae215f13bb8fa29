"""The kernels of the attention plugin `native`, beside the contract that they keep: their sizes, and doing without."""

import platform
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from quick_checks import passed

from rtk import native
from rtk.config.load import load_config
from rtk.errors import PluginError
from rtk.model.probe import Probe
from rtk.plugin import BatchView, KVShape, LayerCall, Options, Workspace
from rtk.plugin.host import installed
from rtk.plugin.testing.attention_cases import MLA, Case
from rtk.plugin.testing.attention_scene import Scene, oracle
from rtk.plugin.testing.strategies import few
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
LONGER = ((50, 350), (1, 200), (16, 16), (2, 2), (17, 100), (3, 290), (60, 60), (1, 1), (33, 64), (5, 69), (48, 112))
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
    *(Case(name=f"longer, heads {name}", shape=shape, rows=LONGER) for name, shape in SHAPES.items()),
    *(
        Case(name=f"longer, {group} to a head", shape=replace(HEADS, kv_heads=2, q_heads=2 * group), rows=LONGER[:6])
        for group in (1, 2, 4, 5, 7, 8, 17, 48, 50)
    ),
    *(
        Case(name=f"longer, window {window}", shape=HEADS, rows=LONGER, window=window, sinks=sinks)
        for window, sinks in ((1, False), (5, True), (16, False), (40, False), (64, True), (349, False), (900, True))
    ),
    Case(name="longer, a softcap and sinks", shape=HEADS, rows=LONGER, softcap=3.0, sinks=True),
    *(
        Case(
            name=f"longer, {heads} heads of latents", shape=replace(MLA, q_heads=heads), rows=((3, 70), (9, 9), (1, 30))
        )
        for heads in (16, 20, 128)
    ),
    Case(name="a few behind many", shape=HEADS, rows=((2, 3000),), sinks=True),
    Case(name="some behind many", shape=HEADS, rows=((8, 3000),), sinks=True),
    Case(name="some behind many, within a window", shape=HEADS, rows=((20, 3000),), window=1500),
    Case(name="a prompt beside many", shape=HEADS, rows=((90, 90), (1, 2000), (17, 900), (1, 1), (2, 700))),
]


@pytest.fixture(scope="module")
def backend():
    try:
        return NativeAttention(Options())
    except native.Unavailable as reason:
        pytest.skip(str(reason))


@contextmanager
def of_torch(threads):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    yield
    torch.set_num_threads(before)


@pytest.fixture(params=[1, 3])
def threads(request):
    with of_torch(request.param):
        yield request.param


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_equals_the_oracle(backend, threads, case):
    scene = Scene(backend, case)
    for row, got in enumerate(scene.run()):
        scene.assert_close(got, scene.expected(row), f"row {row} {case.rows[row]}")


def apart(scene, order):
    """Whose scores are whole numbers, hundreds of thousands at most, of which a query sees no two that are close."""
    random = torch.Generator().manual_seed(0)
    for row, (_, kv_len) in enumerate(scene.case.rows):
        heights = {
            "up": torch.arange(kv_len),
            "down": torch.arange(kv_len).flip(0),
            "mixed": torch.randperm(kv_len, generator=random),
        }
        scene.q[row].zero_()[..., 0] = 1
        scene.k[row].zero_()[..., 0] = 300 * (heights[order] - kv_len // 2)[:, None]
    return scene


@pytest.mark.parametrize("order", ["up", "down", "mixed"])
@pytest.mark.parametrize(
    "case",
    [
        Case(name="far", shape=HEADS, scaling=1.0, rows=((1, 700), (1, 20), (3, 330), (40, 200), (70, 70))),
        Case(name="far, window", shape=HEADS, scaling=1.0, rows=((1, 700), (3, 330), (40, 200)), window=50),
        Case(name="far, softcap", shape=HEADS, scaling=1.0, rows=((1, 300), (3, 330), (40, 200)), softcap=3.0),
        Case(name="far, sinks", shape=HEADS, scaling=1.0, rows=((1, 700), (3, 330), (40, 200)), sinks=True),
    ],
    ids=lambda case: case.name,
)
def test_scores_may_lie_far_apart(backend, threads, case, order):
    """No weight may be more than the largest's, or it would be more than there is: the largest one takes it all."""
    scene = apart(Scene(backend, case), order)
    for row, got in enumerate(scene.run()):
        scene.assert_close(got, scene.expected(row), f"row {row} {case.rows[row]}")


@st.composite
def scenes(draw):
    """A batch of rows of any length behind any number of cached tokens, and heads of any size and number."""
    rows = draw(st.lists(st.tuples(st.integers(1, 60), st.integers(0, 300)), min_size=1, max_size=5))
    dim, v_dim = draw(st.sampled_from([(64, 64), (16, 16), (40, 24), (128, 128), (7, 33)]))
    kv_heads, group = draw(st.integers(1, 3)), draw(st.sampled_from([1, 2, 3, 4, 6, 7, 8, 13, 49]))
    case = Case(
        name=f"{draw(st.integers(0, 99))}",
        shape=KVShape(1, kv_heads, dim, v_dim, kv_heads * group),
        rows=tuple((new, cached + new) for new, cached in rows),
        window=draw(st.none() | st.integers(1, 90)),
        softcap=draw(st.none() | st.just(4.0)),
        sinks=draw(st.booleans()),
        scattered=draw(st.booleans()),
    )
    return case, draw(st.sampled_from([1, 2, 5]))


def test_any_batch_of_longer_rows_equals_the_oracle(backend):
    @few(60)
    @given(scenes())
    def search(found):
        case, threads = found
        with of_torch(threads):
            test_equals_the_oracle(backend, threads, case)

    search()


def test_queries_of_any_strides_are_read(backend):
    random = torch.Generator().manual_seed(0)
    tokens, heads, dim = 21, 4, 32
    kv = {name: torch.randn(tokens, 2, dim, generator=random) for name in "kv"}
    lens, table = np.array([tokens], np.int32), torch.arange(tokens, dtype=torch.int32)[None]
    batch = BatchView(lens, lens, np.array([0], np.int32), table, torch.arange(tokens), 1)
    call = LayerCall(0, 0.2)
    whole = torch.randn(tokens, heads, 3 * dim, generator=random)
    for q in (
        whole[..., dim : 2 * dim],
        whole.transpose(0, 1).contiguous().transpose(0, 1)[..., :dim],
        whole[..., ::3],
    ):
        got = backend.forward(q, kv, call, backend.plan(batch, Workspace(torch.device("cpu"))))
        torch.testing.assert_close(got.double(), oracle(q, kv["k"], kv["v"], call), rtol=0, atol=2e-5)


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


def test_what_is_not_a_number_stays_within_its_row(backend):
    """And before the queries that cannot see it, at least those of other blocks."""
    scene = Scene(backend, Case(name="broken", shape=HEADS, rows=((64, 100), (3, 50), (40, 40))))

    def spoil(buffers):
        buffers["v"][scene.slots_of(0, range(90, 91))] = torch.nan

    first, *others = scene.run(spoil=spoil)
    assert first[54:].isnan().all()
    assert first[:48].isfinite().all()
    for row, got in enumerate(others, 1):
        scene.assert_close(got, scene.expected(row), f"row {row}")


def test_what_is_hidden_weighs_nothing_however_large_it_is(backend):
    scene = Scene(backend, Case(name="large", shape=HEADS, rows=((40, 60),), window=30))

    def spoil(buffers):
        buffers["v"][scene.slots_of(0, range(59, 60))] = 1e38

    got = scene.run(spoil=spoil)[0]
    scene.assert_close(got[:39], scene.expected(0)[:39], "queries before the last")


@pytest.mark.parametrize("tokens", [1, 30])
def test_sums_over_many_keys_keep_their_digits(backend, threads, tokens):
    keys = 60_000
    kv = {"k": torch.ones(keys + 1, 1, 16), "v": torch.full((keys + 1, 1, 16), 0.1)}
    table = torch.arange(1, keys + 1, dtype=torch.int32)[None]
    slots = table[0, -tokens:].long()
    lens = (np.array([n], np.int32) for n in (tokens, keys, 0))
    batch = BatchView(*lens, req_to_token=table, slots=slots, page_size=1)
    plan = backend.plan(batch, Workspace(torch.device("cpu")))
    got = backend.forward(torch.ones(tokens, 3, 16), kv, LayerCall(0, 0.25), plan)
    torch.testing.assert_close(got, torch.full_like(got, 0.1), rtol=5e-6, atol=0)


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
