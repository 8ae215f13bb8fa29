"""Every executor computes the same, whether it is told the tokens or has to know them, and whenever it computes."""

import gc
import threading
import weakref
from collections import deque
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from tiny_models import make_runner

from rtk.model.inline_executor import InlineExecutor
from rtk.model.thread_executor import ThreadExecutor
from rtk.plugin.testing.harness import digest
from rtk.plugin.testing.scripted import ScriptedExecutor
from rtk.schedule.batch import SAMPLED_LAST, Row, SampleInputs, StepPlan, StepResult, TableWrite

HOT = np.array([0.0, 1.5, 0.0, 0.9, 0.0], np.float32)
"""Temperatures by request row."""


def scripted(script, lazy):
    return ScriptedExecutor(script, slots=2048, page_size=1, max_running=7, context_length=2048, lazy=lazy)


def inline(zoo):
    return InlineExecutor(make_runner(zoo.load("llama")), vocab_size=99)


@pytest.fixture
def threaded(zoo):
    """A threaded executor over a fresh model."""
    executor = ThreadExecutor(inline(zoo))
    yield executor
    executor.close()


@dataclass
class Request:
    """One request of a sequence of steps: its row, where its slots begin, its tokens, and how many are computed."""

    row: int
    slots: int
    tokens: list[int]
    computed: int = 0
    hit: tuple["Request", int] | None = None
    """The first positions are another request's."""


def sequence():
    """Steps of (request, q_len, samples): whole prompts, pieces, decodes, both in one step, a hit, reused rows."""
    a = Request(row=1, slots=10, tokens=[5, 6, 7])
    b = Request(row=2, slots=110, tokens=list(range(20, 29)))
    c = Request(row=1, slots=210, tokens=[5, 6, 7, 8, 9], computed=3, hit=(a, 3))
    d = Request(row=3, slots=310, tokens=[40, 41])
    steps = [
        [(a, 3, 1), (b, 4, 0)],
        [(b, 5, 1), (a, 1, 1)],
        [(b, 1, 1), (a, 1, 1)],
        [(a, 1, 1)],
        [(c, 2, 1), (d, 2, 1), (b, 1, 1)],
        [(d, 1, 1), (b, 1, 1), (c, 1, 1)],
        [(c, 1, 1), (b, 1, 1), (d, 1, 1)],
        [(b, 1, 1), (d, 1, 1)],
    ]
    return (a, b, c, d), steps


def plan_of(number, step):
    """A plan of the step; tokens that are not known yet are left to the executor."""
    rows, tokens, slots, writes = [], [], [], []
    for request, q_len, samples in step:
        start, stop = request.computed, request.computed + q_len
        if request.hit and start == request.hit[1]:
            writes.append(TableWrite(request.row, 0, np.arange(start, dtype=np.int32) + request.hit[0].slots))
        known = request.tokens[start:stop]
        rows.append(Row(request.row, start, q_len, samples))
        tokens += known or [SAMPLED_LAST]
        slots += range(request.slots + start, request.slots + stop)
        request.computed = stop
    return StepPlan(number, tuple(rows), np.array(tokens, np.int32), np.array(slots, np.int32), tuple(writes))


def inputs_of(rows):
    """How the rows sample, by their request row; the draw depends on the position."""
    sampling = [row for row in rows if row.samples]
    n = len(sampling)
    return SampleInputs(
        temperature=HOT[[row.req_row for row in sampling]],
        top_p=np.ones(n, np.float32),
        top_k=np.zeros(n, np.int32),
        uniform=np.array([(row.start + row.q_len) * 0.37 % 1 for row in sampling]),
    )


def launched(executor, plan):
    flight = executor.launch(plan)
    if any(row.samples for row in plan.rows):
        flight.sample(inputs_of(plan.rows))
    return flight


