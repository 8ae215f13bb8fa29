"""Planted faults of schedule policies: the contract suite catches each."""

import itertools
import time
from datetime import datetime

import numpy as np
import pytest
from planted import assert_caught, assert_passes

from rtk.plugin import SchedulePolicy
from rtk.plugin.testing import Subject


class Fcfs(SchedulePolicy):
    def order(self, views, ctx):
        return [view.id for view in views]


def test_the_policy_that_the_faults_are_planted_in_passes():
    assert_passes("schedule", Fcfs)


class DropsARequest(Fcfs):
    def order(self, views, ctx):
        return [view.id for view in views[1:]]


class RepeatsARequest(Fcfs):
    def order(self, views, ctx):
        return [views[0].id for _ in views]


class AnswersNan(SchedulePolicy):
    def rank(self, columns, ctx):
        return (np.full(len(columns), np.nan),)


class AnswersTooFew(SchedulePolicy):
    def rank(self, columns, ctx):
        return (columns.prompt_len[:5],)


class KeepsState(SchedulePolicy):
    calls = itertools.count()

    def rank(self, columns, ctx):
        return (columns.id * (-1) ** next(self.calls),)


class ReadsAClock(SchedulePolicy):
    def rank(self, columns, ctx):
        return (columns.prompt_len * (-1) ** (int(time.time()) // 86_400 % 2),)


class ReadsTheDate(SchedulePolicy):
    """By the microsecond: two rankings differ."""

    def rank(self, columns, ctx):
        return (columns.prompt_len * np.int64(datetime.now().timestamp() * 1e6) % 1009,)


class WritesIntoTheColumns(SchedulePolicy):
    def rank(self, columns, ctx):
        columns.prompt_len += 1
        return (columns.prompt_len,)


class WritesThroughTheBase(SchedulePolicy):
    """Read-only arrays are views of arrays that can be found."""

    def rank(self, columns, ctx):
        columns.prompt_len.base.flags.writeable = True
        columns.prompt_len.base[:] = 1
        return (columns.id,)


class DividesByTheHit(SchedulePolicy):
    def rank(self, columns, ctx):
        return (0 / columns.matched_len.astype(float),)


class ReservesNothingKnown(Fcfs):
    def chunk_reserve(self, columns, ctx):
        return None


class ForgetsAKey(Fcfs):
    def retract_key(self, view):
        return (view.id,) if view.id % 2 else ("even",)


class Quarrels(Fcfs):
    def preempts(self, waiting, running):
        return True


class ListensBadly(Fcfs):
    def on_progress(self, deltas):
        deltas[0].tokens += 1


class HoldsForEver(Fcfs):
    def hold(self, columns, ctx):
        return columns.id >= 0


class TiresOfLongQueues(Fcfs):
    """Works for up to 20 requests, and for 300."""

    def order(self, views, ctx):
        return [view.id for view in views if view.max_new_tokens < 2_000_000]


class ForgetsTheOutput(SchedulePolicy):
    """Of a retracted request more may be cached than its prompt."""

    def rank(self, columns, ctx):
        return (np.sqrt(columns.prompt_len - columns.matched_len),)


class ListensLater(Fcfs):
    async def on_progress(self, deltas):
        pass


@pytest.mark.parametrize(
    ("policy", "check"),
    [
        (ForgetsTheOutput, "any queue is ordered"),
        (ListensLater, "questions are answered"),
        (DropsARequest, "orders are permutations"),
        (RepeatsARequest, "orders are permutations"),
        (AnswersNan, "orders are permutations"),
        (AnswersTooFew, "orders are permutations"),
        (KeepsState, "orders are repeatable"),
        (ReadsAClock, "orders are repeatable"),
        (ReadsTheDate, "orders are repeatable"),
        (WritesIntoTheColumns, "facts are left alone"),
        (WritesThroughTheBase, "facts are left alone"),
        (ReservesNothingKnown, "questions are answered"),
        (ForgetsAKey, "questions are answered"),
        (Quarrels, "questions are answered"),
        (ListensBadly, "questions are answered"),
        (DropsARequest, "everybody is served"),
        (HoldsForEver, "everybody is served"),
        (DividesByTheHit, "any queue is ordered"),
        (TiresOfLongQueues, "any queue is ordered"),
        (DropsARequest, "any requests are served"),
        (HoldsForEver, "a trace is served"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_planted_faults_are_caught(policy, check):
    assert_caught("schedule", policy, check)


class ByHit(SchedulePolicy):
    def rank(self, columns, ctx):
        return (-columns.hit_len,)


class ByTenant(SchedulePolicy):
    def rank(self, columns, ctx):
        return (np.array([ctx.tenants[tenant] == "b" for tenant in columns.tenant.tolist()], dtype=bool),)


class ByDepth(SchedulePolicy):
    def rank(self, columns, ctx):
        return (ctx.tree.size[ctx.tree.node],)


@pytest.mark.parametrize(
    ("policy", "requires", "check"),
    [
        (ByHit, "prefix_match", "facts are required"),
        (ByTenant, "tenant", "orders are permutations"),
        (ByDepth, "tree", "orders are permutations"),
    ],
)
def test_what_a_policy_reads_it_must_require(policy, requires, check):
    assert_passes("schedule", Subject(policy, frozenset({requires})))
    assert_caught("schedule", Subject(policy, frozenset()), check)
