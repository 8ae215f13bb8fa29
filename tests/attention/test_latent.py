"""FlashMLA and TensorRT-LLM's decoding, by packages that only seem to be there: see `latent_fakes`."""

import importlib.util
import inspect
import json
import sys
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from pkgutil import resolve_name

import fake_flashinfer
import latent_fakes
import numpy as np
import pytest
import torch
from latent_fakes import StandIn, registry
from quick_checks import passed
from signatures import signatures

from rtk.cache.pool import KVPool
from rtk.errors import PluginError
from rtk.model.probe import probe
from rtk.model.runner import ModelRunner
from rtk.plugin import KVShape, SharedRun, Workspace
from rtk.plugin.host import installed
from rtk.plugin.testing.attention_cases import MLA, Case
from rtk.plugin.testing.attention_scene import Scene
from rtk.schedule.batch import Row, StepPlan
from rtk_attention import latent
from rtk_attention.flashinfer.backend import FlashInferAttention
from rtk_attention.flashmla.backend import FlashMLA
from rtk_attention.latent_options import LatentOptions
from rtk_attention.trtllm_mla import backend as trtllm
from rtk_attention.trtllm_mla.backend import TrtllmMLA

RELEASES = {
    "sgl-flash-mla-1.0.0": (FlashMLA, latent_fakes.FlashMLA),
    "sgl-kernel-176ee5c722c5": (FlashMLA, latent_fakes.FlashMLA),
    "flashinfer-python-0.6.18.post1": (TrtllmMLA, latent_fakes.TrtllmMLA),
    "flashinfer-python-0.7.4": (TrtllmMLA, latent_fakes.TrtllmMLA),
}
ROWS = ((1, 40), (6, 90), (3, 70), (1, 64), (3, 3), (30, 130), (1, 65))


@pytest.fixture(autouse=True)
def stand_in(monkeypatch):
    """Longer rows are computed by the torch backend; where the kernels may write is not much to make zeros of."""
    monkeypatch.setattr(latent, "installed", lambda: registry(triton="latent_fakes:StandIn"))
    monkeypatch.setattr(trtllm, "WORKSPACE", 64)
    monkeypatch.setattr(StandIn, "planned", [])


@pytest.fixture
def release(request):
    return getattr(request, "param", "sgl-flash-mla-1.0.0")


@pytest.fixture
def fake(release, monkeypatch):
    """The package of that release."""
    return RELEASES[release][1](release).install(monkeypatch)


@pytest.fixture
def backend(release, fake):
    """Its backend, as if a CPU could run it."""
    return on_cpu(RELEASES[release][0])(LatentOptions())


def on_cpu(kind):
    return type(kind.__name__, (kind,), {"capabilities": replace(kind.capabilities, devices=frozenset({"cpu"}))})


every = pytest.mark.parametrize("release", RELEASES, indirect=True)
trtllm_only = pytest.mark.parametrize("release", ["flashinfer-python-0.7.4"], indirect=True)


@pytest.mark.parametrize("release", ["sgl-flash-mla-1.0.0", "flashinfer-python-0.7.4"], indirect=True)
def test_the_contract_is_kept(backend):
    assert {"layout", "equals the oracle: mla, page 64", "equals the oracle: a told tree"} <= set(passed(backend))


@every
def test_rows_of_few_queries_are_decoded_and_the_others_are_left_to_the_other_plugin(backend, fake):
    scene = Scene(backend, Case(name="each to his own", rows=ROWS, shape=MLA, page_size=64))
    for row, got in enumerate(scene.run()):
        scene.assert_close(got, scene.expected(row), f"row {row}")
    assert fake.calls == [(3, 1), (2, 3)]
    (left,) = StandIn.planned
    assert left.q_lens.tolist() == [6, 30]
    assert left.kv_lens.tolist() == [90, 130]
    assert left.req_rows.tolist() == scene.req_rows[[1, 5]].tolist()
    assert left.slots.tolist() == [*scene.slots_of(1, range(84, 90)).tolist(), *scene.slots_of(5, range(100, 130))]


def test_a_batch_of_one_kind_is_handed_on_as_it_is(backend, fake):
    scene = Scene(backend, Case(name="long", rows=((6, 90), (30, 130)), shape=MLA, page_size=64))
    batch = scene.view(range(2))
    plan = backend.plan(batch, Workspace(torch.device("cpu")))
    assert StandIn.planned == [batch]
    assert plan.groups == ()
    scene = Scene(backend, Case(name="short", rows=((1, 90), (1, 130)), shape=MLA, page_size=64))
    assert backend.plan(scene.view(range(2)), Workspace(torch.device("cpu"))).rest is None