def run(executor, *, in_flight):
    """Compute the sequence with so many steps in flight while the next is planned; the tokens of every request."""
    requests, steps = sequence()
    flights = deque()
    unseen = 0

    def take_in():
        step, flight = flights.popleft()
        result = flight.result()
        assert not result.errors
        for (request, _, _), (token,) in zip([row for row in step if row[2]], result.tokens, strict=True):
            request.tokens.append(token)

    for number, step in enumerate(steps):
        plan = plan_of(number, step)
        unseen += int((plan.tokens == SAMPLED_LAST).sum())
        flights.append((step, launched(executor, plan)))
        if len(flights) > in_flight:
            take_in()
    while flights:
        take_in()
    return [request.tokens for request in requests], unseen


def test_tokens_that_only_the_executor_knows_give_the_same_answers(zoo, threaded):
    wanted, unseen = run(inline(zoo), in_flight=0)
    assert unseen == 0 and [len(tokens) for tokens in wanted] == [7, 15, 8, 6]
    assert run(threaded, in_flight=0) == (wanted, 0)
    assert run(inline(zoo), in_flight=1) == (wanted, 12)
    again = ThreadExecutor(inline(zoo))
    assert run(again, in_flight=1) == (wanted, 12)
    again.close()


@pytest.mark.parametrize("lazy", [False, True])
def test_the_scripted_executor_does_as_the_real_ones_do(lazy):
    wanted, _ = run(scripted(digest, lazy=False), in_flight=0)
    executor = scripted(digest, lazy)
    assert run(executor, in_flight=1) == (wanted, 12)
    assert not executor.violations


EXECUTORS = ["inline", "thread", "scripted", "scripted, lazy"]


@pytest.fixture(params=EXECUTORS)
def executor(request, zoo):
    """Each executor over a model that answers with 99 logits."""

    def logits(history):
        return np.roll(np.linspace(0, 3, 99, dtype=np.float32), digest(history))

    made = {
        "inline": lambda: inline(zoo),
        "thread": lambda: ThreadExecutor(inline(zoo)),
        "scripted": lambda: scripted(logits, lazy=False),
        "scripted, lazy": lambda: scripted(logits, lazy=True),
    }[request.param]()
    yield made
    made.close()


def one(row, start, tokens, samples=1, slot=None):
    """A plan with one row; its slots begin at `slot`, by default at a place of the row's own."""
    first = 100 * (row + 1) + start if slot is None else slot
    slots = np.arange(first, first + len(tokens), dtype=np.int32)
    return StepPlan(start, (Row(row, start, len(tokens), samples),), np.array(tokens, np.int32), slots)


def test_two_steps_may_be_in_flight_and_asked_for_in_any_order(executor):
    first = launched(executor, one(2, 0, [3, 4]))
    second = launched(executor, one(2, 2, [SAMPLED_LAST]))
    late, early = second.result(), first.result()
    assert first.result() == early
    told = launched(executor, one(4, 0, [3, 4, *early.tokens[0]])).result()
    assert told.tokens == late.tokens


def test_a_step_that_samples_nothing_keeps_what_the_row_sampled(executor):
    assert launched(executor, one(1, 0, [3, 4], samples=0)).result().tokens == ()
    assert len(launched(executor, one(1, 2, [5])).result().tokens) == 1


def test_counters(executor):
    launched(executor, one(1, 0, [3, 4, 5])).result()
    launched(executor, one(1, 3, [SAMPLED_LAST])).result()
    assert executor.stats().items() >= {"forwards": 2, "attention_query_rows": 4}.items()


def test_closing_twice_is_safe(executor):
    launched(executor, one(1, 0, [3]))
    executor.close()
    executor.close()


@pytest.mark.parametrize("thread", [False, True])
def test_a_row_without_a_token_is_computed_on_with_some_token(zoo, thread):
    executor = ThreadExecutor(inline(zoo)) if thread else inline(zoo)
    unwritten = TableWrite(2, 0, np.array([900, 901], np.int32))  # NaN, as the whole pool of these runners
    rows = (Row(1, 0, 2, 1), Row(2, 2, 1, 1))
    plan = StepPlan(0, rows, np.array([3, 4, 5], np.int32), np.array([10, 11, 30], np.int32), (unwritten,))
    first = launched(executor, plan)
    rows = (Row(2, 3, 1, 1), Row(1, 2, 1, 1))
    last = np.full(2, SAMPLED_LAST, np.int32)
    second = launched(executor, StepPlan(1, rows, last, np.array([31, 12], np.int32)))
    alone = inline(zoo)
    wanted = [launched(alone, one(1, 0, [3, 4])).result().tokens[0]]
    wanted.append(launched(alone, one(1, 2, [SAMPLED_LAST])).result().tokens[0])
    assert first.result() == StepResult((wanted[0], ()), {1: "non-finite logits"})
    assert second.result() == StepResult(((), wanted[1]), {0: "non-finite logits"})
    executor.close()


