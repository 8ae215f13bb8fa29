"""The sampler against exact cases, and against a slow float64 reference that sorts everything."""

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from rtk.model.sampler import HEAD, NON_FINITE, sample
from rtk.plugin.grammar import write_row
from rtk.schedule.batch import Mask, SampleInputs

NAN, INF = math.nan, math.inf


def inputs(n, *, temperature=1.0, top_p=1.0, top_k=-1, uniform=0.5, banned=None, mask=None) -> SampleInputs:
    """The same for all n rows, or one value for each."""

    def row(value, dtype):
        return np.broadcast_to(np.asarray(value, dtype), n).copy()

    return SampleInputs(
        temperature=row(temperature, np.float32),
        top_p=row(top_p, np.float32),
        top_k=row(top_k, np.int32),
        uniform=row(uniform, np.float64),
        banned=banned or {},
        mask=mask,
    )


def draw(logits, vocab_size=None, **params):
    """Tokens of all rows; every row must have one."""
    logits = torch.as_tensor(logits, dtype=torch.float32)
    result = sample(logits, inputs(len(logits), **params), vocab_size or logits.shape[1]).result()
    assert not result.errors
    return [token for (token,) in result.tokens]


def peak(width, at, height=10.0):
    row = torch.zeros(width)
    row[at] = height
    return row


def kept(logits, *, top_k=-1, top_p=1.0, temperature=1.0):
    """Ids that some draw picks, from many draws."""
    grid = np.linspace(0, 1, 400, endpoint=False)
    many = torch.tensor([logits] * len(grid))
    return sorted(set(draw(many, top_k=top_k, top_p=top_p, temperature=temperature, uniform=grid)))


# Greedy


@pytest.mark.parametrize("params", [{}, {"top_p": 0.5}, {"top_k": 3}, {"uniform": 0.999}, {"top_p": 0.0, "top_k": 7}])
def test_temperature_zero_is_greedy_whatever_else_is_set(params):
    assert draw([[0.0, 3.0, 3.0, 1.0], [5.0, 3.0, 3.0, 1.0]], temperature=0, **params) == [1, 0]


def test_ties_go_to_the_lowest_id():
    row = torch.zeros(1, 5000)
    row[0, [4321, 77, 2222]] = 1.0
    assert draw(row, temperature=0) == [77]
    assert draw(row, temperature=1, top_k=1) == [77]


@pytest.mark.parametrize("temperature", [1e-4, 1e-7, 1e-30])
@pytest.mark.parametrize("uniform", [0.0, 0.5, 1 - 2**-53])
def test_a_tiny_temperature_is_like_greedy(temperature, uniform):
    generator = torch.Generator().manual_seed(0)
    logits = torch.rand(8, 1000, generator=generator) * 160 - 80
    logits[:, 500] = 80.0
    assert draw(logits, temperature=temperature, uniform=uniform) == [500] * 8


def test_logits_near_the_end_of_float32_do_not_overflow():
    assert draw(torch.tensor([[2e38, 3e38, -3e38]]), temperature=0.5) == [1]


# The vocabulary


@pytest.mark.parametrize("temperature", [0, 1e-3, 1.0, 100.0])
def test_columns_beyond_the_tokenizer_are_never_sampled(temperature):
    row = torch.zeros(64)
    row[62] = 50.0
    row[63] = NAN
    tokens = draw(row.repeat(200, 1), vocab_size=60, temperature=temperature, uniform=np.arange(200) / 200)
    assert max(tokens) < 60


def test_a_flat_distribution_spreads_over_the_vocabulary():
    uniform = np.random.default_rng(1).random(200)
    tokens = draw(torch.zeros(200, 1000), uniform=uniform)
    assert tokens == [int(u * 1000) for u in uniform]
    assert len(set(tokens)) > 150


def test_banned_ids_are_not_sampled():
    logits = torch.stack([peak(10, 3), peak(10, 3), peak(10, 3)])
    before = logits.clone()
    assert draw(logits, temperature=0, banned={1: (3,), 2: (0, 3, 99)}) == [3, 0, 1]
    assert draw(logits, temperature=0.01, uniform=0.0, banned={1: (3,), 2: (0, 3, 99)}) == [3, 0, 1]
    assert torch.equal(logits, before)


