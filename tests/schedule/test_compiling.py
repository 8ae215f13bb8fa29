"""Requests whose grammar is not compiled yet: outside the queue, and otherwise like all who wait."""

import math

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from rtk.cache.key import pack
from rtk.errors import RequestError
from rtk.grammar.constraint import Constraint
from rtk.plugin import Options, Vocabulary
from rtk.plugin.testing.harness import Harness
from rtk.plugin.testing.toys import ChoiceMatcher, Choices
from rtk.schedule.messages import (
    Abort,
    ExplainRequest,
    Finish,
    Flush,
    Flushed,
    GrammarOrder,
    NewRequest,
    Pin,
    Refused,
)
from rtk.schedule.params import SamplingParams
from rtk.schedule.request import Status
from rtk.schedule.timeline import Overtaken, Wait

ORDER = GrammarOrder(backend="toy", kind="choice", text='["a"]')
READY = GrammarOrder(backend="toy", kind="choice", text="ready")


WORDS = Vocabulary(tokens=[bytes([byte]) for byte in range(256)], ends=frozenset())


class FreeMatcher(ChoiceMatcher):
    """Lets the model say what it likes."""

    def accept(self, token):
        return True

    def forced(self):
        return b""


class Free(Choices):
    def fill_batch(self, matchers, mask, rows):
        mask[list(rows)] = -1


def matcher():
    return FreeMatcher((b"a",), WORDS)


class FakeGrammars:
    """Has what is called ready; all else is there when a test says so."""

    def __init__(self):
        self.asked = {}
        self.news = []
        self.aborted = []
        self.closed = False

    def submit(self, rid, wanted):
        if wanted.text == "refused":
            raise RequestError("no", field="grammar", code="invalid_grammar")
        if wanted.text == "ready":
            return matcher()
        self.asked[rid] = wanted
        return None

    def done(self, rid, found=None):
        del self.asked[rid]
        self.news.append((rid, found or matcher()))

    def poll(self):
        while self.news:
            yield self.news.pop(0)

    def constraint(self, wanted, matcher, stops):
        return Constraint(matcher, Free(Options()), wanted.backend, WORDS, stops=stops)

    def abort(self, rid):
        del self.asked[rid]
        self.aborted.append(rid)

    def stats(self):
        return {"grammar_pending": len(self.asked)}

    def histograms(self):
        return {}

    def close(self):
        self.closed = True


class Built(Harness):
    def __init__(self, **more):
        super().__init__(grammars=FakeGrammars(), **more)

    def ask(self, rid, prompt=(1,), new=2, grammar=ORDER, **more):
        params = SamplingParams(max_new_tokens=new, temperature=0.0)
        self.send(NewRequest(rid=rid, tokens=pack(prompt), params=params, grammar=grammar, **more))
        return self.verdicts[rid]

    def timeline(self, rid):
        self.send(ExplainRequest(id=len(self.answers), name=rid))
        return self.answers[len(self.answers) - 1].timeline


def states(h):
    return [h.stat(name) for name in ("compiling", "waiting", "running")]


def test_it_waits_outside_the_queue_and_starts_when_its_grammar_is_there():
    h = Built()
    assert h.ask("a").accepted
    assert h.grammars.asked == {"a": ORDER}
    assert (states(h), h.stat("grammar_pending")) == ([1, 0, 0], 1)
    assert not h.scheduler.busy  # the thread sleeps, and is woken
    h.step()
    assert (h.stat("steps"), states(h)) == (0, [1, 0, 0])
    h.grammars.done("a")
    h.step()
    h.run()
    assert (h.tokens["a"], h.finished["a"].reason) == ([2, 3], "length")
    assert h.stat("invariant_violations") == 0


def test_one_that_is_there_already_does_not_wait():
    h = Built()
    h.ask("a", grammar=READY)
    assert states(h) == [0, 1, 0]
    request = h.scheduler._requests["a"]
    assert (type(request.constraint.matcher), request.grammar) == (FreeMatcher, READY)
    h.run()
    assert h.finished["a"].reason == "length"


@pytest.mark.stepwise
def test_it_takes_the_place_that_its_arrival_gives_it():
    h = Built(max_running=1)
    h.add("runs", [1], max_new_tokens=3)
    h.step()
    h.ask("first", [2], new=1)
    h.add("second", [3], max_new_tokens=1)
    h.grammars.done("first")
    h.step()
    assert states(h) == [0, 2, 1]
    h.run()
    assert [*h.finished] == ["runs", "first", "second"]


def test_others_go_on_meanwhile():
    h = Built()
    h.ask("a")
    h.add("b", [5], max_new_tokens=3)
    h.run()
    assert h.tokens == {"b": [6, 7, 8]}
    assert states(h) == [1, 0, 0]


def test_a_grammar_that_cannot_be_compiled_ends_its_request_with_an_error_of_its_own():
    h = Built()
    h.ask("a")
    h.add("b", [5], max_new_tokens=3)
    h.grammars.done("a", RequestError("it takes too long", field="grammar", code="grammar_timeout"))
    h.run()
    finish = Finish(reason="error", problem="it takes too long", field="grammar", code="grammar_timeout", status=400)
    assert (h.finished["a"], h.finished["b"].reason) == (finish, "length")
    assert (h.tokens["a"], h.stat("finished_error"), states(h)) == ([], 1, [0, 0, 0])
    assert h.grammars.aborted == []