@pytest.mark.parametrize("lazy", [False, True])
def test_the_scripted_executor_computes_on_with_0_after_a_row_without_a_token(lazy):
    seen = []

    def script(history):
        seen.append(history)
        return np.full(5, np.nan, np.float32)

    executor = scripted(script, lazy)
    first = launched(executor, one(1, 0, [3, 4]))
    second = launched(executor, one(1, 2, [SAMPLED_LAST]))
    assert first.result().tokens == second.result().tokens == ((),)
    assert seen == [[3, 4], [3, 4, 0]]


@pytest.mark.parametrize("thread", [False, True])
def test_a_failed_step_is_told_by_its_own_result(zoo, thread):
    executor = ThreadExecutor(inline(zoo)) if thread else inline(zoo)
    launched(executor, one(1, 0, [3, 4])).result()
    failed = launched(executor, one(1, 2, [SAMPLED_LAST], slot=4711))
    other = launched(executor, one(2, 0, [3, 4]))
    for _ in range(2):
        with pytest.raises(IndexError):
            failed.result()
    assert len(other.result().tokens) == 1
    executor.close()


@pytest.mark.parametrize("lazy", [False, True])
def test_a_scripted_step_that_fails_is_told_by_its_own_result(lazy):
    def script(history):
        if len(history) == 3:
            raise ZeroDivisionError
        return digest(history)

    executor = scripted(script, lazy)
    before = launched(executor, one(1, 0, [3, 4]))
    failed = launched(executor, one(1, 2, [SAMPLED_LAST]))
    after = launched(executor, one(1, 3, [SAMPLED_LAST]))
    with pytest.raises(ZeroDivisionError):
        failed.result()
    token = digest([3, 4])
    assert before.result().tokens == ((token,),)
    assert after.result().tokens == ((digest([3, 4, token, token]),),)  # what the row sampled last
    assert not executor.violations


# What plans may not do


@pytest.mark.parametrize(
    ("before", "plan"),
    [
        (None, one(1, 1, [SAMPLED_LAST])),
        (one(1, 0, [3, 4], samples=0), one(1, 2, [SAMPLED_LAST])),
        (one(1, 0, [3, 4]), one(2, 2, [SAMPLED_LAST])),
        (one(1, 0, [3, 4]), one(1, 3, [SAMPLED_LAST])),
        (one(1, 0, [3, 4]), one(1, 2, [SAMPLED_LAST, 5])),
        (one(1, 0, [3, 4]), one(1, 2, [5, SAMPLED_LAST])),
    ],
    ids=["nothing before", "nothing sampled", "another row", "a gap", "two tokens", "not the first"],
)
def test_unknown_tokens_follow_what_the_step_before_sampled(before, plan):
    executor = scripted(digest, lazy=False)
    if before:
        launched(executor, before)
    with pytest.raises(AssertionError, match="names tokens nobody sampled"):
        executor.launch(plan)
    assert len(executor.violations) == 1


def test_slots_of_other_positions_are_noted(zoo):
    executor = scripted(digest, lazy=True)
    step = launched(executor, one(1, 1, [5]))
    assert not executor.violations
    with pytest.raises(AssertionError, match="slots of other positions"):
        step.result()
    assert len(executor.violations) == 1


def test_a_lazy_step_is_computed_when_it_is_asked_for_or_two_were_launched_since():
    seen = []
    executor = scripted(lambda history: seen.append(len(history)) or 1, lazy=True)
    steps = [launched(executor, one(1, 0, [3]))]
    steps += [launched(executor, one(1, 1, [SAMPLED_LAST]))]
    assert seen == []
    steps += [launched(executor, one(1, 2, [SAMPLED_LAST]))]
    assert seen == [1]
    assert steps[2].result().tokens == ((1,),)
    assert seen == [1, 2, 3]


