"""A step on its way: launched, its results not taken in yet."""

import logging
from dataclasses import dataclass, field

from rtk.cache.slots import Slots
from rtk.schedule.batch import StepPlan, StepResult
from rtk.schedule.compose import sample_inputs
from rtk.schedule.executor import Executor, InFlight
from rtk.schedule.request import Request

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Flight:
    """One step. What it reads and writes stays as it is until it is taken in."""

    plan: StepPlan
    batch: list[Request]
    """The request of each of the plan's rows."""
    prefills: bool
    """Whether it computes prompts."""
    computation: InFlight | None
    """None: it could not even be launched."""
    garbage: list[Slots] = field(default_factory=list)
    """Slots that nobody refers to any more, except this step."""

    def result(self) -> StepResult | None:
        """Wait for the step; None when the computation raised: the K/V of this step is then undefined."""
        if self.computation is None:
            return None
        try:
            return self.computation.result()
        except Exception:
            log.exception("step %d failed; its %d requests end with an error", self.plan.step, len(self.batch))
            return None


def launch(executor: Executor, plan: StepPlan, batch: list[Request]) -> Flight:
    """Start a step and the sampling of its rows, and note in the requests what is on its way. O(rows)."""
    sampling = [r for r, row in zip(batch, plan.rows, strict=True) if row.samples]
    prefills = any(r.launched_len < r.fill_len for r in batch)
    computation = None
    try:
        computation = executor.launch(plan)
        if sampling:
            computation.sample(sample_inputs(sampling))
    except Exception:
        computation = None
        log.exception("step %d could not be launched; its %d requests end with an error", plan.step, len(batch))
    for request, row in zip(batch, plan.rows, strict=True):
        request.in_flight += 1
        request.launched_len = request.planned_len
        request.sampled += row.samples
    return Flight(plan, batch, prefills, computation)
