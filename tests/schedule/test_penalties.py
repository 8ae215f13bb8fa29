"""Penalties, biases and log-probabilities of answers: the same whatever runs beside a request and happens to it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shapes import DIGITS, QUOTED, Constrained, moody, shaped, text

from rtk.plugin.testing.grammar_examples import END
from rtk.plugin.testing.harness import Harness, digest
from rtk.schedule.params import SamplingParams
from rtk.schedule.token_counts import TokenCounts, token_counts

VOCAB = 24
KEYED = [*text('{"yes":'), *DIGITS, *text(',"cat":"cars","no":'), *QUOTED, *text("}")]


def lively(history):
    """A model whose likes depend on every token of the history."""
    return np.random.default_rng(digest(history)).standard_normal(VOCAB).astype(np.float32) * 2


def alone(prompt, *, new, repetition_penalty=1.0, presence_penalty=0.0, frequency_penalty=0.0, logit_bias=(), **_):
    """What the model says greedily, token by token, by definition."""
    out = []
    for _ in range(new):
        logits = lively([*prompt, *out]).astype(np.float64)
        for token in {*prompt, *out} & set(range(VOCAB)):
            logits[token] *= 1 / repetition_penalty if logits[token] > 0 else repetition_penalty
            logits[token] -= frequency_penalty * out.count(token) + presence_penalty * (token in out)
        for token, bias in logit_bias:
            logits[token] += bias
        out.append(int(logits.argmax()))
    return out


ASKED = [
    {"repetition_penalty": 1.5},
    {"presence_penalty": 1.0, "frequency_penalty": 0.25},
    {},
    {"repetition_penalty": 0.7, "presence_penalty": -0.5},
    {"frequency_penalty": 2.0, "logit_bias": ((3, 2.0), (5, -100.0))},
    {"logit_bias": ((11, 1.5),)},
    {"repetition_penalty": 1.1, "presence_penalty": 0.3, "frequency_penalty": -0.2, "logit_bias": ((0, 1.0),)},
]


def of(rid):
    """A request of its own: prompts that share a beginning, and penalties of all kinds."""
    return [1, 2, 3, 4, 5, 6, 7, 7, 30, 31, *[(i * rid) % VOCAB for i in range(rid % 4 + 1)]], ASKED[rid % len(ASKED)]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"page_size": 4, "chunk_tokens": 8},
        {"chunk_tokens": 3, "mixed_chunk": True},
        {"pool_tokens": 64, "conservativeness": 0.02, "page_size": 4},
        {"cache_enabled": False, "max_running": 3},
    ],
    ids=["whole", "pieces", "mixed", "retracted", "cold"],
)
def test_penalties_are_those_of_a_request_alone(options):
    h = Harness(lively, **options)
    for rid in range(8):
        prompt, asked = of(rid)
        h.add(f"{rid}", prompt, max_new_tokens=16, **asked)
        h.step()
    h.run()
    for rid in range(8):
        prompt, asked = of(rid)
        assert h.tokens[f"{rid}"] == alone(prompt, new=16, **asked)
    assert (h.stat("retractions") > 0) == ("conservativeness" in options)
    assert h.stat("steps_failed") == h.stat("invariant_violations") == 0


def test_without_penalties_no_step_waits_and_none_is_told_of_any():
    h = Harness(lively)
    told = []
    for rid, asked in (("plain", {}), ("warm", {"temperature": 0.7, "top_p": 0.9, "seed": 1})):
        h.add(rid, [1, 2], max_new_tokens=6, **asked)
        assert h.scheduler._requests[rid].counts is None
    while h.scheduler.busy:
        h.step()
        flight = h.scheduler._running.flight
        told.append(flight is not None and (flight.waits or flight.penalised))
    assert not any(told)


def test_the_prompt_counts_also_where_it_came_from_the_cache():
    """Token 7 stands in the part that is cached: the same answer cold and warm, and another one without penalty."""
    prompt = [7, 7, 3, 12, 7, 1, 9, 20, 2, 4]
    answers = {}
    for page in (1, 4):
        h = Harness(lively, page_size=page)
        for rid in ("cold", "warm"):
            h.add(rid, prompt, max_new_tokens=12, repetition_penalty=1.5)
            h.run()
        assert (h.cached["cold"], h.cached["warm"]) == (0, 9 // page * page)
        answers[page] = h.tokens["cold"]
        assert h.tokens["warm"] == h.tokens["cold"]
    assert answers[1] == answers[4] == alone(prompt, new=12, repetition_penalty=1.5)
    assert answers[1] != alone(prompt, new=12)


@pytest.mark.parametrize(
    "asked",
    [
        {"repetition_penalty": 1.4, "presence_penalty": 1.0, "frequency_penalty": 0.5},
        {"frequency_penalty": 1.0, "logit_bias": ((ord("9"), 3.0),), "temperature": 0.8, "seed": 3},
    ],
)
def test_guessed_tokens_count_as_if_they_had_come_one_by_one(asked):
    said, steps = {}, {}
    for jump in (False, True):
        h = Constrained(moody, end_tokens=frozenset({END}), pool_tokens=512, jump_forward=jump, context_length=256)
        for i in range(3):
            h.add(f"{i}", [1, i], constraint=shaped(KEYED), max_new_tokens=60, logprobs=2, **asked)
        h.run()
        said[jump], steps[jump] = (h.tokens, h.logprobs, h.finished), h.stat("steps")
        assert all(len(h.logprobs[rid]) == len(h.tokens[rid]) for rid in h.tokens)
    assert said[True] == said[False]
    assert h.stat("jump_forward_tokens") > 20
    assert steps[True] < steps[False]


def test_log_probabilities_are_the_models_own_and_one_for_each_token():
    h = Harness(lively, max_running=3)
    asked = {"a": {"logprobs": 2, "repetition_penalty": 1.9}, "b": {}, "c": {"logprobs": 0, "stop_token_ids": (5,)}}
    for rid, params in asked.items():
        h.add(rid, [ord(rid), 2, 3], max_new_tokens=9, logit_bias=((5, 0.75),), **params)
    h.run()
    assert h.logprobs.keys() == {"a", "c"}
    assert h.tokens["c"][-1] == 5, "the token that ends the text has its own too"
    for rid in h.logprobs:
        history = [ord(rid), 2, 3]
        for entry, token in zip(h.logprobs[rid], h.tokens[rid], strict=True):
            own = lively(history).astype(np.float64)
            own -= np.log(np.exp(own).sum())
            assert entry.token == token
            assert entry.logprob == pytest.approx(own[token], abs=1e-5)
            best = np.argsort(-own)[: asked[rid]["logprobs"]].tolist()
            assert [t for t, _ in entry.top] == best
            history.append(token)


# What a text holds


@given(prompt=st.lists(st.integers(0, 9), max_size=8), output=st.lists(st.integers(0, 300), max_size=300))
def test_counts_grow_with_the_text(prompt, output):
    counts = TokenCounts(np.array(prompt, "<i4").tobytes())
    for token in output:
        counts.add(token)
    tokens, times = counts.with_guesses(())
    assert dict(zip(tokens.tolist(), times.tolist(), strict=True)) == {t: output.count(t) for t in {*prompt, *output}}
    assert len(tokens) == len({*prompt, *output})


def test_guesses_are_counted_in_copies():
    counts = TokenCounts(np.array([4, 4], "<i4").tobytes())
    counts.add(5)
    tokens, times = counts.with_guesses([5, 6, 4, 6])
    assert dict(zip(tokens.tolist(), times.tolist(), strict=True)) == {4: 1, 5: 2, 6: 2}
    tokens[:], times[:] = 0, 9
    assert [array.tolist() for array in counts.with_guesses(())] == [[4, 5], [0, 1]]


def test_the_prompt_counts_for_the_repetition_penalty_only():
    prompt = np.array([1, 2], "<i4").tobytes()
    assert token_counts(SamplingParams(), prompt) is None
    for params, there in (({"repetition_penalty": 1.1}, [1, 2]), ({"presence_penalty": 1.0}, [])):
        counts = token_counts(SamplingParams(**params), prompt)
        assert counts.with_guesses(())[0].tolist() == there
