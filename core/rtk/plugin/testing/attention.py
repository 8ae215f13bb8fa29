"""The contract suite of attention backends: `CHECKS`, with a dense float64 oracle.

Every slot that no query may see holds NaN throughout, those of the page of slot 0 included.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch

from rtk.plugin.attention import (
    DTYPE_BYTES,
    FEATURES,
    KINDS,
    AttentionBackend,
    BatchView,
    Workspace,
)
from rtk.plugin.testing.attention_cases import CASES, Case, Told
from rtk.plugin.testing.attention_scene import Scene, device_of, most_precise, require, usual
from rtk.plugin.testing.check import Check


def _pages(backend: AttentionBackend) -> Sequence[int]:
    return sorted(backend.capabilities.page_sizes or {1, 16})


def _mixed(backend: AttentionBackend) -> Scene:
    return Scene(backend, Case(name="mixed", page_size=_pages(backend)[-1]))


def check_declaration(backend: AttentionBackend) -> None:
    """Capabilities use the words that the host knows."""
    declared = backend.capabilities
    assert declared.devices, "no device declared"
    assert declared.dtypes, "no type declared"
    assert declared.dtypes <= set(DTYPE_BYTES), f"unknown types {declared.dtypes - set(DTYPE_BYTES)}"
    assert declared.features <= FEATURES, f"unknown features {declared.features - FEATURES}"
    assert declared.kinds, "no kind of attention declared"
    assert declared.kinds <= KINDS, f"unknown kinds {declared.kinds - KINDS}"
    assert declared.page_sizes is None or all(p > 0 for p in declared.page_sizes), "page sizes are positive"


def check_layout(backend: AttentionBackend) -> None:
    """The layout answers what it was asked, has unique names, and costs in proportion to the layers."""
    page, dtype = _pages(backend)[0], most_precise(backend)
    once, twice = (backend.layout(replace(usual(backend), layers=n), page, dtype) for n in (3, 6))
    assert (once.layers, once.page_size) == (3, page)
    assert len({b.name for b in once.buffers}) == len(once.buffers) > 0, "buffer names must be unique"
    assert 0 < 2 * once.bytes_per_slot == twice.bytes_per_slot


def check_fingerprint(backend: AttentionBackend) -> None:
    """Equal layouts have equal fingerprints; whatever changes the bytes changes the fingerprint."""
    pages, dtypes = _pages(backend), sorted(backend.capabilities.dtypes)
    shape = usual(backend)
    layouts = [backend.layout(shape, page, dtype) for page in pages for dtype in dtypes]
    layouts.append(backend.layout(replace(shape, layers=2), pages[0], dtypes[0]))
    if not shape.mla:
        layouts.append(backend.layout(replace(shape, head_dim=32, v_head_dim=32), pages[0], dtypes[0]))
    assert len({layout.fingerprint for layout in layouts}) == len(layouts), "two layouts share a fingerprint"
    assert backend.layout(shape, pages[0], dtypes[0]).fingerprint == layouts[0].fingerprint, "it is not stable"


def check_write(backend: AttentionBackend) -> None:
    """`write` fills its slots and touches no other."""
    scene = _mixed(backend)
    buffers = scene.buffers()
    slots = scene.slots_of(1, range(3, 9))
    backend.write(buffers, scene.k[1][3:9], scene.v[1][3:9], slots)
    for name, buffer in buffers.items():
        written = ~buffer.isnan().flatten(1).any(dim=1)
        assert written.nonzero().flatten().tolist() == sorted(slots.tolist()), f"buffer {name!r}: wrong slots written"


def check_only_visible_slots_are_read(backend: AttentionBackend) -> None:
    """What lies in other slots makes no difference: NaN and 1e4 give one answer."""
    scene = _mixed(backend)

    def fill(buffers: Mapping[str, torch.Tensor]) -> None:
        for buffer in buffers.values():
            buffer.nan_to_num_(nan=1e4)

    for row, (a, b) in enumerate(zip(scene.run(), scene.run(spoil=fill), strict=True)):
        scene.assert_close(a, b, f"row {row} depends on slots that it may not see")


def check_every_visible_slot_is_read(backend: AttentionBackend) -> None:
    """A change in one visible slot changes its row, and no other row."""
    scene = _mixed(backend)
    before = scene.run()
    for row, (_, kv_len) in enumerate(scene.case.rows):
        for position in {0, kv_len // 2, kv_len - 1} if kv_len > 1 else {0}:
            slot = scene.slots_of(row, range(position, position + 1))

            def zero(buffers: Mapping[str, torch.Tensor], slot: torch.Tensor = slot) -> None:
                for buffer in buffers.values():
                    buffer[slot] = 0

            after = scene.run(spoil=zero)
            changed = {i for i, (a, b) in enumerate(zip(before, after, strict=True)) if not torch.equal(a, b)}
            assert changed == {row}, f"position {position} of row {row} is seen by rows {sorted(changed)}"


def check_neighbours(backend: AttentionBackend) -> None:
    """A row alone gives what it gives in a batch."""
    scene = _mixed(backend)
    for row, together in enumerate(scene.run()):
        scene.assert_close(scene.run([row])[0], together, f"row {row} depends on its neighbours")


def check_earlier_steps(backend: AttentionBackend) -> None:
    """What an earlier step left in the workspace, or in the backend, makes no difference."""
    workspace, first = Workspace(device_of(backend)), _mixed(backend)
    first.run(workspace=workspace)
    second = Scene(backend, replace(first.case, name="a later step"))
    for rows in (range(len(second.case.rows)), [1, 3]):
        for row, got in zip(rows, second.run(rows, workspace=workspace), strict=True):
            second.assert_close(got, second.expected(row), f"row {row} depends on an earlier step")


def check_layers(backend: AttentionBackend) -> None:
    """One plan serves layers of different K/V and windows, and all may be written before the first is read."""
    windows = (8, None, 3) if "sliding_window" in backend.capabilities.features else (None, None, None)
    case = Case(name="layers", shape=replace(usual(backend), layers=len(windows)), page_size=_pages(backend)[-1])
    scenes = [Scene(backend, replace(case, window=window), layer) for layer, window in enumerate(windows)]
    rows = range(len(case.rows))
    buffers = [scene.before(rows) for scene in scenes]
    plan = backend.plan(scenes[0].view(rows), Workspace(device_of(backend)))
    for scene, own in zip(scenes, buffers, strict=True):
        scene.write(own, rows)
    for scene, own in zip(scenes, buffers, strict=True):
        for row, got in enumerate(scene.forward(own, rows, plan)):
            scene.assert_close(got, scene.expected(row), f"layer {scene.layer}, row {row}")


def check_replay(backend: AttentionBackend) -> None:
    """What was recorded of one step serves others of as many rows, on a CUDA device as a graph."""
    from rtk.model.cuda_graphs import cuda_recorder

    require(backend.capabilities.graphs, "graphs")
    windows = (8, None) if "sliding_window" in backend.capabilities.features else (None, None)
    lens = (1, 1, 1, 150, 7, 40, 2, 65, 9)
    shape = replace(usual(backend), layers=len(windows))
    case = Case(name="replayed", rows=tuple((1, n) for n in lens), shape=shape, page_size=_pages(backend)[-1])
    scenes = [Scene(backend, replace(case, window=window), layer) for layer, window in enumerate(windows)]
    buffers = [scene.before(range(len(lens))) for scene in scenes]
    first, *later = (range(at, at + 3) for at in range(0, len(lens), 3))
    device = scenes[0].device
    workspace, inputs = Workspace(device), [scene.new(first) for scene in scenes]
    slots = scenes[0].view(first).slots.clone()
    outputs: list[torch.Tensor] = []

    def view(rows: Sequence[int]) -> BatchView:
        return replace(scenes[0].view(rows), slots=slots, replayed=True)

    def run() -> None:
        outputs.clear()
        for scene, own, (q, k, v) in zip(scenes, buffers, inputs, strict=True):
            backend.write(own, k, v, slots)
            outputs.append(backend.forward(q, own, scene.call, plan))

    plan = backend.plan(view(first), workspace)
    run()
    replay = cuda_recorder(device)(run) if device.type == "cuda" else run
    held = workspace.held()  # as the host does, which takes other steps in between
    scenes[0].run(workspace=workspace)
    for rows in later:
        slots.copy_(scenes[0].view(rows).slots)
        for scene, own in zip(scenes, inputs, strict=True):
            for tensor, given in zip(own, scene.new(rows), strict=True):
                tensor.copy_(given)
        backend.replan(plan, view(rows))
        replay()
        for scene, out in zip(scenes, outputs, strict=True):
            for row, got in zip(rows, out, strict=True):
                scene.assert_close(got[None], scene.expected(row), f"row {row} of {lens[row]}, layer {scene.layer}")
    del held


def _oracle_check(case: Case) -> Callable[[AttentionBackend], None]:
    def run(backend: AttentionBackend) -> None:
        """Every row equals dense attention in float64, within the tolerance of the type."""
        scene = Scene(backend, case)
        for row, got in enumerate(scene.run()):
            scene.assert_close(got, scene.expected(row), f"row {row} {case.rows[row]}")

    return run


def any_batch_equals_the_oracle(backend: AttentionBackend) -> None:
    """Hypothesis looks for a batch whose answers are not the oracle's."""
    from hypothesis import given

    from rtk.plugin.testing.strategies import batches, few

    @few(25)
    @given(batches())
    def search(found: tuple[tuple[tuple[int, int], ...], bool, int]) -> None:
        rows, scattered, seed = found
        page = _pages(backend)[seed % len(_pages(backend))]
        _oracle_check(Case(name=f"{rows} {seed}", rows=rows, scattered=scattered, page_size=page))(backend)

    search()


