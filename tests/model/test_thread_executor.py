"""Steps that are computed in a thread of their own."""

import threading
from dataclasses import dataclass, field

import pytest

from rtk.model.thread_executor import ThreadExecutor
from rtk.plugin.testing.harness import Harness, digest
from rtk.schedule.batch import StepResult


@dataclass
class Gated:
    """An executor whose plans are gates: a step is computed once its gate is open."""

    done: list[str] = field(default_factory=list)
    closed: int = 0

    def launch(self, plan):
        plan.gate.wait(30)
        self.done.append(f"launch {plan.name}")
        if plan.fails == "launch":
            raise ZeroDivisionError(plan.name)
        return GatedStep(self, plan)

    def stats(self):
        return {"forwards": len(self.done)}

    def close(self):
        self.closed += 1


@dataclass
class GatedStep:
    executor: Gated
    plan: "Plan"

    def sample(self, inputs):
        self.executor.done.append(f"sample {self.plan.name} {inputs}")
        if self.plan.fails == "sample":
            raise KeyboardInterrupt(self.plan.name)

    def result(self):
        if self.plan.fails == "result":
            raise ValueError(self.plan.name)
        return StepResult(tokens=((ord(self.plan.name),),))


@dataclass
class Plan:
    name: str
    fails: str = ""
    gate: threading.Event = field(default_factory=threading.Event)


@pytest.fixture
def inner():
    return Gated()


@pytest.fixture
def executor(inner):
    executor = ThreadExecutor(inner)
    yield executor
    executor.close()


def test_a_launch_does_not_wait_and_a_result_waits_for_no_later_step(inner, executor):
    a, b = Plan("a"), Plan("b")
    first, second = executor.launch(a), executor.launch(b)
    first.sample("x")
    assert inner.done == []
    a.gate.set()
    b.gate.set()
    assert first.result().tokens == ((97,),)
    assert second.result().tokens == ((98,),)
    assert inner.done == ["launch a", "launch b", "sample a x"]

    held = Plan("c")
    a.gate.clear()
    late = executor.launch(a)
    late.sample("y")
    later = executor.launch(held)
    a.gate.set()
    assert late.result().tokens == ((97,),)  # while the one behind it is not even begun
    assert "launch c" not in inner.done
    held.gate.set()
    later.result()
    assert executor.stats() == {"forwards": 6}


@pytest.mark.parametrize(
    ("where", "error"), [("launch", ZeroDivisionError), ("sample", KeyboardInterrupt), ("result", ValueError)]
)
def test_what_a_step_raises_is_raised_by_its_result_and_the_next_is_computed(inner, executor, where, error):
    bad, good = Plan("a", fails=where), Plan("b")
    bad.gate.set()
    good.gate.set()
    first, second = executor.launch(bad), executor.launch(good)
    first.sample("x")
    second.sample("x")
    with pytest.raises(error, match=r"^a$"):
        first.result()
    assert second.result().tokens == ((98,),)


def test_closing_waits_for_what_was_launched_and_ends_the_thread(inner):
    executor, plan = ThreadExecutor(inner), Plan("a")
    step = executor.launch(plan)
    plan.gate.set()
    executor.close()
    assert (inner.done, inner.closed, executor._thread.is_alive()) == (["launch a"], 1, False)
    assert step.result().tokens == ((97,),)
    with pytest.raises(RuntimeError, match="closed"):
        executor.launch(plan)
    executor.close()


def test_an_executor_that_nobody_holds_ends_its_thread(inner):
    executor = ThreadExecutor(inner)
    thread = executor._thread
    del executor
    thread.join(30)
    assert not thread.is_alive()


def test_the_scheduler_says_the_same_over_it():
    said = []
    for threaded in (False, True):
        h = Harness(
            script=digest, pool_tokens=64, context_length=64, chunk_tokens=8, conservativeness=0.01, overlap=True
        )
        if threaded:
            h.scheduler._executor = ThreadExecutor(h.executor)
        for i in range(6):
            h.add(f"r{i}", [i] * (3 + 4 * i), max_new_tokens=20)
        h.run(limit=500)
        assert h.stat("retractions") >= 1
        h.scheduler.abandon("over")
        said.append((h.tokens, [plan.tokens.tolist() for plan in h.executor.plans]))
    assert said[0] == said[1]
