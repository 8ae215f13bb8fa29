"""How many may wait, for how long, and deadlines: what ends, when, and that nothing of it stays."""

import math
import random

import numpy as np
import pytest

from rtk.cache.key import pack
from rtk.plugin import SchedulePolicy
from rtk.plugin.testing.harness import Harness
from rtk.schedule.messages import Finish, Pin, Pinned
from rtk.schedule.request import Status

QUEUE_TIMEOUT = Finish(
    reason="error",
    problem="the request did not start within 2 s, the longest wait on this server; try again later",
    code="queue_timeout",
    status=503,
)


def deadline_of(ms):
    problem = f"the request did not end within its deadline of {ms} ms"
    return Finish(reason="error", problem=problem, code="deadline_exceeded", status=503)


class Holds(SchedulePolicy):
    def rank(self, columns, ctx):
        return (columns.id,)

    def hold(self, columns, ctx):
        return np.ones(len(columns), dtype=bool)


def assert_nothing_left(h):
    h.run()
    assert (h.stat("free") + h.stat("evictable"), h.stat("free_rows")) == (h.pool_tokens, h.max_running)
    assert not h.scheduler._requests


# --- how many wait ----------------------------------------------------------------------------------------------


def test_a_burst_may_fill_the_free_rows_and_the_queue():
    h = Harness(max_running=3, max_queue=2)
    accepted = [h.add(f"r{i}", [i], max_new_tokens=4).accepted for i in range(7)]
    assert accepted == [True] * 5 + [False] * 2
    h.step()
    assert (h.stat("running"), h.stat("waiting")) == (3, 2)
    assert not h.add("late", [9]).accepted
    h.run()
    assert (h.stat("queue_full"), h.stat("requests_refused"), h.stat("finished_length")) == (3, 3, 5)


def test_free_rows_are_no_room_where_the_last_step_left_somebody_waiting():
    h = Harness(pool_tokens=32, max_running=8, max_queue=2)
    h.add("long", [1, 2, 3], max_new_tokens=24)
    h.add("waits", [4, 5], max_new_tokens=8)
    h.step()
    assert (h.stat("running"), h.stat("waiting"), h.stat("free_rows")) == (1, 1, 7)
    assert [h.add(f"r{i}", [i], max_new_tokens=1).accepted for i in range(3)] == [True, False, False]


def test_nobody_waits_where_the_queue_has_no_place():
    h = Harness(max_running=1, max_queue=0)
    for rid in "ab":
        assert h.add(rid, [1], max_new_tokens=2).accepted
        verdict = h.add("x", [2])
        assert (verdict.accepted, verdict.code, verdict.status) == (False, "queue_full", 503)
        h.abort(rid)


@pytest.mark.stepwise
def test_a_queue_that_was_left_waiting_and_went_away_takes_no_room():
    h = Harness(max_running=1, max_queue=1)
    h.add("runs", [1], max_new_tokens=9)
    h.add("waits", [2])
    h.step()
    h.abort("runs")
    h.abort("waits")
    assert [h.add(rid, [3]).accepted for rid in "abc"] == [True, True, False]


def test_a_refusal_for_what_never_works_comes_before_the_one_for_now():
    h = Harness(max_running=1, max_queue=0)
    h.add("runs", [1], max_new_tokens=9)
    assert h.add("runs", [1]).code == "duplicate_rid"
    assert h.add("b", [1], max_new_tokens=500).code == "context_length_exceeded"


@pytest.mark.stepwise
def test_pins_are_bound_by_neither():
    h = Harness(max_running=1, max_queue=0, max_wait_s=2.0)
    h.add("runs", [1], max_new_tokens=9)
    h.step()
    h.send(Pin(id=1, name="p", tokens=pack([5, 6])))
    h.run()
    assert h.now == 10.0
    assert isinstance(h.answers[1], Pinned)


# --- for how long -----------------------------------------------------------------------------------------------


def test_a_wait_ends_at_its_limit_in_order_of_arrival():
    h = Harness(max_running=1, max_wait_s=2.0)
    h.add("runs", [1], max_new_tokens=9)
    h.step()
    h.add("a", [2])
    h.step()
    h.add("b", [3])
    h.step()
    assert h.finished == {"a": QUEUE_TIMEOUT}
    h.step()
    assert h.finished == {"a": QUEUE_TIMEOUT, "b": QUEUE_TIMEOUT}
    assert (h.tokens["a"], h.stat("queue_timeouts"), h.stat("finished_error")) == ([], 2, 2)
    assert_nothing_left(h)
    assert h.tokens["runs"] == list(range(2, 11))  # which took longer


def test_a_message_finds_the_queue_without_those_whose_time_is_over():
    h = Harness(max_running=1, max_queue=1, max_wait_s=2.0)
    h.add("runs", [1], max_new_tokens=9)
    h.step()
    assert [h.add("a", [2]).accepted, h.add("b", [3]).accepted] == [True, False]
    h.now += 2.0
    assert h.add("c", [3]).accepted
    assert h.finished == {"a": QUEUE_TIMEOUT}


