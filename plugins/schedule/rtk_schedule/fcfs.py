"""First come, first served: in order of arrival."""

import numpy as np
from numpy.typing import NDArray

from rtk.plugin import Columns, Options, Plugin, ScheduleContext, SchedulePolicy, hookimpl


class Fcfs(SchedulePolicy):
    def __init__(self, options: Options) -> None:
        pass

    def rank(self, columns: Columns, ctx: ScheduleContext) -> tuple[NDArray[np.int64]]:
        return (columns.id,)


@hookimpl
def rtk_plugins() -> list[Plugin]:
    return [
        Plugin(kind="schedule", name="fcfs", summary="first come, first served", target="rtk_schedule.fcfs:Fcfs"),
    ]
