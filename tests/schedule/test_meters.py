"""What is measured beside the scheduler: exact numbers of a clock that the test turns."""

import math

import msgspec
import pytest

from rtk.observe.histogram import Distribution, Histogram
from rtk.plugin.testing.harness import Harness
from rtk.schedule.messages import GetStats, Stats
from rtk.schedule.meters import HISTOGRAMS, PARTS, Meters

pytestmark = pytest.mark.stepwise


def measured(h):
    """What a scheduler answers to `GetStats`, after a way through a wire."""
    h.send(GetStats(id=len(h.answers)))
    answer = h.answers[len(h.answers) - 1]
    return msgspec.msgpack.decode(msgspec.msgpack.encode(answer), type=Stats)


def of(stats, name):
    """How many values a histogram has, and their sum."""
    found = stats.histograms[name]
    return found.count, found.total


def test_a_histogram_counts_up_to_each_bound():
    histogram = Histogram((1.0, 2.0))
    for value in (0, 1.0, 1.1, 2.0, 2.5, math.inf, math.nan, -0.1):
        histogram.observe(value)
    histogram.observe(0.5, 3)
    assert histogram.read() == Distribution((1.0, 2.0), (5, 2, 1), 0 + 1 + 1.1 + 2 + 2.5 + 1.5)
    assert (histogram.skipped, histogram.read().count) == (3, 8)


def test_everything_is_there_from_the_start():
    stats = measured(Harness())
    assert {name: found.bounds for name, found in stats.histograms.items()} == HISTOGRAMS
    assert {found.count for found in stats.histograms.values()} == {0}
    assert stats.counts["aborts"] == {"queued": 0, "prefill": 0, "decode": 0}
    assert set(stats.counts["step_part_seconds"]) == set(PARTS)
    assert stats.counts["evicted_tokens"] == {"Lru": 0}
    assert stats.counts["plugin_faults"] == {"eviction plugin 'Lru'": 0, "schedule plugin 'Fcfs'": 0}
    assert set(stats.counts["skipped"].values()) == {0}


def test_the_times_of_a_request():
    h = Harness(max_running=1)
    h.now = 10.0
    h.add("a", [1, 2, 3], max_new_tokens=4)
    h.add("b", [7, 8], max_new_tokens=1)
    h.run()  # a second each: a's prompt at 11, its tokens at 12, 13 and 14, b's prompt at 15
    stats = measured(h)
    assert of(stats, "queue_seconds") == (2, 1 + 5)
    assert of(stats, "time_to_first_token_seconds") == (2, 1 + 5)
    assert of(stats, "inter_token_seconds") == (3, 3)
    assert of(stats, "time_per_output_token_seconds") == (1, 1)
    assert of(stats, "request_seconds") == (2, 4 + 5)
    assert of(stats, "step_seconds") == (5, 0)
    assert (stats.values["cached_tokens"], stats.values["uncached_tokens"]) == (0, 5)


def test_who_has_to_make_room_has_one_first_token_and_one_wait():
    h = Harness(pool_tokens=48, context_length=48, conservativeness=0.05)
    for rid in ("R0", "R1"):
        h.add(rid, [ord(rid[1])] * 8, max_new_tokens=24)
    h.run()
    stats = measured(h)
    assert stats.values["retractions"] > 0
    assert [stats.histograms[name].count for name in ("queue_seconds", "time_to_first_token_seconds")] == [2, 2]
    assert stats.histograms["inter_token_seconds"].count == 2 * 23
    assert stats.values["cached_tokens"] + stats.values["uncached_tokens"] == 16


def test_an_error_and_a_refusal_have_their_code():
    h = Harness(max_running=1, max_queue=0, max_wait_s=None)
    h.add("late", [1], max_new_tokens=50, deadline_s=1.5)
    h.add("late", [1])
    h.step()
    h.add("full", [1])
    h.add("huge", [1] * 200)
    h.run()
    counts = measured(h).counts
    assert counts["failed"] == {"deadline_exceeded": 1}
    assert counts["refused"] == {"duplicate_rid": 1, "queue_full": 1, "context_length_exceeded": 1}


def test_evictions_have_their_policy_and_a_flush_has_none():
    h = Harness(pool_tokens=32, context_length=32)
    for i in range(3):
        h.add(f"r{i}", [10 * i + j for j in range(10)], max_new_tokens=8)
        h.run()
    evicted = h.stat("evicted_tokens")
    assert measured(h).counts["evicted_tokens"] == {"Lru": evicted}
    assert evicted > 0 < h.scheduler._pools.cache.flush()
    assert measured(h).counts["evicted_tokens"] == {"Lru": evicted}


def test_the_queue_says_whether_it_is_full():
    h = Harness(max_running=1, max_queue=1)
    assert h.stat("queue_is_full") == 0
    h.add("runs", [1], max_new_tokens=3)
    h.step()
    assert h.stat("queue_is_full") == 0
    h.add("waits", [1], max_new_tokens=3)
    assert h.stat("queue_is_full") == 1
    h.run()
    assert h.stat("queue_is_full") == 0


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def test_time_goes_into_one_part_at_a_time():
    clock = Clock()
    meters = Meters(clock)
    for seconds, part in (
        (1, "schedule"),
        (2, "wait"),
        (4, "take_in"),
        (8, "schedule"),
        (16, "launch"),
        (32, "between"),
    ):
        clock.now += seconds
        meters.enter(part)
    clock.now += 64
    parts = meters.counts()["step_part_seconds"]
    assert parts == {
        "between": 65, "schedule": 2 + 16, "wait": 4, "take_in": 8, "launch": 32, "messages": 0, "mask": 0,
    }  # fmt: skip
    assert sum(parts.values()) == clock.now


def test_a_step_that_settles_another_one_while_it_is_planned_is_taken_apart():
    h = Harness(overlap=True, max_running=2)
    entered = []
    enter = h.scheduler.meters.enter

    def note(part):
        entered.append(part)
        return enter(part)

    h.scheduler.meters.enter = note
    h.add("a", [1], max_new_tokens=3)
    h.run()
    assert entered[:5] == ["messages", "between", "schedule", "launch", "between"]
    assert entered[5:12] == ["schedule", "launch", "wait", "take_in", "launch", "between", "schedule"]
    assert enter("between") == "between"
