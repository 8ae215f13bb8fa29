"""Computes steps in the caller's thread, at launch."""

from collections.abc import Iterator
from dataclasses import replace

from rtk.model.logprobs import OnHost, Told, entries, scores
from rtk.model.runner import ModelRunner
from rtk.model.sampler import Sampling, sample
from rtk.schedule.batch import SampleInputs, StepPlan, StepResult, by_row
from rtk.schedule.messages import TokenLogprobs


class InlineExecutor:
    """The simplest executor: on a CPU, a step is done when `launch` returns; other devices compute by themselves."""

    def __init__(self, runner: ModelRunner, vocab_size: int) -> None:
        """`vocab_size` is the tokenizer's: ids from there up are never sampled."""
        self._runner = runner
        self._vocab_size = vocab_size

    def launch(self, plan: StepPlan) -> "InlineStep":
        """Run the model. What it raises is raised by the step's `result`."""
        return InlineStep(self._runner, plan, self._vocab_size)

    def stats(self) -> dict[str, int]:
        """Forwards, query rows counted inside attention, and forwards that were replayed from CUDA graphs."""
        return {
            "forwards": self._runner.stats.forwards,
            "attention_query_rows": self._runner.stats.query_rows,
            "replayed": self._runner.stats.replayed,
        }

    def close(self) -> None:
        """Nothing is left to end."""


class InlineStep:
    """A step that was computed."""

    def __init__(self, runner: ModelRunner, plan: StepPlan, vocab_size: int) -> None:
        self._runner = runner
        self._plan = plan
        self._vocab_size = vocab_size
        self._sampling: Sampling | None = None
        self._failure: Exception | None = None
        try:
            self._logits, head = runner.compute(plan)
            width = self._logits.shape[1]
            self._scores = [OnHost(*scores(head, scored, width, vocab_size)) for scored in plan.scored if head]
        except Exception as error:  # noqa: BLE001 - handed on by `result`, where the caller expects it
            self._failure = error

    def sample(self, inputs: SampleInputs) -> None:
        """Sample the rows that sample; nothing after a failure."""
        if self._failure is not None:
            return
        try:
            self._sampling = sample(self._logits, inputs, self._vocab_size)
            self._runner.remember(self._plan, self._sampling.ids)
        except Exception as error:  # noqa: BLE001 - as above
            self._failure = error

    def result(self) -> StepResult:
        """The step's tokens. Raises what the model or the backend raised."""
        if self._failure is not None:
            raise self._failure
        result = StepResult(tokens=()) if self._sampling is None else by_row(self._sampling.result(), self._plan.rows)
        return replace(result, scores=tuple(self._told())) if self._scores else result

    def _told(self) -> Iterator[tuple[TokenLogprobs, ...]]:
        for scored, found in zip(self._plan.scored, self._scores, strict=True):
            following = scored.following.tolist()
            yield tuple(entries(following, Told(*found.get()), [scored.top] * len(following)))
