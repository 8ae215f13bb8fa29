"""Pins as the scheduler gives them: computed, kept, paid for, and never at the cost of who was accepted before."""

import pytest

from rtk.cache.key import DEFAULT_NAMESPACE, Namespace, pack
from rtk.plugin.testing.harness import Harness, digest
from rtk.schedule.admission import balance
from rtk.schedule.messages import Explain, Flush, Flushed, GetCache, Pin, Pinned, PinState, Refused, Unpin


def order(h, id, name, prompt, *, ttl_s=None, namespace=DEFAULT_NAMESPACE):
    """Ask for a pin; the answer may come with a later step."""
    h.send(Pin(id=id, name=name, tokens=pack(prompt), ttl_s=ttl_s, namespace=namespace))


def pin(h, id, name, prompt, **more):
    order(h, id, name, prompt, **more)
    h.run()
    return h.answers[id]


def ask(h, question):
    h.send(question)
    return h.answers[question.id]


def books(h):
    return [h.stat(name) for name in ("free", "evictable", "protected", "held", "pinned")]


def trace(h):
    """Whatever a refusal could leave behind."""
    return books(h), [h.stat(name) for name in ("free_rows", "running", "waiting")], h.scheduler.busy


# --- what a pin does ----------------------------------------------------------------------------------------------


@pytest.mark.stepwise
@pytest.mark.parametrize("page", [1, 4])
def test_a_pinned_prefix_is_computed_and_outlives_any_pressure(page):
    h = Harness(script=digest, pool_tokens=96, page_size=page, context_length=64)
    order(h, 1, "system", range(21))
    assert 1 not in h.answers and h.stat("waiting") == 1
    h.step()
    whole = 21 - 21 % page
    state = PinState(name="system", tokens=whole, namespace=DEFAULT_NAMESPACE, expires_in_s=None)
    assert h.answers[1] == Pinned(id=1, pin=state)
    assert books(h) == [96 - whole, 0, whole, 0, whole]
    assert h.stat("prefill_tokens") == 21 and not h.finished
    for i in range(30):
        h.add(f"r{i}", range(100 * i, 100 * i + 40), max_new_tokens=8)
        h.run()
    assert h.stat("evicted_tokens") > 1000
    h.add("hit", [*range(21), 77], max_new_tokens=3)
    h.run()
    assert h.cached["hit"] == whole
    assert h.stat("invariant_violations") == 0  # the idle check counts what is pinned


def test_a_prefix_that_is_cached_already_is_pinned_as_it_is():
    h = Harness(page_size=4)
    h.add("a", range(24), max_new_tokens=1)
    h.run()
    assert pin(h, 1, "p", range(16)).pin.tokens == 16
    assert books(h) == [256 - 24, 8, 16, 0, 16]
    assert h.stat("prefill_tokens") == 24 + 4  # one page, since a request computes at least one token


def test_the_pinned_tokens_are_no_requests_to_count_on():
    h = Harness(pool_tokens=100, context_length=100, pin_budget=40)
    fits = {"max_new_tokens": 29, "ignore_eos": True}
    assert h.add("before", range(500, 570), **fits).code == "never_fits"  # 70 + 29 + 1 reaches the pool of 100
    assert h.add("largest", range(500, 569), **fits).accepted  # 69 + 29 + 1 does not
    h.run()
    assert pin(h, 1, "p", range(30)).pin.tokens == 30
    refused = h.add("beside", range(500, 540), **fits)
    assert (refused.code, refused.problem) == (
        "never_fits",
        "the request can never fit: its charge of 70 tokens reaches the pool of 100, of which 30 are pinned"
        " (page size 1); shorten it, lower max_new_tokens, unpin something, or start with a larger cache.pool_tokens",
    )
    assert h.add("fits", range(500, 539), **fits).accepted
    h.step()
    assert (
        balance(h.scheduler._pools, h.scheduler._running.requests, ratio=1.0) == 100 - 30 - (39 + 29) + 1
    )  # one is out
    h.run()
    assert len(h.tokens["fits"]) == 29
    h.add("open", [1], ignore_eos=True)
    h.run()
    assert len(h.tokens["open"]) == 100 - 30 - 1 - 1 - 1  # what the charge leaves below the pool


