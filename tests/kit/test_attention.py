"""Planted faults of attention backends: the contract suite catches each."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from planted import assert_caught, assert_passes

from rtk.plugin import (
    AttentionBackend,
    BatchView,
    BufferSpec,
    Capabilities,
    KVLayout,
    KVShape,
    LayerCall,
    Workspace,
)
from rtk.plugin.testing import suite
from rtk.plugin.testing.attention_scene import oracle
from rtk_attention.torch.plan import BUCKET_SLOTS, FREE_WASTE, buckets


class Plain(AttentionBackend):
    """As simple as it gets: row by row, through the oracle. The faulty ones below differ from it in one place each."""

    capabilities = Capabilities(
        devices=frozenset({"cpu"}),
        dtypes=frozenset({"float64"}),
        features=frozenset({"sliding_window", "softcap", "sinks"}),
    )

    def layout(self, shape: KVShape, page_size: int, kv_dtype: str) -> KVLayout:
        k = BufferSpec("k", (shape.kv_heads, shape.head_dim), kv_dtype)
        v = BufferSpec("v", (shape.kv_heads, shape.v_head_dim), kv_dtype)
        return KVLayout(shape.layers, page_size, (k, v))

    def plan(self, batch: BatchView, workspace: Workspace) -> BatchView:
        return batch

    def write(self, kv: Mapping[str, torch.Tensor], k: torch.Tensor, v: torch.Tensor, slots: torch.Tensor) -> None:
        kv["k"][slots], kv["v"][slots] = k, v

    def slots(self, batch: BatchView, row: int) -> torch.Tensor:
        return batch.req_to_token[int(batch.req_rows[row]), : int(batch.kv_lens[row])].long()

    def row(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, call: LayerCall) -> torch.Tensor:
        n = len(k) if call.sliding_window is None else len(q) + call.sliding_window - 1
        return oracle(q, k[-n:], v[-n:], call)

    def forward(
        self, q: torch.Tensor, kv: Mapping[str, torch.Tensor], call: LayerCall, plan: BatchView
    ) -> torch.Tensor:
        out = []
        for row, queries in enumerate(q.split(plan.q_lens.tolist())):
            slots = self.slots(plan, row)
            out.append(self.row(queries, kv["k"][slots], kv["v"][slots], call))
        return torch.cat(out)


class OneKeyShort(Plain):
    def row(self, q, k, v, call):
        return super().row(q, k[:-1], v[:-1], call) if len(k) > len(q) else super().row(q, k, v, call)


class IgnoresTheWindow(Plain):
    def row(self, q, k, v, call):
        return oracle(q, k, v, LayerCall(call.layer, call.scaling, None, call.softcap, call.sinks))


class WindowOffByOne(Plain):
    def row(self, q, k, v, call):
        window = call.sliding_window and call.sliding_window + 1
        return super().row(q, k, v, LayerCall(call.layer, call.scaling, window, call.softcap, call.sinks))


class ReadsPadding(Plain):
    """Pads the keys with slot 0 and hides them with a weight of zero: 0 * NaN is NaN."""

    def row(self, q, k, v, call):
        return super().row(q, k, v, call) + 0 * self.padding

    def forward(self, q, kv, call, plan):
        self.padding = kv["v"][0].sum()
        return super().forward(q, kv, call, plan)


class InterleavesHeads(Plain):
    """Takes neighbouring query heads for neighbours of different K/V heads."""

    def row(self, q, k, v, call):
        group = q.shape[1] // k.shape[1]
        return super().row(q, k.repeat(1, group, 1), v.repeat(1, group, 1), call)


class ForgetsTheSinks(Plain):
    def row(self, q, k, v, call):
        return super().row(q, k, v, LayerCall(call.layer, call.scaling, call.sliding_window, call.softcap))


class ForgetsTheSoftcap(Plain):
    def row(self, q, k, v, call):
        return super().row(q, k, v, LayerCall(call.layer, call.scaling, call.sliding_window, None, call.sinks))


class ConfusesRows(Plain):
    """Takes the batch row for the row of the table."""

    def slots(self, batch, row):
        return batch.req_to_token[row, : int(batch.kv_lens[row])].long()


class SeesTheFuture(Plain):
    def row(self, q, k, v, call):
        return torch.cat([super(SeesTheFuture, self).row(q[i : i + 1], k, v, call) for i in range(len(q))])


class WritesTooMuch(Plain):
    def write(self, kv, k, v, slots):
        super().write(kv, k, v, slots)
        kv["k"][0], kv["v"][0] = 0, 0


class OneFingerprint(Plain):
    def layout(self, shape, page_size, kv_dtype):
        return super().layout(shape, 1, kv_dtype)


class KeepsAnEarlierGather(Plain):
    """Takes a row of the same length for the same row."""

    def __init__(self):
        self.kept = {}

    def row(self, q, k, v, call):
        return super().row(q, self.kept.setdefault(k.shape, k), v, call)


class ScalesByItself(Plain):
    def row(self, q, k, v, call):
        return super().row(q, k, v, replace(call, scaling=q.shape[-1] ** -0.5))


class TakesEndsForARun(Plain):
    def slots(self, batch, row):
        slots = super().slots(batch, row)
        run = torch.arange(int(slots[0]), int(slots[0]) + len(slots))
        return run if slots[-1] == run[-1] else slots


class SpendsItsPlan(Plain):
    def plan(self, batch, workspace):
        return [batch]

    def forward(self, q, kv, call, plan):
        assert plan, "one forward for each plan"
        return super().forward(q, kv, call, plan.pop())


class KeepsTheFirstWindow(Plain):
    def plan(self, batch, workspace):
        self.windows = []
        return batch

    def forward(self, q, kv, call, plan):
        self.windows.append(call.sliding_window)
        return super().forward(q, kv, replace(call, sliding_window=self.windows[0]), plan)


class ReadsWhatWasWrittenLast(Plain):
    def write(self, kv, k, v, slots):
        super().write(kv, k, v, slots)
        self.kv = kv

    def forward(self, q, kv, call, plan):
        return super().forward(q, self.kv, call, plan)


class WantsItInOnePiece(Plain):
    def write(self, kv, k, v, slots):
        k.view(-1), v.view(-1)
        super().write(kv, k, v, slots)


class WantsQueriesInOnePiece(Plain):
    def forward(self, q, kv, call, plan):
        return super().forward(q.view(-1).view(q.shape), kv, call, plan)


class ScalesQueriesInPlace(Plain):
    def forward(self, q, kv, call, plan):
        return super().forward(q.mul_(call.scaling), kv, replace(call, scaling=1.0), plan)


class CleansUpTheKeys(Plain):
    def write(self, kv, k, v, slots):
        super().write(kv, k, v, slots)
        k.zero_()


class ScribblesOnThePool(Plain):
    def forward(self, q, kv, call, plan):
        out = super().forward(q, kv, call, plan)
        kv["k"][self.slots(plan, 0)] = 0
        return out


class OnePageOff(Plain):
    """Begins a row with its second page."""

    def slots(self, batch, row):
        slots = super().slots(batch, row)
        return slots.roll(-batch.page_size)


class ForgetsTheLastPage(Plain):
    """Drops a last page that holds one token only."""

    def row(self, q, k, v, call):
        drop = len(k) > len(q) and len(k) % 16 == 1
        return super().row(q, k[:-1], v[:-1], call) if drop else super().row(q, k, v, call)


class OwnsSlots(Plain):
    """Takes a slot for one row's, though rows may begin with the same cached prefix."""

    def forward(self, q, kv, call, plan):
        owner = torch.full((len(kv["k"]),), -1)
        for row in range(len(plan.q_lens)):
            owner[super().slots(plan, row)] = row
        self.owner = owner
        return super().forward(q, kv, call, plan)

    def slots(self, batch, row):
        slots = super().slots(batch, row)
        return slots[self.owner[slots] == row]


