"""A bound on waiting, for policies whose order alone has none: now and then it is the turn of who waits longest."""

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from rtk.plugin import Columns, Options, ScheduleContext


class TurnOptions(Options):
    patience: int | None = Field(
        4096,
        ge=1,
        description="tokens that the engine may prefill before the request that waits longest goes first; null: any",
    )


class Turns:
    """Gives the first place to one request at a time, the one that waits longest, and keeps it there until it starts.

    A turn begins once the engine has prefilled `patience` tokens since the request arrived and since the last turn
    ended. So a request with k others before it, in order of arrival, comes first after (k + 1) * patience tokens at
    most, and what the last step of each of these stretches prefilled beyond.
    """

    def __init__(self, options: TurnOptions) -> None:
        self._patience = options.patience
        self._turn: int | None = None  # the id of the request that has it
        self._ended = 0  # tokens that the engine had prefilled when the last turn did

    def key(self, columns: Columns, ctx: ScheduleContext) -> NDArray[np.bool_]:
        """The most important sort key: true for all but the request whose turn it is, if there is one."""
        others = np.ones(len(columns), dtype=np.bool_)
        if self._patience is None or not len(columns):
            return others
        if self._turn is not None and not (columns.id == self._turn).any():
            self._turn, self._ended = None, ctx.prefilled_total
        if self._turn is None and ctx.prefilled_total - self._ended >= self._patience:
            waits_longest = columns.prefilled_since_arrival.argmax()
            if columns.prefilled_since_arrival[waits_longest] >= self._patience:
                self._turn = int(columns.id[waits_longest])
        if self._turn is not None:
            others[columns.id == self._turn] = False
        return others
