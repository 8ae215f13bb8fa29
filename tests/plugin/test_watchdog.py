"""An endless loop in policy code is interrupted, and at no point can that reach host code.

The interleavings are forced, every one of them: the watchdog strikes at each bytecode of a guarded call, and, the other
way round, the call goes on at each bytecode of a strike (`strikes`).
"""

import collections
import subprocess
import sys
import threading

import pytest
import strikes
from strikes import ACTS, Asked, strike

from rtk.plugin import SchedulePolicy
from rtk.plugin.foreign import Overran
from rtk.plugin.guard import GuardedSchedule, Health
from rtk.plugin.schedule import Progress, RequestView
from rtk.plugin.testing.schedule import context, random_columns
from rtk.plugin.watchdog import PATIENCE

KINDS = pytest.mark.parametrize("kind", ["eviction", "schedule"])
NEVER_RETURN = "{0} plugin 'odd': {1}() did not return within 5 s, and is not called again; the host uses {2} instead"


def turns(*args):
    while True:
        pass


def blocked_until_struck(asked):
    """What `asked` answers with a strike while the policy turns in its loop."""
    inside = threading.Event()

    def act():
        inside.set()
        turns()

    def looks():
        inside.wait()
        strike(asked.watchdog)

    asked.policy.act = act
    striker = threading.Thread(target=looks)
    striker.start()
    answer = asked()
    striker.join()
    return answer


# --- one policy that loops ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "method", "instead"),
    [("eviction", "key", "least recently used"), ("schedule", "prefer_decode", "order of arrival")],
)
def test_a_policy_that_loops_is_interrupted_named_once_and_not_asked_again(kind, method, instead, caplog):
    asked = Asked(kind)
    with asked.watchdog.watching():
        assert asked() == "policy"
        assert blocked_until_struck(asked) == "host"
        asked.check_clear()
        asked.policy.act = lambda: pytest.fail("it was asked again")
        assert [asked(), asked()] == ["host", "host"]
    assert caplog.messages == [NEVER_RETURN.format(kind, method, instead)]
    assert asked.health.faults == {f"{kind} plugin 'odd'": 1}


@KINDS
def test_a_policy_that_swallows_the_interrupt_and_answers_is_given_up_all_the_same(kind):
    asked = Asked(kind)

    def act():
        try:
            strike(asked.watchdog)
            turns()
        except Overran:
            pass

    asked.policy.act = act
    with asked.watchdog.watching():
        assert asked() == "host"
        asked.check_clear()
    assert asked.given_up


@KINDS
def test_a_call_is_interrupted_once(kind):
    asked, caught = Asked(kind), []

    def act():
        for _ in range(3):
            try:
                strike(asked.watchdog)
            except Overran as error:
                caught.append(error)

    asked.policy.act = act
    with asked.watchdog.watching():
        assert asked() == "host"
    assert len(caught) == 1


@KINDS
def test_an_exception_whose_text_never_ends_is_interrupted_too(kind, caplog):
    asked = Asked(kind)

    class EndlessError(Exception):
        def __str__(self):
            strike(asked.watchdog)
            turns()

    def act():
        raise EndlessError

    asked.policy.act = act
    with asked.watchdog.watching():
        assert asked() == "host"
        asked.check_clear()
    assert asked.given_up
    assert "did not return within 5 s" in caplog.text


class Everything(SchedulePolicy):
    """Every method of the contract; the one named `endless` loops."""

    endless = ""

    def rank(self, columns, ctx):
        return self.act("rank", (columns.id,))

    def hold(self, columns, ctx):
        return self.act("hold", None)

    def prefer_decode(self, ctx):
        return self.act("prefer_decode", True)

    def chunk_reserve(self, columns, ctx):
        return self.act("chunk_reserve", 3)

    def on_progress(self, deltas):
        return self.act("on_progress", None)

    def retract_key(self, view):
        return self.act("retract_key", (view.id,))

    def preempts(self, waiting, running):
        return self.act("preempts", True)

    def act(self, method, answer):
        if method == self.endless:
            strike(self.watchdog)
            turns()
        return answer


class Lists(Everything):
    def order(self, views, ctx):
        yield from self.act("order", [view.id for view in views])

    rank = SchedulePolicy.rank


