"""A random order, drawn anew in each step: a baseline for the others."""

import random

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from rtk.plugin import Columns, Options, Plugin, ScheduleContext, SchedulePolicy, hookimpl


class RandomOptions(Options):
    seed: int | None = Field(None, description="of the draws; null: the engine's own source")


class RandomOrder(SchedulePolicy):
    def __init__(self, options: RandomOptions) -> None:
        self._rng = None if options.seed is None else random.Random(options.seed)

    def rank(self, columns: Columns, ctx: ScheduleContext) -> tuple[NDArray[np.float64]]:
        seed = (self._rng or ctx.rng).getrandbits(64)
        return (np.random.default_rng(seed).random(len(columns)),)


@hookimpl
def rtk_plugins() -> list[Plugin]:
    return [
        Plugin(
            kind="schedule",
            name="random",
            summary="a random order in each step: a baseline",
            target="rtk_schedule.random_order:RandomOrder",
            options=RandomOptions,
        )
    ]
