"""Longest output first: most `max_new_tokens` first, so that long answers do not run alone at the end of a backlog.

What was asked for counts, also of a request that was retracted: it stays ahead of its equals, and of what it has
cached. Ties: order of arrival. Short answers would wait for as long as longer ones keep arriving; `patience` bounds
that, see `rtk_schedule.turns`.
"""

import numpy as np
from numpy.typing import NDArray

from rtk.plugin import Columns, Plugin, ScheduleContext, SchedulePolicy, hookimpl
from rtk_schedule.turns import TurnOptions, Turns


class Lof(SchedulePolicy):
    def __init__(self, options: TurnOptions) -> None:
        self._turns = Turns(options)

    def rank(self, columns: Columns, ctx: ScheduleContext) -> tuple[NDArray[np.generic], ...]:
        return self._turns.key(columns, ctx), -columns.max_new_tokens


@hookimpl
def rtk_plugins() -> list[Plugin]:
    return [
        Plugin(
            kind="schedule",
            name="lof",
            summary="longest output first; now and then who waits longest",
            target="rtk_schedule.lof:Lof",
            options=TurnOptions,
        ),
    ]