@pytest.mark.parametrize(
    "method", ["rank", "order", "hold", "prefer_decode", "chunk_reserve", "on_progress", "retract_key", "preempts"]
)
def test_every_method_of_a_schedule_policy_is_watched(method):
    policy, health = Lists() if method == "order" else Everything(), Health()
    guarded = GuardedSchedule(policy, "odd", health)
    columns = random_columns(4, seed=3)
    ctx, view = context(columns=columns), RequestView(1, 0.0, 5, 5, 0, 0, 0)
    ctx = type(ctx)(now=ctx.now, rng=ctx.rng, running=1)
    ask = {
        "rank": lambda: guarded.order(columns, ctx).tolist(),
        "order": lambda: guarded.order(columns, ctx).tolist(),
        "hold": lambda: guarded.order(columns, ctx).tolist(),
        "prefer_decode": lambda: guarded.prefer_decode(ctx),
        "chunk_reserve": lambda: guarded.chunk_reserve(columns, ctx),
        "on_progress": lambda: guarded.on_progress([Progress(1, 0, 1, 0)]),
        "retract_key": lambda: guarded.retract_key(view),
        "preempts": lambda: guarded.preempts(view, view),
    }
    host = {"prefer_decode": False, "chunk_reserve": 0, "on_progress": None, "retract_key": (), "preempts": False}
    policy.watchdog, policy.endless = health.watchdog, method
    with health.watchdog.watching():
        assert ask[method]() == host.get(method, [0, 1, 2, 3])
        policy.watchdog = None  # it is not asked again: nobody would interrupt it
        for one, answer in ask.items():
            assert answer() == host.get(one, [0, 1, 2, 3])
    assert health.faults.total() == 1


@pytest.mark.parametrize("event", ["on_insert", "on_hit", "on_evict"])
def test_what_an_eviction_policy_is_told_is_watched(event):
    asked = Asked("eviction")

    def told(*args):
        strike(asked.watchdog)
        turns()

    setattr(asked.policy, event, told)
    guarded = type(asked.guarded)(asked.policy, "odd", asked.health)
    with asked.watchdog.watching():
        getattr(guarded, event)(strikes.VIEW, *[(1,)] * (event == "on_evict"))
    assert guarded.faulted
    asked.check_clear()


# --- innocents ------------------------------------------------------------------------------------------------------


@KINDS
def test_calls_back_to_back_are_not_taken_for_one(kind):
    asked = Asked(kind)
    asked.policy.act = asked.watchdog.tick  # one look in each call
    with asked.watchdog.watching():
        assert [asked() for _ in range(3 * PATIENCE)] == ["policy"] * 3 * PATIENCE
    assert not asked.health.degraded


@KINDS
def test_looks_between_calls_count_for_nothing(kind):
    asked = Asked(kind)
    with asked.watchdog.watching():
        for _ in range(3 * PATIENCE):
            asked.watchdog.tick()
            assert asked() == "policy"


@KINDS
def test_a_strike_in_one_thread_leaves_the_other_scheduler_alone(kind):
    one, other = Asked(kind), Asked(kind)
    inside, go_on, answers = threading.Event(), threading.Event(), []

    def waits():
        inside.set()
        go_on.wait()

    def calls():
        other.policy.act = waits
        with other.watchdog.watching():
            answers.append(other())
        other.check_clear()

    thread = threading.Thread(target=calls)
    thread.start()
    inside.wait()
    with one.watchdog.watching():
        assert blocked_until_struck(one) == "host"
    go_on.set()
    thread.join()
    assert answers == ["policy"]
    assert (one.given_up, other.given_up) == (True, False)


# --- every interleaving ---------------------------------------------------------------------------------------------


def outcomes(way, kind, act):
    """What came of a call and a strike, for each bytecode; see `strikes`."""
    command = [sys.executable, strikes.__file__, way, kind, act]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return collections.Counter(done.stdout.splitlines())


INTERRUPTED = "host host 1"
UNTOUCHED = {
    ("eviction", "returns"): "policy policy 0",
    ("eviction", "raises"): "host host 1",
    ("schedule", "returns"): "policy policy 0",
    ("schedule", "raises"): "host policy 1",
}


@KINDS
@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("way", ["strikes", "overtakes"])
def test_at_whatever_bytecode_call_and_strike_meet_the_interrupt_stays_inside_the_guard(way, kind, act):
    found = outcomes(way, kind, act)
    assert set(found) == {INTERRUPTED, UNTOUCHED[kind, act]}
    assert found[INTERRUPTED] >= 15
    assert found[UNTOUCHED[kind, act]] >= (1 if way == "strikes" else 15)
