import sys

import numpy as np
import pytest

from rtk.plugin import EvictionPolicy, NodeView, SchedulePolicy
from rtk.plugin.guard import GuardedEviction, GuardedSchedule, Health
from rtk.plugin.testing.harness import Harness
from rtk.plugin.testing.schedule import context, random_columns

VIEW = NodeView(id=3, size=4, start=0, created=1, last_use=9, hits=2)


class Answers(EvictionPolicy):
    def __init__(self, *answers):
        self.answers = list(answers)

    def key(self, node):
        answer = self.answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return answer


@pytest.mark.parametrize(
    "nonsense",
    [RuntimeError("no"), SystemExit(3), None, 7, [1], (), (None,), (float("nan"),), (object(),), (1, (2,)), ("x", 1)],
    ids=["raises", "exits", "None", "a number", "a list", "empty", "a None", "NaN", "an object", "a tuple", "text"],
)
def test_a_nonsense_key_gives_the_policy_up(nonsense):
    health = Health()
    guarded = GuardedEviction(Answers((1, 2), nonsense), "odd", health)
    assert guarded.key(VIEW) == (1, 2)
    assert guarded.key(VIEW) == (VIEW.last_use,)
    assert guarded.faulted and health.degraded
    assert guarded.key(VIEW) == (VIEW.last_use,)  # the policy is not asked again: it has no third answer
    assert health.faults == {"eviction plugin 'odd'": 1}


def test_int_and_float_keys_may_mix():
    guarded = GuardedEviction(Answers((1, 2.5), (0.5, True)), "fine", Health())
    assert [guarded.key(VIEW), guarded.key(VIEW)] == [(1, 2.5), (0.5, True)]
    assert not guarded.faulted


class RaisesLater(EvictionPolicy):
    """Evicts the newest first, until it breaks."""

    def __init__(self, calls):
        self.calls = calls

    def key(self, node):
        self.calls -= 1
        if self.calls < 0:
            raise RuntimeError("worn out")
        return (-node.last_use,)


@pytest.mark.parametrize("calls", range(0, 40, 3))
def test_serving_survives_an_eviction_policy_that_breaks(calls):
    harness = Harness(pool_tokens=32, eviction=RaisesLater(calls))
    for i in range(20):
        harness.add(f"r{i}", [100 * i + j for j in range(6)], max_new_tokens=4)
        harness.run()  # checks the books after each step
    assert len(harness.finished) == 20
    assert {f.reason for f in harness.finished.values()} == {"length"}
    assert harness.stat("plugin_faults") == 1


def test_after_a_break_eviction_is_least_recently_used():
    harness = Harness(pool_tokens=16, eviction=RaisesLater(1))
    for rid in ("a", "b"):  # the second key breaks the policy
        harness.add(rid, [ord(rid) * 10 + j for j in range(4)], max_new_tokens=1)
        harness.run()
    harness.add("c", list(range(10)), max_new_tokens=1)
    harness.run()
    cached = harness.scheduler._pools.cache
    assert harness.stat("plugin_faults") == 1
    assert [node.tokens[:4] for node in cached.nodes() if len(node.slots) == 4] == [
        (980).to_bytes(4, "little")
    ]  # of a and b, b is left


class Ranks(SchedulePolicy):
    def __init__(self, answer):
        self.answer = answer

    def rank(self, columns, ctx):
        return self.answer(columns)


@pytest.mark.parametrize(
    "answer",
    [
        lambda c: 1 / 0,
        lambda c: sys.exit(3),
        lambda c: (np.zeros(len(c) + 1),),
        lambda c: (np.full(len(c), np.nan),),
        lambda c: None,
        lambda c: np.zeros((2, len(c) + 1)),
        lambda c: ([0] * len(c),),
    ],
    ids=["raises", "exits", "wrong length", "NaN", "None", "a matrix", "a list"],
)
def test_a_nonsense_rank_becomes_order_of_arrival(answer):
    health = Health()
    columns = random_columns(20, seed=1)
    guarded = GuardedSchedule(Ranks(answer), "odd", health)
    for asked in (1, 2):  # scheduling asks again in the next step
        assert guarded.order(columns, context()).tolist() == list(range(20))
        assert health.faults == {"schedule plugin 'odd'": asked}


def test_the_first_key_is_the_most_important_and_arrival_the_last():
    columns = random_columns(4, seed=1)
    keys = (np.array([1, 0, 1, 0]), np.array([0.5, 2.0, 0.5, 1.0]))
    order = GuardedSchedule(Ranks(lambda c: keys), "fine", Health()).order(columns, context())
    assert order.tolist() == [3, 1, 0, 2]


class Orders(SchedulePolicy):
    def __init__(self, answer):
        self.answer = answer

    def order(self, views, ctx):
        return self.answer([view.id for view in views])


@pytest.mark.parametrize(
    "answer",
    [lambda ids: ids[1:], lambda ids: [*ids, ids[0]], lambda ids: [ids[0]] * len(ids), lambda ids: [-1, *ids[1:]]],
    ids=["one missing", "one twice more", "one for all", "a stranger"],
)
def test_a_nonsense_order_becomes_order_of_arrival(answer):
    health = Health()
    order = GuardedSchedule(Orders(answer), "odd", health).order(random_columns(5, seed=1), context())
    assert order.tolist() == [0, 1, 2, 3, 4]
    assert health.degraded


def test_order_sees_at_most_a_thousand_and_the_rest_follow():
    seen = []
    policy = Orders(lambda ids: seen.append(len(ids)) or ids[::-1])
    order = GuardedSchedule(policy, "fine", Health()).order(random_columns(1200, seed=1), context())
    assert seen == [1000]
    assert order.tolist() == [*range(999, -1, -1), *range(1000, 1200)]


class Holds(Ranks):
    def __init__(self, held):
        super().__init__(lambda columns: (-columns.id,))
        self.held = held

    def hold(self, columns, ctx):
        return self.held(columns)


def test_requests_on_hold_are_left_out():
    columns = random_columns(6, seed=1)
    guarded = GuardedSchedule(Holds(lambda c: c.id == c.id[2]), "fine", Health())
    assert guarded.order(columns, context()).tolist() == [5, 4, 3, 1, 0]


@pytest.mark.parametrize("held", [lambda c: [True], lambda c: np.zeros(len(c)), lambda c: 1 / 0])
def test_a_nonsense_hold_holds_nobody(held):
    health = Health()
    order = GuardedSchedule(Holds(held), "odd", health).order(random_columns(3, seed=1), context())
    assert order.tolist() == [2, 1, 0]
    assert health.degraded


def test_the_first_fault_is_logged_and_the_rest_are_counted(caplog):
    health = Health()
    for _ in range(3):
        health.fault("eviction plugin 'odd'", "key() failed: ValueError: no", "least recently used")
    assert [record.message for record in caplog.records] == [
        "eviction plugin 'odd': key() failed: ValueError: no; the host uses least recently used instead"
    ]
    assert health.faults["eviction plugin 'odd'"] == 3
