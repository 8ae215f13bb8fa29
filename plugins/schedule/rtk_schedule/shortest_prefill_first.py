"""Shortest prefill first: the fewest tokens to compute first, for early first tokens.

That is |prompt| + |output kept after a retraction| - matched in all tiers. Waiting requests age: each token that the
engine has prefilled since a request arrived counts 1 / `age` of a token less. So nobody goes before a request who
arrives after the engine has prefilled `age` times as many tokens as it has uncached ones; shorter ones that arrived
until then do. Ties: order of arrival.

A prompt that is computed in pieces leaves room in each step to the waiting requests that are shorter than what is left
of it, in whole pages, until it has aged so much that it goes before them.
"""

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from rtk.plugin import Columns, Options, Plugin, RequestView, ScheduleContext, SchedulePolicy, hookimpl


class ShortestPrefillFirstOptions(Options):
    age: int = Field(
        8, ge=1, description="times its own length that the engine may prefill for others before a request"
    )


class ShortestPrefillFirst(SchedulePolicy):
    def __init__(self, options: ShortestPrefillFirstOptions) -> None:
        self._age = options.age

    def rank(self, columns: Columns, ctx: ScheduleContext) -> tuple[NDArray[np.float64]]:
        return (self._aged(columns),)

    def chunk_reserve(self, columns: Columns, ctx: ScheduleContext) -> int:
        assert ctx.chunked is not None, "asked without a request that is computed in pieces"
        work, left = columns.uncached_len, ctx.chunked.uncached_len
        shorter = work[(work < left) & (self._aged(columns) < self._aged(ctx.chunked))]
        return int((-(-shorter // ctx.page_size) * ctx.page_size).sum())

    def _aged(self, requests: Columns | RequestView) -> NDArray[np.float64]:
        return np.asarray(requests.uncached_len - requests.prefilled_since_arrival / self._age)


@hookimpl
def rtk_plugins() -> list[Plugin]:
    return [
        Plugin(
            kind="schedule",
            name="shortest-prefill-first",
            summary="fewest uncached tokens first; waiting requests age",
            target="rtk_schedule.shortest_prefill_first:ShortestPrefillFirst",
            options=ShortestPrefillFirstOptions,
            requires=frozenset({"prefix_match"}),
        )
    ]