def any_told_batch_equals_the_oracle(backend: AttentionBackend) -> None:
    """Hypothesis looks for rows that share a prefix, and for what of it is told, where the answers are wrong."""
    from hypothesis import given

    from rtk.plugin.testing.strategies import few, told_batches

    @few(25)
    @given(told_batches())
    def search(found: tuple[tuple[tuple[int, int], ...], int, Told, bool]) -> None:
        rows, shared, told, scattered = found
        page = _pages(backend)[shared % len(_pages(backend))]
        case = Case(name=f"{rows} {told}", rows=rows, shared=shared, told=told, scattered=scattered, page_size=page)
        _oracle_check(case)(backend)

    search()


def _check(name: str, run: Callable[[AttentionBackend], None], *, quick: bool = True) -> Check:
    return Check(name, lambda subject: run(subject()), quick, " ".join((run.__doc__ or "").split()))


CHECKS: tuple[Check, ...] = (
    _check("declares known things", check_declaration),
    _check("layout", check_layout),
    _check("fingerprint", check_fingerprint),
    _check("write touches its slots only", check_write),
    _check("reads visible slots only", check_only_visible_slots_are_read),
    _check("reads every visible slot", check_every_visible_slot_is_read, quick=False),
    _check("does not depend on neighbours", check_neighbours),
    _check("does not depend on earlier steps", check_earlier_steps),
    _check("serves every layer by one plan", check_layers),
    _check("serves other steps when it is replayed", check_replay),
    *(_check(f"equals the oracle: {case.name}", _oracle_check(case)) for case in CASES),
    _check("any batch equals the oracle", any_batch_equals_the_oracle, quick=False),
    _check("any told batch equals the oracle", any_told_batch_equals_the_oracle, quick=False),
)
"""The whole contract."""
