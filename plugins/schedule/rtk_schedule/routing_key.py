"""Routing key: requests whose key most running requests have go first, so that equal work runs together.

Requests without a key, or with one that nobody runs with, come last. Ties: order of arrival. They would wait for as
long as other keys keep arriving; `patience` bounds that, see `rtk_schedule.turns`.
"""

import numpy as np
from numpy.typing import NDArray

from rtk.plugin import Columns, Plugin, ScheduleContext, SchedulePolicy, hookimpl
from rtk_schedule.turns import TurnOptions, Turns


class RoutingKey(SchedulePolicy):
    def __init__(self, options: TurnOptions) -> None:
        self._turns = Turns(options)

    def rank(self, columns: Columns, ctx: ScheduleContext) -> tuple[NDArray[np.generic], ...]:
        return self._turns.key(columns, ctx), -columns.running_with_key


@hookimpl
def rtk_plugins() -> list[Plugin]:
    return [
        Plugin(
            kind="schedule",
            name="routing-key",
            summary="routing keys that are frequent among the running first",
            target="rtk_schedule.routing_key:RoutingKey",
            options=TurnOptions,
            requires=frozenset({"routing_key"}),
        )
    ]