def test_shared_runs_are_told_of_the_rows_that_are_left(backend):
    scene = Scene(backend, Case(name="told", rows=((1, 90), (6, 90), (30, 130), (1, 70)), shape=MLA, page_size=64))
    runs = (
        SharedRun(np.array([0, 1, 2], np.int32), 0, 64),
        SharedRun(np.array([0, 2, 3], np.int32), 0, 32),
        SharedRun(np.array([0, 3], np.int32), 32, 64),
    )
    backend.plan(replace(scene.view(range(4)), shared=runs), Workspace(torch.device("cpu")))
    ((told,),) = [batch.shared for batch in StandIn.planned]
    assert (told.rows.tolist(), told.start, told.stop) == ([0, 1], 0, 64)


@pytest.mark.parametrize("release", ["sgl-flash-mla-1.0.0", "sgl-kernel-176ee5c722c5"], indirect=True)
def test_work_is_cut_once_a_step_whatever_the_layers(backend, fake):
    layers = [Scene(backend, Case(name="layers", rows=ROWS, shape=replace(MLA, layers=3)), at) for at in range(3)]
    rows = range(len(ROWS))
    for made in (2, 4):
        plan = backend.plan(layers[0].view(rows), Workspace(torch.device("cpu")))
        for scene in layers:
            buffers = scene.before(rows)
            scene.write(buffers, rows)
            scene.forward(buffers, rows, plan)
        assert fake.made == made


