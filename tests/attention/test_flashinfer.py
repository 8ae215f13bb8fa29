"""The flashinfer backend without a GPU and without FlashInfer: against the oracle, by a stand-in that computes."""

import sys
from dataclasses import replace

import fake_flashinfer as fake
import numpy as np
import pytest
import torch

from rtk.errors import PluginError
from rtk.plugin import KVShape, Options, SharedRun, Workspace
from rtk.plugin.host import installed
from rtk.plugin.testing import NotApplicable, suite
from rtk.plugin.testing.attention_cases import Case
from rtk.plugin.testing.attention_scene import Scene
from rtk_attention.flashinfer import FlashInferOptions
from rtk_attention.flashinfer.backend import FlashInferAttention
from rtk_attention.flashinfer.parts import Step, levels
from rtk_attention.torch.backend import TorchAttention


class OnCPU(FlashInferAttention):
    """As if the CPU were a device with that many multiprocessors."""

    capabilities = replace(
        FlashInferAttention.capabilities,
        devices=frozenset({"cpu"}),
        dtypes=frozenset({"float32", "float16", "bfloat16"}),
    )

    def multiprocessors(self, device):
        return 8

    def compute_capability(self, device):
        return 9


@pytest.fixture(autouse=True)
def library(monkeypatch):
    for name, module in fake.module().items():
        monkeypatch.setitem(sys.modules, name, module)


@pytest.fixture
def backend():
    return OnCPU(FlashInferOptions())


@pytest.mark.parametrize("check", suite("attention"), ids=str)
def test_the_contract_is_kept(check, backend):
    try:
        check(lambda: backend)
    except NotApplicable as reason:
        assert str(reason) in ("does not declare float64", "does not declare graphs")


# --- beyond the suite ------------------------------------------------------------------------------------------------

ALL = {"softcap": 5.0, "sinks": True}
ROWS = ((1, 300), (3, 150), (1, 1), (70, 70), (1, 130))
TOLD = ((1, 200), (3, 199), (1, 180), (9, 181), (1, 190))
TREE = (((0, 1, 2, 3), 0, 64), ((0, 2), 64, 128), ((1, 3), 80, 112))
LATENT = KVShape(layers=1, kv_heads=1, head_dim=40, v_head_dim=32, q_heads=4, mla=True)


def heads(head_dim, v_head_dim, kv_heads, q_heads):
    return KVShape(1, kv_heads, head_dim, v_head_dim, q_heads)


CASES = (
    Case(name="64, without a group", shape=heads(64, 64, 2, 2), rows=ROWS, dtype="float16"),
    Case(name="80, a group of 3", shape=heads(80, 80, 2, 6), rows=ROWS, page_size=16, **ALL),
    Case(name="96, a group of 5 needs matrices", shape=heads(96, 96, 2, 10), rows=ROWS, dtype="bfloat16"),
    Case(name="192 and 128, a group of 20", shape=heads(192, 128, 1, 20), rows=ROWS, window=40, page_size=16, **ALL),
    Case(name="256, a group of 7", shape=heads(256, 256, 1, 7), rows=ROWS, dtype="float16", window=1),
    Case(name="a tree, capped, with sinks", rows=TOLD, shared=128, told=TREE, page_size=16, **ALL),
    Case(name="a tree with a gap, in half precision", rows=TOLD, shared=128, told=TREE, dtype="float16"),
    Case(name="runs that end within pages", rows=TOLD, shared=128, told=(((0, 1, 4), 10, 75),), page_size=16),
    Case(name="a run of no whole page", rows=TOLD, shared=128, told=(((0, 1, 4), 10, 30),), page_size=32),
    Case(name="a small latent, with sinks", shape=LATENT, rows=ROWS, sinks=True, page_size=16),
    Case(name="40 heads of latents", shape=replace(LATENT, q_heads=40), rows=((140, 201), (1, 9))),
    Case(name="a tree of latents", shape=LATENT, rows=TOLD, shared=128, told=TREE, page_size=16, dtype="float16"),
)


def check_case(backend, case):
    scene = Scene(backend, case)
    for row, got in enumerate(scene.run()):
        scene.assert_close(got, scene.expected(row), f"row {row} {case.rows[row]}")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_shapes_groups_and_trees_equal_the_oracle(case, backend):
    check_case(backend, case)


