"""A step on its way: launched, its results not taken in yet."""

import logging
from dataclasses import dataclass, field, replace

from rtk.cache.slots import Slots
from rtk.schedule.batch import Mask, Penalties, SampleInputs, StepPlan, StepResult
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
    constrained: bool
    """Whether it computes answers that have a grammar."""
    guesses: bool
    """Whether it computes tokens that were guessed: how far its requests get is known when it is taken in."""
    penalised: bool = False
    """Whether it computes answers that penalties apply to."""
    inputs: SampleInputs | None = None
    """How its rows are sampled; None: none samples, or it was said."""
    garbage: list[Slots] = field(default_factory=list)
    """Slots that nobody refers to any more, except this step."""

    def sampling(self) -> list[Request]:
        """The requests of the rows that sample. O(rows)."""
        return [request for request, row in zip(self.batch, self.plan.rows, strict=True) if row.samples]

    @property
    def waits(self) -> bool:
        """Whether its sampling needs tokens that the step before it samples. O(rows), where any of them may."""
        return (self.constrained or self.penalised) and any(
            row.samples
            and (request.constraint is not None or request.counts is not None)
            and request.sampled > len(request.output) + row.samples
            for request, row in zip(self.batch, self.plan.rows, strict=True)
        )

    def sample(self, mask: Mask | None, penalties: Penalties | None) -> None:
        """Start the sampling of its rows."""
        inputs, self.inputs = self.inputs, None
        if inputs is None or self.computation is None:
            return
        try:
            more = mask is not None or penalties is not None
            self.computation.sample(replace(inputs, mask=mask, penalties=penalties) if more else inputs)
        except Exception:
            self.computation = None
            log.exception("step %d could not be sampled; its %d requests end with an error", *self._size())

    def _size(self) -> tuple[int, int]:
        return self.plan.step, len(self.batch)

    def result(self) -> StepResult | None:
        """Wait for the step; None when the computation raised: the K/V of this step is then undefined."""
        if self.computation is None:
            return None
        try:
            return self.computation.result()
        except Exception:
            log.exception("step %d failed; its %d requests end with an error", *self._size())
            return None


def launch(executor: Executor, plan: StepPlan, batch: list[Request]) -> Flight:
    """Start a step, and note in the requests what is on its way. Its rows are to be sampled next. O(rows)."""
    prefills = any(r.launched_len < r.fill_len for r in batch)
    computation = None
    try:
        computation = executor.launch(plan)
    except Exception:
        computation = None
        log.exception("step %d could not be launched; its %d requests end with an error", plan.step, len(batch))
    constrained = any(r.constraint is not None for r in batch)
    guesses = constrained and any(row.samples > 1 for row in plan.rows)
    penalised = any(r.counts is not None for r in batch)
    flight = Flight(plan, batch, prefills, computation, constrained, guesses, penalised)
    if samples := [(r, r.sampled + i) for r, row in zip(batch, plan.rows, strict=True) for i in range(row.samples)]:
        flight.inputs = sample_inputs(samples)
    for request, row in zip(batch, plan.rows, strict=True):
        request.in_flight += 1
        request.launched_len = request.planned_len
        request.sampled += row.samples
    return flight
