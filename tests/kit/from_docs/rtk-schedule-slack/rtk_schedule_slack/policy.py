"""Least slack first: whoever must start soonest to be done by its deadline.

Slack is the time to the deadline, less the time that the work left takes. The clock is the same for all who are
compared, so the latest start, `deadline - work / rate`, gives the same order without it.
"""

import numpy as np
from numpy.typing import NDArray

from rtk.plugin import Columns, RequestView, ScheduleContext, SchedulePolicy

from . import PolicyOptions


class Policy(SchedulePolicy):
    def __init__(self, options: PolicyOptions) -> None:
        self._rate = options.tokens_per_s

    def rank(self, columns: Columns, ctx: ScheduleContext) -> tuple[NDArray[np.float64]]:
        """Without a deadline the latest start is infinite: those go last, by arrival."""
        work = columns.uncached_len + columns.max_new_tokens - columns.output_len
        return (columns.deadline_s - work / self._rate,)

    def retract_key(self, view: RequestView) -> tuple[float]:
        """The most slack makes room first. Here `output_len` is computed already, and `matched_len` of the prompt."""
        work = view.prompt_len - view.matched_len + view.max_new_tokens - view.output_len
        return (work / self._rate - view.deadline_s,)
