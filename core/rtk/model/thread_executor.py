"""Computes steps in a thread of its own, so that the next one is planned meanwhile."""

import queue
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from rtk.schedule.batch import SampleInputs, StepPlan, StepResult
from rtk.schedule.executor import Executor, InFlight

T = TypeVar("T")
Job = Callable[[], None]


class ThreadExecutor:
    """Hands the steps, in order, to an executor that computes at launch.

    Nothing else computes in that thread, and it alone computes in parallel: see `rtk.model.threads`. It sleeps between
    steps, holds nothing then, and ends with `close`, or when nobody holds this executor any more.
    """

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=_work, args=(self._jobs,), name="rtk-executor", daemon=True)
        self._end = weakref.finalize(self, self._jobs.put, None)
        self._thread.start()

    def launch(self, plan: StepPlan) -> "ThreadStep":
        """Queue a step and return at once."""
        if not self._end.alive:
            raise RuntimeError("the executor is closed")
        return ThreadStep(self._jobs, self._executor, plan)

    def stats(self) -> dict[str, int]:
        """Counters of what was computed up to now."""
        return self._executor.stats()

    def close(self) -> None:
        """Wait for the steps that were launched, and end the thread. Safe to call twice."""
        self._end()
        self._thread.join()
        self._executor.close()


class ThreadStep:
    """A step that was queued."""

    def __init__(self, jobs: "queue.SimpleQueue[Job | None]", executor: Executor, plan: StepPlan) -> None:
        self._jobs = jobs
        self._flight: Future[InFlight] = self._queue(lambda: executor.launch(plan))
        self._sampled: Future[None] | None = None

    def sample(self, inputs: SampleInputs) -> None:
        """Queue the sampling."""
        flight = self._flight
        self._sampled = self._queue(lambda: flight.result().sample(inputs))

    def result(self) -> StepResult:
        """Wait for the step, and for no later one. Raises what it raised; `RuntimeError` for a `SystemExit`."""
        if self._sampled is not None:
            self._sampled.result()
        return self._flight.result().result()

    def _queue(self, function: Callable[[], T]) -> "Future[T]":
        future: Future[T] = Future()

        def job() -> None:
            try:
                future.set_result(function())
            except Exception as error:  # noqa: BLE001 - raised where the result is asked for; the thread goes on
                future.set_exception(error)
            except BaseException as error:  # noqa: BLE001 - it would end a thread, and this is not the one that asks
                failure = RuntimeError(f"the computation raised {type(error).__name__}")
                failure.__cause__ = error
                future.set_exception(failure)

        self._jobs.put(job)
        return future


def _work(jobs: "queue.SimpleQueue[Job | None]") -> None:
    while (job := jobs.get()) is not None:
        job()
        del job  # and with it the model: nothing is held while there is nothing to do
