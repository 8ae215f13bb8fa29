"""The thread sleeps when there is nothing to compute, and wakes for what arrives."""

import queue
import threading
from types import SimpleNamespace

import numpy as np
import pytest

from rtk.cache.key import pack
from rtk.plugin import EvictionPolicy, SchedulePolicy
from rtk.plugin.testing.harness import Harness
from rtk.schedule.messages import Abort, ExplainRequest, GetStats, NewRequest, Output, Stats
from rtk.schedule.params import SamplingParams
from rtk.schedule.timeline import Wait
from rtk.serve.protocol import Vitals
from rtk.serve.scheduler_thread import SchedulerThread


class Holds(SchedulePolicy):
    """Holds everybody while told to."""

    held = True

    def rank(self, columns, ctx):
        return (columns.id,)

    def hold(self, columns, ctx):
        return np.full(len(columns), self.held)


class Inbox(queue.SimpleQueue):
    """Never waits, but notes for how long it was asked to."""

    def __init__(self):
        self.waits = []

    def get(self, block=True, timeout=None):
        self.waits.append(timeout)
        return super().get(block=False)


def new(rid, max_new_tokens=2, prompt=(1,), **more):
    return NewRequest(rid=rid, tokens=pack(prompt), params=SamplingParams(max_new_tokens=max_new_tokens), **more)


def driven(policy):
    """A thread that is not started but driven turn by turn, its inbox, and what it has said."""
    said = []
    thread = SchedulerThread(Harness(schedule=policy).scheduler, said.extend)
    thread._inbox = Inbox()
    return thread, thread._inbox, said


@pytest.mark.stepwise
def test_while_a_policy_holds_everybody_the_pauses_double_to_50_ms():
    policy = Holds()
    thread, inbox, said = driven(policy)
    thread.send(new("a"))
    for _ in range(10):
        assert thread._turn()
    milliseconds = [wait and round(wait * 1000) for wait in inbox.waits]
    assert milliseconds == [None, 1, 2, 4, 8, 16, 32, 50, 50, 50]
    policy.held = False
    for _ in range(3):
        assert thread._turn()
    assert [message.tokens for message in said[1:]] == [(2,), (3,)]
    assert inbox.waits[10:] == [0.05, None]  # nothing is awaited between the tokens, and anything after the last


def test_a_pause_ends_when_somebodys_time_is_over():
    policy = Holds()
    thread, inbox, said = driven(policy)
    thread.send(new("a", deadline_s=0.005))
    for _ in range(6):
        assert thread._turn()
    assert [wait and round(wait * 1000) for wait in inbox.waits] == [None, 1, 2, 4, 5, 5]
    thread._scheduler._clock = lambda: 0.0045
    assert thread._turn()
    thread._scheduler._clock = lambda: 0.005
    assert thread._turn()
    assert inbox.waits[7] == 0.001
    assert [message.finish.code for message in said[1:]] == ["deadline_exceeded"]
    assert thread._pause == 0.0


def test_a_request_arrives_when_it_is_sent_and_not_when_a_step_has_ended():
    h, said = Harness(schedule=Holds()), []
    thread = SchedulerThread(h.scheduler, said.extend)
    h.now = 1.0
    thread.send(new("a", name="early"))
    thread.send(new("late", deadline_s=4.0))
    h.now = 5.0  # a long step is under way
    assert thread._turn()
    thread.send(ExplainRequest(id=1, name="early"))
    assert thread._turn()
    ended, explained = said[2:]
    assert (ended.rid, ended.finish.code) == ("late", "deadline_exceeded")
    assert (explained.timeline.age_s, explained.timeline.waits) == (4.0, (Wait("step", 4.0),))


def test_a_message_ends_the_pause():
    said = queue.SimpleQueue()
    thread = SchedulerThread(Harness(schedule=Holds()).scheduler, lambda messages: [*map(said.put, messages)])
    thread.start()
    thread.send(new("a"))
    assert said.get(timeout=10).accepted
    thread.send(GetStats(id=7))
    stats = said.get(timeout=10)
    assert isinstance(stats, Stats) and stats.values["waiting"] == 1
    thread.send(Abort("a"))
    ended = said.get(timeout=10)
    assert isinstance(ended, Output) and ended.finish.reason == "abort"
    thread.send(new("b"))
    assert said.get(timeout=10).accepted
    thread.stop()
    assert said.get(timeout=10).finish.problem == "the engine shut down"
    assert thread.failure is None


class Watches(SchedulePolicy):
    """Notes what is told of the thread while it is asked, and fails."""

    def rank(self, columns, ctx):
        self.now[0] += 7.0
        self.seen = self.thread.vitals
        raise ValueError("wrong")


def test_the_vitals_tell_how_long_a_turn_lasts_and_which_plugins_failed(monkeypatch):
    policy = Watches()
    thread, _, _ = driven(policy)
    policy.thread, policy.now = thread, [100.0]
    monkeypatch.setattr("rtk.serve.scheduler_thread.time", SimpleNamespace(monotonic=lambda: policy.now[0]))
    assert thread.vitals == Vitals(0.0, {})
    thread.send(new("a"))
    assert thread._turn()
    assert policy.seen == Vitals(7.0, {})
    failed = {"schedule plugin 'Watches'": {"faults": 1, "instead": "order of arrival"}}
    assert thread.vitals == Vitals(7.0, failed)
    thread._awaited = lambda: [policy.now.append(thread.vitals.turn_s)]
    thread.send(None)
    assert not thread._turn()
    assert policy.now[1] == 0.0  # while it waits


class LoopsOnce(SchedulePolicy, EvictionPolicy):
    """Loops in the method named, when asked for the third time."""

    def __init__(self, method):
        self.method = method
        self.asked = 0

    def act(self, method, answer):
        self.asked += method == self.method
        if self.asked == 3:
            while True:
                pass
        return answer

    def rank(self, columns, ctx):
        return self.act("rank", (-columns.id,))

    def key(self, node):
        return self.act("key", (-node.last_use,))


@pytest.mark.parametrize("kind", ["eviction", "schedule"])
def test_a_scheduler_goes_on_after_a_loop_and_loses_no_request(kind, monkeypatch, caplog):
    monkeypatch.setattr("rtk.plugin.watchdog.EVERY_S", 0.02)
    policy = LoopsOnce({"eviction": "key", "schedule": "rank"}[kind])
    harness, said = Harness(pool_tokens=24, max_running=2, **{kind: policy}), []
    ended = threading.Semaphore(0)

    def deliver(messages):
        said.extend(messages)
        for message in messages:
            if isinstance(message, Output) and message.finish:
                ended.release()

    thread = SchedulerThread(harness.scheduler, deliver)
    thread.start()
    for i in range(6):
        thread.send(new(f"r{i}", max_new_tokens=3, prompt=[100 * i + j for j in range(8)]))
    for _ in range(6):
        assert ended.acquire(timeout=60)
    thread.stop()
    finished = {
        message.rid: message.finish.reason for message in said if isinstance(message, Output) and message.finish
    }
    assert finished == {f"r{i}": "length" for i in range(6)}
    assert thread.failure is None
    assert harness.stat("plugin_faults") == 1
    harness.scheduler.check()
    assert [record.levelname for record in caplog.records if "LoopsOnce" in record.message] == ["ERROR"]
