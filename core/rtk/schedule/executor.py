"""The seam between deciding and computing."""

from typing import Protocol

from rtk.schedule.batch import SampleInputs, StepPlan, StepResult


class InFlight(Protocol):
    """A step that was launched."""

    def sample(self, inputs: SampleInputs) -> None:
        """Queue the sampling of the rows that sample. Called once, before `result`; not at all if none samples."""

    def result(self) -> StepResult:
        """Wait for the step, not for later ones. Raises what the computation raised; its K/V is then undefined."""


class Executor(Protocol):
    """Computes steps, in the order they are launched."""

    def launch(self, plan: StepPlan) -> InFlight:
        """Start a step. The executor owns a copy of the slot table and applies the plan's writes to it first.

        It also keeps the token that each request row sampled last, and computes it where the plan has `SAMPLED_LAST`.
        The plan is the executor's from here on: it may be read long after the call.
        """

    def stats(self) -> dict[str, int]:
        """Counters of the computing side, by name."""

    def close(self) -> None:
        """End what computes, after the steps that were launched; none is launched any more. Safe to call twice."""
