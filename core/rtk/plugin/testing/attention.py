"""The contract suite of attention backends: `CHECKS`, with a dense float64 oracle.

Every slot that no query may see holds NaN throughout, those of the page of slot 0 included.
"""

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rtk.plugin.attention import (
    DTYPE_BYTES,
    FEATURES,
    KINDS,
    AttentionBackend,
    BatchView,
    KVShape,
    LayerCall,
    SharedRun,
    Workspace,
)
from rtk.plugin.testing.check import Check, NotApplicable

TOLERANCE = {"float64": 1e-10, "float32": 2e-5, "float16": 5e-3, "bfloat16": 4e-2}
"""Largest difference to the oracle, by type; the outputs are of size 1."""

GQA = KVShape(layers=1, kv_heads=2, head_dim=16, v_head_dim=16, q_heads=6)
MLA = KVShape(layers=1, kv_heads=1, head_dim=576, v_head_dim=512, q_heads=16, mla=True)
"""As DeepSeek's models have it; some kernels take no other."""
MIXED = ((1, 1), (1, 40), (7, 7), (5, 23), (1, 3), (1, 39), (30, 75), (1, 64))
"""Rows as (q_len, kv_len): decoding, cold prefill and later chunks, in no order."""

Told = tuple[tuple[tuple[int, ...], int, int], ...]
"""Runs as (rows, start, stop)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One batch for one layer."""

    name: str
    rows: tuple[tuple[int, int], ...] = MIXED
    shape: KVShape | None = None
    """None: the usual one of the backend's kind."""
    page_size: int = 1
    about_pages: bool = False
    """False: a backend without this page size gets the nearest that it has."""
    window: int | None = None
    softcap: float | None = None
    sinks: bool = False
    scaling: float | None = None
    """None: the usual one of the head_dim."""
    scattered: bool = True
    """False: the slots of a row follow one another."""
    stray: bool = False
    """True: the second page of a row lies elsewhere, though its ends look as if the slots followed one another."""
    shared: int = 0
    """Tokens, in whole pages, that every row begins with, in the same slots: one cached prefix."""
    told: Told = ()
    """What of it the backend is told: these rows share these positions (`BatchView.shared`)."""
    dtype: str | None = None
    """None: the most precise type that the backend declares."""

    @property
    def features(self) -> set[str]:
        """What a backend must declare for this case."""
        asked = {"sliding_window": self.window, "softcap": self.softcap, "sinks": self.sinks}
        return {name for name, value in asked.items() if value}

    def visible(self, row: int) -> range:
        """Positions of a row that at least one of its queries sees."""
        q_len, kv_len = self.rows[row]
        first = 0 if self.window is None else max(0, kv_len - q_len - self.window + 1)
        return range(first, kv_len)