def test_a_refusal_is_a_verdict_and_nothing_is_left_of_it():
    h = Built(max_wait_s=5.0)
    verdict = h.ask("a", grammar=GrammarOrder(backend="toy", kind="choice", text="refused"), deadline_s=3.0)
    assert (verdict.accepted, verdict.code, verdict.field, verdict.status) == (False, "invalid_grammar", "grammar", 400)
    assert (h.scheduler.accepted, h.scheduler.rest_s) == (0, math.inf)


def test_without_anybody_who_compiles_no_request_may_have_a_grammar():
    h = Harness()
    params = SamplingParams(max_new_tokens=1)
    h.send(NewRequest(rid="a", tokens=pack([1]), params=params, grammar=ORDER))
    assert (h.verdicts["a"].code, h.verdicts["a"].status) == ("grammar_off", 400)
    assert h.stat("compiling") == 0
    h.add("b", [1], max_new_tokens=1)
    h.run()
    assert h.finished["b"].reason == "length"


# --- leaving --------------------------------------------------------------------------------------------------------


def test_an_abort_reaches_it_there():
    h = Built()
    h.ask("a")
    h.abort("a")
    assert (h.finished["a"], h.grammars.aborted) == (Finish(reason="abort"), ["a"])
    assert (h.scheduler.accepted, states(h), h.stat("finished_abort")) == (0, [0, 0, 0], 1)
    h.abort("a")
    assert h.grammars.aborted == ["a"]


def test_an_abort_after_its_grammar_finds_it_in_the_queue():
    h = Built()
    h.ask("a")
    h.grammars.done("a")
    h.abort("a")
    assert (h.finished["a"], h.grammars.aborted, states(h)) == (Finish(reason="abort"), [], [0, 0, 0])


@pytest.mark.parametrize(
    ("limits", "told", "code", "counter"),
    [({}, {"deadline_s": 2.0}, "deadline_exceeded", "deadlines_exceeded"),
     ({"max_wait_s": 2.0}, {}, "queue_timeout", "queue_timeouts")],
)  # fmt: skip
def test_its_time_is_counted(limits, told, code, counter):
    h = Built(**limits)
    h.ask("a", **told)
    assert h.scheduler.rest_s == 2.0
    h.step()
    assert states(h) == [1, 0, 0]
    h.step()
    assert (h.finished["a"].code, h.grammars.aborted, h.stat(counter)) == (code, ["a"], 1)
    assert states(h) == [0, 0, 0]


def test_the_wait_ends_with_the_start_and_not_with_the_grammar():
    h = Built(max_wait_s=4.0, max_running=1)
    h.add("runs", [1], max_new_tokens=50)
    h.step()
    h.ask("a")
    h.step()
    h.grammars.done("a")
    h.step()
    assert states(h) == [0, 1, 1]
    for _ in range(2):
        h.step()
    assert h.finished["a"].code == "queue_timeout"
    assert h.grammars.aborted == []


def test_who_compiles_ends_with_the_engine():
    h = Built()
    h.ask("a")
    h._note(h.scheduler.abandon("the engine shut down"))
    assert (h.finished["a"].problem, h.grammars.aborted, h.grammars.closed) == ("the engine shut down", ["a"], True)


# --- what counts it -------------------------------------------------------------------------------------------------


@pytest.mark.stepwise
def test_it_takes_a_place_among_those_who_may_wait():
    h = Built(max_running=1, max_queue=1)
    h.add("runs", [1], max_new_tokens=9)
    h.step()
    assert h.ask("a").accepted
    assert h.add("b", [1]).code == "queue_full"
    assert h.ask("c").code == "queue_full"
    assert [*h.grammars.asked] == ["a"]
    h.abort("a")
    assert h.add("d", [1]).accepted
    assert h.ask("e").code == "queue_full"


def test_the_cache_is_not_emptied_under_it():
    h = Built()
    h.ask("a")
    h.send(Flush(id=1))
    assert isinstance(h.answers[1], Refused)
    h.abort("a")
    h.send(Flush(id=2))
    assert h.answers[2] == Flushed(id=2, tokens=0)


def test_a_pin_leaves_it_room():
    h = Built(pool_tokens=32, pin_budget=32)
    h.ask("a", range(10), new=10)
    h.send(Pin(id=1, name="p", tokens=pack(range(50, 70))))
    assert h.answers[1].code == "pin_no_room"
    h.abort("a")
    h.send(Pin(id=2, name="p", tokens=pack(range(50, 70))))
    h.run()
    assert h.answers[2].pin.tokens == 20


# --- what is told of it ---------------------------------------------------------------------------------------------


