"""What is compiled, for whom, and what is remembered of it: over a pool that does nothing until a test says so."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from rtk.errors import RequestError
from rtk.grammar.cache import GrammarCache, GrammarKey, Invalid
from rtk.grammar.manager import TOLD, GrammarManager, GrammarSettings
from rtk.grammar.process import Job
from rtk.grammar.workers import Compiled, Failed, Order
from rtk.plugin.testing.grammar_examples import VOCABULARY
from rtk.plugin.testing.toys import ChoiceMatcher
from rtk.schedule.messages import GrammarOrder


class FakePool:
    """Keeps orders until it is told what becomes of them."""

    def __init__(self, done):
        self.done = done
        self.orders = []
        self.closed = False

    def submit(self, job):
        self.orders.append(Order(job))
        return self.orders[-1]

    def cancel(self, order):
        if order in self.orders:  # else it has just ended
            self.orders.remove(order)

    def close(self):
        self.closed = True

    def end(self, outcome, at=0):
        self.done(self.orders.pop(at), outcome)


def matcher(text="a"):
    return ChoiceMatcher((text.encode(),), VOCABULARY)


def compiled(size=100, text="a"):
    return Compiled(matcher(text), size, 0.5)


def wanted(text="a", kind="choice", backend="toy", **more):
    return GrammarOrder(backend=backend, kind=kind, text=text, **more)


class Managed:
    def __init__(self, **limits):
        self.woken = 0
        limits = {"cache_bytes": 1000, "max_spec_bytes": 50, "max_queue": 3, **limits}
        backends, limits = {"toy": None, "other": None}, GrammarSettings(**limits)
        self.manager = GrammarManager(backends, VOCABULARY, limits, self._wake, self._pool)

    def _wake(self):
        self.woken += 1

    def _pool(self, done):
        self.pool = FakePool(done)
        return self.pool

    def submit(self, rid, *args, **more):
        return self.manager.submit(rid, wanted(*args, **more))

    def refused(self, *args, **more):
        with pytest.raises(RequestError) as caught:
            self.submit("r", *args, **more)
        return caught.value.code, caught.value.status, str(caught.value)

    def end(self, outcome, at=0):
        self.pool.end(outcome, at)
        return dict(self.manager.poll())

    def stats(self):
        """Those that are not 0."""
        return {name.removeprefix("grammar_"): value for name, value in self.manager.stats().items() if value}


# --- sharing --------------------------------------------------------------------------------------------------------


def test_one_job_serves_all_who_want_the_same_each_with_a_matcher_of_its_own():
    m = Managed()
    assert [m.submit(rid) for rid in "abc"] == [None, None, None]
    assert [order.job for order in m.pool.orders] == [Job("toy", "choice", "a", 8)]
    assert (dict(m.manager.poll()), m.woken) == ({}, 0)
    found = m.end(compiled())
    assert m.woken == 1
    assert [*found] == ["a", "b", "c"]
    later = m.submit("d")
    four = {*map(id, found.values()), id(later)}
    assert len(four) == 4
    assert later.accept(ord("a"))
    assert [found["a"].past, m.submit("e").past] == [[], []]
    assert m.stats() == {
        "misses": 3,
        "compiles": 1,
        "hits": 2,
        "compile_seconds": 0.5,
        "cached": 1,
        "cached_bytes": 101,
    }


@pytest.mark.parametrize("other", [{"kind": "regex"}, {"text": "b"}, {"backend": "other"}, {"whitespace": 2}])
def test_what_differs_is_another_grammar(other):
    m = Managed()
    m.submit("a")
    m.submit("b", **other)
    assert len(m.pool.orders) == 2


def test_where_the_grammar_begins_is_no_part_of_it():
    m = Managed()
    m.submit("a")
    m.submit("b", after=b"</think>")
    assert len(m.pool.orders) == 1


def test_the_last_who_leaves_ends_the_work_and_nobody_before():
    m = Managed()
    m.submit("a")
    m.submit("b")
    m.manager.abort("a")
    assert len(m.pool.orders) == 1
    m.manager.abort("b")
    assert m.pool.orders == []
    assert m.stats() == {"misses": 2, "cancelled": 1}
    m.submit("a")
    assert len(m.pool.orders) == 1


def test_a_job_that_ends_as_the_last_leaves_is_nobodys():
    m = Managed()
    m.submit("a")
    order = m.pool.orders[0]
    m.manager.abort("a")
    m.pool.done(order, compiled())
    assert dict(m.manager.poll()) == {}
    m.submit("b")
    assert [*m.end(compiled())] == ["b"]


# --- refusals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("why", TOLD)
def test_only_what_is_invalid_is_remembered(why):
    m = Managed()
    m.submit("a")
    m.submit("b")
    error = m.end(Failed(why, "no", 0.25))["b"]
    told = (error.code, error.status)
    assert told == TOLD[why]
    limit = " (grammar.compile_timeout_s)" if why == "timeout" else ""
    assert str(error) == f"grammar backend 'toy' cannot compile this: no{limit}"
    if why == "invalid":
        assert m.refused() == (*told, str(error))
        assert m.stats() == {
            "misses": 2,
            "invalid": 1,
            "hits": 1,
            "compile_seconds": 0.25,
            "cached": 1,
            "cached_bytes": 3,
        }
    else:
        assert m.submit("c") is None
        assert isinstance(m.end(compiled())["c"], ChoiceMatcher)


def test_the_codes():
    assert TOLD == {
        "invalid": ("invalid_grammar", 400),
        "timeout": ("grammar_timeout", 400),
        "too_large": ("grammar_too_large", 400),
        "failed": ("grammar_not_compiled", 400),
        "unbuildable": ("grammar_failed", 500),
    }


def test_what_is_refused_before_anything_is_done():
    m = Managed()
    assert m.refused("é" * 26) == (
        "grammar_too_large",
        400,
        "as rtk writes it, it has 52 bytes, and may have 50 (grammar.max_spec_bytes)",
    )
    assert m.refused(backend="x") == (
        "grammar_off",
        400,
        "grammar backend 'x' is not in use here; in use: other, toy",
    )
    assert (m.pool.orders, m.stats()) == ([], {})


def test_so_many_may_be_on_their_way_and_who_shares_one_is_no_more():
    m = Managed()
    for text in "abc":
        m.submit(text, text)
    problem = "3 grammars are being compiled (grammar.max_queue = 3); try again later"
    assert m.refused("d") == ("grammar_queue_full", 503, problem)
    assert m.submit("r", "a") is None
    m.end(compiled())
    assert m.submit("d", "d") is None
    assert m.stats()["queue_full"] == 1


class Unforkable(ChoiceMatcher):
    def fork(self):
        raise RuntimeError("never")


def test_a_matcher_that_cannot_be_forked_ends_its_own_requests():
    m = Managed()
    m.submit("a")
    error = m.end(Compiled(Unforkable((b"a",), VOCABULARY), 10, 0.0))["a"]
    problem = "grammar backend 'toy' cannot compile this: its matcher cannot be forked: RuntimeError"
    assert (error.code, str(error)) == ("grammar_not_compiled", problem)
    assert m.refused() == ("grammar_not_compiled", 400, problem)


def test_the_pool_ends_with_it():
    m = Managed()
    m.manager.close()
    assert m.pool.closed


# --- the cache ------------------------------------------------------------------------------------------------------


def key(text):
    return GrammarKey("toy", "choice", text, 8)


def test_the_least_recently_used_goes_first():
    cache = GrammarCache(100)
    for text in "abc":
        cache.put(key(text), matcher(text), 29)
    assert cache.get(key("a")) is not None
    cache.put(key("d"), Invalid("no"), 38)
    assert [text for text in "abcd" if cache.get(key(text))] == ["a", "c", "d"]
    assert (cache.size, len(cache)) == (99, 3)
    cache.put(key("d"), matcher("d"), 0)
    assert (cache.size, len(cache)) == (61, 3)


def test_what_is_larger_than_all_the_room_is_not_kept_and_drives_nobody_out():
    cache = GrammarCache(100)
    cache.put(key("a"), matcher(), 50)
    cache.put(key("bb"), matcher(), 99)
    assert (cache.get(key("bb")), cache.size) == (None, 51)
    cache.put(key("c"), matcher(), 99)
    assert (cache.get(key("a")), cache.size) == (None, 100)


# --- any order of events --------------------------------------------------------------------------------------------


class ManagerMachine(RuleBasedStateMachine):
    """Against a model: who waits for which text, what has ended and was not polled, and what was known last."""

    @initialize(limit=st.sampled_from([150, 10_000]))
    def build(self, limit):
        self.m = Managed(max_queue=4, cache_bytes=limit)
        self.waits: dict[str, str] = {}
        self.ended: dict[str, str] = {}
        self.known: dict[str, str] = {}
        self.requests = 0

    @rule(text=st.sampled_from("abcdef"))
    def submit(self, text):
        rid = f"r{self.requests}"
        self.requests += 1
        cached = key(text) in self.m.manager._cache._entries
        on_the_way = {*self.waits.values()}
        try:
            found = self.m.submit(rid, text)
        except RequestError as error:
            full = text not in on_the_way and len(on_the_way) == 4
            assert error.code == ("invalid_grammar" if cached else "grammar_queue_full")
            assert self.known[text] == "invalid" if cached else full
            return
        assert (found is not None) == cached
        if found is None:
            self.waits[rid] = text
        else:
            assert self.known[text] == "compiled"
            assert found.texts == (text.encode(),)

    @rule(which=st.integers(0, 8))
    def abort(self, which):
        if self.waits:
            rid = [*self.waits][which % len(self.waits)]
            text = self.waits.pop(rid)
            self.m.manager.abort(rid)
            if text not in self.waits.values():
                self.ended.pop(text, None)

    @rule(which=st.integers(0, 8), why=st.sampled_from(["compiled", *TOLD]))
    def end(self, which, why):
        orders = self.m.pool.orders
        if orders:
            at = which % len(orders)
            text = orders[at].job.text
            self.ended[text] = why
            self.m.pool.end(compiled(60, text) if why == "compiled" else Failed(why, "no", 0.0), at)

    @rule()
    def poll(self):
        told = {
            rid: "compiled" if isinstance(found, ChoiceMatcher) else (found.code, found.status)
            for rid, found in self.m.manager.poll()
        }
        assert told == {rid: TOLD.get(self.ended[t], "compiled") for rid, t in self.waits.items() if t in self.ended}
        for rid in told:
            del self.waits[rid]
        self.known |= {text: why for text, why in self.ended.items() if why in ("compiled", "invalid")}
        self.ended.clear()

    @invariant()
    def one_job_for_each_text_that_somebody_waits_for(self):
        if not hasattr(self, "m"):
            return
        pending = {*self.waits.values()} - self.ended.keys()
        assert sorted(order.job.text for order in self.m.pool.orders) == sorted(pending)
        assert self.m.manager._by_rid.keys() == self.waits.keys()
        assert self.m.manager._cache.size <= self.m.manager._settings.cache_bytes


TestManager = ManagerMachine.TestCase
TestManager.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