CASES = (
    *(Case(name=f"page {p}", page_size=p, about_pages=True) for p in (1, 16, 64)),
    Case(name="decode only", rows=tuple((1, n) for n in (5, 5, 5, 300, 301, 290, 17, 2, 1))),
    Case(name="long decode", rows=tuple((1, n) for n in (3000, 2700, 2900, 2800))),
    Case(name="one row", rows=((1, 50),)),
    Case(name="one row, slots in order", rows=((1, 50),), scattered=False),
    Case(name="mixed, slots in order", scattered=False, page_size=16),
    Case(name="one row, a slot elsewhere", rows=((1, 50),), scattered=False, stray=True),
    Case(name="mixed, a page elsewhere", scattered=False, stray=True, page_size=16),
    Case(name="one cold prompt", rows=((40, 40),), page_size=16),
    Case(name="long chunk", rows=((300, 700), (1, 600))),
    Case(name="mha", shape=replace(GQA, kv_heads=4, q_heads=4)),
    Case(name="mqa", shape=replace(GQA, kv_heads=1, q_heads=8)),
    Case(name="narrow values", shape=replace(GQA, head_dim=24, v_head_dim=16), page_size=16),
    Case(name="scaling of its own", scaling=0.5),
    Case(name="window", window=8),
    Case(name="window, page 16", window=20, page_size=16),
    Case(name="window 1", window=1),
    Case(name="window, long chunk", rows=((600, 900), (1, 600)), window=100),
    Case(name="softcap", softcap=5.0),
    Case(name="sinks", sinks=True, page_size=16),
    Case(name="window, softcap and sinks", window=8, softcap=5.0, sinks=True, page_size=64),
    *(
        Case(name=f"a shared prefix, page {p}", rows=((1, 70), (5, 100), (1, 66), (30, 140)), shared=64, page_size=p)
        for p in (1, 64)
    ),
    Case(name="a told prefix", rows=((1, 300), (1, 290), (1, 310), (1, 280)), shared=256, told=(((0, 1, 2), 0, 256),)),
    Case(
        name="a told prefix of longer rows",
        rows=((1, 70), (5, 100), (9, 90), (30, 140)),
        shared=64,
        told=(((0, 1, 3), 0, 64),),
        page_size=16,
    ),
    Case(
        name="a told tree",
        rows=((1, 200), (1, 199), (1, 180), (1, 181), (1, 190)),
        shared=128,
        told=(((0, 1, 2, 3), 0, 64), ((0, 2), 64, 128), ((1, 3), 64, 112)),
        page_size=16,
    ),
    Case(
        name="told, but hidden by a window",
        rows=((1, 100), (1, 150), (1, 110), (7, 120)),
        shared=96,
        told=(((0, 1, 2, 3), 0, 96),),
        window=40,
    ),
    Case(
        name="told with gaps, and sinks",
        rows=((1, 120), (1, 130), (6, 140), (1, 110)),
        shared=96,
        told=(((0, 1, 2, 3), 0, 32), ((0, 2), 48, 96), ((1, 3), 64, 80)),
        sinks=True,
        page_size=16,
    ),
    Case(
        name="told and long, slots in order",
        rows=((1, 700), (1, 1400), (300, 950), (1, 690), (2, 660)),
        shared=640,
        told=(((0, 1, 2, 3, 4), 0, 300), ((1, 2, 4), 300, 640)),
        scattered=False,
    ),
    *(Case(name=f"in {dtype}", dtype=dtype) for dtype in DTYPE_BYTES),
    *(
        Case(name=f"mla, page {p}", rows=((1, 1), (1, 70), (7, 7), (30, 75)), shape=MLA, page_size=p, about_pages=True)
        for p in (1, 64)
    ),
    Case(name="mla, decode only", shape=MLA, rows=((1, 5), (1, 130), (1, 300), (1, 1)), page_size=64),
    Case(name="mla, long decode", shape=MLA, rows=((1, 700), (1, 600))),
    Case(name="mla, one cold prompt", shape=MLA, rows=((40, 40),), scattered=False, page_size=64),
    Case(name="mla, long chunk", shape=MLA, rows=((150, 400), (1, 300)), page_size=64),
    Case(name="mla, 64 heads", shape=replace(MLA, q_heads=64), rows=((1, 70), (1, 50)), page_size=64),
    Case(name="mla, scaling of its own", shape=MLA, rows=((1, 20), (5, 30)), scaling=0.1),
    *(
        Case(
            name=f"mla, a told prefix, page {p}",
            shape=MLA,
            rows=((1, 150), (1, 140), (5, 135), (1, 160)),
            shared=128,
            told=(((0, 1, 3), 0, 128),),
            page_size=p,
        )
        for p in (1, 64)
    ),
    *(
        Case(name=f"mla in {dtype}", shape=MLA, rows=((1, 40), (7, 20)), dtype=dtype)
        for dtype in ("bfloat16", "float16")
    ),
)


