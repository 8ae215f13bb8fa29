"""Every installed schedule policy passes the suite; planted faults do not."""

import itertools

import numpy as np
import pytest

from rtk.plugin import SchedulePolicy
from rtk.plugin.host import installed
from rtk.plugin.testing import schedule

INSTALLED = installed().of_kind("schedule")


@pytest.mark.parametrize("check", schedule.CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("entry", INSTALLED, ids=lambda entry: entry.plugin.name)
def test_installed(entry, check):
    check(lambda: entry.build(entry.plugin.options()))


class DropsARequest(SchedulePolicy):
    def order(self, views, ctx):
        return [view.id for view in views[1:]]


class RepeatsARequest(SchedulePolicy):
    def order(self, views, ctx):
        return [views[0].id for _ in views]


class AnswersNan(SchedulePolicy):
    def rank(self, columns, ctx):
        return (np.full(len(columns), np.nan),)


class KeepsState(SchedulePolicy):
    calls = itertools.count()

    def rank(self, columns, ctx):
        return (columns.id * (-1) ** next(self.calls),)


class WritesIntoTheColumns(SchedulePolicy):
    def rank(self, columns, ctx):
        columns.prompt_len += 1
        return (columns.prompt_len,)


class ReservesNothingKnown(SchedulePolicy):
    def order(self, views, ctx):
        return [view.id for view in views]

    def chunk_reserve(self, columns, ctx):
        return None


class ForgetsAKey(ReservesNothingKnown):
    chunk_reserve = SchedulePolicy.chunk_reserve

    def retract_key(self, view):
        return (view.id,) if view.id % 2 else ("even",)


class Quarrels(ReservesNothingKnown):
    chunk_reserve = SchedulePolicy.chunk_reserve

    def preempts(self, waiting, running):
        return True


class ListensBadly(ReservesNothingKnown):
    chunk_reserve = SchedulePolicy.chunk_reserve

    def on_progress(self, deltas):
        deltas[0].tokens += 1


@pytest.mark.parametrize(
    ("policy", "check"),
    [
        (DropsARequest, schedule.orders_are_permutations),
        (RepeatsARequest, schedule.orders_are_permutations),
        (AnswersNan, schedule.orders_are_permutations),
        (KeepsState, schedule.orders_are_repeatable),
        (WritesIntoTheColumns, schedule.facts_are_left_alone),
        (ReservesNothingKnown, schedule.questions_are_answered),
        (ForgetsAKey, schedule.questions_are_answered),
        (Quarrels, schedule.questions_are_answered),
        (ListensBadly, schedule.questions_are_answered),
        (DropsARequest, schedule.everybody_is_served),
    ],
    ids=lambda value: value.__name__,
)
def test_planted_faults_are_caught(policy, check):
    with pytest.raises(AssertionError):
        check(policy)
