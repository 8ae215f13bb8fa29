"""Highest priority first, as clients gave them; ties: order of arrival.

Nobody who runs makes room for anybody. A request waits for as long as more important ones keep arriving.
"""

import numpy as np
from numpy.typing import NDArray

from rtk.plugin import Columns, Options, Plugin, ScheduleContext, SchedulePolicy, hookimpl


class Priority(SchedulePolicy):
    def __init__(self, options: Options) -> None:
        pass

    def rank(self, columns: Columns, ctx: ScheduleContext) -> tuple[NDArray[np.int64]]:
        return (-columns.priority,)


@hookimpl
def rtk_plugins() -> list[Plugin]:
    return [
        Plugin(
            kind="schedule",
            name="priority",
            summary="highest request priority first",
            target="rtk_schedule.priority:Priority",
            requires=frozenset({"priority"}),
        )
    ]
