"""A case of the attention suite, laid out for a backend, and the dense attention that its answers are compared with."""

import math
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rtk.plugin.attention import AttentionBackend, BatchView, KVShape, LayerCall, SharedRun, Workspace
from rtk.plugin.testing.attention_cases import GQA, MLA, Case
from rtk.plugin.testing.check import NotApplicable

TOLERANCE = {"float64": 1e-10, "float32": 2e-5, "float16": 5e-3, "bfloat16": 4e-2}
"""Largest difference to the oracle, by type; the outputs are of size 1."""
A_NAN = "a NaN usually means that a slot was read that no query sees: a weight of 0 behind a mask does not hide it"
"""Where it comes from, for authors: the suite fills slots with it that nobody may read."""


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
            require(not case.about_pages, "that page size")
            nearest = min(capabilities.page_sizes, key=lambda size: abs(size - case.page_size))
            case = self.case = replace(case, page_size=nearest)
        shape = self.shape = case.shape or usual(self.backend)
        kind = "mla" if shape.mla else "mha"
        require(kind in capabilities.kinds, kind)
        require(case.features <= capabilities.features, ", ".join(case.features))
        require(case.dtype is None or case.dtype in capabilities.dtypes, str(case.dtype))
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
        hint = f" ({A_NAN})" if math.isnan(worst) else ""
        assert worst <= limit, f"{self.case.name}: {what}: off by {worst:.3g}, allowed is {limit:g}{hint}"


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


def require(holds: bool, what: str) -> None:
    """Leave a check out, where a backend does not declare `what`. Raises `NotApplicable`."""
    if not holds:
        raise NotApplicable(f"does not declare {what}")


def usual(backend: AttentionBackend) -> KVShape:
    """What checks that are not about shapes use: K/V heads where the backend knows them, latents otherwise."""
    return GQA if "mha" in backend.capabilities.kinds else MLA