def test_two_pins_that_share_a_prefix_count_it_once():
    h = Harness(pool_tokens=100, pin_budget=30, page_size=4)
    assert pin(h, 1, "a", range(20)).pin.tokens == 20
    assert pin(h, 2, "b", [*range(16), *range(50, 58)]).pin.tokens == 24
    assert books(h) == [72, 0, 28, 0, 28]
    refused = pin(h, 3, "c", range(70, 76))
    assert "pin 'c' takes 4 tokens, 28 are taken, and the budget is 30" in refused.problem
    assert ask(h, Unpin(id=4, name="a")) == Pinned(
        id=4, pin=PinState(name="a", tokens=20, namespace=DEFAULT_NAMESPACE, expires_in_s=None)
    )
    assert books(h) == [72, 4, 24, 0, 24]


@pytest.mark.stepwise
def test_a_pin_ends_by_the_clock_and_its_prefix_stays_until_it_is_evicted():
    h = Harness(pool_tokens=64)
    h.now = 100.0
    order(h, 1, "p", range(10), ttl_s=5.0)
    h.step()
    assert (h.now, h.answers[1].pin.expires_in_s) == (101.0, 5.0)
    h.now = 105.9
    assert [(one.name, round(one.expires_in_s, 6)) for one in ask(h, GetCache(id=2)).pins] == [("p", 0.1)]
    h.now = 106.0
    report = ask(h, GetCache(id=3))
    assert (report.pins, report.pinned, report.evictable, report.protected) == ((), 0, 10, 0)
    assert ask(h, Unpin(id=4, name="p")).code == "unknown_pin"
    assert pin(h, 5, "p", range(10)).pin.tokens == 10  # the name is free again


def test_what_is_left_of_a_pin_is_never_less_than_nothing():
    h = Harness()
    h.scheduler._desk._clock = lambda: h.now + 9.0  # the answer took a while
    assert pin(h, 1, "p", range(4), ttl_s=5.0).pin.expires_in_s == 0.0


def test_a_pin_ends_in_the_middle_of_a_run():
    h = Harness(pool_tokens=64, context_length=64)
    pin(h, 1, "p", range(10), ttl_s=3.0)
    h.add("long", [50], max_new_tokens=40, ignore_eos=True)
    for _ in range(2):
        h.step()
    assert h.stat("pinned") == 10
    h.step()
    assert h.stat("pinned") == 0
    h.run()


def test_flushing_keeps_what_is_pinned():
    h = Harness()
    h.add("a", range(100, 110), max_new_tokens=4)
    pin(h, 1, "p", range(10))
    assert ask(h, Flush(id=2)) == Flushed(id=2, tokens=13)
    assert books(h) == [246, 0, 10, 0, 10]
    order(h, 3, "q", range(50, 60))
    assert ask(h, Flush(id=4)).code == "cache_busy"  # the prefix is being computed
    h.run()
    for number, name in ((5, "p"), (6, "q")):
        ask(h, Unpin(id=number, name=name))
    assert ask(h, Flush(id=7)) == Flushed(id=7, tokens=20)


@pytest.mark.stepwise
def test_the_report_adds_up_while_requests_run():
    h = Harness(page_size=4, pin_budget=50)
    pin(h, 1, "p", range(10), namespace=Namespace(None, "salt"))
    h.add("a", range(9), max_new_tokens=9)
    h.step()
    report = ask(h, GetCache(id=2))
    assert (report.free, report.evictable, report.protected, report.held) == (256 - 8 - 12, 0, 16, 4)
    assert report.free + report.evictable + report.protected + report.held == report.pool == 256
    assert (report.namespaces, report.pinned, report.pin_budget) == (2, 8, 50)
    assert [(one.name, one.namespace) for one in report.pins] == [("p", Namespace(None, "salt"))]


