"""Draws as a CUDA device makes them, on CPU tensors. `test_sampler.py` puts them to everything that the host's pass."""

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from rtk.model import sampler
from rtk.model.draws import ONE, draw
from rtk.model.sampler import sample
from rtk.schedule.batch import Bias, Penalties, SampleInputs


def parameters(rng, n, **more):
    """Rows of every kind, with and without each limit."""

    def some(values, otherwise):
        return np.where(rng.random(n) < 0.5, values, otherwise)

    return {
        "temperature": rng.uniform(0.2, 2, n).astype(np.float32),
        "top_k": some(rng.integers(1, 60, n), 0).astype(np.int32),
        "top_p": some(rng.uniform(0.2, 1, n), 1).astype(np.float32),
        "min_p": some(rng.uniform(0, 0.2, n), 0).astype(np.float32),
        "uniform": rng.random(n),
        **more,
    }


def drawn(logits, given):
    return draw(logits, SampleInputs(**given), np.arange(len(logits))).tolist()


def one(**given):
    """A row without limits, but for what is given."""
    return {
        "temperature": np.array([given.get("temperature", 1.0)], np.float32),
        "top_k": np.array([given.get("top_k", 0)], np.int32),
        "top_p": np.array([given.get("top_p", 1.0)], np.float32),
        "uniform": np.array([given["uniform"]]),
    }


def test_the_host_draws_the_same():
    rng = np.random.default_rng(5)
    logits = torch.from_numpy(rng.normal(0, 3, (300, 5000)).astype(np.float32))
    given = parameters(rng, 300)
    assert drawn(logits, given) == sample(logits, SampleInputs(**given), 5000).ids.tolist()  # on a CPU


def test_only_the_rows_that_are_named_are_drawn():
    rng = np.random.default_rng(6)
    logits = torch.from_numpy(rng.normal(0, 1, (9, 50)).astype(np.float32))
    given = parameters(rng, 9)
    which = np.array([7, 0, 3])
    assert draw(logits, SampleInputs(**given), which).tolist() == [drawn(logits, given)[i] for i in which]


def test_no_neighbour_and_no_cut_of_the_batch_makes_a_difference(monkeypatch):
    rng = np.random.default_rng(6)
    logits = torch.from_numpy(rng.normal(0, 1, (40, 300)).astype(np.float32))
    given = parameters(rng, 40)
    together = drawn(logits, given)
    alone = [drawn(logits[i : i + 1], {name: own[i : i + 1] for name, own in given.items()})[0] for i in range(40)]
    assert alone == together
    monkeypatch.setattr("rtk.model.logprobs.AT_ONCE", 300 * 7)
    assert drawn(logits, given) == together


@settings(deadline=None, max_examples=60)
@given(
    levels=st.lists(st.integers(0, 2), min_size=1, max_size=12),
    top_k=st.integers(0, 13),
    top_p=st.sampled_from([0.01, 0.26, 0.51, 0.77, 1.0]),
    uniform=st.sampled_from([0.003, 0.21, 0.47, 0.73, 0.997]),
)
def test_of_equals_the_first_are_kept(levels, top_k, top_p, uniform):
    """With weights of 1, 1/2 and 1/4 few sums lie near a border."""
    weights = [2.0 ** (min(levels) - level) for level in levels]
    ids = sorted(range(len(levels)), key=lambda i: (levels[i], i))[: top_k or None]
    if top_p < 1:
        mass = np.cumsum([weights[i] for i in ids])
        assume(np.abs(mass - top_p * mass[-1]).min() > 1e-6)
        ids = ids[: int(np.searchsorted(mass, top_p * mass[-1])) + 1]
    mass = np.cumsum([weights[i] for i in sorted(ids)])
    assume(np.abs(mass - uniform * mass[-1]).min() > 1e-6)
    wanted = sorted(ids)[int(np.searchsorted(mass, uniform * mass[-1], side="right"))]
    logits = torch.tensor([levels], dtype=torch.float32) * -math.log(2)
    assert drawn(logits, one(top_k=top_k, top_p=top_p, uniform=uniform)) == [wanted]


@pytest.mark.parametrize("share", [0.0, 0.5, 1 - 2**-53])
@pytest.mark.parametrize("width", [1, 2, 1000])
def test_the_ends_of_a_flat_row(width, share):
    assert drawn(torch.zeros(1, width), one(uniform=share)) == [int(share * width)]


def test_weights_that_are_nothing_beside_the_highest_are_not_drawn():
    last = one(uniform=1 - 2**-53)
    assert drawn(torch.tensor([[0.0, math.log(1.5 / ONE)]]), last) == [1]
    assert drawn(torch.tensor([[0.0, math.log(0.7 / ONE)]]), last) == [0]


def test_the_host_reads_nothing_from_the_device(monkeypatch):
    """Tensors without data raise where something reads them."""
    monkeypatch.setattr(sampler, "ALONE", {"meta"})
    given = parameters(np.random.default_rng(1), 6)
    given["temperature"][2] = 0
    ids, ones = np.array([1, 4], np.int32), np.ones(2, np.float32)
    asked = SampleInputs(
        **given, banned={1: (3, 5), 2: ()}, penalties=Penalties(ids, ids // ids, ids, ids, ones, ones, ones),
        bias=Bias(ids, ids, ones), logprobs={0: 3, 2: 0},
    )  # fmt: skip
    ids_there = sample(torch.empty(6, 50, device="meta"), asked, 40).ids
    assert (ids_there.device.type, ids_there.shape, ids_there.dtype) == ("meta", (6,), torch.int64)
    with pytest.raises(NotImplementedError):
        ids_there.tolist()