class TakesRunsForPrefixes(Plain):
    """Takes what a run tells of for the first tokens of its rows, wherever it starts."""

    def slots(self, batch, row):
        slots = super().slots(batch, row).clone()
        for run in batch.shared:
            if row in run.rows:
                slots[: run.stop - run.start] = super().slots(batch, int(run.rows[0]))[run.start : run.stop]
        return slots


class CountsNonzero(Plain):
    """Takes the table for empty beyond the end of a row."""

    def slots(self, batch, row):
        slots = batch.req_to_token[int(batch.req_rows[row])]
        return slots[slots != 0].long()


class ChangesTheBatch(Plain):
    def plan(self, batch, workspace):
        self.kv_lens = batch.kv_lens.copy()
        batch.kv_lens[:] -= batch.q_lens
        return replace(batch, kv_lens=self.kv_lens)


class ChangesTheSlots(Plain):
    def plan(self, batch, workspace):
        batch.slots.zero_()
        return batch


class KnowsOnePageSize(ScalesByItself):
    """What is not about pages is asked of it all the same."""

    capabilities = replace(Plain.capabilities, page_sizes=frozenset({64}))


class Replayed(Plain):
    """A plan is a list of one batch, and serves the batch that is in it."""

    capabilities = replace(Plain.capabilities, graphs=True)

    def plan(self, batch, workspace):
        return [batch]

    def replan(self, plan, batch):
        plan[0] = batch

    def forward(self, q, kv, call, plan):
        return super().forward(q, kv, call, plan[0])


