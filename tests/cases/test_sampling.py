"""Cases D10, D15, J01, J02, J04 to J10 and X37, below HTTP: parameters at their edges, ties, rows that are not finite,
seeds, penalties on what is cached, several answers."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_tokenizer import IM_END, byte_level

from rtk import Engine
from rtk.config.load import config_from
from rtk.errors import RequestError
from rtk.model.sampler import sample
from rtk.plugin.grammar import write_row
from rtk.plugin.testing.harness import Harness, digest
from rtk.plugin.testing.scripted import ScriptedExecutor
from rtk.schedule.batch import Mask, SampleInputs
from rtk.schedule.budget import Limits
from rtk.schedule.params import GREEDY_BELOW, SamplingParams, sampling_params
from rtk.serve import runtime
from rtk.serve.computing import Computing
from rtk.serve.runtime import Runtime

TOKENIZER = byte_level()
VOCAB = 60
DOC = (Path(__file__).parents[2] / "docs" / "http.md").read_text(encoding="utf-8")


def lively(history):
    """A model whose likes depend on every token of the history."""
    return np.random.default_rng(digest(history)).standard_normal(VOCAB).astype(np.float32)


def flat(history):
    return np.zeros(VOCAB, np.float32)


def refused(**given):
    with pytest.raises(RequestError) as error:
        sampling_params(given, vocab_size=VOCAB)
    return str(error.value), error.value.field, error.value.status


# --- parameters -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "value"), [("stop_token_ids", [5, VOCAB]), ("stop_token_ids", [-1]), ("logit_bias", {f"{VOCAB}": 1})]
)
def test_d10_ids_outside_the_vocabulary_are_refused_by_field(field, value):
    problem, where, status = refused(**{field: value, "min_new_tokens": 5})
    assert problem.startswith(f"{field}[")
    assert problem.endswith("must be a token id from 0 to 59")
    assert (where, status) == (field, 400)


@pytest.mark.parametrize("key", [f"{VOCAB}", "-1", "x"])
def test_j01_a_bias_outside_the_vocabulary_is_refused_by_its_id(key):
    problem, where, status = refused(logit_bias={key: 5})
    assert problem == f"logit_bias[{key!r}]: its key must be a token id from 0 to 59"
    assert (where, status) == ("logit_bias", 400)


def test_j01_a_bias_out_of_range_and_too_many():
    assert refused(logit_bias={"3": 1e9})[0] == "logit_bias['3'] = 1000000000.0: must be a number from -100 to 100"
    assert refused(logit_bias={str(i): 1 for i in range(301)})[0] == "logit_bias: 301 entries; at most 300"


NAN, INF = float("nan"), float("inf")
EDGES = {
    "temperature": ([0, 1e-6, 1000], [-0.1, 1000.1, "1", True, INF]),
    "top_p": ([0, 1], [-0.1, 1.0000001]),
    "top_k": ([-1, 0, 1, VOCAB + 5], [-2, 1.0, 2**31]),
    "min_p": ([0, 1], [-0.1, 1.0000001]),
    "repetition_penalty": ([1e-6, 1, 2], [0, -1, 2.0000001, NAN]),
    "presence_penalty": ([-2, 0, 2], [-2.0000001, 2.0000001]),
    "frequency_penalty": ([-2, 0, 2], [-2.0000001, 2.0000001]),
    "n": ([1, 128], [0, 129, 2.0, True]),
}
WRITTEN = {1e-6: "0.000001", VOCAB + 5: "vocabulary + 5", INF: "1e999", "1": '"1"', 2**31: "2147483648", NAN: ""}


@pytest.mark.parametrize("field", EDGES)
def test_j10_values_at_the_edges_are_taken_or_refused_as_documented(field):
    edges = DOC[DOC.index("Values at the edges") : DOC.index("### Where a text ends")]
    (row,) = (line for line in edges.splitlines() if line.startswith("| `") and f"`{field}`" in line.split(" | ")[0])
    _, taken, turned_away = row.split(" | ")
    accepted, others = EDGES[field]
    for value in accepted:
        assert getattr(sampling_params({field: value}, vocab_size=VOCAB), field) == value
        assert WRITTEN.get(value, f"{value}") in taken
    for value in others:
        problem, where, status = refused(**{field: value})
        assert problem.startswith(f"{field} = ")
        assert (where, status) == (field, 400)
        assert (WRITTEN.get(value, f"{value}") if value is not True else "true") in turned_away


def test_j10_top_p_0_keeps_one_and_min_p_1_the_equals():
    logits = torch.tensor([[1.0, 3.0, 2.0, 3.0]] * 20)
    uniform = np.linspace(0, 1, 20, endpoint=False)
    assert drawn(logits, uniform, top_p=0.0) == {1}
    assert drawn(logits, uniform, min_p=1.0) == {1, 3}
    assert drawn(logits, uniform, top_k=4 + 5) == drawn(logits, uniform, top_k=0) == {0, 1, 2, 3}


def drawn(logits, uniform, **given):
    """Which tokens these draws find."""
    inputs = inputs_of(len(logits), uniform=uniform, **given)
    return {token for (token,) in sample(logits.clone(), inputs, logits.shape[1]).result().tokens}


def inputs_of(n, *, temperature=1.0, top_p=1.0, top_k=0, min_p=None, uniform=0.5, mask=None):
    def row(value, dtype):
        return np.broadcast_to(np.asarray(value, dtype), n).copy()

    return SampleInputs(
        temperature=row(temperature, np.float32),
        top_p=row(top_p, np.float32),
        top_k=row(top_k, np.int32),
        uniform=row(uniform, np.float64),
        mask=mask,
        min_p=None if min_p is None else row(min_p, np.float32),
    )


# --- one token --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [1e-4, 1e-7, 1e-30])
def test_j02_a_tiny_temperature_is_like_greedy(temperature):
    def script(history):
        return (np.random.default_rng(digest(history)).random(VOCAB) * 160 - 80).astype(np.float32)

    h = Harness(script, max_running=9)
    h.add("greedy", [1, 2], max_new_tokens=8)
    for seed in range(8):
        h.add(f"{seed}", [1, 2], max_new_tokens=8, temperature=temperature, seed=seed)
    h.run()
    assert {tuple(tokens) for tokens in h.tokens.values()} == {tuple(h.tokens["greedy"])}
    assert SamplingParams(temperature=temperature).greedy == (temperature < GREEDY_BELOW)


def test_j04_greedy_is_the_highest_after_penalties_and_bias_whatever_else_is_set():
    def script(history):
        logits = np.full(VOCAB, -1.0, np.float32)
        logits[[4, 9, 20]] = 4.0, 3.0, 3.0
        return logits

    asked = {"top_p": 0.5, "top_k": 3, "min_p": 0.2, "repetition_penalty": 2.0, "presence_penalty": 1.5}
    said = []
    for seed in (9, 10):
        h = Harness(script)
        h.add("a", [4], max_new_tokens=5, seed=seed, logit_bias=((31, 3.5),), **asked)
        h.run()
        said.append(h.tokens["a"])
    # 9 and 20 have 3, 31 has -1 + 3.5, and 4 has 4 / 2, as it is in the prompt. Once they are in the output, 9 and 20
    # have 3 / 2 - 1.5, 31 has -1 * 2 - 1.5 + 3.5, and 4 has 4 / 2 - 1.5.
    assert said == [[9, 20, 31, 4, 4]] * 2


@pytest.mark.parametrize("bad", [NAN, -INF])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_x37_j05_a_bad_row_ends_its_request_and_no_other(bad, temperature):
    def script(history):
        logits = np.zeros(12, np.float32)
        logits[{1: 5, 3: 9}.get(history[0], 0)] = 90.0
        return np.full(12, bad, np.float32) if history[0] == 2 else logits

    h = Harness(script)
    for first in (1, 2, 3):
        h.add(f"{first}", [first, 0], max_new_tokens=4, temperature=temperature, logprobs=1)
    h.run()
    assert (h.tokens["1"], h.tokens["2"], h.tokens["3"]) == ([5] * 4, [], [9] * 4)
    assert (h.finished["2"].reason, h.finished["2"].problem) == ("error", "non-finite logits")
    assert [h.finished[rid].reason for rid in ("1", "3")] == ["length"] * 2
    assert h.stat("sampling_errors") == 1
    assert h.stat("free") + h.stat("evictable") == h.stat("pool")


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_x37_an_infinite_logit_is_taken(temperature):
    def script(history):
        return np.where(np.arange(12) == 7, np.float32(INF), np.float32(1.0))

    h = Harness(script)
    h.add("a", [1], max_new_tokens=2, temperature=temperature, top_p=0.5, repetition_penalty=1.5)
    h.run()
    assert h.tokens["a"] == [7, 7]


def test_j08_a_flat_distribution_spreads_over_the_vocabulary():
    h = Harness(flat, max_running=20, pool_tokens=1024)
    for i in range(20):
        h.add(f"{i}", [i], max_new_tokens=10, temperature=SamplingParams().temperature)
    h.run()
    found = [token for tokens in h.tokens.values() for token in tokens]
    assert len(found) == 200
    assert len(set(found)) >= 50
    assert max(found.count(token) for token in found) < 15


def test_j08_defaults_are_those_of_the_documentation():
    defaults = SamplingParams()
    for field in ("temperature", "top_p", "top_k"):
        (row,) = (line.split(" | ") for line in DOC.splitlines() if line.startswith(f"| `{field}` | completions"))
        assert re.fullmatch(r"the model's, else (.+)", row[3])[1] == f"{getattr(defaults, field):g}"
    neutral = (defaults.min_p, defaults.repetition_penalty, defaults.presence_penalty, defaults.frequency_penalty)
    assert neutral == (0, 1, 0, 0)


@pytest.mark.parametrize("grammar", [False, True])
@pytest.mark.parametrize("temperature", [0.0, 1.0, 100.0])
def test_j09_padding_is_never_sampled(temperature, grammar):
    logits = torch.zeros(64, 64)
    logits[:, 62] = 50.0
    mask = None
    if grammar:
        words = np.zeros((64, 2), np.int32)
        for row in words:
            write_row(row, [*range(10, 60), 61, 62])
        mask = Mask(np.arange(64, dtype=np.int32), words)
    inputs = inputs_of(64, temperature=temperature, uniform=np.arange(64) / 64, mask=mask)
    found = [token for (token,) in sample(logits, inputs, VOCAB).result().tokens]
    assert max(found) < VOCAB
    assert not grammar or min(found) >= 10


# --- seeds ------------------------------------------------------------------------------------------------------


def test_j06_requests_without_a_seed_draw_their_own_and_the_same_again_with_the_same_engine_seed():
    runs = []
    for _ in range(2):
        h = Harness(lively, seed=1234)
        for i in range(8):
            h.add(f"{i}", [1, 2, 3], max_new_tokens=10, temperature=1.0)
        h.run()
        runs.append([tuple(h.tokens[f"{i}"]) for i in range(8)])
    assert len(set(runs[0])) == 8
    assert runs[0] == runs[1]


def test_j06_a_seed_gives_the_same_alone_in_a_batch_and_after_a_retraction():
    def asked(i):
        return {"prompt": [1, 2, 3, i], "seed": 77 + i % 2, "max_new_tokens": 24, "temperature": 1.0}

    alone = {}
    for i in range(5):
        h = Harness(lively)
        h.add(f"{i}", **asked(i))
        h.run()
        alone |= h.tokens
    batch, crowded = Harness(lively), Harness(lively, pool_tokens=64, conservativeness=0.02, page_size=4)
    for h in (batch, crowded):
        for i in range(5):
            h.add(f"{i}", **asked(i))
        h.run()
        assert h.tokens == alone
    assert (batch.stat("retractions"), crowded.stat("retractions") > 0) == (0, True)


@pytest.mark.parametrize("page", [1, 4])
def test_j07_what_is_cached_of_the_prompt_is_penalised_too(page):
    def script(history):
        logits = lively(history)
        logits[7] = 2.5
        return logits

    prompt = [7, 3, 1, 12, 40, 9, 2, 2, 5]
    h = Harness(script, page_size=page)
    for rid in ("cold", "warm"):
        h.add(rid, prompt, max_new_tokens=8, repetition_penalty=1.5)
        h.run()
    h.add("without", prompt, max_new_tokens=8)
    h.run()
    assert h.cached["warm"] == 8
    assert h.tokens["warm"] == h.tokens["cold"] != h.tokens["without"]
    assert h.tokens["without"] == [7] * 8


# --- several answers --------------------------------------------------------------------------------------------


@pytest.fixture
def engine(loop):
    """An engine whose model likes letters, differently after every text."""
    letters = [TOKENIZER.encode(letter, add_special_tokens=False)[0] for letter in "abcdefgh"]

    def script(history):
        logits = np.full(TOKENIZER.size, -30.0, np.float32)
        logits[[*letters, IM_END]] = np.random.default_rng(digest(history)).standard_normal(9) * 1.5
        return logits

    limits = Limits(context_length=128, pool_tokens=512, page_size=4, max_running=4, max_prefill_tokens=4096)
    sizes = {"slots": 512, "page_size": 4, "max_running": 4, "context_length": 128}
    executor = ScriptedExecutor(script, **sizes, lazy=loop["lazy"])
    known = (TOKENIZER.size, frozenset({IM_END}), {}, "scripted")
    computing = Computing(executor, limits, *known, overlap=loop["overlap"])
    config = config_from({"model.path": "scripted", "schedule.max_queue": 4})
    with Engine(runtime=Runtime(config, runtime.build_policies(config), computing, TOKENIZER)) as engine:
        yield engine


PARAMS = {"seed": 5, "temperature": 1, "max_new_tokens": 12}


def test_d15_three_answers_are_three_texts_and_the_same_again(engine):
    runs = [engine.generate("tell me a story", {**PARAMS, "n": 3}) for _ in range(2)]
    answers = [[first, *first.others] for first in runs]
    assert len({answer.text for answer in answers[0]}) == 3
    assert [a.text for a in answers[0]] == [a.text for a in answers[1]]
    assert {len(a.token_ids) for a in answers[0]} != {12}, "one of them is to end before the others"
    for answer in answers[0]:
        assert answer.finish.reason == ("stop" if answer.token_ids[-1] == IM_END else "length")
        assert answer.others == () or answer is answers[0][0]
    assert engine.generate("tell me a story", PARAMS).token_ids == answers[0][0].token_ids
    assert [answer.prompt_tokens for answer in answers[0]] == [15] * 3
    assert runs[0].cached_tokens == 0


def test_d15_each_prompt_has_its_answers_and_is_computed_once(engine):
    prompts = ["first of the prompts", "and another one"]
    before = engine.stats()["prefill_tokens"]
    found = engine.generate(prompts, {**PARAMS, "n": 4, "logprobs": 1, "prompt_logprobs": 0})
    computed = engine.stats()["prefill_tokens"] - before
    assert computed == 20 + 15 + 3 * (4 + 3)  # the others compute what does not fill a page, and the last token
    assert [len(first.others) for first in found] == [3, 3]
    for prompt, first in zip(prompts, found, strict=True):
        assert len({answer.text for answer in (first, *first.others)}) == 4
        assert [entry.token for entry in first.prompt_logprobs] == TOKENIZER.encode(prompt, add_special_tokens=False)
        for answer in (first, *first.others):
            assert tuple(entry.token for entry in answer.logprobs) == answer.token_ids
            assert all(len(entry.top) == 1 for entry in answer.logprobs)
        assert {answer.prompt_logprobs for answer in first.others} == {()}


def test_d15_answers_that_do_not_fit_are_refused_together(engine):
    with pytest.raises(RequestError, match="n = 9: at most 8 answers can run and wait"):
        engine.generate("x", {**PARAMS, "n": 9})
    with pytest.raises(RequestError, match="n = 0: must be an integer from 1 to 128"):
        engine.generate("x", {**PARAMS, "n": 0})
    assert engine._manager.in_flight == 0
    assert len(engine.generate("x", {**PARAMS, "n": 8}).others) == 7
    assert engine.stats()["following"] == 0


def test_d15_a_stream_tells_which_answer_a_delta_is_of(engine):
    whole = engine.generate("tell me a story", {**PARAMS, "n": 3})
    texts, ends = ["", "", ""], {}
    for delta in engine.stream("tell me a story", {**PARAMS, "n": 3}, rid="s"):
        texts[delta.index] += delta.text
        if delta.finish is not None:
            ends[delta.rid] = delta.finish.reason
    assert texts == [answer.text for answer in (whole, *whole.others)]
    assert ends == {f"s{(i and f'-{i}') or ''}": a.finish.reason for i, a in enumerate((whole, *whole.others))}
