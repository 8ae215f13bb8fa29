"""Longest output first: most `max_new_tokens` first, so that long answers do not run alone at the end of a backlog.

Ties: order of arrival. Short answers may wait for as long as longer ones keep arriving.
"""

import numpy as np
from numpy.typing import NDArray

from rtk.plugin import Columns, Options, Plugin, ScheduleContext, SchedulePolicy, hookimpl


class Lof(SchedulePolicy):
    def __init__(self, options: Options) -> None:
        pass

    def rank(self, columns: Columns, ctx: ScheduleContext) -> tuple[NDArray[np.int64]]:
        return (-columns.max_new_tokens,)


@hookimpl
def rtk_plugins() -> list[Plugin]:
    return [
        Plugin(kind="schedule", name="lof", summary="longest output first", target="rtk_schedule.lof:Lof"),
    ]