def test_a_row_whose_every_id_is_banned_fails_alone():
    result = sample(torch.zeros(2, 3), inputs(2, temperature=0, banned={0: (0, 1, 2)}), 3).result()
    assert result.tokens == ((), (0,))
    assert result.errors == {0: NON_FINITE}


# Rows that are not finite


@pytest.mark.parametrize("temperature", [0, 1.0])
@pytest.mark.parametrize("bad", [[NAN] * 12, [-INF] * 12, [0.0] * 11 + [NAN], [INF] + [NAN] * 11])
def test_a_bad_row_fails_alone(bad, temperature):
    rows = torch.stack([peak(12, 5, 90.0), torch.tensor(bad), peak(12, 9, 90.0)])
    result = sample(rows, inputs(3, temperature=temperature), 12).result()
    assert result.tokens == ((5,), (), (9,))
    assert result.errors == {1: NON_FINITE}
    assert NON_FINITE == "non-finite logits"


@pytest.mark.parametrize("temperature", [0, 1.0, 50.0])
def test_an_infinite_logit_is_taken(temperature):
    rows = torch.stack([peak(12, 7, INF), peak(12, 3, INF)])
    rows[1, 9] = INF
    assert draw(rows, temperature=temperature, uniform=0.9, top_k=5, top_p=0.5) == [7, 3]


@pytest.mark.parametrize("temperature", [1e-4, 0.5, 2.0])
def test_the_largest_finite_logits(temperature):
    row = [3e38, -3e38, 3e38, 1e38]
    assert kept(row, temperature=temperature) == [0, 2]


def test_minus_infinity_is_never_drawn():
    row = [-INF, 0.0, -INF, 0.0]
    assert kept(row) == [1, 3]
    assert kept(row, top_k=3) == [1, 3]
    assert draw([row], uniform=0.0) == [1]
    assert draw([row], uniform=1 - 2**-53) == [3]


# Narrowing


LOGITS = [math.log(p) for p in (0.1, 0.4, 0.05, 0.25, 0.2)]


@pytest.mark.parametrize(
    ("params", "ids"),
    [
        ({}, [0, 1, 2, 3, 4]),
        ({"top_k": 0}, [0, 1, 2, 3, 4]),
        ({"top_k": -1}, [0, 1, 2, 3, 4]),
        ({"top_k": 100}, [0, 1, 2, 3, 4]),
        ({"top_k": 1}, [1]),
        ({"top_k": 3}, [1, 3, 4]),
        ({"top_p": 0.0}, [1]),
        ({"top_p": 0.39}, [1]),
        ({"top_p": 0.41}, [1, 3]),
        ({"top_p": 0.9}, [0, 1, 3, 4]),
        ({"top_p": 1.0}, [0, 1, 2, 3, 4]),
        ({"top_p": 1.0000001}, [0, 1, 2, 3, 4]),
        # Of the three kept by top_k, 0.4 and 0.25 of 0.85 are 0.76 of the mass.
        ({"top_k": 3, "top_p": 0.76}, [1, 3]),
        ({"top_k": 3, "top_p": 0.77}, [1, 3, 4]),
        ({"top_k": 2, "top_p": 0.9}, [1, 3]),
        # A high temperature flattens before top_p looks.
        ({"temperature": 1e6, "top_p": 0.41}, [1, 3, 4]),
    ],
)
def test_what_is_kept(params, ids):
    assert kept(LOGITS, **params) == ids


def test_of_equals_lower_ids_are_kept():
    assert kept([0.0, 1.0, 0.0, 1.0, 0.0], top_k=3) == [0, 1, 3]
    assert kept([0.0] * 8, top_p=0.49) == [0, 1, 2, 3]


def test_the_draw_walks_the_ids_in_order():
    grid = (np.arange(20) + 0.5) / 20
    tokens = draw([LOGITS] * 20, uniform=grid)
    assert tokens == [0] * 2 + [1] * 8 + [2] + [3] * 5 + [4] * 4