@pytest.mark.stepwise
def test_an_explanation_tells_how_long_ago_the_eviction_was():
    h = Harness(pool_tokens=16)
    h.add("a", range(10), max_new_tokens=1)
    h.run()
    h.add("b", range(50, 62), max_new_tokens=1)
    h.run()
    h.now = 9.0
    told = ask(h, Explain(id=1, tokens=pack(range(10))))
    assert (told.explanation.ends, told.explanation.evicted.tokens, told.evicted_ago_s) == ("evicted", 10, 7.0)


# --- what is refused ----------------------------------------------------------------------------------------------

REFUSED = {
    "over budget": (range(31), "p", "pin_over_budget", 409, ["'p' takes 31 tokens", "10 are taken", "budget is 40"]),
    "duplicate": (range(5), "there", "duplicate_pin", 409, ["there is a pin 'there' already"]),
    "too short": (range(3), "p", "pin_too_short", 400, ["3 tokens do not fill a page of 4"]),
    "empty": ([], "p", "empty_prompt", 400, ["the prompt is empty"]),
    "context": (range(128), "p", "context_length_exceeded", 400, ["128 tokens"]),
    "no room": (range(500, 520), "p", "pin_no_room", 409, ["would leave 74 tokens", "accepted needs 77"]),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_refused_pin_leaves_nothing(case):
    page = 4 if case == "too short" else 1
    prompt, name, code, status, says = REFUSED[case]
    h = Harness(pool_tokens=104, page_size=page, context_length=128, pin_budget=40)
    pin(h, 1, "there", range(200, 200 + 10 + 2 * (page == 4)))
    h.add("accepted", range(300, 350), max_new_tokens=25)  # 50 + 25 + 1, and one more to stay below the pool
    before = trace(h)
    order(h, 2, name, prompt)
    refused = h.answers[2]
    assert isinstance(refused, Refused)
    assert (refused.code, refused.status) == (code, status)
    assert all(part in refused.problem for part in says), refused.problem
    assert trace(h) == before
    h.run()
    assert h.finished["accepted"].reason == "length"
    assert h.add("same id", [1], max_new_tokens=1).accepted


@pytest.mark.parametrize(("length", "code"), [(17, None), (18, "pin_no_room")])
def test_a_pin_may_leave_just_enough(length, code):
    h = Harness(pool_tokens=104, pin_budget=40)
    pin(h, 1, "there", range(200, 210))
    h.add("accepted", range(300, 350), max_new_tokens=25, ignore_eos=True)  # 77, of the 104 - 10 - 17 that are left
    assert getattr(pin(h, 2, "p", range(length)), "code", None) == code
    assert h.finished["accepted"].reason == "length"


def test_a_long_answer_that_was_promised_counts_in_full():
    h = Harness(pool_tokens=10_000, context_length=10_000, pin_budget=2_000)
    h.add("accepted", range(10), max_new_tokens=9_000)  # its charge counts 4096 of them only
    order(h, 1, "p", range(500, 1_491))
    assert "would leave 9009 tokens of the pool, and a request that was accepted needs 9010" in h.answers[1].problem
    order(h, 2, "p", range(500, 1_490))
    assert 2 not in h.answers


def test_an_order_that_builds_on_a_pin_needs_no_room_for_that_once_more():
    h = Harness(pool_tokens=110, context_length=110, pin_budget=80, max_running=1)
    pin(h, 1, "base", range(40))
    h.add("runs", [900], max_new_tokens=3, ignore_eos=True)
    h.step()
    order(h, 2, "more", range(50))
    order(h, 3, "other", range(500, 520))  # leaves 40 beside the 70; "more" computes 10 of its 50
    ask(h, Unpin(id=4, name="base"))
    h.run()
    assert [h.answers[number].pin.tokens for number in (2, 3)] == [50, 20]


def test_without_a_cache_nothing_is_pinned():
    h = Harness(cache_enabled=False)
    order(h, 1, "p", range(8))
    assert (h.answers[1].code, h.scheduler.busy) == ("cache_disabled", False)
    assert "cache.disable" in h.answers[1].problem


def test_a_pin_that_is_not_there_cannot_be_taken_off():
    h = Harness()
    refused = ask(h, Unpin(id=1, name="nobody"))
    assert (refused.code, refused.status, refused.problem) == (
        "unknown_pin", 404, "there is no pin 'nobody'; pins: none",
    )  # fmt: skip
    for i, name in enumerate("ba"):
        pin(h, 10 + i, name, range(100 * i, 100 * i + 4))
    assert ask(h, Unpin(id=2, name="c")).problem.endswith("pins: 'a', 'b'")


def test_a_pin_that_is_being_computed_is_not_there_yet():
    h = Harness(max_running=1)
    h.add("first", [900], max_new_tokens=3)
    h.step()
    order(h, 1, "p", range(8))
    order(h, 2, "p", range(8))
    told = "the prefix of pin 'p' is being computed; try again when it is there"
    assert (h.answers[2].code, h.answers[2].problem) == ("duplicate_pin", told)
    refused = ask(h, Unpin(id=3, name="p"))
    assert (refused.code, refused.status, refused.problem) == ("pin_not_ready", 409, told)
    h.run()
    assert isinstance(ask(h, Unpin(id=4, name="p")), Pinned)


def test_a_refusal_names_some_of_many_pins():
    h = Harness(pin_budget=64)
    for i in range(20):
        pin(h, i, f"{i:02}", [i])
    named = ", ".join(f"'{i:02}'" for i in range(16))
    assert ask(h, Unpin(id=99, name="x")).problem == f"there is no pin 'x'; pins: {named} and 4 more"


def test_many_orders_are_looked_up_once_and_many_pins_end_at_once():
    h = Harness(pool_tokens=2048, pin_budget=1024, context_length=64)
    looked_up, counted = [], []
    peek, count = h.scheduler._pools.cache.peek, h.scheduler._desk._pins._count
    h.scheduler._pools.cache.peek = lambda *args, **more: looked_up.append(1) or peek(*args, **more)
    h.scheduler._desk._pins._count = lambda: counted.append(1) or count()
    h.scheduler.receive([Pin(id=i, name=f"p{i}", tokens=pack([i] * 8), ttl_s=50.0) for i in range(60)])
    for i in range(60):
        assert h.add(f"r{i}", [i], max_new_tokens=1).accepted
    assert len(looked_up) == 60
    h.run()
    assert (h.stat("pinned"), len(counted)) == (480, 60)
    looked_up.clear()
    for i in range(5):
        assert h.add(f"s{i}", [i], max_new_tokens=1).accepted
    assert not looked_up
    h.now = 1000.0
    assert ask(h, GetCache(id=100)).pins == ()
    assert (h.stat("pinned"), len(counted)) == (0, 61)


def test_an_order_counts_before_it_is_computed():
    h = Harness(pool_tokens=100, context_length=100, pin_budget=40)
    order(h, 1, "a", range(30))
    order(h, 2, "a", range(5))
    order(h, 3, "b", range(50, 61))
    assert h.answers[2].code == "duplicate_pin"
    assert "'b' takes 11 tokens, 30 are taken, and the budget is 40" in h.answers[3].problem
    assert h.add("late", range(500, 540), max_new_tokens=30).code == "never_fits"
    order(h, 4, "b", range(50, 60))  # an order does not stand in another's way by its own tokens
    h.run()
    assert [type(h.answers[number]) for number in (1, 4)] == [Pinned, Pinned]
    assert books(h) == [60, 0, 40, 0, 40]


def test_orders_may_fill_the_budget_to_the_last_token():
    h = Harness(pool_tokens=64, context_length=64, pin_budget=60)
    order(h, 1, "a", range(40))
    order(h, 2, "b", range(100, 120))
    h.run()
    assert books(h) == [4, 0, 60, 0, 60]


def test_an_order_that_builds_on_a_pin_counts_in_full_once_that_is_gone():
    h = Harness(pool_tokens=100, context_length=100, pin_budget=60, max_running=1)
    pin(h, 1, "base", range(40))
    h.add("runs", [900], max_new_tokens=3, ignore_eos=True)
    h.step()
    order(h, 2, "more", range(50))
    assert h.add("fits", range(500, 538), max_new_tokens=10).accepted  # 38 + 10 + 1 below 100 - 50
    ask(h, Unpin(id=3, name="base"))
    assert h.add("does not", range(600, 645), max_new_tokens=10).code == "never_fits"  # 56 would fit beside 10, not 50
    h.run()
    assert (h.answers[2].pin.tokens, h.finished["fits"].reason) == (50, "length")
    assert h.stat("pinned") == 50


# --- what goes wrong ----------------------------------------------------------------------------------------------


class Breaks:
    """Makes an executor fail its next step."""

    def __init__(self, h):
        self.launch = h.executor.launch
        h.executor.launch = self.fail
        self.h = h

    def fail(self, plan):
        self.h.executor.launch = self.launch
        raise RuntimeError("the device is gone")


@pytest.mark.stepwise
def test_a_step_that_fails_refuses_the_pin_and_gives_everything_back(caplog):
    h = Harness(script=digest, page_size=4)
    pin(h, 1, "there", range(8))
    order(h, 2, "p", [*range(8), *range(50, 60)])
    before = books(h)
    Breaks(h)
    h.step()
    assert h.answers[2] == Refused(
        id=2, problem="the engine failed to compute this step", code="pin_failed", status=500
    )
    assert (books(h), h.scheduler.busy, "the device is gone" in caplog.text) == (before, False, True)
    assert pin(h, 3, "p", [*range(8), *range(50, 60)]).pin.tokens == 16  # nothing of the order is left
    assert h.stat("invariant_violations") == 0


@pytest.mark.parametrize("steps", [0, 1])
def test_an_order_whose_request_is_aborted_is_refused(steps):
    h = Harness(max_running=1)
    if not steps:
        h.add("first", [900], max_new_tokens=3)
        h.step()
    before = books(h)
    order(h, 1, "p", range(8))
    h.abort("pin:1")
    assert (h.answers[1].code, books(h)) == ("pin_failed", before)
    h.run()
    assert isinstance(pin(h, 2, "p", range(8)), Pinned)


def test_an_order_that_cannot_be_admitted_is_refused(caplog):
    h = Harness()
    h.scheduler._pools.table.alloc = lambda: [][0]
    order(h, 1, "p", range(8))
    h._note(h.scheduler.step())
    assert (h.answers[1].code, h.answers[1].problem) == ("pin_failed", "the engine could not admit the request")
    assert books(h) == [256, 0, 0, 0, 0]
    del h.scheduler._pools.table.alloc
    assert isinstance(pin(h, 2, "p", range(8)), Pinned)
    assert h.stat("commit_failures") == 1


def test_an_engine_that_goes_away_refuses_its_orders():
    h = Harness(max_running=1)
    pin(h, 1, "kept", range(4))
    order(h, 2, "p", range(50, 58))
    h._note(h.scheduler.abandon("the engine shut down"))
    assert (h.answers[2].problem, h.answers[2].status) == ("the engine shut down", 500)
    assert books(h) == [252, 0, 4, 0, 4]


def test_a_pin_moves_no_requests_draws():
    def texts(*, pinned):
        h = Harness(script=digest, seed=3)
        if pinned:
            order(h, 1, "p", range(300, 308))
            order(h, 2, "p", range(300, 308))
        h.add("a", [1], max_new_tokens=1, temperature=1.0)
        return [request.seed for request in h.scheduler._requests.values() if request.pin is None]

    assert texts(pinned=True) == texts(pinned=False)