class Latent(Replayed):
    """Latents only: one buffer, and the value is the beginning of a key."""

    capabilities = replace(Replayed.capabilities, features=frozenset(), kinds=frozenset({"mla"}))

    def layout(self, shape, page_size, kv_dtype):
        return KVLayout(shape.layers, page_size, (BufferSpec("k", (1, shape.head_dim), kv_dtype),))

    def write(self, kv, k, v, slots):
        kv["k"][slots] = k

    def forward(self, q, kv, call, plan):
        return super().forward(q, kv | {"v": self.value(kv["k"], call)}, call, plan)

    def value(self, latent, call):
        return latent[..., : call.v_head_dim]


class TakesTheEndForTheValue(Latent):
    def value(self, latent, call):
        return latent[..., -call.v_head_dim :]


class KeepsItsPlan(Replayed):
    def replan(self, plan, batch):
        """The lengths stay those of the first step."""


class PlansTheLengthsOnly(Replayed):
    def replan(self, plan, batch):
        plan[0] = replace(batch, req_rows=plan[0].req_rows)


class DropsWindowsForGood(Replayed):
    """Which windows hide nothing is found out once, and is not so in later steps."""

    def plan(self, batch, workspace):
        return [batch, int(batch.kv_lens.max())]

    def forward(self, q, kv, call, plan):
        if plan[0].replayed and call.sliding_window and call.sliding_window >= plan[1]:
            call = replace(call, sliding_window=None)
        return super().forward(q, kv, call, plan)


class DeclaresGraphsOnly(Plain):
    capabilities = replace(Plain.capabilities, graphs=True)