MUTANTS = {
    "a slot of the last page is missing": ("page 16", "last_page_len", lambda given: (given - 1).clamp(min=1)),
    "a slot too many is read": ("page 16", "last_page_len", lambda given: (given + 1).clamp(max=16)),
    "an empty last page": ("page 1", "last_page_len", lambda given: given - 1),
    "a longer row reads one slot less": ("page 16", "paged_kv_last_page_len", lambda given: (given - 1).clamp(min=1)),
    "not causal": ("one cold prompt", "causal", lambda given: False),
    "a wider window": ("window, long chunk", "window_left", lambda given: given + 1),
    "a narrower window": ("window, long chunk", "window_left", lambda given: given - 1),
    "no window": ("window, long chunk", "window_left", lambda given: -1),
    "no cap": ("softcap", "logits_soft_cap", lambda given: None),
    "another scale": ("scaling of its own", "sm_scale", lambda given: None),
    "other pages": ("page 16", "indices", lambda given: given.roll(1)),
    "pages counted in slots": ("page 16", "paged_kv_indices", lambda given: given * 16),
    "wide integers": ("page 16", "indices", lambda given: given.long()),
    "requests that begin elsewhere": ("page 16", "qo_indptr", lambda given: given + 1),
    "fewer pages": ("page 16", "indptr", lambda given: (given - 1).clamp(min=0)),
    "another type": ("in float16", "q_data_type", lambda given: torch.bfloat16),
    "latents: a slot is missing": ("mla, page 64", "kv_len_arr", lambda given: (given - 1).clamp(min=1)),
    "latents: not causal": ("mla, one cold prompt", "causal", lambda given: False),
    "latents: another scale": ("mla, scaling of its own", "sm_scale", lambda given: 0.05),
    "latents: other pages": ("mla, page 64", "kv_indices", lambda given: given.roll(1)),
    "latents: another width": ("mla, page 64", "head_dim_ckv", lambda given: 576),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_the_stand_in_tells_right_arguments_from_wrong_ones(mutant, backend, monkeypatch):
    case, argument, change = MUTANTS[mutant]
    changed = []

    def bind(name, *args, bind=fake.bind, **options):
        given = bind(name, *args, **options)
        if argument in given and "plan" in name:
            changed.append(name)
            given[argument] = change(given[argument])
        return given

    check = next(check for check in suite("attention") if check.name == f"equals the oracle: {case}")
    check(lambda: backend)
    monkeypatch.setattr(fake, "bind", bind)
    with pytest.raises((AssertionError, ValueError)):
        check(lambda: backend)
    assert changed


@pytest.mark.parametrize("name", ["a tree, capped, with sinks", "a tree of latents"])
def test_what_is_told_is_read_once_and_joined(name, backend, monkeypatch):
    case = next(case for case in CASES if case.name == name)
    planned, joined = [], []
    for wrapper in (fake.BatchPrefillWithPagedKVCacheWrapper, fake.BatchMLAPagedAttentionWrapper):
        plan = wrapper.plan

        def spy(self, *args, plan=plan, **options):
            plan(self, *args, **options)
            planned.append(self.planned["q_lens"])

        monkeypatch.setattr(wrapper, "plan", spy)

    def merge(*args):
        joined.append(len(args[0]))
        return fake.merge_state(*args)

    monkeypatch.setattr(sys.modules["flashinfer"], "merge_state", merge)
    check_case(backend, case)
    assert [9 + 1 + 3 + 1] in planned  # the root of four rows: queries of rows 0 to 3, as one request
    assert [2, 12] in planned  # two nodes under it, side by side
    assert joined == [14, 14]


def scene_of(backend, case):
    """A scene whose layer can be computed again and again by one plan."""
    scene = Scene(backend, case)
    rows = range(len(case.rows))
    buffers = scene.before(rows)
    scene.write(buffers, rows)
    return scene, rows, buffers


def test_layers_alike_are_planned_once_and_wrappers_are_kept(backend, monkeypatch):
    counts = {}
    for wrapper in (fake.BatchPrefillWithPagedKVCacheWrapper, fake.BatchDecodeWithPagedKVCacheWrapper):
        monkeypatch.setattr(wrapper, "made", 0)

        def plan(self, *args, plan=wrapper.plan, **options):
            counts[self.name[5:11]] = counts.get(self.name[5:11], 0) + 1
            plan(self, *args, **options)

        monkeypatch.setattr(wrapper, "plan", plan)
    scene, rows, buffers = scene_of(backend, Case(name="kept", page_size=16))
    workspace = Workspace(torch.device("cpu"))
    calls = [scene.call, replace(scene.call, sliding_window=8), replace(scene.call, sliding_window=75)]
    for _ in range(2):
        plan = backend.plan(scene.view(rows), workspace)
        for call in calls * 2:
            scene.call = call
            scene.forward(buffers, rows, plan)
    assert counts == {"Prefil": 4, "Decode": 4}  # two kinds of layers in each of two steps
    assert fake.BatchPrefillWithPagedKVCacheWrapper.made == fake.BatchDecodeWithPagedKVCacheWrapper.made == 2


@pytest.mark.parametrize("shape", [heads(64, 64, 2, 6), LATENT], ids=["heads", "latents"])
def test_layers_of_other_scales_and_caps_are_planned_by_themselves(shape, backend):
    scene, rows, buffers = scene_of(backend, Case(name="unlike", shape=shape))
    asked = [{"scaling": 0.1}, {"scaling": 0.4}]
    if not shape.mla:
        asked += [{"softcap": 3.0}, {"softcap": 1.0}]
    plan = backend.plan(scene.view(rows), Workspace(torch.device("cpu")))
    usual = scene.call
    for some in asked * 2:
        scene.call = replace(usual, **some)
        for row, got in enumerate(scene.forward(buffers, rows, plan)):
            scene.assert_close(got, scene.expected(row), f"{some}, row {row}")


def test_a_buffer_that_grew_brings_new_wrappers(backend, monkeypatch):
    sizes = []

    def note(self, buffer, *args, init=fake.Planned.__init__, **options):
        init(self, buffer, *args, **options)
        sizes.append(buffer.nbytes)

    monkeypatch.setattr(fake.Planned, "__init__", note)
    workspace = Workspace(torch.device("cpu"))
    for shape in (heads(64, 64, 1, 2), heads(256, 256, 1, 200), heads(128, 128, 1, 200), heads(64, 64, 1, 2)):
        Scene(backend, Case(name="grows", shape=shape, rows=((1, 9),))).run(workspace=workspace)
    wide, narrow = 200 * 16 * 64 * 257 * 4, 200 * 16 * 128 * 129 * 4
    assert sizes == [2**27, wide, narrow, 2**27]
    assert workspace.nbytes == narrow


def test_rows_that_follow_one_another_are_a_view(backend):
    scene = Scene(backend, Case(name="view", rows=((1, 20), (1, 3), (4, 9), (1, 8), (2, 30))))
    together = [part.queries for part in Step(scene.view([0, 1, 2]), Workspace(scene.device)).parts(None)]
    assert together == [slice(0, 2), slice(2, 6)]
    apart = [part.queries.tolist() for part in Step(scene.view(range(5)), Workspace(scene.device)).parts(None)]
    assert apart == [[0, 1, 6], [2, 3, 4, 5, 7, 8]]


@pytest.mark.parametrize(
    ("runs", "depth"),
    [
        ([], []),
        ([((0, 1), 0, 9)], [1]),
        ([((0, 1, 2, 3), 0, 9), ((0, 1), 9, 12), ((2, 3), 9, 20), ((0, 2), 20, 21)], [1, 2, 1]),
        ([((0, 1), 0, 9), ((2, 3), 0, 9)], [2]),
    ],
)
def test_runs_without_a_common_row_are_one_call(runs, depth):
    found = levels([SharedRun(np.array(rows, np.int32), start, stop) for rows, start, stop in runs])
    assert [len(level) for level in found] == depth


def test_queries_with_strides_are_read_as_they_lie(backend):
    scene, rows, buffers = scene_of(backend, Case(name="strided", shape=heads(64, 64, 2, 6)))
    plan = backend.plan(scene.view(rows), Workspace(torch.device("cpu")))
    q = torch.cat(scene.q)
    plain = backend.forward(q, buffers, scene.call, plan)
    for strided in (q.transpose(1, 2).contiguous().transpose(1, 2), torch.cat([q, q], dim=1)[:, 6:]):
        assert torch.equal(backend.forward(strided, buffers, scene.call, plan), plain)


# --- layouts and refusals --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dim", [64, 128, 256])
def test_k_and_v_lie_as_the_torch_backend_keeps_them(dim, backend):
    assert backend.layout(heads(dim, dim, 2, 8), 16, "float16") == TorchAttention(Options()).layout(
        heads(dim, dim, 2, 8), 16, "float16"
    )


def test_other_sizes_are_padded_and_told_apart(backend):
    layout = backend.layout(heads(96, 80, 2, 8), 16, "float16")
    assert [(b.name, b.shape) for b in layout.buffers] == [("k 96", (2, 128)), ("v 80", (2, 128))]
    assert [b.name for b in backend.layout(heads(128, 80, 2, 8), 16, "float16").buffers] == ["k", "v 80"]
    latents = backend.layout(LATENT, 16, "float16")
    assert [(b.name, b.shape) for b in latents.buffers] == [("k 40 32", (1, 576))]
    deepseek = replace(LATENT, head_dim=576, v_head_dim=512)
    assert backend.layout(deepseek, 64, "bfloat16") == TorchAttention(Options()).layout(deepseek, 64, "bfloat16")


REFUSED = {
    "takes heads of up to 256 dimensions, and the model's have 512": heads(512, 512, 1, 8),
    "takes latents of up to 512 and 64 dimensions, and the model's have 500 and 76": replace(
        LATENT, head_dim=576, v_head_dim=500
    ),
    "takes up to 128 query heads of latents, and the model has 129": replace(LATENT, q_heads=129),
}


@pytest.mark.parametrize("why", REFUSED)
def test_what_there_is_no_kernel_for_is_refused(why, backend):
    with pytest.raises(PluginError) as caught:
        backend.layout(REFUSED[why], 16, "bfloat16")
    assert str(caught.value) == f"attention plugin 'flashinfer' {why}; use attention.backend = torch"


@pytest.mark.parametrize("asked", [{"window": 8}, {"softcap": 5.0}], ids=str)
def test_latents_have_neither_window_nor_cap(asked, backend):
    with pytest.raises(PluginError) as caught:
        Scene(backend, Case(name="refused", shape=LATENT, **asked)).run()
    assert str(caught.value) == (
        "attention plugin 'flashinfer' knows neither window nor softcap for latents, and the model asks for one; "
        "use attention.backend = torch"
    )


def test_without_the_package_there_is_a_line_that_says_so(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    entry = installed().get("attention", "flashinfer")
    with pytest.raises(PluginError) as caught:
        entry.build(FlashInferOptions())
    assert "flashinfer is not installed; run: pip install 'rtk-inference[flashinfer]'" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_package_that_cannot_be_imported_is_told_in_a_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "flashinfer.mla", None)
    with pytest.raises(PluginError) as caught:
        installed().get("attention", "flashinfer").build(FlashInferOptions())
    assert "cannot be built: ModuleNotFoundError: import of flashinfer.mla halted" in str(caught.value)
    assert str(caught.value).endswith("; install what it imports, or do without it")


@pytest.mark.parametrize(
    ("kernels", "capability", "expected"),
    [("auto", 9, ("auto", "fa3")), ("auto", 10, ("auto", "fa2")), ("fa2", 9, ("fa2", "fa2"))],
)
def test_kernels_are_chosen_by_option_and_device(kernels, capability, expected, monkeypatch):
    chosen = []
    for wrapper in (fake.BatchPrefillWithPagedKVCacheWrapper, fake.BatchMLAPagedAttentionWrapper):

        def note(self, *args, init=wrapper.__init__, **options):
            init(self, *args, **options)
            chosen.append(self.given["backend"])

        monkeypatch.setattr(wrapper, "__init__", note)
    backend = OnCPU(FlashInferOptions(kernels=kernels))
    backend.compute_capability = lambda device: capability
    for shape in (heads(64, 64, 1, 1), LATENT):
        check_case(backend, Case(name="kernels", shape=shape, rows=((3, 9),)))
    assert tuple(chosen) == expected


def test_two_versions_are_recorded():
    assert set(fake.RELEASES) <= fake.SIGNATURES.keys()
    with pytest.raises(TypeError):
        fake.bind("merge_state", 1, 2, 3)
    with pytest.raises(TypeError, match="lse_base"):  # of the newer one only
        fake.bind("BatchPrefillWithPagedKVCacheWrapper.run", None, 1, 2, lse_base="log2")