@dataclass(slots=True)
class Scene:
    """A case, laid out for one backend: shuffled pages, shuffled table rows, random K/V, NaN wherever nobody looks."""

    backend: AttentionBackend
    case: Case
    layer: int = 0
    """Layers of one case have the same slots, and K/V of their own."""
    device: torch.device = field(init=False)
    dtype: torch.dtype = field(init=False)
    shape: KVShape = field(init=False)
    call: LayerCall = field(init=False)
    q: list[torch.Tensor] = field(init=False)
    k: list[torch.Tensor] = field(init=False)
    v: list[torch.Tensor] = field(init=False)
    table: torch.Tensor = field(init=False)
    req_rows: NDArray[np.int32] = field(init=False)
    slots: int = field(init=False)

    def __post_init__(self) -> None:
        case, capabilities = self.case, self.backend.capabilities
        self.device = device_of(self.backend)
        if capabilities.page_sizes is not None and case.page_size not in capabilities.page_sizes:
            _require(not case.about_pages, "that page size")
            nearest = min(capabilities.page_sizes, key=lambda size: abs(size - case.page_size))
            case = self.case = replace(case, page_size=nearest)
        shape = self.shape = case.shape or usual(self.backend)
        kind = "mla" if shape.mla else "mha"
        _require(kind in capabilities.kinds, kind)
        _require(case.features <= capabilities.features, ", ".join(case.features))
        _require(case.dtype is None or case.dtype in capabilities.dtypes, str(case.dtype))
        self.dtype = getattr(torch, case.dtype or most_precise(self.backend))
        seed = zlib.crc32(case.name.encode())
        random = torch.Generator().manual_seed(seed + self.layer)
        self.q = [self._random(random, q_len, shape.q_heads, shape.head_dim) for q_len, _ in case.rows]
        self.k = [self._random(random, kv_len, shape.kv_heads, shape.head_dim) for _, kv_len in case.rows]
        self.v = [self._random(random, kv_len, shape.kv_heads, shape.v_head_dim) for _, kv_len in case.rows]
        if shape.mla:
            self.v = [k[..., : shape.v_head_dim] for k in self.k]
        for first, *others in (self.k, self.v):
            for other in others:
                other[: case.shared] = first[: case.shared]
        if shape.mla:
            self.v = [k[..., : shape.v_head_dim] for k in self.k]
        sinks = self._random(random, shape.q_heads) if case.sinks else None
        scaling = shape.head_dim**-0.5 if case.scaling is None else case.scaling
        v_head_dim = shape.v_head_dim if shape.mla else None
        self.call = LayerCall(self.layer, scaling, case.window, case.softcap, sinks, v_head_dim)
        self._place(np.random.default_rng(seed))

    def _random(self, generator: torch.Generator, *shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(self.device, self.dtype)

    def _place(self, random: np.random.Generator) -> None:
        """Give every row pages of its own but for those it shares; the page of slot 0 and a few more stay unused.

        What the table names beyond a row's length are unused slots too: entries of requests that are gone.
        """
        page, lens = self.case.page_size, [kv_len for _, kv_len in self.case.rows]
        counts = [-(-n // page) for n in lens]
        pages = np.arange(1, sum(counts) + 4)
        if self.case.scattered:
            pages = random.permutation(pages)
        self.slots = len(pages) * page
        self.req_rows = random.permutation(len(lens) + 2)[: len(lens)].astype(np.int32)
        table = np.full((len(lens) + 2, max(lens) + 3), -1, np.int32)
        shared = pages[: self.case.shared // page].copy()
        for row, n in enumerate(lens):
            own, pages = pages[: counts[row]].copy(), pages[counts[row] :]
            own[: len(shared)] = shared
            if self.case.stray and len(own) > 2:
                own[1], pages[-1] = pages[-1], own[1]
            position = np.arange(n)
            table[self.req_rows[row], :n] = own[position // page] * page + position % page
        table[table < 0] = pages[0] * page + random.integers(page)
        self.table = torch.from_numpy(table).to(self.device)

    def slots_of(self, row: int, positions: range) -> torch.Tensor:
        """[len(positions)] int64 slots of one row's positions."""
        return self.table[int(self.req_rows[row]), positions.start : positions.stop].long()

    def buffers(self) -> dict[str, torch.Tensor]:
        """The layer's buffers, as the layout wants them, full of NaN."""
        layout = self.backend.layout(self.shape, self.case.page_size, str(self.dtype).removeprefix("torch."))
        rows = self.slots + self.case.page_size
        return {
            b.name: torch.full((rows, *b.shape), torch.nan, dtype=getattr(torch, b.dtype), device=self.device)
            for b in layout.buffers
        }

    def run(
        self,
        rows: Sequence[int] | None = None,
        *,
        spoil: Callable[[Mapping[str, torch.Tensor]], None] = lambda buffers: None,
        workspace: Workspace | None = None,
    ) -> list[torch.Tensor]:
        """Compute the given rows in one batch: outputs [q_len, q_heads, v_head_dim] row by row.

        `spoil` may change the buffers between the writes and the attention.
        """
        rows = range(len(self.case.rows)) if rows is None else rows
        buffers, batch, before = self.before(rows), self.view(rows), self.view(rows)
        table = self.table.clone()
        plan = self.backend.plan(batch, workspace or Workspace(self.device))
        self.write(buffers, rows)
        spoil(buffers)
        out = self.forward(buffers, rows, plan)
        assert torch.equal(self.table, table), "the backend changed req_to_token"
        for name in ("q_lens", "kv_lens", "req_rows", "slots"):
            same = (getattr(batch, name) == getattr(before, name)).all()
            assert same, f"the backend changed {name} of the batch"
        return out

    def before(self, rows: Sequence[int]) -> dict[str, torch.Tensor]:
        """Buffers with the earlier chunks of the given rows."""
        buffers = self.buffers()
        for row in rows:
            seen, new = self.case.visible(row), self._new(row)
            self._write(buffers, row, range(seen.start, max(seen.start, new.start)))
        return buffers

    def write(self, buffers: Mapping[str, torch.Tensor], rows: Sequence[int]) -> None:
        """Write the new tokens of the given rows."""
        k, v = (_strided([t[row][self._new(row).start :] for row in rows]) for t in (self.k, self.v))
        with _unchanged(k=k, v=v):
            self.backend.write(buffers, k, v, torch.cat([self.slots_of(row, self._new(row)) for row in rows]))

    def forward(self, buffers: Mapping[str, torch.Tensor], rows: Sequence[int], plan: Any) -> list[torch.Tensor]:
        """The outputs of the given rows."""
        q = _strided([self.q[row] for row in rows])
        with _unchanged(q=q, **buffers):
            out = self.backend.forward(q, buffers, self.call, plan)
        assert out.dtype == self.dtype, f"the output is {out.dtype}, the queries are {self.dtype}"
        return list(torch.split(out, [self.case.rows[row][0] for row in rows]))

    def new(self, rows: Sequence[int]) -> list[torch.Tensor]:
        """q, k and v of the given rows' new tokens."""
        k, v = (torch.cat([t[row][self._new(row).start :] for row in rows]) for t in (self.k, self.v))
        return [torch.cat([self.q[row] for row in rows]), k, v]

    def _new(self, row: int) -> range:
        q_len, kv_len = self.case.rows[row]
        return range(kv_len - q_len, kv_len)

    def _write(self, buffers: Mapping[str, torch.Tensor], row: int, positions: range) -> None:
        if positions:
            k, v = (t[row][positions.start : positions.stop] for t in (self.k, self.v))
            self.backend.write(buffers, k, v, self.slots_of(row, positions))

    def view(self, rows: Sequence[int]) -> BatchView:
        """What the backend plans for the given rows."""
        return BatchView(
            q_lens=np.array([self.case.rows[row][0] for row in rows], np.int32),
            kv_lens=np.array([self.case.rows[row][1] for row in rows], np.int32),
            req_rows=self.req_rows[list(rows)],
            req_to_token=self.table,
            slots=torch.cat([self.slots_of(row, self._new(row)) for row in rows]),
            page_size=self.case.page_size,
            shared=tuple(self._told(rows)),
        )

    def _told(self, rows: Sequence[int]) -> Iterator[SharedRun]:
        for sharing, start, stop in self.case.told:
            found = [i for i, row in enumerate(rows) if row in sharing]
            if len(found) > 1:
                yield SharedRun(np.array(found, np.int32), start, stop)

    def expected(self, row: int) -> torch.Tensor:
        """The oracle's answer for one row."""
        return oracle(self.q[row], self.k[row], self.v[row], self.call)

    def assert_close(self, got: torch.Tensor, wanted: torch.Tensor, what: str) -> None:
        """Within the tolerance of the type, and no NaN anywhere."""
        limit = TOLERANCE[str(self.dtype).removeprefix("torch.")]
        worst = (got.double() - wanted.double()).abs().max().item()
        assert worst <= limit, f"{self.case.name}: {what}: off by {worst:.3g}, allowed is {limit:g}"


def _strided(parts: list[torch.Tensor]) -> torch.Tensor:
    """[T, heads, dim] as models make it: head by head in memory."""
    return torch.cat(parts).transpose(0, 1).contiguous().transpose(0, 1)


@contextmanager
def _unchanged(**tensors: torch.Tensor) -> Iterator[None]:
    before = {name: tensor.clone() for name, tensor in tensors.items()}
    yield
    for name, tensor in tensors.items():
        message = f"the backend changed {name}"
        torch.testing.assert_close(tensor, before[name], rtol=0, atol=0, equal_nan=True, msg=message)


def oracle(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, call: LayerCall) -> torch.Tensor:
    """Dense attention of one sequence in float64, by the book.

    q [n, q_heads, head_dim] are the last n positions of k [m, kv_heads, head_dim] and v [m, kv_heads, v_head_dim].
    """
    q, k, v = q.double(), k.double(), v.double()
    group = q.shape[1] // k.shape[1]
    k, v = (t[:, :, None].expand(-1, -1, group, -1).flatten(1, 2) for t in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q, k) * call.scaling
    if call.softcap is not None:
        scores = call.softcap * torch.tanh(scores / call.softcap)
    key = torch.arange(len(k), device=q.device)
    query = key[len(k) - len(q) :, None]
    visible = key <= query
    if call.sliding_window is not None:
        visible &= key > query - call.sliding_window
    scores = scores.masked_fill(~visible, -torch.inf)
    if call.sinks is not None:
        sinks = call.sinks.double()[:, None, None].expand(-1, len(q), 1)
        scores = torch.cat([scores, sinks], dim=-1)
    return torch.einsum("hqk,khd->qhd", scores.softmax(dim=-1)[..., : len(k)], v)


def device_of(backend: AttentionBackend) -> torch.device:
    """A device of this machine that the backend runs on; raises `NotApplicable` where there is none."""
    for name, present in (("cuda", torch.cuda.is_available()), ("cpu", True)):
        if present and name in backend.capabilities.devices:
            return torch.device(name)
    raise NotApplicable(f"needs one of: {', '.join(sorted(backend.capabilities.devices))}")


def most_precise(backend: AttentionBackend) -> str:
    """The declared type with the smallest tolerance."""
    return min(backend.capabilities.dtypes, key=TOLERANCE.__getitem__)


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise NotApplicable(f"does not declare {what}")


def usual(backend: AttentionBackend) -> KVShape:
    """What checks that are not about shapes use: K/V heads where the backend knows them, latents otherwise."""
    return GQA if "mha" in backend.capabilities.kinds else MLA


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

    _require(backend.capabilities.graphs, "graphs")
    windows = (8, None) if "sliding_window" in backend.capabilities.features else (None, None)
    lens = (1, 1, 1, 150, 7, 40, 2, 65, 129)
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
    _mixed(backend).run(workspace=workspace)
    for rows in (*later, first):
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
