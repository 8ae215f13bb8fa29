"""Several answers to one prompt: it is computed once, and nobody waits for somebody who is gone."""

import pytest

from rtk.plugin.testing.harness import Harness, digest
from rtk.serve.request_explanation import request_explanation

PROMPT = list(range(40, 63))


def answers(h, count, **options):
    """Requests `a`, `a-1`, ... with one prompt; the first leads."""
    for i in range(count):
        leader = {"leader": "a"} if i else {}
        h.add(f"a-{i}" if i else "a", PROMPT, max_new_tokens=6, seed=i, n=1 if i else count, **leader, **options)


def alone(prompt, count):
    out = []
    for _ in range(count):
        out.append(digest([*prompt, *out]))
    return out


def books_are_closed(h):
    assert h.stat("free") + h.stat("evictable") == h.stat("pool")
    assert h.stat("invariant_violations") == h.stat("following") == 0


@pytest.mark.parametrize("page", [1, 4, 16])
@pytest.mark.parametrize("chunk", [None, 16, 6])
@pytest.mark.parametrize("mixed", [False, True])
def test_the_prompt_is_computed_once(page, chunk, mixed):
    h = Harness(digest, page_size=page, chunk_tokens=chunk and max(chunk, page), mixed_chunk=mixed)
    answers(h, 5)
    assert h.stat("following") == 4
    h.run()
    hit = (len(PROMPT) - 1) // page * page
    assert h.stat("prefill_tokens") == len(PROMPT) + 4 * (len(PROMPT) - hit)
    assert h.cached == {"a": 0, **{f"a-{i}": hit for i in range(1, 5)}}
    assert {tuple(tokens) for tokens in h.tokens.values()} == {tuple(alone(PROMPT, 6))}
    assert {finish.reason for finish in h.finished.values()} == {"length"}
    assert len(h.finished) == 5
    books_are_closed(h)


def test_with_the_cache_switched_off_nobody_waits():
    h = Harness(digest, cache_enabled=False)
    answers(h, 3)
    assert (h.stat("following"), h.stat("waiting")) == (0, 3)
    h.run()
    assert len(h.finished) == 3
    assert h.stat("prefill_tokens") == 3 * len(PROMPT)


@pytest.mark.parametrize("steps", [0, 1, 2, 3])
def test_a_leader_that_is_aborted_holds_nobody_up(steps):
    h = Harness(digest, chunk_tokens=8)
    answers(h, 3)
    for _ in range(steps):
        h.step()
    h.abort("a")
    assert h.stat("following") == 0
    h.run()
    assert [h.finished[rid].reason for rid in ("a", "a-1", "a-2")] == ["abort", "length", "length"]
    assert h.tokens["a-1"] == h.tokens["a-2"] == alone(PROMPT, 6)
    books_are_closed(h)


def test_a_leader_that_fails_holds_nobody_up():
    def script(history):
        if history == PROMPT and not failed:
            failed.append(True)
            raise RuntimeError("no")
        return digest(history)

    failed = []
    h = Harness(script)
    answers(h, 3)
    h.run()
    assert [h.finished[rid].reason for rid in ("a", "a-1", "a-2")] == ["error", "length", "length"]
    books_are_closed(h)


def test_a_leader_that_has_ended_or_never_was_is_waited_for_by_nobody():
    h = Harness(digest)
    h.add("a", PROMPT, max_new_tokens=1)
    h.run()
    h.add("late", PROMPT, max_new_tokens=1, leader="a")
    h.add("lost", PROMPT, max_new_tokens=1, leader="nobody")
    assert (h.stat("following"), h.stat("waiting")) == (0, 2)
    h.run()
    assert h.tokens["late"] == h.tokens["lost"] == alone(PROMPT, 1)


def test_a_leader_whose_prompt_is_computed_is_waited_for_no_more():
    h = Harness(digest)
    h.add("a", PROMPT, max_new_tokens=9)
    for _ in range(3):
        h.step()
    h.add("b", PROMPT, max_new_tokens=1, leader="a")
    assert (h.stat("following"), h.stat("waiting")) == (0, 1)
    h.run()
    assert h.cached["b"] == len(PROMPT) - 1


