"""Earliest deadline first. Who has most time left makes room first where running requests lack slots.

A deadline is `deadline_ms` of a request. One without is ordered as if it had `default_s`, but nothing ends it.
"""

import math

import numpy as np
from numpy.typing import NDArray

from rtk.plugin import Columns, RequestView, ScheduleContext, SchedulePolicy

from . import PolicyOptions


class Policy(SchedulePolicy):
    def __init__(self, options: PolicyOptions) -> None:
        self._default_s = math.inf if options.default_s is None else options.default_s

    def rank(self, columns: Columns, ctx: ScheduleContext) -> tuple[NDArray[np.float64]]:
        return (np.where(np.isinf(columns.deadline_s), columns.arrival_s + self._default_s, columns.deadline_s),)

    def retract_key(self, view: RequestView) -> tuple[float]:
        return (-(view.arrival_s + self._default_s if math.isinf(view.deadline_s) else view.deadline_s),)
