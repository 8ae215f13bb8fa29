"""Prompts are scored: the same numbers cold, warm, in pieces, beside others and after retractions."""

import math

import numpy as np
import pytest

from rtk.plugin.testing.harness import Harness, digest
from rtk.schedule.messages import TokenLogprobs

PROMPT = [*range(5, 25), 3, 1, 4]


def by_definition(prompt, start, top):
    """What `digest` makes of each token: it is sure of one."""
    entries = []
    for i in range(start, len(prompt)):
        if i == 0:
            entries.append(TokenLogprobs(prompt[0], None))
            continue
        sure = digest(prompt[:i])
        named = ((sure, 0.0),) if top else ()
        entries.append(TokenLogprobs(prompt[i], 0.0 if prompt[i] == sure else -math.inf, named))
    return tuple(entries)


STARTS = (0, 1, 2, 8, 9, len(PROMPT) - 1, len(PROMPT))


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("page", [1, 4])
@pytest.mark.parametrize("chunk", [None, 1, 5])
def test_a_prompt_is_scored_from_its_start_cold_and_warm(start, page, chunk):
    h = Harness(digest, page_size=page, chunk_tokens=chunk and max(chunk, page))
    limit = len(PROMPT) - 1 if start == len(PROMPT) else max(0, start - 1)
    for rid in ("cold", "warm"):
        h.add(rid, PROMPT, max_new_tokens=3, prompt_logprobs=1, prompt_logprobs_start=start)
        h.run()
        assert h.scores.get(rid, ()) == by_definition(PROMPT, start, 1)
    assert h.tokens["warm"] == h.tokens["cold"]
    assert (h.cached["cold"], h.cached["warm"]) == (0, limit // page * page)
    h.add("plain", PROMPT, max_new_tokens=3)
    h.run()
    assert h.cached["plain"] == (len(PROMPT) - 1) // page * page
    assert h.tokens["plain"] == h.tokens["cold"]


def test_scores_come_with_the_first_output_and_never_again():
    h = Harness(digest)
    h.add("a", PROMPT, max_new_tokens=4, prompt_logprobs=0)
    outputs = []
    while h.scheduler.busy:
        outputs += h.scheduler.step()
    assert [bool(out.prompt_logprobs) for out in outputs] == [True, False, False, False]
    assert outputs[0].prompt_logprobs == by_definition(PROMPT, 0, 0)
    assert len(outputs[0].tokens) == 1


@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize("prompt", [PROMPT, [9]])
def test_without_an_answer_the_end_carries_them(prompt, warm):
    h = Harness(digest, page_size=4)
    if warm:
        h.add("before", prompt, max_new_tokens=1)
        h.run()
    h.add("a", prompt, max_new_tokens=0, prompt_logprobs=2)
    h.run()
    assert h.scores["a"] == by_definition(prompt, 0, 2)
    assert (h.tokens["a"], h.finished["a"].reason) == ([], "length")


def test_several_are_scored_in_one_step_beside_those_who_decode():
    h = Harness(digest, chunk_tokens=8, mixed_chunk=True, max_running=6)
    h.add("decodes", [1, 2], max_new_tokens=30)
    h.step()
    asked = {"a": (PROMPT, 0), "b": (PROMPT[:7], 3), "c": ([7, 8], 0), "d": (PROMPT[2:], 1)}
    for rid, (prompt, start) in asked.items():
        h.add(rid, prompt, max_new_tokens=5, prompt_logprobs=1, prompt_logprobs_start=start)
    h.run()
    assert h.scores == {rid: by_definition(prompt, start, 1) for rid, (prompt, start) in asked.items()}
    assert max(len(plan.scored) for plan in h.executor.plans) >= 2


@pytest.mark.parametrize("pieces", [1, 2, 3])
def test_a_retraction_in_the_middle_of_the_prompt_loses_and_doubles_nothing(pieces):
    h = Harness(digest, page_size=4, chunk_tokens=8)
    h.add("a", PROMPT, max_new_tokens=2, prompt_logprobs=1, prompt_logprobs_start=2)
    for _ in range(pieces):
        h.step()
    h._note(h.scheduler.receive([]))
    h.scheduler.settle()
    request = h.scheduler._requests.get("a")
    if request is not None:
        h.scheduler._batches._retract([request], "memory", [])
    h.run()
    assert h.scores["a"] == by_definition(PROMPT, 2, 1)
    scored = [int(token) for plan in h.executor.plans for s in plan.scored for token in s.following]
    assert scored == PROMPT[2:]


def test_a_request_that_ends_before_its_prompt_was_scored_tells_nothing_of_it():
    h = Harness(digest, chunk_tokens=4)
    h.add("a", PROMPT, max_new_tokens=2, prompt_logprobs=1)
    h.step()
    h.step()
    h.abort("a")
    h.run()
    assert h.finished["a"].reason == "abort"
    assert "a" not in h.scores


def test_a_model_that_answers_in_logits_is_scored_by_them():
    def script(history):
        return np.random.default_rng(digest(history)).standard_normal(30).astype(np.float32)

    h = Harness(script, chunk_tokens=6)
    h.add("a", PROMPT, max_new_tokens=0, prompt_logprobs=3)
    h.run()
    first, *rest = h.scores["a"]
    assert first == TokenLogprobs(PROMPT[0], None)
    for i, entry in enumerate(rest, start=1):
        own = script(PROMPT[:i]).astype(np.float64)
        own -= np.log(np.exp(own).sum())
        assert (entry.token, entry.logprob) == (PROMPT[i], pytest.approx(own[PROMPT[i]], abs=1e-5))
        assert [token for token, _ in entry.top] == np.argsort(-own)[:3].tolist()