def tables(backend, lens, page):
    scene = Scene(backend, Case(name="tables", rows=tuple((1, n) for n in lens), shape=MLA, page_size=page))
    ((group, _),) = backend.plan(scene.view(range(len(lens))), Workspace(torch.device("cpu"))).groups
    expected = [
        [int(scene.slots_of(row, range(at, at + 1))[0]) // page for at in range(0, n, page)]
        for row, n in enumerate(lens)
    ]
    return group.pages.tolist(), expected


def test_tables_name_the_page_of_no_tokens_after_a_rows_last(backend):
    made, (one, three, two) = tables(backend, (64, 130, 65), 64)
    assert made == [[*one, 0, 0], three, [*two, 0]]


@trtllm_only
@pytest.mark.parametrize(
    ("page", "lens", "width"), [(64, (64, 1), 2), (64, (130,), 4), (32, (33,), 4), (32, (129,), 8)]
)
def test_tables_of_trtllm_name_pages_for_a_multiple_of_128_tokens(backend, page, lens, width):
    made, expected = tables(backend, lens, page)
    assert [len(row) for row in made] == [width] * len(lens)
    for row, own in zip(made, expected, strict=True):
        assert row == own + [0] * (width - len(own))


@trtllm_only
@pytest.mark.parametrize(("head_dim", "v_head_dim"), [(576, 512), (320, 256)])
@pytest.mark.parametrize("page", [32, 64])
@pytest.mark.parametrize("heads", [8, 64, 128])
def test_what_trtllm_has_kernels_for(backend, page, heads, head_dim, v_head_dim):
    shape = KVShape(1, 1, head_dim, v_head_dim, heads, mla=True)
    scene = Scene(backend, Case(name="of trtllm", rows=((1, 70), (2, 33)), shape=shape, page_size=page))
    for row, got in enumerate(scene.run()):
        scene.assert_close(got, scene.expected(row), f"row {row}")


@trtllm_only
def test_what_trtllm_works_in_is_made_zeros_once(backend):
    workspace = Workspace(torch.device("cpu"))
    scratch = workspace.take("trtllm_mla", (trtllm.WORKSPACE,), torch.uint8).fill_(7)
    scene = Scene(backend, Case(name="zeros", rows=((1, 70),), shape=MLA, page_size=64))
    scene.run(workspace=workspace)
    assert not scratch.any()
    scratch[5] = 3
    ((_, prepared),) = backend.plan(scene.view([0]), workspace).groups
    assert prepared.data_ptr() == scratch.data_ptr()
    assert scratch.tolist() == [0] * 5 + [3] + [0] * 58


def refusal(make):
    with pytest.raises(PluginError) as caught:
        make()
    return str(caught.value)


@trtllm_only
@pytest.mark.parametrize("heads", [65, 96, 127])
def test_head_counts_that_trtllm_has_no_kernel_for_are_refused(backend, heads):
    assert refusal(lambda: backend.layout(replace(MLA, q_heads=heads), 64, "bfloat16")) == (
        f"attention plugin 'trtllm-mla' takes up to 64 query heads, or 128 and more, and the model has {heads}: "
        "TensorRT-LLM has no kernel for it; use attention.backend = torch"
    )


@every
def test_shapes_that_a_kernel_was_not_made_for_are_refused(backend):
    takes = {
        "flashmla": "'flashmla' takes latents of 576 with values of 512",
        "trtllm-mla": "'trtllm-mla' takes latents of 576 with values of 512 or 320 with values of 256",
    }[backend.name]
    for shape, has in (
        (replace(MLA, head_dim=288, v_head_dim=256), "latents of 288 with values of 256"),
        (replace(MLA, head_dim=512), "latents of 512 with values of 512"),
        (KVShape(1, 8, 576, 512, 8), "keys of 576 with values of 512"),
    ):
        assert refusal(lambda shape=shape: backend.layout(shape, 64, "bfloat16")) == (
            f"attention plugin {takes}, and the model has {has}; use attention.backend = torch"
        )


def test_latents_lie_as_the_other_plugin_keeps_them(backend, monkeypatch):
    assert backend.layout(MLA, 64, "float16") == StandIn(LatentOptions()).layout(MLA, 64, "float16")
    monkeypatch.setattr(StandIn, "layout", lambda self, shape, page_size, kv_dtype: None)
    assert refusal(lambda: backend.layout(MLA, 64, "float16")) == (
        "the plugin that attention.flashmla.extend names keeps latents in a way of its own; name another"
    )


@pytest.mark.parametrize("release", ["sgl-flash-mla-1.0.0", "flashinfer-python-0.7.4"], indirect=True)
def test_flashinfer_computes_the_other_rows(release, fake, monkeypatch):
    modules = fake_flashinfer.module()
    modules["flashinfer.mla"].trtllm_batch_decode_with_kv_cache_mla = getattr(fake, "function", None)
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(FlashInferAttention, "multiprocessors", lambda self, device: 8)
    monkeypatch.setattr(FlashInferAttention, "compute_capability", lambda self, device: 9)
    monkeypatch.setattr(latent, "installed", installed)
    backend = on_cpu(RELEASES[release][0])(LatentOptions(extend="flashinfer"))
    scene = Scene(backend, Case(name="both", rows=ROWS, shape=MLA, page_size=64))
    for row, got in enumerate(scene.run()):
        scene.assert_close(got, scene.expected(row), f"row {row}")
    assert fake.calls == [(3, 1), (2, 3)]


def steps(loaded, backend):
    """Logits of two requests that a model computes in three steps: a prompt, one beside a token, and a token each."""
    needs = probe(loaded, backend.capabilities.kinds)
    pool = KVPool(backend.layout(needs.shape, 64, needs.dtype), 8 * 64, loaded.device)
    for layer in range(needs.shape.layers):
        pool.layer(layer)["k"].fill_(torch.nan)
    runner = ModelRunner(loaded, backend, pool, rows=4, context_length=256)
    a, b = (np.random.default_rng(0).integers(1, 99, n).astype(np.int32) for n in (72, 12))
    a_slots, b_slots = np.r_[5 * 64 : 6 * 64, 2 * 64 : 2 * 64 + 8], np.r_[7 * 64 : 7 * 64 + 12]
    for parts in (
        [(2, 0, a[:70], a_slots[:70])],
        [(2, 70, a[70:71], a_slots[70:71]), (1, 0, b[:11], b_slots[:11])],
        [(1, 11, b[11:], b_slots[11:]), (2, 71, a[71:], a_slots[71:])],
    ):
        rows = tuple(Row(row, start, len(tokens), len(tokens)) for row, start, tokens, _ in parts)
        tokens, slots = (np.concatenate([part[i] for part in parts]).astype(np.int32) for i in (2, 3))
        yield runner.compute(StepPlan(0, rows, tokens, slots)).logits


@pytest.mark.parametrize("release", ["sgl-flash-mla-1.0.0", "flashinfer-python-0.7.4"], indirect=True)
def test_a_model_answers_as_by_the_reference(backend, fake, zoo, monkeypatch):
    import tiny_models  # where `zoo` found it

    tiny = {"q_lora_rank": None, "first_k_dense_replace": 2, "kv_lora_rank": 512, "qk_rope_head_dim": 64}
    monkeypatch.setitem(tiny_models.KINDS, "of 576", ("deepseek_v3", tiny_models.LATENT | tiny))
    loaded = zoo.load("of 576", dtype="bfloat16")
    wanted = list(steps(loaded, StandIn(LatentOptions())))
    got = list(steps(loaded, backend))
    assert [len(logits) for logits in got] == [70, 12, 2]
    for mine, theirs in zip(got, wanted, strict=True):
        assert (mine - theirs).norm() <= 5e-3 * theirs.norm()
        assert theirs.std() > 0.1
    assert fake.calls == [(1, 1), (1, 1), (2, 1), (2, 1)]


@pytest.mark.usefixtures("fake")
def test_triton_keeps_latents_alike(monkeypatch):
    pytest.importorskip("triton")
    monkeypatch.setattr(latent, "installed", installed)
    backend = FlashMLA(LatentOptions())
    assert backend.layout(MLA, 64, "bfloat16") == StandIn(LatentOptions()).layout(MLA, 64, "bfloat16")


@pytest.mark.usefixtures("fake")
@every
def test_the_other_plugin_must_be_there_and_know_latents(release, monkeypatch):
    kind = RELEASES[release][0]
    key = {FlashMLA: "attention.flashmla.extend", TrtllmMLA: "attention.trtllm_mla.extend"}[kind]
    monkeypatch.setattr(latent, "installed", lambda: registry(flashinfer="latent_fakes:KnowsNoLatents"))
    assert refusal(lambda: kind(LatentOptions(extend="triton"))) == (
        "unknown attention plugin 'triton'; installed: flashinfer; see 'rtk plugins'"
    )
    assert refusal(lambda: kind(LatentOptions(extend="flashinfer"))) == (
        f"{key} = flashinfer names a plugin that does not compute latent attention (MLA); name another"
    )


@pytest.mark.parametrize(
    ("name", "modules", "extra"),
    [("flashmla", ("flash_mla", "sgl_kernel"), "flashmla"), ("trtllm-mla", ("flashinfer",), "flashinfer")],
)
def test_what_is_not_installed_is_named_with_what_brings_it(name, modules, extra, monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda one: None if one in modules else found(one))
    for module in modules:
        monkeypatch.delitem(sys.modules, module, raising=False)
    entry = installed().get("attention", name)
    assert refusal(lambda: entry.build(entry.plugin.options())).partition(" cannot be built: ")[2] == (
        f"ModuleNotFoundError: {modules[0]} is not installed; run: pip install 'rtk-inference[{extra}]'"
    )


def test_a_package_that_lacks_its_libraries_is_named_with_what_it_lacks(monkeypatch, tmp_path):
    lacks = "libcudart.so.13: cannot open shared object file"
    (tmp_path / "flash_mla.py").write_text(f"raise OSError('Could not load flash_mla.so') from OSError('{lacks}')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "flash_mla", raising=False)
    with pytest.raises(ImportError) as caught:
        FlashMLA(LatentOptions())
    assert str(caught.value) == f"flash_mla cannot be loaded: {lacks}"


def test_page_sizes_are_those_that_the_kernels_force():
    worked = json.loads((Path(__file__).parents[1] / "data" / "worked_examples.json").read_text())
    forced = worked["forced_pages"]
    assert FlashMLA.capabilities.page_sizes == {forced["flashmla"]}
    assert TrtllmMLA.capabilities.page_sizes == set(forced["trtllm_mla"])


def test_what_each_declares_beside():
    assert FlashMLA.capabilities.compute_capabilities == {9}
    assert TrtllmMLA.capabilities.compute_capabilities == {10}
    for kind in (FlashMLA, TrtllmMLA):
        assert kind.capabilities.devices == {"cuda"}
        assert kind.capabilities.kinds == {"mla"}
    assert TrtllmMLA.capabilities.preference < 0 < FlashMLA.capabilities.preference


@pytest.mark.parametrize("release", RELEASES)
def test_signatures_are_those_of_what_is_installed(release):
    distribution, _, released = release.rpartition("-")
    try:
        if version(distribution) != released:
            pytest.skip(f"{distribution} {version(distribution)} is installed")
        for name, recorded in signatures(release).items():
            theirs = inspect.signature(resolve_name(name)).parameters
            assert {n: (p.kind, p.default) for n, p in theirs.items()} == {
                n: (p.kind, p.default) for n, p in recorded.parameters.items()
            }
    except (PackageNotFoundError, ImportError, OSError) as error:
        pytest.skip(f"{distribution}: {error}")