def test_top_p_on_a_flat_distribution_looks_at_everything():
    width = 4 * HEAD
    assert draw(torch.zeros(2, width), top_p=[0.5, 1.0], uniform=1 - 2**-53) == [width // 2 - 1, width - 1]


# Against the reference


def reference(logits, temperature, top_p, top_k, uniform):
    """Token, and how close the draw or the top_p threshold came to another answer (in probability)."""
    scaled = (logits.astype(np.float64) - logits.max()) / np.float64(np.float32(temperature))
    weights = np.exp(scaled)
    order = np.lexsort((np.arange(len(logits)), -logits))
    if top_k > 0:
        order = order[:top_k]
    near = np.inf
    if top_p < 1:
        mass = np.cumsum(weights[order]) / weights[order].sum()
        near = np.abs(mass - top_p).min()
        order = order[: int(np.searchsorted(mass, top_p)) + 1]
    ids = np.sort(order)
    cumulative = np.cumsum(weights[ids]) / weights[ids].sum()
    near = min(near, np.abs(cumulative - uniform).min())
    return int(ids[min(int(np.searchsorted(cumulative, uniform, side="right")), len(ids) - 1)]), near


ROW = st.fixed_dictionaries(
    {
        "temperature": st.floats(1e-4, 10),
        "top_p": st.one_of(st.just(1.0), st.floats(0, 1)),
        "top_k": st.integers(-1, 40),
        "uniform": st.floats(0, 1, exclude_max=True),
        "seed": st.integers(0, 2**32 - 1),
        "spread": st.sampled_from([0.1, 1.0, 8.0, 30.0]),
    }
)


@settings(deadline=None, max_examples=200)
@given(rows=st.lists(ROW, min_size=1, max_size=6), width=st.sampled_from([1, 5, 33, HEAD + 7]))
def test_equals_the_reference_alone_and_in_a_batch(rows, width):
    logits = np.stack(
        [np.random.default_rng(row["seed"]).normal(0, row["spread"], width).astype(np.float32) for row in rows]
    )
    columns = {name: [row[name] for row in rows] for name in ("temperature", "top_p", "top_k", "uniform")}
    together = draw(logits, **columns)
    for i, row in enumerate(rows):
        one = {name: row[name] for name in columns}
        assert draw(logits[i : i + 1], **one) == [together[i]]
        expected, near = reference(
            logits[i], one["temperature"], np.float64(np.float32(one["top_p"])), one["top_k"], one["uniform"]
        )
        assume(near > 1e-5)
        assert together[i] == expected


# Masks


def masked(rows, width):
    """From {sampling row: allowed tokens}."""
    words = np.zeros((len(rows), -(-width // 32)), np.int32)
    for row, allowed in zip(words, rows.values(), strict=True):
        write_row(row, allowed)
    return Mask(np.array(list(rows), np.int32), words)


def test_a_mask_comes_before_everything_else():
    logits = [[9.0, 8.0, 7.0, 6.0, 5.0]] * 4
    mask = masked({1: [2, 4], 3: [3, 4]}, 5)
    assert draw(logits, temperature=[0, 0, 1, 1], top_k=1, mask=mask) == [0, 2, 0, 3]
    assert draw(logits, top_p=0.0, mask=mask) == [0, 2, 0, 3]


@pytest.mark.parametrize("params", [{"temperature": 0}, {}, {"top_k": 7}, {"top_k": 300}, {"top_p": 0.7}])
def test_a_masked_row_is_sampled_as_if_there_were_no_other_tokens(params):
    rng = np.random.default_rng(3)
    logits = rng.normal(0, 2, (40, 90)).astype(np.float32)
    uniform = rng.random(40)
    allowed = [np.flatnonzero(rng.random(90) < share) for share in np.linspace(0.05, 1, 40)]
    found = draw(logits, uniform=uniform, mask=masked(dict(enumerate(allowed)), 90), **params)
    assert found == [
        ids[draw(row[None, ids], uniform=u, **params)[0]] for row, ids, u in zip(logits, allowed, uniform, strict=True)
    ]


def test_a_row_whose_mask_leaves_nothing_and_one_with_nan_get_an_error():
    logits = torch.tensor([[1.0, 2.0], [1.0, NAN], [1.0, -INF], [1.0, 2.0]])
    mask = masked({0: [], 1: [0], 2: [1], 3: [0]}, 2)
    result = sample(logits, inputs(4, temperature=0, mask=mask), vocab_size=2).result()
    assert result.tokens == ((), (), (), (0,))
    assert result.errors == dict.fromkeys([0, 1, 2], NON_FINITE)
