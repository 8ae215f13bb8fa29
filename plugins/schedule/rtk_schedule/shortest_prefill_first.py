"""Shortest prefill first: the fewest uncached prompt tokens first, for early first tokens.

Waiting requests age: each token that the engine has prefilled since a request arrived counts 1 / `age` of a token less.
So once the engine has prefilled `age` times as many tokens as the request has uncached ones, no later arrival goes
before it. Ties: order of arrival.
"""

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from rtk.plugin import Columns, Options, Plugin, ScheduleContext, SchedulePolicy, hookimpl


class ShortestPrefillFirstOptions(Options):
    age: int = Field(
        8, ge=1, description="times its own length that the engine may prefill for others before a request"
    )


class ShortestPrefillFirst(SchedulePolicy):
    def __init__(self, options: ShortestPrefillFirstOptions) -> None:
        self._age = options.age

    def rank(self, columns: Columns, ctx: ScheduleContext) -> tuple[NDArray[np.float64]]:
        return (columns.uncached_len - columns.prefilled_since_arrival / self._age,)


@hookimpl
def rtk_plugins() -> list[Plugin]:
    return [
        Plugin(
            kind="schedule",
            name="shortest-prefill-first",
            summary="fewest uncached prompt tokens first; waiting requests age",
            target="rtk_schedule.shortest_prefill_first:ShortestPrefillFirst",
            options=ShortestPrefillFirstOptions,
            requires=frozenset({"prefix_match"}),
        )
    ]
