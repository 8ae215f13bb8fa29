"""The Triton kernels without a GPU: against the oracle in triton's interpreter, and compiled ahead of time."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rtk.errors import PluginError
from rtk.plugin import BatchView, KVShape, Options, Workspace
from rtk.plugin.testing.attention_cases import Case
from rtk.plugin.testing.attention_scene import Scene
from rtk_attention.torch.backend import TorchAttention

triton = pytest.importorskip("triton")

from interpreted import ALL, Interpreted, latent  # noqa: E402

from rtk_attention.triton import TritonOptions, backend, kernels  # noqa: E402
from rtk_attention.triton.work import Step  # noqa: E402

HERE = Path(__file__).parent
SHARED = 99 * 1024
"""Bytes of shared memory that one program may have on every device from sm_80 on."""
SPILLED = 64
"""Bytes that a thread may keep outside its registers: ptxas trades a few for more programs at once."""


def interpreted(part):
    env = os.environ | {"TRITON_INTERPRET": "1"}
    script = [sys.executable, "-X", "faulthandler", str(HERE / "interpreted.py"), part]
    done = subprocess.run(script, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def test_the_kernels_give_what_the_oracle_gives():
    lines = interpreted("few")
    assert [line for line in lines if not line.startswith("passed ")] == [
        "skipped equals the oracle: in float64: does not declare float64",
        "skipped equals the oracle: in bfloat16: does not declare bfloat16",
        "skipped equals the oracle: mla in bfloat16: does not declare bfloat16",
    ]
    assert len(lines) == 56


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_every_check_and_every_combination():
    lines = interpreted("all")
    assert sum(line.startswith("skipped ") for line in lines) == 3
    assert len(lines) == 59 + (6 * 3 + 5) * 5 * 2


def step(rows, *, programs=4, max_splits=32, **about):
    """The work of rows (q_len, kv_len)."""
    return Step(view(rows, **about), Workspace(torch.device("cpu")), programs=programs, max_splits=max_splits)


def view(rows, *, req_rows=None, replayed=False):
    q_lens, kv_lens = np.array(rows, np.int32).T
    req_rows = np.arange(len(rows), dtype=np.int32) if req_rows is None else np.array(req_rows, np.int32)
    table = torch.zeros(len(rows), 1000, dtype=torch.int32)
    slots = torch.zeros(int(q_lens.sum()), dtype=torch.int64)
    return BatchView(q_lens, kv_lens, req_rows, table, slots, 1, replayed=replayed)


def test_rows_of_several_queries_are_cut_into_blocks_and_those_with_most_keys_come_first():
    made = step([(1, 9), (70, 100), (2, 64), (32, 32)], req_rows=[4, 5, 6, 7]).extend(32)
    # place in the batch, queries, row of the table, first position
    assert made.tolist() == [[65, 6, 5, 94], [33, 32, 5, 62], [71, 2, 6, 62], [1, 32, 5, 30], [73, 32, 7, 0]]
    assert step([(1, 9), (1, 1)]).extend(32) is None


def test_long_rows_are_cut_so_that_there_is_work_for_the_whole_device():
    rows = [(1, 300), (3, 3), (1, 100)]
    made = step(rows, programs=8).decode(None, 2)
    assert made.work.tolist() == [[0, 0, 0, 128], [0, 0, 128, 256], [0, 0, 256, 300], [4, 2, 0, 100]]
    assert made.rows.tolist() == [[0, 0, 3], [4, 3, 1]]
    few = step(rows, programs=2).decode(None, 2)
    assert few.work.tolist() == [[0, 0, 0, 300], [4, 2, 0, 100]]
    capped = step(rows, programs=8, max_splits=2).decode(None, 2)
    assert capped.work.tolist() == [[0, 0, 0, 256], [0, 0, 256, 300], [4, 2, 0, 100]]
    assert step([(3, 3)]).decode(None, 2) is None


def test_keys_before_the_window_are_in_no_piece():
    made = step([(1, 300), (1, 100)], programs=8).decode(150, 2)
    assert made.work.tolist() == [[0, 0, 150, 278], [0, 0, 278, 300], [1, 1, 0, 100]]


def test_tables_are_made_once_for_layers_alike():
    one = step([(1, 300), (3, 3)])
    assert one.extend(32) is one.extend(32)
    assert one.decode(None, 2) is one.decode(None, 2) is one.decode(300, 2)
    assert one.decode(100, 2) is not one.decode(None, 2)


def test_a_step_that_is_replayed_keeps_its_tables_and_their_lengths():
    made = step([(1, 1)] * 3, programs=8, replayed=True)
    windowed, whole = made.decode(40, 2), made.decode(None, 2)
    assert windowed is not whole  # though the window hides nothing yet
    assert whole.work.tolist() == [*([i, i, 0, 1] for i in range(3)), *([[0] * 4] * 4)]
    before = [t.data_ptr() for pieces in (windowed, whole) for t in (pieces.work, pieces.rows)]
    rows = [(1, 300), (1, 100), (1, 2)]
    made.replan(view(rows, req_rows=[2, 0, 1], replayed=True))
    assert made.decode(None, 2) is whole
    work = [[0, 2, 0, 128], [0, 2, 128, 256], [0, 2, 256, 300], [1, 0, 0, 100], [2, 1, 0, 2]]
    assert whole.work.tolist() == [*work, *([[0] * 4] * 2)]
    assert whole.rows.tolist() == [[0, 0, 3], [1, 3, 1], [2, 4, 1]]
    assert windowed.work.tolist() == [[0, 2, 260, 300], [1, 0, 60, 100], [2, 1, 0, 2], *([[0] * 4] * 4)]
    assert before == [t.data_ptr() for pieces in (windowed, whole) for t in (pieces.work, pieces.rows)]


@settings(deadline=None, max_examples=50)
@given(
    lens=st.lists(st.integers(1, 3000), min_size=1, max_size=9),
    programs=st.integers(1, 600),
    heads=st.integers(1, 40),
    max_splits=st.sampled_from([1, 32]),
)
def test_no_lengths_need_more_pieces_than_there_is_room_for(lens, programs, heads, max_splits):
    made = step([(1, 1)] * len(lens), programs=programs, max_splits=max_splits, replayed=True)
    room = len(made.decode(None, heads).work)
    made.replan(view([(1, n) for n in lens], replayed=True))
    pieces = made.decode(None, heads)
    work = pieces.work.tolist()
    assert len(work) == room
    assert sum(end - start for _, _, start, end in work) == sum(lens)
    cut = step([(1, n) for n in lens], programs=programs, max_splits=max_splits).decode(None, heads)
    assert work[: len(cut.work)] == cut.work.tolist()
    assert pieces.rows.tolist() == cut.rows.tolist()


def test_heads_that_are_too_wide_are_refused():
    shape = KVShape(layers=1, kv_heads=1, head_dim=512, v_head_dim=512, q_heads=8)
    with pytest.raises(PluginError) as caught:
        backend.TritonAttention(TritonOptions()).layout(shape, 16, "bfloat16")
    assert str(caught.value) == (
        "attention plugin 'triton' takes heads of up to 256 dimensions, and the model's have 512; "
        "use attention.backend = torch"
    )


def test_latents_that_are_too_wide_are_refused():
    shape = KVShape(layers=1, kv_heads=1, head_dim=640, v_head_dim=512, q_heads=8, mla=True)
    with pytest.raises(PluginError) as caught:
        backend.TritonAttention(TritonOptions()).layout(shape, 16, "bfloat16")
    assert str(caught.value) == (
        "attention plugin 'triton' takes latents of up to 512 + 64 dimensions, and the model's have 512 + 128; "
        "use attention.backend = torch"
    )


def test_k_and_v_lie_as_the_torch_backend_keeps_them():
    shape = KVShape(layers=2, kv_heads=2, head_dim=80, v_head_dim=64, q_heads=8)
    ours, theirs = backend.TritonAttention(TritonOptions()), TorchAttention(Options())
    assert ours.layout(shape, 16, "float16") == theirs.layout(shape, 16, "float16")


# --- ahead of time ---------------------------------------------------------------------------------------------------


class Launches:
    """Stands for a kernel, and keeps what it is launched with."""

    def __init__(self, kernel):
        self.kernel = kernel
        self.seen = []

    def __getitem__(self, grid):
        assert len(grid) == 1
        assert grid[0] > 0
        return lambda *args, **options: self.seen.append((self.kernel, args, options))


def launches(monkeypatch, case):
    """What the backend launches for one case: (kernel, arguments, options), in order."""
    recorders = [Launches(getattr(kernels, name)) for name in ("extend_kernel", "decode_kernel", "join_kernel")]
    for recorder in recorders:
        monkeypatch.setattr(backend, recorder.kernel.__name__, recorder)
    attention = Interpreted(TritonOptions())
    attention.capabilities = backend.TritonAttention.capabilities
    monkeypatch.setattr("rtk.plugin.testing.attention_scene.device_of", lambda backend: torch.device("cpu"))
    Scene(attention, case).run()
    return [recorder.seen[0] for recorder in recorders]


TYPES = {torch.float32: "*fp32", torch.float16: "*fp16", torch.bfloat16: "*bf16", torch.int32: "*i32"}


def compiled(kernel, args, options, capability):
    """As a launch would compile it: integers of 1 are constants, and those that 16 divides are known to be such."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    signature, constants, attributes = {}, {}, {}
    launch = {name: options[name] for name in ("num_warps", "num_stages") if name in options}
    given = dict(zip(kernel.arg_names, args, strict=False)) | {k: v for k, v in options.items() if k not in launch}
    assert list(given) == kernel.arg_names
    for at, (name, value) in enumerate(given.items()):
        if isinstance(value, torch.Tensor):
            signature[name], whole = TYPES[value.dtype], True
        elif isinstance(value, float):
            signature[name], whole = "fp32", False
        elif name in options or value == 1:
            signature[name], whole = "constexpr", False
            constants[name] = value
        else:
            signature[name], whole = "i32", value % 16 == 0
        if whole:
            attributes[at,] = [["tt.divisibility", 16]]
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=attributes)
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=launch)


