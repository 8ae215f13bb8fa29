"""What the scheduler reports of steps and requests to whoever observes it."""

import pytest

from rtk.plugin.testing.harness import Harness


class Notes:
    def __init__(self):
        self.steps, self.requests = [], []
        self.on_step, self.on_request = self.steps.append, self.requests.append


def observed(**harness):
    h = Harness(**harness)
    h.scheduler._reports = notes = Notes()
    return h, notes


def test_steps_add_up_to_the_counters_and_slots_to_the_pool():
    h, notes = observed(pool_tokens=64, max_running=3)
    for i in range(5):
        h.add(f"r{i}", [10 * i + j for j in range(6)], max_new_tokens=4)
    h.run()
    steps = notes.steps
    assert [step.step for step in steps] == list(range(1, h.stat("steps") + 1))
    assert sum(step.prefill_tokens for step in steps) == h.stat("prefill_tokens") == 30
    assert sum(step.decode_tokens for step in steps) == h.stat("decode_tokens") + h.stat("wasted_rows")
    assert {step.free + step.evictable + step.protected + step.held for step in steps} == {64}
    assert all(min(step[8:]) >= 0 for step in steps)
    assert (steps[0].rows, steps[0].running, steps[0].waiting) == (3, 3, 2)
    assert (steps[-1].running, steps[-1].waiting, steps[-1].failed) == (0, 0, False)


@pytest.mark.stepwise
def test_a_request_is_reported_once_with_its_times_and_tokens():
    h, notes = observed(max_running=1)
    h.now = 5.0
    h.add("a", [1, 2, 3], max_new_tokens=2)
    h.run()
    h.now = 7.0
    h.add("b", [1, 2, 3, 9], max_new_tokens=1)
    h.run()
    h.add("gone", [1], max_new_tokens=2)
    h.abort("gone")
    first, second, gone = notes.requests
    assert first._asdict() == {
        "rid": "a",
        "arrival_s": 5.0,
        "first_token_s": 6.0,
        "ended_s": 7.0,
        "prompt_tokens": 3,
        "cached_tokens": 0,
        "output_tokens": 2,
        "retractions": 0,
        "priority": 0,
        "reason": "length",
        "code": "",
    }
    assert (second.rid, second.arrival_s, second.cached_tokens, second.output_tokens) == ("b", 7.0, 3, 1)
    assert (gone.rid, gone.first_token_s, gone.output_tokens, gone.reason) == ("gone", None, 0, "abort")


def test_a_step_that_fails_is_reported_as_such(monkeypatch):
    h, notes = observed()
    h.add("a", [1, 2], max_new_tokens=2)
    monkeypatch.setattr(h.executor, "launch", lambda plan: 1 / 0)
    h.run()
    assert {step.failed for step in notes.steps} == {True}
    assert [(request.reason, request.code) for request in notes.requests] == [("error", "generation_failed")]


@pytest.mark.stepwise
def test_a_deadline_is_told_from_a_crash_and_pieces_of_a_prompt_are_no_first_token():
    h, notes = observed(chunk_tokens=2)
    h.add("late", range(6), max_new_tokens=4, deadline_s=2.5)
    h.run()
    (late,) = notes.requests
    assert (late.reason, late.code, late.first_token_s, late.output_tokens) == ("error", "deadline_exceeded", None, 0)
    h.add("in time", range(10, 16), max_new_tokens=4)
    before = h.now
    h.run()
    assert notes.requests[-1].first_token_s - before == 3  # with the last of three pieces