@pytest.mark.parametrize("steps", [1, 2])
def test_a_leader_that_is_retracted_in_its_prompt_still_leads(steps):
    h = Harness(digest, chunk_tokens=8)
    answers(h, 3)
    for _ in range(steps):
        h.step()
    h.scheduler.settle()
    h.scheduler._batches._retract([h.scheduler._requests["a"]], "memory", [])
    assert h.stat("following") == 2
    h.run()
    assert h.stat("prefill_tokens") == len(PROMPT) + 2
    assert h.tokens["a-2"] == h.tokens["a"] == alone(PROMPT, 6)
    books_are_closed(h)


def test_a_follower_may_be_aborted_and_may_run_out_of_time():
    h = Harness(digest, chunk_tokens=4, max_wait_s=100)
    answers(h, 2)
    h.add("late", PROMPT, max_new_tokens=1, leader="a", deadline_s=2.5)
    h.abort("a-1")
    assert h.stat("following") == 1
    h.run()
    assert (h.finished["a-1"].reason, h.finished["late"].code) == ("abort", "deadline_exceeded")
    assert h.tokens["a"] == alone(PROMPT, 6)
    books_are_closed(h)


def test_an_engine_that_goes_away_ends_them_all():
    h = Harness(digest, chunk_tokens=4)
    answers(h, 3)
    h.step()
    h._note(h.scheduler.abandon("it is over"))
    assert [finish.problem for finish in h.finished.values()] == ["it is over"] * 3


def test_without_answers_all_of_them_end_with_the_prompt():
    h = Harness(digest, page_size=4)
    h.add("a", PROMPT, max_new_tokens=0, n=2)
    h.add("b", PROMPT, max_new_tokens=0, leader="a")
    h.run()
    assert [finish.reason for finish in h.finished.values()] == ["length"] * 2
    assert h.stat("prefill_tokens") == len(PROMPT) + 3


# The queue's limit


@pytest.mark.parametrize(("waiting", "fits"), [(0, True), (1, True), (2, False)])
def test_a_queue_takes_all_answers_or_none(waiting, fits):
    h = Harness(digest, max_queue=4, max_running=1)
    h.add("runs", [1], max_new_tokens=50)
    h.step()
    for i in range(waiting):
        h.add(f"w{i}", [2, i], max_new_tokens=1)
        h.step()
    verdict = h.add("a", PROMPT, max_new_tokens=2, n=3)
    assert verdict.accepted == fits
    if not fits:
        assert (verdict.code, verdict.status) == ("queue_full", 503)
        assert verdict.problem.startswith("the queue has no room for 3 answers: 2 wait (schedule.max_queue = 4)")
        for i in (1, 2):
            assert h.add(f"a-{i}", PROMPT, max_new_tokens=2, leader="a").problem == verdict.problem
        assert (h.stat("requests_refused"), h.stat("queue_full")) == (3, 1)
        assert h.add("b", PROMPT, max_new_tokens=2).accepted
    else:
        assert h.add("a-1", PROMPT, max_new_tokens=2, leader="a").accepted
        assert h.add("a-2", PROMPT, max_new_tokens=2, leader="a").accepted
        assert h.add("one more", [9], max_new_tokens=1).accepted == (waiting == 0)
    h.run()
    books_are_closed(h)


def test_free_rows_are_room_for_answers():
    h = Harness(digest, max_queue=1, max_running=4)
    answers(h, 5)
    assert all(verdict.accepted for verdict in h.verdicts.values())
    h.run()
    assert len(h.finished) == 5


def test_more_answers_than_can_ever_run_and_wait_are_refused_for_good():
    h = Harness(digest, max_queue=1, max_running=4)
    verdict = h.add("a", PROMPT, max_new_tokens=2, n=6)
    assert (verdict.accepted, verdict.status, verdict.field) == (False, 400, "n")
    assert verdict.problem == "n = 6: at most 5 answers can run and wait (schedule.max_running + schedule.max_queue)"


# What is told of it


@pytest.mark.stepwise
def test_the_time_that_a_follower_waited_for_its_leader_is_told():
    h = Harness(digest, chunk_tokens=8)
    answers(h, 2)
    h.run()
    timeline = h.scheduler._ledger.timeline("a-1", h.now)
    assert {wait.cause: wait.seconds for wait in timeline.waits} == {"leader": 3.0, "step": 1.0}
    assert timeline.cached_tokens == len(PROMPT) - 1
    sentences = request_explanation(timeline).sentences
    assert any("the first answer to its prompt to compute that" in sentence for sentence in sentences), sentences
