"""Highest priority first, as clients gave them; ties: order of arrival, the retracted before the others.

Where running requests have to make room, the least important make it. With `preempt` they also make room for more
important ones that wait, and continue later. A request waits for as long as more important ones keep arriving: that is
what priorities are for, and there is no bound.
"""

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from rtk.plugin import Columns, Options, Plugin, RequestView, ScheduleContext, SchedulePolicy, hookimpl


class PriorityOptions(Options):
    preempt: bool = Field(False, description="whether waiting requests take the place of running ones of less priority")


class Priority(SchedulePolicy):
    def rank(self, columns: Columns, ctx: ScheduleContext) -> tuple[NDArray[np.int64]]:
        return (-columns.priority,)

    def retract_key(self, view: RequestView) -> tuple[int]:
        return (view.priority,)


class Preemptive(Priority):
    def preempts(self, waiting: RequestView, running: RequestView) -> bool:
        return waiting.priority > running.priority


def build(options: PriorityOptions) -> Priority:
    return Preemptive() if options.preempt else Priority()


@hookimpl
def rtk_plugins() -> list[Plugin]:
    return [
        Plugin(
            kind="schedule",
            name="priority",
            summary="highest request priority first",
            target="rtk_schedule.priority:build",
            options=PriorityOptions,
            requires=frozenset({"priority"}),
        )
    ]