def test_while_it_waits_its_time_goes_into_the_grammar():
    h = Built()
    h.ask("a", name="mine")
    h.step()
    h.step()
    t = h.timeline("mine")
    assert (t.state, t.age_s, t.waits, t.queue_s) == ("waiting", 2.0, (Wait("compile", 2.0),), 2.0)
    assert (t.behind, t.overtaken, t.attempts) == (None, Overtaken(0, 0, True), ())
    h.send(Abort("a"))
    t = h.timeline("mine")
    assert (t.state, t.end, t.waits) == ("finished", "abort", (Wait("compile", 2.0),))


@pytest.mark.stepwise
def test_afterwards_it_is_told_apart_from_the_wait_in_the_queue():
    h = Built(max_running=1)
    h.ask("a", [1], new=1)
    h.add("passes", [2], max_new_tokens=4)
    for _ in range(3):
        h.step()
    h.grammars.done("a")
    h.run()
    t = h.timeline("a")
    assert t.waits == (Wait("compile", 4.0), Wait("rows", 1.0))
    assert (t.started_s, t.first_token.queue_s) == (5.0, 5.0)
    assert t.overtaken == Overtaken(0, 0, True)  # order cost it nothing: the other came into the queue before it


@pytest.mark.stepwise
def test_who_comes_into_the_queue_after_it_and_starts_before_it_overtakes_it():
    h = Built(schedule="shortest-prefill-first", max_running=1)
    h.ask("a", range(9), new=1)
    h.add("passes", [20], max_new_tokens=1)
    h.step()
    h.grammars.done("a")
    h.add("overtakes", [30], max_new_tokens=1)
    h.run()
    assert [*h.finished] == ["passes", "overtakes", "a"]
    assert h.timeline("a").overtaken == Overtaken(1, 1, True)


def test_its_status_says_where_it_is():
    h = Built()
    h.ask("a")
    request = h.scheduler._requests["a"]
    assert (request.status, request.has_started) == (Status.COMPILING, False)
    h.grammars.done("a")
    h.send(Abort("nobody"))
    assert (request.status, request.has_started) == (Status.WAITING, False)
    h.step()
    assert request.has_started


# --- any order of events --------------------------------------------------------------------------------------------


class CompilingMachine(RuleBasedStateMachine):
    """Every request ends once, as it has to; and who waits for a grammar is where it should be."""

    @initialize(overlap=st.booleans(), rows=st.integers(1, 3), limit=st.sampled_from([None, 6.0]))
    def build(self, overlap, rows, limit):
        self.h = Built(overlap=overlap, lazy=overlap, max_running=rows, max_wait_s=limit, pool_tokens=64)
        self.ends: dict[str, set[str]] = {}
        self.count = 0

    @rule(grammar=st.booleans(), new=st.integers(0, 6), deadline_s=st.none() | st.integers(1, 9))
    def arrive(self, grammar, new, deadline_s):
        rid, self.count = f"r{self.count}", self.count + 1
        assert self.h.ask(rid, [self.count], new, ORDER if grammar else None, deadline_s=deadline_s).accepted
        self.ends[rid] = {"length", *["deadline_exceeded"][: deadline_s is not None]}
        self.ends[rid] |= {"queue_timeout"} if self.h.max_wait_s else set()

    @rule(which=st.integers(0, 20), fine=st.booleans(), look=st.booleans())
    def compiled(self, which, fine, look):
        """Sometimes others leave before anybody looks."""
        if self.h.grammars.asked:
            rid = [*self.h.grammars.asked][which % len(self.h.grammars.asked)]
            if not fine:
                self.ends[rid] = {"grammar_timeout"}
            self.h.grammars.done(rid, None if fine else RequestError("no", code="grammar_timeout"))
        if look:
            self.h.step()

    @rule(which=st.integers(0, 20))
    def abort(self, which):
        rid = f"r{which}"
        failed = self.ends.get(rid) == {"grammar_timeout"}  # which is looked at first
        if rid in self.ends and rid not in self.h.finished and not failed:
            self.ends[rid].add("abort")
        self.h.abort(rid)

    @rule(steps=st.integers(1, 3))
    def step(self, steps):
        for _ in range(steps):
            self.h.step()

    @invariant()
    def who_waits_for_a_grammar_is_nowhere_else(self):
        if not hasattr(self, "h"):
            return
        news = {rid for rid, _ in self.h.grammars.news}
        waits = {r.rid for r in self.h.scheduler._requests.values() if r.status is Status.COMPILING}
        assert waits == self.h.grammars.asked.keys() | news
        assert self.h.stat("compiling") == len(waits)
        assert not waits & {r.rid for r in self.h.scheduler._queue}

    def teardown(self):
        if not hasattr(self, "h"):
            return
        for rid in [*self.h.grammars.asked]:
            self.h.grammars.done(rid)
        self.h.step()
        self.h.run()
        ended = {
            rid: finish.code if finish.reason == "error" else finish.reason for rid, finish in self.h.finished.items()
        }
        assert ended.keys() == self.ends.keys()
        assert all(how in self.ends[rid] for rid, how in ended.items())
        assert self.h.stat("invariant_violations") == 0


TestCompiling = CompilingMachine.TestCase
TestCompiling.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
