"""The sampler against exact cases, and against a slow float64 reference that sorts everything."""

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from rtk.model import sampler
from rtk.model.sampler import HEAD, NON_FINITE, sample
from rtk.plugin.grammar import write_row
from rtk.schedule.batch import Bias, Mask, Penalties, SampleInputs
from rtk.schedule.params import GREEDY_BELOW

NAN, INF = math.nan, math.inf


@pytest.fixture(autouse=True, params=["by the host", "by the device"], scope="module")
def place(request):
    """Where rows are drawn: by numpy, or by the operations that draw on CUDA devices."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sampler, "ALONE", {"cpu"} if request.param == "by the device" else set())
        yield


def inputs(n, *, temperature=1.0, top_p=1.0, top_k=-1, uniform=0.5, banned=None, min_p=None, **more) -> SampleInputs:
    """The same for all n rows, or one value for each."""

    def row(value, dtype):
        return np.broadcast_to(np.asarray(value, dtype), n).copy()

    return SampleInputs(
        temperature=row(temperature, np.float32),
        top_p=row(top_p, np.float32),
        top_k=row(top_k, np.int32),
        uniform=row(uniform, np.float64),
        banned=banned or {},
        min_p=None if min_p is None else row(min_p, np.float32),
        **more,
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


def kept(logits, **params):
    """Ids that some draw picks, from many draws."""
    grid = np.linspace(0, 1, 400, endpoint=False)
    many = torch.tensor([logits] * len(grid))
    return sorted(set(draw(many, uniform=grid, **params)))


def penalties(rows, *, repetition=1.0, presence=0.0, frequency=0.0):
    """From {sample: {token: times in its output}}; the same for all samples, or one value for each."""
    held = list(rows.values())
    return Penalties(
        rows=np.array(list(rows), np.int32),
        held=np.array([len(own) for own in held], np.int32),
        tokens=np.array([token for own in held for token in own], np.int32),
        counts=np.array([count for own in held for count in own.values()], np.int32),
        repetition=np.broadcast_to(np.asarray(repetition, np.float32), len(held)),
        presence=np.broadcast_to(np.asarray(presence, np.float32), len(held)),
        frequency=np.broadcast_to(np.asarray(frequency, np.float32), len(held)),
    )


def biases(rows):
    """From {sample: {token: bias}}."""
    entries = [(row, token, value) for row, own in rows.items() for token, value in own.items()]
    row, token, value = zip(*entries, strict=True)
    return Bias(np.array(row, np.int32), np.array(token, np.int32), np.array(value, np.float32))


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
        ({"min_p": 0.0}, [0, 1, 2, 3, 4]),
        ({"min_p": 0.49}, [1, 3, 4]),
        ({"min_p": 0.51}, [1, 3]),
        ({"min_p": 1.0}, [1]),
        # What top_k and top_p leave is all that min_p looks at, and it looks at the most probable one of that.
        ({"top_k": 3, "top_p": 0.76, "min_p": 0.1}, [1, 3]),
        ({"top_p": 0.9, "min_p": 0.49}, [1, 3, 4]),
        ({"temperature": 1e6, "min_p": 0.9}, [0, 1, 2, 3, 4]),
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


@pytest.mark.parametrize("min_p", [0.5, 1.0])
def test_of_equals_min_p_keeps_all(min_p):
    assert kept([1.0, 0.0, 1.0], min_p=min_p) == [0, 2]


# Penalties and bias


def test_the_repetition_penalty_divides_what_is_positive_and_multiplies_what_is_not():
    logits = torch.tensor([[4.0, 3.0, -1.0, -1.5]])
    assert draw(logits.clone(), temperature=0, penalties=penalties({0: {0: 0}}, repetition=2.0)) == [1]
    given = penalties({0: {0: 0, 1: 1, 2: 0}}, repetition=2.0)
    changed = logits.clone()
    draw(changed, temperature=0, penalties=given)
    assert changed.tolist() == [[2.0, 1.5, -2.0, -1.5]]


def test_presence_is_taken_off_once_and_frequency_each_time_and_neither_for_the_prompt():
    logits = torch.zeros(2, 4)
    given = penalties({1: {0: 0, 1: 1, 3: 3}}, presence=0.5, frequency=0.25)
    assert draw(logits, temperature=0, penalties=given) == [0, 0]
    assert logits.tolist() == [[0.0] * 4, [0.0, -0.75, 0.0, -1.25]]


def test_a_negative_penalty_attracts():
    logits = torch.zeros(1, 4)
    assert draw(logits, temperature=0, penalties=penalties({0: {2: 1}}, presence=-2.0, frequency=-2.0)) == [2]
    assert logits[0, 2] == 4.0


def test_penalties_come_before_the_bias_and_that_before_masks_and_bans():
    logits = torch.tensor([[8.0, 5.0, 1.0, 0.0]] * 4)
    given = penalties({row: {0: 1} for row in range(4)}, repetition=2.0, presence=1.0)
    bias = biases({1: {2: 4.5}, 2: {2: 100.0}, 3: {2: 100.0, 0: 3.0}})
    mask = masked({2: [0, 1, 3]}, 4)
    assert draw(logits, temperature=0, penalties=given, bias=bias, mask=mask, banned={3: (2,)}) == [1, 2, 1, 0]
    assert logits[:, 0].tolist() == [3.0, 3.0, 3.0, 6.0]


def test_ties_after_penalties_and_bias_go_to_the_lowest_id():
    logits = torch.tensor([[4.0, 2.0, 2.0, 0.0]])
    assert draw(logits, temperature=0, penalties=penalties({0: {0: 0}}, repetition=2.0), bias=biases({0: {3: 2}})) == [
        0
    ]
    logits = torch.tensor([[4.0, 2.0, 2.0, 0.0]])
    assert draw(logits, temperature=0, penalties=penalties({0: {0: 1}}, repetition=2.0, presence=1)) == [1]


def test_tokens_beyond_the_vocabulary_have_no_penalties_and_no_bias():
    logits = torch.zeros(1, 6)
    given = penalties({0: {1: 1, 4: 1, 9: 2}}, repetition=1.5, presence=1.0)
    assert draw(logits, 4, temperature=0, penalties=given, bias=biases({0: {2: 1.0, 5: 9.0}})) == [2]
    assert logits.tolist() == [[0.0, -1.0, 1.0, 0.0, 0.0, 0.0]]


@pytest.mark.parametrize("temperature", [0, 1.0])
def test_rows_that_are_not_finite_stay_so_under_penalties(temperature):
    rows = torch.tensor([[1.0, INF, 1.0], [1.0, NAN, 1.0], [-INF, -INF, -INF], [-INF, 0.0, -INF]])
    least = np.finfo(np.float32).tiny
    given = penalties({row: {0: 2, 1: 1, 2: 0} for row in range(4)}, repetition=least, presence=2.0, frequency=2.0)
    result = sample(rows, inputs(4, temperature=temperature, penalties=given, bias=biases({2: {0: 100.0}})), 3).result()
    assert result.tokens == ((1,), (), (), (1,))
    assert result.errors == dict.fromkeys([1, 2], NON_FINITE)


# Log-probabilities


def test_log_probabilities_are_the_models_own_whatever_is_done_to_the_row():
    rng = np.random.default_rng(8)
    logits = torch.from_numpy(rng.normal(0, 3, (4, 70)).astype(np.float32))
    own = logits.double().log_softmax(-1)
    asked = inputs(
        4, temperature=[0, 2.0, 0.5, 1.0], top_k=[0, 3, 0, 0], uniform=rng.random(4), logprobs={0: 0, 1: 3, 3: 20},
        penalties=penalties({1: {5: 2}, 3: {1: 0}}, repetition=1.5, presence=1.0), bias=biases({0: {7: 50.0}}),
        mask=masked({3: [1, 2, 69]}, 70),
    )  # fmt: skip
    result = sample(logits, asked, 60).result()
    assert result.tokens[0] == (7,)
    assert sorted(result.logprobs) == [0, 1, 3]
    for row, top in asked.logprobs.items():
        (entry,) = result.logprobs[row]
        assert (entry.token,) == result.tokens[row]
        assert entry.logprob == pytest.approx(own[row, entry.token].item(), abs=1e-5)
        best = own[row, :60].topk(top)
        assert [token for token, _ in entry.top] == best.indices.tolist()
        assert [value for _, value in entry.top] == pytest.approx(best.values.tolist(), abs=1e-5)


def test_columns_beyond_the_vocabulary_count_as_the_model_has_them_and_are_never_named():
    logits = torch.zeros(1, 64)
    logits[0, 62] = 50.0
    (entry,) = sample(logits, inputs(1, temperature=0, logprobs={0: 3}), 60).result().logprobs[0]
    assert (entry.token, [token for token, _ in entry.top]) == (0, [0, 1, 2])
    assert entry.logprob == pytest.approx(-50.0)


@pytest.mark.parametrize(
    ("row", "top", "wanted"),
    [
        ([0.0, 2.0, 2.0, 1.0, 2.0, 2.0], 2, [1, 2]),
        ([0.0, 2.0, 2.0, 1.0, 2.0, 2.0], 5, [1, 2, 4, 5, 3]),
        ([3.0, 1.0, 1.0, 4.0, 1.0, 1.0], 3, [3, 0, 1]),
        ([3.0, 1.0, 1.0, 4.0, 1.0, 1.0], 6, [3, 0, 1, 2, 4, 5]),
        ([3.0, 1.0], 20, [0, 1]),
        ([-INF, 1.0, -INF, -INF], 3, [1, 0, 2]),
        ([0.0] * 5000, 20, list(range(20))),
    ],
)
def test_the_most_probable_of_equals_are_the_lowest_ids(row, top, wanted):
    (entry,) = sample(torch.tensor([row]), inputs(1, temperature=0, logprobs={0: top}), len(row)).result().logprobs[0]
    assert [token for token, _ in entry.top] == wanted


@settings(deadline=None, max_examples=100)
@given(
    rows=st.lists(st.lists(st.integers(-3, 3), min_size=9, max_size=9), min_size=1, max_size=4), top=st.integers(1, 9)
)
def test_the_most_probable_are_those_of_a_sort(rows, top):
    asked = inputs(len(rows), temperature=0, logprobs=dict.fromkeys(range(len(rows)), top))
    result = sample(torch.tensor(rows, dtype=torch.float32), asked, 9).result()
    for i, row in enumerate(rows):
        (entry,) = result.logprobs[i]
        assert [token for token, _ in entry.top] == sorted(range(9), key=lambda t: (-row[t], t))[:top]
        total = math.log(sum(map(math.exp, row)))
        assert [value for _, value in entry.top] == pytest.approx([row[t] - total for t, _ in entry.top], abs=1e-5)


def test_log_probabilities_are_looked_at_in_pieces(monkeypatch):
    monkeypatch.setattr("rtk.model.logprobs.AT_ONCE", 25)
    logits = torch.from_numpy(np.random.default_rng(2).normal(0, 1, (7, 10)).astype(np.float32))
    asked = inputs(7, temperature=0, logprobs=dict.fromkeys((0, 2, 3, 4, 6), 2))
    found = sample(logits, asked, 10).result().logprobs
    own = logits.double().log_softmax(-1)
    assert {row: entry.logprob for row, (entry,) in found.items()} == pytest.approx(
        {row: own[row].max().item() for row in asked.logprobs}, abs=1e-6
    )


def test_a_row_that_fails_has_no_trouble_with_log_probabilities():
    logits = torch.tensor([[NAN, 1.0, 2.0], [1.0, 3.0, 2.0], [-INF, -INF, -INF]])
    result = sample(logits, inputs(3, temperature=0, logprobs=dict.fromkeys(range(3), 2)), 3).result()
    assert result.tokens == ((), (1,), ())
    assert [token for token, _ in result.logprobs[1][0].top] == [1, 2]


# Against the reference


def changed(logits, given):
    """Logits after penalties, bias and bans, token by token, in double precision."""
    logits = logits.astype(np.float64)
    for token, count in given["counts"].items():
        penalty = np.float64(np.float32(given["repetition"]))
        logits[token] = logits[token] / penalty if logits[token] > 0 else logits[token] * penalty
        logits[token] -= given["frequency"] * count
        logits[token] -= given["presence"] if count else 0
    for token, bias in given["bias"].items():
        logits[token] += bias
    logits[sorted(given["banned"])] = -np.inf
    return logits


def reference(logits, temperature, top_p, top_k, min_p, uniform):
    """Token, and how close the draw or a threshold came to another answer (in probability)."""
    scaled = (logits.astype(np.float64) - logits.max()) / np.float64(np.float32(temperature))
    weights = np.exp(scaled)
    order = np.lexsort((np.arange(len(logits)), -logits))
    if top_k > 0:
        order = order[:top_k]
    gaps = np.diff(np.sort(logits[np.isfinite(logits)]))
    near = gaps[gaps > 0].min(initial=np.inf)  # equal in float32, perhaps
    if top_p < 1:
        mass = np.cumsum(weights[order]) / weights[order].sum()
        near = min(near, np.abs(mass - top_p).min())
        order = order[: int(np.searchsorted(mass, top_p)) + 1]
    if min_p > 0:
        near = min(near, np.abs(weights[order][weights[order] < 1] - min_p).min(initial=np.inf))
        order = order[weights[order] >= min_p]
    ids = np.sort(order)
    cumulative = np.cumsum(weights[ids]) / weights[ids].sum()
    near = min(near, np.abs(cumulative - uniform).min())
    return int(ids[min(int(np.searchsorted(cumulative, uniform, side="right")), len(ids) - 1)]), near


ROW = st.fixed_dictionaries(
    {
        "temperature": st.just(0.0) | st.floats(1e-4, 10),
        "top_p": st.one_of(st.just(1.0), st.floats(0, 1)),
        "top_k": st.integers(-1, 40),
        "min_p": st.one_of(st.just(0.0), st.floats(0, 1)),
        "uniform": st.floats(0, 1, exclude_max=True),
        "seed": st.integers(0, 2**32 - 1),
        "spread": st.sampled_from([0.1, 1.0, 8.0, 30.0]),
        "counts": st.dictionaries(st.integers(0, 32), st.integers(0, 3), max_size=6),
        "repetition": st.just(1.0) | st.floats(0.1, 2),
        "presence": st.just(0.0) | st.floats(-2, 2),
        "frequency": st.just(0.0) | st.floats(-2, 2),
        "bias": st.dictionaries(st.integers(0, 32), st.floats(-100, 100), max_size=4),
        "banned": st.sets(st.integers(0, 4), max_size=3),
    }
)


def asked(rows):
    """What the sampler is told of these rows."""
    own = {name: [row[name] for row in rows] for name in ("temperature", "top_p", "top_k", "min_p", "uniform")}
    counted = {i: row["counts"] for i, row in enumerate(rows) if row["counts"]}
    if counted:
        names = ("repetition", "presence", "frequency")
        own["penalties"] = penalties(counted, **{name: [rows[i][name] for i in counted] for name in names})
    if biased := {i: row["bias"] for i, row in enumerate(rows) if row["bias"]}:
        own["bias"] = biases(biased)
    return {**own, "banned": {i: tuple(row["banned"]) for i, row in enumerate(rows)}}


@settings(deadline=None, max_examples=300)
@given(rows=st.lists(ROW, min_size=1, max_size=6), width=st.sampled_from([33, HEAD + 7]))
def test_equals_the_reference_alone_and_in_a_batch(rows, width):
    logits = np.stack(
        [np.random.default_rng(row["seed"]).normal(0, row["spread"], width).astype(np.float32) for row in rows]
    )
    together = draw(logits.copy(), **asked(rows))
    for i, row in enumerate(rows):
        assert draw(logits[i : i + 1].copy(), **asked([row])) == [together[i]]
        wanted = changed(logits[i], row)
        if row["temperature"] < GREEDY_BELOW:
            highest = np.sort(wanted)[-2:]
            assume(highest[1] - highest[0] > 1e-4)
            assert together[i] == wanted.argmax()
            continue
        single = {name: np.float64(np.float32(row[name])) for name in ("temperature", "top_p", "min_p")}
        expected, near = reference(wanted, **single, top_k=row["top_k"], uniform=row["uniform"])
        assume(near > 1e-5 * max(1.0, 1 / row["temperature"]))
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