FAULTY = [
    *(
        (faulty, "serves other steps when it is replayed")
        for faulty in (KeepsItsPlan, PlansTheLengthsOnly, DropsWindowsForGood, DeclaresGraphsOnly)
    ),
    (KnowsOnePageSize, "equals the oracle: scaling of its own"),
    (OwnsSlots, "equals the oracle: a shared prefix, page 64"),
    (TakesTheEndForTheValue, "equals the oracle: mla, page 1"),
    (TakesRunsForPrefixes, "equals the oracle: a told tree"),
    (TakesRunsForPrefixes, "any told batch equals the oracle"),
    (CountsNonzero, "equals the oracle: page 1"),
    (ChangesTheBatch, "equals the oracle: page 1"),
    (ChangesTheSlots, "equals the oracle: page 1"),
    (OneKeyShort, "equals the oracle: page 1"),
    (IgnoresTheWindow, "equals the oracle: window"),
    (WindowOffByOne, "equals the oracle: window"),
    (ReadsPadding, "reads visible slots only"),
    (InterleavesHeads, "equals the oracle: page 1"),
    (ForgetsTheSinks, "equals the oracle: sinks"),
    (ForgetsTheSoftcap, "equals the oracle: softcap"),
    (ConfusesRows, "equals the oracle: page 1"),
    (SeesTheFuture, "equals the oracle: one cold prompt"),
    (WritesTooMuch, "write touches its slots only"),
    (OneFingerprint, "fingerprint"),
    (KeepsAnEarlierGather, "does not depend on earlier steps"),
    (ScalesByItself, "equals the oracle: scaling of its own"),
    (TakesEndsForARun, "equals the oracle: one row, a slot elsewhere"),
    (SpendsItsPlan, "serves every layer by one plan"),
    (KeepsTheFirstWindow, "serves every layer by one plan"),
    (ReadsWhatWasWrittenLast, "serves every layer by one plan"),
    (WantsItInOnePiece, "equals the oracle: page 1"),
    (WantsQueriesInOnePiece, "equals the oracle: page 1"),
    (ScalesQueriesInPlace, "equals the oracle: page 1"),
    (CleansUpTheKeys, "equals the oracle: page 1"),
    (OneKeyShort, "any batch equals the oracle"),
    (OnePageOff, "equals the oracle: page 16"),
    (ForgetsTheLastPage, "any batch equals the oracle"),
    (ScribblesOnThePool, "equals the oracle: page 1"),
]


@pytest.mark.parametrize("backend", [Plain, Replayed])
def test_a_plain_backend_passes(backend):
    assert_passes("attention", backend)


def test_a_backend_of_latents_is_asked_for_nothing_else():
    """Checks that are not about a shape use latents too."""
    for check in suite("attention"):
        if check.quick and ("mla, " in check.name or "oracle" not in check.name):
            check(Latent)


@pytest.mark.parametrize(("backend", "check"), FAULTY, ids=lambda v: v if isinstance(v, str) else v.__name__)
def test_planted_faults_are_caught(backend: type[Plain], check: str):
    assert_caught("attention", backend, check)


def test_a_nan_is_told_with_where_it_usually_comes_from():
    by_name = {check.name: check for check in suite("attention")}
    with pytest.raises(AssertionError) as caught:
        by_name["reads visible slots only"](ReadsPadding)
    assert str(caught.value).splitlines()[0].partition(": off by ")[2] == (
        "nan, allowed is 1e-10 "
        "(a NaN usually means that a slot was read that no query sees: a weight of 0 behind a mask does not hide it)"
    )
    with pytest.raises(AssertionError) as caught:
        by_name["equals the oracle: page 1"](OneKeyShort)
    assert str(caught.value).splitlines()[0].endswith(", allowed is 1e-10")


@given(st.lists(st.one_of(st.integers(1, 40), st.integers(1, 20_000)), max_size=80))
def test_buckets_of_the_reference_waste_little(lens):
    rows = np.arange(len(lens)) * 3
    found = list(buckets(rows, np.array(lens, np.int64)))
    assert sorted(np.concatenate([*found, np.empty(0)]).tolist()) == rows.tolist()
    for bucket in found:
        assert (np.diff(bucket) > 0).all()
        used = [lens[row // 3] for row in bucket]
        padded = max(used) * len(used)
        assert padded - sum(used) <= sum(used) // 4 + FREE_WASTE
        assert len(used) == 1 or padded <= BUCKET_SLOTS
