"""The seam between deciding and computing."""

from typing import Protocol

from rtk.schedule.batch import SampleInputs, StepPlan, StepResult


class InFlight(Protocol):
    """A step that was launched."""

    def sample(self, inputs: SampleInputs) -> None:
        """Queue the sampling of the rows that sample. Called once, before `result`; not at all if none samples."""

    def result(self) -> StepResult:
        """Wait for the step. Raises what the computation raised; the K/V of the step is then undefined."""


class Executor(Protocol):
    """Computes steps, in the order they are launched."""

    def launch(self, plan: StepPlan) -> InFlight:
        """Start a step. The executor owns a copy of the slot table and applies the plan's writes to it first."""

    def stats(self) -> dict[str, int]:
        """Counters of the computing side, by name."""
