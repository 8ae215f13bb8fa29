"""Highest response ratio next: tokens prefilled by the engine since a request arrived / its own uncached tokens.

Largest first, so requests that hit the cache go early and those that wait long rise. Ties: order of arrival.
"""

import numpy as np
from numpy.typing import NDArray

from rtk.plugin import Columns, Options, Plugin, ScheduleContext, SchedulePolicy, hookimpl


class Hrrn(SchedulePolicy):
    def __init__(self, options: Options) -> None:
        pass

    def rank(self, columns: Columns, ctx: ScheduleContext) -> tuple[NDArray[np.float64]]:
        return (-columns.prefilled_since_arrival / np.maximum(1, columns.uncached_len),)


@hookimpl
def rtk_plugins() -> list[Plugin]:
    return [
        Plugin(
            kind="schedule",
            name="hrrn",
            summary="highest response ratio next: short uncached work first, waiting requests rise",
            target="rtk_schedule.hrrn:Hrrn",
            requires=frozenset({"prefix_match"}),
        )
    ]
