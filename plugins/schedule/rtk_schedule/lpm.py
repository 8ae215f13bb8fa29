"""Longest prefix match: what has most tokens in the cache, in all tiers, goes first. Ties: order of arrival.

The rule of SGLang (arXiv:2312.07104), with its in-batch prefix check and its fallback: above `fallback_above` waiting
requests the order is that of arrival, which is counted and reported. Requests that hit nothing would wait for as long
as others keep hitting; `patience` bounds that, see `rtk_schedule.turns`.
"""

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from rtk.plugin import Columns, Plugin, ScheduleContext, SchedulePolicy, hookimpl
from rtk_schedule.in_batch import InBatchOptions
from rtk_schedule.turns import TurnOptions, Turns


class LpmOptions(InBatchOptions, TurnOptions):
    fallback_above: int | None = Field(
        128, ge=0, description="waiting requests above which the order is that of arrival; null: never"
    )


class Lpm(SchedulePolicy):
    def __init__(self, options: LpmOptions) -> None:
        self._options = options
        self._turns = Turns(options)
        self.in_batch_len = options.in_batch_defer or self.in_batch_len

    def rank(self, columns: Columns, ctx: ScheduleContext) -> tuple[NDArray[np.generic], ...]:
        turn, limit = self._turns.key(columns, ctx), self._options.fallback_above
        if limit is not None and len(columns) > limit:
            ctx.fallbacks.append(f"lpm orders by arrival while more than {limit} requests wait (fallback_above)")
            return (columns.id,)
        if self._options.in_batch_defer is None:
            return turn, -columns.hit_len
        return turn, columns.deferred(self._options.in_batch_check), -columns.hit_len


@hookimpl
def rtk_plugins() -> list[Plugin]:
    return [
        Plugin(
            kind="schedule",
            name="lpm",
            summary="longest prefix match: most cached tokens first; now and then who waits longest",
            target="rtk_schedule.lpm:Lpm",
            options=LpmOptions,
            requires=frozenset({"prefix_match", "in_batch_check"}),
        )
    ]
