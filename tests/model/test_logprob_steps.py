"""Log-probabilities and penalties from real executors over a tiny model: those of a transformers forward."""

import functools

import pytest
import torch
from shapes import Constrained
from tiny_models import make_runner

from rtk.model.inline_executor import InlineExecutor
from rtk.model.thread_executor import ThreadExecutor

PROMPT = [(7 * i + 3) % 97 for i in range(37)]
CLOSE = 1e-4


@pytest.fixture(scope="module")
def model(zoo):
    """What transformers says, and an executor of a page size, on request in a thread of its own."""
    closing, eager = [], zoo.eager("gemma2")

    @functools.cache
    def own(tokens):
        with torch.inference_mode():
            return eager(torch.tensor([tokens])).logits[0].double()

    @functools.cache
    def make(page, overlap):
        runner = make_runner(zoo.load("gemma2"), slots=512, page_size=page, rows=9, context_length=128)
        executor = InlineExecutor(runner, 99)
        closing.append(ThreadExecutor(executor) if overlap else executor)
        return closing[-1]

    yield own, make
    for executor in closing:
        executor.close()


def harness(make, loop, page=1, **options):
    h = Constrained(page_size=page, overlap=loop["overlap"], seed=1, **options)
    h.scheduler._executor = make(page, loop["overlap"])
    return h


def check(entries, tokens, logits, top):
    """One entry for each token, from the row of logits before it."""
    assert [entry.token for entry in entries] == list(tokens)
    for entry, row in zip(entries, logits, strict=True):
        logprobs = row.log_softmax(-1)
        assert entry.logprob == pytest.approx(logprobs[entry.token].item(), abs=CLOSE)
        best = logprobs.topk(top)
        assert [token for token, _ in entry.top] == best.indices.tolist()
        assert [value for _, value in entry.top] == pytest.approx(best.values.tolist(), abs=CLOSE)


def check_scores(entries, start, own):
    if start == 0:
        first, *entries = entries
        assert (first.token, first.logprob, first.top) == (PROMPT[0], None, ())
    begin = max(1, start)
    check(entries, PROMPT[begin:], own(tuple(PROMPT))[begin - 1 : -1], top=3)


@pytest.mark.parametrize(("page", "chunk"), [(1, None), (4, 8), (16, 16), (1, 5)])
@pytest.mark.parametrize("start", [0, 6, 30])
def test_prompts_are_scored_the_same_cold_warm_in_pieces_and_beside_others(model, loop, page, chunk, start):
    own, make = model
    h = harness(make, loop, page, chunk_tokens=chunk, mixed_chunk=chunk is not None)
    h.add("beside", PROMPT[::-1], max_new_tokens=40)
    h.step()
    asked = {"prompt_logprobs": 3, "prompt_logprobs_start": start}
    h.add("cold", PROMPT, max_new_tokens=2, **asked)
    h.run()
    h.add("warm", PROMPT, max_new_tokens=2, **asked)
    h.add("only", PROMPT, max_new_tokens=0, **asked)
    h.run()
    for rid in ("cold", "warm", "only"):
        check_scores(h.scores[rid], start, own)
    assert h.cached["warm"] == max(0, start - 1) // page * page
    assert h.tokens["cold"] == h.tokens["warm"]


def test_a_prompt_is_scored_across_a_retraction(model, loop):
    own, make = model
    h = harness(make, loop, 4, chunk_tokens=8)
    h.add("a", PROMPT, max_new_tokens=2, prompt_logprobs=3)
    for _ in range(3):
        h.step()
    h.scheduler.settle()
    h.scheduler._batches._retract([h.scheduler._requests["a"]], "memory", [])
    h.run()
    check_scores(h.scores["a"], 0, own)


@pytest.mark.parametrize("page", [1, 4])
def test_answers_have_the_models_own_log_probabilities_whatever_is_done_to_the_logits(model, loop, page):
    own, make = model
    h = harness(make, loop, page, pool_tokens=80, conservativeness=0.02)
    for i in range(4):
        asked = {"temperature": 0.5 * i, "seed": i, "repetition_penalty": 1.3, "logit_bias": ((i, 3.0),)}
        h.add(f"{i}", PROMPT[: 9 + i], max_new_tokens=24, logprobs=2, **asked)
    h.run()
    assert h.stat("retractions") > 0
    for i in range(4):
        prompt, tokens = PROMPT[: 9 + i], h.tokens[f"{i}"]
        logits = own((*prompt, *tokens))[len(prompt) - 1 : -1]
        check(h.logprobs[f"{i}"], tokens, logits, top=2)


def test_penalties_are_those_of_a_loop_over_transformers(model, loop):
    own, make = model
    h = harness(make, loop)
    asked = {"repetition_penalty": 1.4, "presence_penalty": 0.5, "frequency_penalty": 0.75, "logit_bias": ((11, 1.0),)}
    for rid in ("cold", "warm"):
        h.add(rid, PROMPT, max_new_tokens=20, **asked)
        h.run()
    out = []
    for _ in range(20):
        logits = own((*PROMPT, *out))[-1].clone()
        for token in {*PROMPT, *out}:
            logits[token] *= 1 / 1.4 if logits[token] > 0 else 1.4
            logits[token] -= 0.75 * out.count(token) + 0.5 * (token in out)
        logits[11] += 1.0
        out.append(int(logits.argmax()))
    assert h.tokens["cold"] == h.tokens["warm"] == out
