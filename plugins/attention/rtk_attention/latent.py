"""Latent attention by a kernel that only decodes: it takes rows of few queries, and another backend takes the rest."""

import importlib
import importlib.util
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from rtk.errors import PluginError
from rtk.plugin import AttentionBackend, BatchView, KVLayout, KVShape, LayerCall, Workspace
from rtk.plugin.host import installed
from rtk_attention.latent_options import LatentOptions
from rtk_attention.pool import PlainPool

MAX_QUERIES = 4
"""Rows of up to so many queries are decoded, those of each number in one call: to a kernel, rows are alike."""

Places = slice | torch.Tensor
"""Where some queries lie in the flattened batch."""


@dataclass(frozen=True, slots=True)
class Group:
    """Rows of one step with the same number of queries, as kernels for decoding want them."""

    places: Places
    q_len: int
    lens: torch.Tensor
    """[rows] int32: visible tokens at a row's last query."""
    longest: int
    """The greatest of them."""
    pages: torch.Tensor
    """[rows, width] int32: each row's pages in order, and page 0 after its last."""
    page_size: int


@dataclass(frozen=True, slots=True)
class Split:
    """One step: groups to decode, each with what `LatentDecoding.prepare` made, and what is left."""

    groups: tuple[tuple[Group, Any], ...]
    rest: tuple[Places, Any] | None
    """The queries that the other backend computes, and its plan."""


class LatentDecoding(PlainPool):
    """Composes a kernel with the backend that `extend` names. Both keep a latent as it comes."""

    name: ClassVar[str]
    """What configuration chooses it by."""
    latent: ClassVar[Mapping[int, int]]
    """Lengths of latents that the kernel takes, each with that of its value."""
    padding: ClassVar[int] = 1
    """Tables name pages for a multiple of so many tokens."""

    def __init__(self, options: LatentOptions) -> None:
        """Raises `PluginError` where the other backend cannot be built, or does not know latents."""
        entry = installed().get("attention", options.extend)
        self._other: AttentionBackend = entry.build(entry.plugin.options())
        if "mla" not in self._other.capabilities.kinds:
            raise PluginError(
                f"{self._key} = {options.extend} names a plugin that does not compute latent attention (MLA); "
                "name another"
            )

    @property
    def _key(self) -> str:
        return f"attention.{self.name.replace('-', '_')}.extend"

    @abstractmethod
    def prepare(self, group: Group, workspace: Workspace) -> Any:
        """What `decode` needs beyond the group, once a step."""

    @abstractmethod
    def decode(
        self, q: torch.Tensor, latents: torch.Tensor, call: LayerCall, group: Group, prepared: Any
    ) -> torch.Tensor:
        """q [rows, q_len, q_heads, head_dim], latents [pages, page_size, 1, head_dim] to [.., q_heads, v_head_dim]."""

    def layout(self, shape: KVShape, page_size: int, kv_dtype: str) -> KVLayout:
        if not shape.mla or self.latent.get(shape.head_dim) != shape.v_head_dim:
            made = " or ".join(f"{dim} with values of {value}" for dim, value in self.latent.items())
            have = "latents" if shape.mla else "keys"
            raise PluginError(
                f"attention plugin {self.name!r} takes latents of {made}, and the model has {have} of "
                f"{shape.head_dim} with values of {shape.v_head_dim}; use attention.backend = torch"
            )
        ours = super().layout(shape, page_size, kv_dtype)
        if self._other.layout(shape, page_size, kv_dtype) != ours:
            raise PluginError(f"the plugin that {self._key} names keeps latents in a way of its own; name another")
        return ours

    def plan(self, batch: BatchView, workspace: Workspace) -> Split:
        """O(tokens) on the host, O(rows * longest / page_size) on the device."""
        few = [int(n) for n in np.unique(batch.q_lens) if n <= MAX_QUERIES]
        groups = [self._group(batch, np.flatnonzero(batch.q_lens == n), n) for n in few]
        prepared = tuple((group, self.prepare(group, workspace)) for group in groups)
        many = np.flatnonzero(batch.q_lens > MAX_QUERIES)
        if not many.size:
            return Split(prepared, None)
        places = _places(batch, many)
        return Split(prepared, (places, self._other.plan(_part(batch, many, places), workspace)))

    def _group(self, batch: BatchView, rows: NDArray[np.int64], q_len: int) -> Group:
        page, table = batch.page_size, batch.req_to_token
        lens = batch.kv_lens[rows]
        longest = int(lens.max())
        on_device = _to_device(np.stack([lens, batch.req_rows[rows]]), table.device)
        width = _up(_up(longest, page), self.padding) // page
        pages = torch.zeros(len(rows), width, dtype=torch.int32, device=table.device)
        firsts = torch.arange(0, longest, page, device=table.device, dtype=torch.int32)
        # Beyond a row's length the table names what is left of others. Page 0 is there, and holds nobody's tokens.
        named = table[:, :longest:page].index_select(0, on_device[1]) // page
        pages[:, : len(firsts)] = named.masked_fill_(firsts >= on_device[0][:, None], 0)
        return Group(_places(batch, rows), q_len, on_device[0], longest, pages, page)

    def forward(self, q: torch.Tensor, kv: Mapping[str, torch.Tensor], call: LayerCall, plan: Split) -> torch.Tensor:
        done = [(group.places, self._decoded(q[group.places], kv["k"], call, group, own)) for group, own in plan.groups]
        if plan.rest is not None:
            places, theirs = plan.rest
            done.append((places, self._other.forward(q[places], kv, call, theirs)))
        if len(done) == 1:
            return done[0][1]
        out = q.new_empty(q.shape[0], *done[0][1].shape[1:])
        for places, part in done:
            out[places] = part
        return out

    def _decoded(self, q: torch.Tensor, k: torch.Tensor, call: LayerCall, group: Group, prepared: Any) -> torch.Tensor:
        rows = q.view(-1, group.q_len, *q.shape[1:])
        latents = k.view(-1, group.page_size, *k.shape[1:])
        return self.decode(rows, latents, call, group, prepared).flatten(0, 1)