# The thread


class Gate:
    """Executor and step in one: notes what is called in which thread, and waits before every step to be let through."""

    def __init__(self):
        self.calls = []
        self.let = threading.Semaphore(0)
        self.launch_error = self.sample_error = None

    def launch(self, plan):
        assert self.let.acquire(timeout=30)
        self.calls.append((threading.current_thread().name, "launch", plan.step))
        if self.launch_error:
            raise self.launch_error
        return GatedStep(self, plan)

    def stats(self):
        return {}

    def close(self):
        self.calls.append((threading.current_thread().name, "close", None))


class GatedStep:
    def __init__(self, gate, plan):
        self.gate = gate
        self.plan = plan

    def sample(self, inputs):
        self.gate.calls.append((threading.current_thread().name, "sample", self.plan.step))
        if self.gate.sample_error:
            raise self.gate.sample_error

    def result(self):
        return StepResult(((self.plan.step,),))


@pytest.fixture
def gate():
    return Gate()


@pytest.fixture
def gated(gate):
    executor = ThreadExecutor(gate)
    yield executor
    gate.let.release(1000)
    executor.close()


def test_steps_are_computed_one_after_the_other_in_one_thread(gate, gated):
    first, second = (launched(gated, one(1, i, [3])) for i in range(2))
    assert gate.calls == []
    gate.let.release()
    assert first.result().tokens == ((0,),)  # although the second cannot begin
    gate.let.release()
    assert second.result().tokens == ((1,),)
    assert gate.calls == [("rtk-executor", call, step) for step in (0, 1) for call in ("launch", "sample")]


@pytest.mark.parametrize(
    ("error", "raised", "told"),
    [
        (ValueError("this one"), ValueError, "this one"),
        (SystemExit(1), RuntimeError, "the computation raised SystemExit"),
        (KeyboardInterrupt(), RuntimeError, "the computation raised KeyboardInterrupt"),
    ],
)
@pytest.mark.parametrize("where", ["launch_error", "sample_error"])
def test_whatever_a_step_raises_is_raised_where_it_is_asked_for(gate, gated, where, error, raised, told):
    gate.let.release(2)
    setattr(gate, where, error)
    first = launched(gated, one(1, 0, [3]))
    with pytest.raises(raised, match=told):
        first.result()
    setattr(gate, where, None)
    assert launched(gated, one(1, 1, [3])).result().tokens == ((1,),)


def test_closing_waits_for_what_was_launched(gate, gated):
    steps = [launched(gated, one(1, i, [3])) for i in range(2)]
    gate.let.release(2)
    gated.close()
    assert not gated._thread.is_alive()
    assert gate.calls[-1] == ("MainThread", "close", None)
    assert [step.result().tokens for step in steps] == [((0,),), ((1,),)]
    with pytest.raises(RuntimeError, match="closed"):
        gated.launch(one(1, 2, [3]))


def test_the_thread_ends_with_the_executor_and_does_not_keep_the_program():
    gate = Gate()
    executor = ThreadExecutor(gate)
    thread, held = executor._thread, weakref.ref(gate)
    assert thread.daemon
    gate.let.release()
    assert launched(executor, one(1, 0, [3])).result().tokens == ((0,),)
    del executor, gate
    thread.join(30)
    assert not thread.is_alive()
    assert held() is None


def test_between_steps_nothing_of_a_step_is_held(gate, gated):
    gate.let.release(2)
    step = launched(gated, one(1, 0, [3]))
    step.result()
    flight = weakref.ref(step._flight.result())
    del step
    launched(gated, one(1, 1, [3])).result()  # the thread has left the first behind
    gc.collect()
    assert flight() is None


def test_the_thread_computes_with_as_many_threads_as_are_set(gate, gated):
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        seen = []
        gate.launch = lambda plan: seen.append(torch.get_num_threads()) or GatedStep(gate, plan)
        launched(gated, one(1, 0, [3])).result()
        assert seen == [2]
    finally:
        torch.set_num_threads(before)