def resources(cubin, folder):
    """Numbers that `cuobjdump` tells of a kernel, by name."""
    (folder / "kernel.cubin").write_bytes(cubin)
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    command = [tool, "--dump-resource-usage", folder / "kernel.cubin"]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = dict(re.findall(r"(REG|STACK|LOCAL):(\d+)", told))
    return {name: int(value) for name, value in found.items()}


@pytest.fixture
def compiler(tmp_path, monkeypatch):
    """Nothing of an earlier run is taken for compiled."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")


def check(monkeypatch, folder, case, capability):
    for kernel, args, options in launches(monkeypatch, case):
        made = compiled(kernel, args, options, capability)
        about = f"{kernel.__name__} of {case.name} for sm_{capability}"
        assert f".target sm_{capability}{'' if capability == 80 else 'a'}" in made.asm["ptx"], about
        assert made.metadata.shared <= SHARED, f"{about}: {made.metadata.shared} bytes of shared memory"
        used = resources(made.asm["cubin"], folder)
        assert used["STACK"] + used["LOCAL"] <= SPILLED, f"{about} spills: {used}"


def variant(shape, dtype, asked):
    return Case(name=f"{shape} {dtype} {asked}", shape=shape, rows=((1, 30), (3, 9)), dtype=dtype, **asked)


@pytest.mark.parametrize("capability", [80, 90, 100])
def test_the_kernels_can_be_compiled_ahead_of_time(capability, compiler, tmp_path, monkeypatch):
    check(monkeypatch, tmp_path, variant(KVShape(1, 8, 128, 128, 32), "bfloat16", ALL), capability)


def test_those_for_latents_can_be_compiled_too(compiler, tmp_path, monkeypatch):
    check(monkeypatch, tmp_path, variant(latent(512, 64, 128), "bfloat16", {}), 90)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("capability", [80, 90, 100])
def test_every_variant_can_be_compiled_ahead_of_time(capability, dtype, compiler, tmp_path, monkeypatch):
    for dims in ((64, 64), (80, 80), (96, 96), (128, 128), (192, 128), (256, 256)):
        for (kv_heads, q_heads), asked in (((8, 32), ALL), ((1, 71), {})):
            check(monkeypatch, tmp_path, variant(KVShape(1, kv_heads, *dims, q_heads), dtype, asked), capability)
    for value, rest, heads, asked in ((512, 64, 16, ALL), (512, 64, 128, {}), (256, 32, 40, {})):
        check(monkeypatch, tmp_path, variant(latent(value, rest, heads), dtype, asked), capability)
