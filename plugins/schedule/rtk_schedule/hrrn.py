"""Highest response ratio next: tokens prefilled by the engine since a request arrived / its own uncached tokens.

Largest first, so requests that hit the cache go early and those that wait long rise. Ties: order of arrival. With the
in-batch prefix check of SGLang, where requests are put off to the end of the line.

A request of u uncached tokens, after P were prefilled since it arrived, is passed only by requests of a higher ratio: a
later one that needs v tokens must have waited while more than P * v / u were prefilled, and one that is put off waits
for earlier ones that begin alike, too.
"""

import numpy as np
from numpy.typing import NDArray

from rtk.plugin import Columns, Plugin, ScheduleContext, SchedulePolicy, hookimpl
from rtk_schedule.in_batch import InBatchOptions


class Hrrn(SchedulePolicy):
    def __init__(self, options: InBatchOptions) -> None:
        self._options = options
        self.in_batch_len = options.in_batch_defer or self.in_batch_len

    def rank(self, columns: Columns, ctx: ScheduleContext) -> tuple[NDArray[np.generic], ...]:
        ratio = columns.prefilled_since_arrival / np.maximum(1, columns.uncached_len)
        if self._options.in_batch_defer is None:
            return (-ratio,)
        return columns.deferred(self._options.in_batch_check), -ratio


@hookimpl
def rtk_plugins() -> list[Plugin]:
    return [
        Plugin(
            kind="schedule",
            name="hrrn",
            summary="highest response ratio next: short uncached work first, waiting requests rise",
            target="rtk_schedule.hrrn:Hrrn",
            options=InBatchOptions,
            requires=frozenset({"prefix_match", "in_batch_check"}),
        )
    ]