def test_what_started_once_may_wait_again():
    h = Harness(max_running=1, max_wait_s=2.0, schedule=Holds())
    h.add("a", [1])
    h.scheduler._requests["a"].retractions = 1
    h.now += 5.0
    h.step()
    assert not h.finished
    assert h.stat("waiting") == 1


# --- deadlines --------------------------------------------------------------------------------------------------


@pytest.mark.stepwise
def test_a_deadline_ends_a_request_wherever_it_is():
    h = Harness(max_running=2, chunk_tokens=4)
    h.add("decodes", [1], max_new_tokens=50, deadline_s=3.0)
    h.step()
    h.add("in_pieces", range(10, 22), max_new_tokens=4, deadline_s=2.0)
    h.add("waits", [2], deadline_s=2.0)
    h.step()
    assert (h.stat("running"), h.stat("waiting"), h.stat("middle_chunks")) == (2, 1, 1)
    assert not h.finished
    h.step()
    assert h.finished == {"decodes": deadline_of(3000), "in_pieces": deadline_of(2000), "waits": deadline_of(2000)}
    assert (h.tokens["decodes"], h.tokens["in_pieces"]) == ([2], [])
    assert (h.stat("deadlines_exceeded"), h.stat("finished_error"), h.stat("queue_timeouts")) == (3, 3, 0)
    assert_nothing_left(h)


@pytest.mark.stepwise
def test_what_ended_in_time_stays_as_it_ended_and_its_id_is_another_requests():
    h = Harness()
    h.add("a", [1], max_new_tokens=1, deadline_s=2.0)
    h.step()
    assert h.finished["a"].reason == "length"
    h.forget("a")
    h.add("a", [1], max_new_tokens=5)
    h.run()
    assert h.finished["a"].reason == "length"
    assert (h.now, h.stat("deadlines_exceeded")) == (6.0, 0)


def test_the_earlier_of_wait_and_deadline_counts():
    h = Harness(max_running=1, max_wait_s=2.0)
    h.add("runs", [1], max_new_tokens=9)
    h.step()
    h.add("a", [2], deadline_s=1.0)
    h.add("b", [3], deadline_s=3.0)
    h.run()
    assert h.finished["a"] == deadline_of(1000)
    assert h.finished["b"] == QUEUE_TIMEOUT
    assert (h.stat("deadlines_exceeded"), h.stat("queue_timeouts")) == (1, 1)


@pytest.mark.stepwise
def test_a_deadline_that_is_met_in_its_last_step_is_met():
    h = Harness()
    h.add("a", [1], max_new_tokens=2, deadline_s=2.5)
    h.run()
    assert h.finished["a"].reason == "length"


# --- the watch --------------------------------------------------------------------------------------------------


def test_what_ended_is_dropped_in_bulk():
    h = Harness(max_wait_s=3600.0)
    h.add("stays", [1], max_new_tokens=120, deadline_s=5000.0)
    for _ in range(1000):
        h.add("a", [1], max_new_tokens=1, deadline_s=3600.0)
        h.step()
        h.forget("a")
    assert len(h.scheduler._time._heap) <= 70


@pytest.mark.stepwise
def test_limits_are_told_in_time_whoever_ended_before():
    rng, h = random.Random(0), Harness(max_running=1, context_length=512, pool_tokens=1024)
    h.add("runs", [1], max_new_tokens=500)
    h.step(0)
    due = {f"r{i}": i for i in rng.sample(range(1, 301), 300)}
    for i, (rid, seconds) in enumerate(due.items()):
        h.add(rid, [2], deadline_s=float(seconds))
        if i % 3:
            h.abort(rid)
    for now in range(1, 301):
        h.step(1)
        assert {rid for rid, end in h.finished.items() if end.reason == "error"} == {
            rid for i, rid in enumerate(due) if not i % 3 and due[rid] <= now
        }


@pytest.mark.parametrize(("limits", "rest"), [({}, math.inf), ({"deadline_s": 5.0}, 4.0)])
def test_how_long_it_may_rest(limits, rest):
    h = Harness(schedule=Holds())
    h.add("a", [1], **limits)
    h.step()
    assert h.scheduler.rest_s == rest
    assert h.scheduler._requests["a"].status is Status.WAITING


# --- what policies see ----------------------------------------------------------------------------------------------


class Watches(SchedulePolicy):
    def rank(self, columns, ctx):
        self.columns = columns
        return (columns.deadline_s,)

    def retract_key(self, view):
        return (-view.deadline_s,)


@pytest.mark.stepwise
def test_a_policy_sees_deadlines_by_the_clock_also_of_the_retracted():
    watches = Watches()
    h = Harness(schedule=watches, max_running=2, pool_tokens=24, conservativeness=0.01)
    h.now = 100.0
    h.add("soon", [1, 2], max_new_tokens=18, deadline_s=500)
    h.add("any time", [3, 4], max_new_tokens=18)
    h.add("late", [5, 6], max_new_tokens=1, deadline_s=800.5)
    h.step()
    assert watches.columns.deadline_s.tolist() == [600.0, math.inf, 900.5]
    h.run()
    assert h.stat("retractions") == 1
    assert list(h.finished) == ["late", "soon", "any time"]
    assert [(view.retractions, view.deadline_s) for view in watches.columns.views()] == [(1, math.inf)]