def library(*names: str, extra: str) -> ModuleType:
    """Import the first module of which the package is installed. `extra` is the one of rtk's that brings the first.

    Raises `ImportError` that says what to install, or why it cannot be loaded.
    """
    for name in names:
        if importlib.util.find_spec(name.partition(".")[0]) is not None:
            try:
                return importlib.import_module(name)
            except OSError as error:  # CUDA's libraries are not there
                raise ImportError(f"{name} cannot be loaded: {error.__cause__ or error}") from error
    missing = names[0].partition(".")[0]
    raise ModuleNotFoundError(f"{missing} is not installed; run: pip install 'rtk-inference[{extra}]'")


def _places(batch: BatchView, rows: NDArray[np.int64]) -> Places:
    """Where the queries of the rows lie; a slice where they follow one another."""
    ends = np.cumsum(batch.q_lens, dtype=np.int64)
    first, stop = int(ends[rows[0]] - batch.q_lens[rows[0]]), int(ends[rows[-1]])
    if stop - first == int(batch.q_lens[rows].sum()):
        return slice(first, stop)
    theirs = np.zeros(len(batch.q_lens), bool)
    theirs[rows] = True
    return _to_device(np.flatnonzero(np.repeat(theirs, batch.q_lens)), batch.req_to_token.device)


def _part(batch: BatchView, rows: NDArray[np.int64], places: Places) -> BatchView:
    """The batch of some of the rows."""
    if len(rows) == len(batch.q_lens):
        return batch
    index = np.full(len(batch.q_lens), -1, np.int32)
    index[rows] = np.arange(len(rows))
    runs = (run._replace(rows=index[run.rows][index[run.rows] >= 0]) for run in batch.shared)
    return replace(
        batch,
        q_lens=batch.q_lens[rows],
        kv_lens=batch.kv_lens[rows],
        req_rows=batch.req_rows[rows],
        slots=batch.slots[places],
        shared=tuple(run for run in runs if len(run.rows) > 1),
    )


def _up(tokens: int, multiple: int) -> int:
    return -(-tokens // multiple) * multiple


def _to_device(numbers: NDArray[Any], device: torch.device) -> torch.Tensor:
    """From pinned memory where there is a device, which the host does not wait for."""
    host = torch.from_numpy(numbers)
    if device.type == "cuda":
        host = host.pin_memory()
    return host.to(device, non_blocking=True)
