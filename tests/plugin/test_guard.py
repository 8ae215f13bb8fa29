import itertools
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from rtk.plugin import Columns, EvictionPolicy, NodeView, SchedulePolicy
from rtk.plugin.guard import FALLBACK_LIMIT, GuardedEviction, GuardedSchedule, Health
from rtk.plugin.testing.harness import Harness
from rtk.plugin.testing.schedule import context, random_columns

VIEW = NodeView(id=3, size=4, start=0, created=1, last_use=9, hits=2)


class Answers(EvictionPolicy):
    def __init__(self, *answers):
        self.answers = list(answers)

    def key(self, node):
        answer = self.answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return answer


@pytest.mark.parametrize(
    "nonsense",
    [RuntimeError("no"), None, 7, [1, 2], (), (1, None), (1, float("nan")), (1, object()), (1, (2,)), ("x", 1)],
    ids=["raises", "None", "a number", "a list", "empty", "a None", "NaN", "an object", "a tuple", "text"],
)
def test_a_nonsense_key_gives_the_policy_up(nonsense):
    health = Health()
    guarded = GuardedEviction(Answers((1, 2), nonsense), "odd", health)
    assert guarded.key(VIEW) == (1, 2)
    assert guarded.key(VIEW) == (VIEW.last_use,)
    assert guarded.faulted and health.degraded
    assert guarded.key(VIEW) == (VIEW.last_use,)  # the policy is not asked again: it has no third answer
    assert health.faults == {"eviction plugin 'odd'": 1}


def test_int_and_float_keys_may_mix():
    guarded = GuardedEviction(Answers((1, 2.5), (0.5, True)), "fine", Health())
    assert [guarded.key(VIEW), guarded.key(VIEW)] == [(1, 2.5), (0.5, True)]
    assert not guarded.faulted


class RaisesLater(EvictionPolicy):
    """Evicts the newest first, until it breaks."""

    def __init__(self, calls):
        self.calls = calls

    def key(self, node):
        self.calls -= 1
        if self.calls < 0:
            raise RuntimeError("worn out")
        return (-node.last_use,)


@pytest.mark.parametrize("calls", range(0, 36, 3))
def test_serving_survives_an_eviction_policy_that_breaks(calls):
    harness = Harness(pool_tokens=32, eviction=RaisesLater(calls))
    for i in range(20):
        harness.add(f"r{i}", [100 * i + j for j in range(6)], max_new_tokens=4)
        harness.run()  # checks the books after each step
    assert len(harness.finished) == 20
    assert {f.reason for f in harness.finished.values()} == {"length"}
    assert harness.stat("plugin_faults") == 1


def test_after_a_break_eviction_is_least_recently_used():
    harness = Harness(pool_tokens=16, eviction=RaisesLater(1))
    for rid in ("a", "b"):  # the second key breaks the policy
        harness.add(rid, [ord(rid) * 10 + j for j in range(4)], max_new_tokens=1)
        harness.run()
    harness.add("c", list(range(10)), max_new_tokens=1)
    harness.run()
    cached = harness.scheduler._pools.cache
    assert harness.stat("plugin_faults") == 1
    assert [node.tokens[:4] for node in cached.nodes() if len(node.slots) == 4] == [
        (980).to_bytes(4, "little")
    ]  # of a and b, b is left


class NotAnArray:
    """What another library calls an array."""

    dtype = np.dtype(float)

    def __init__(self, count):
        self.shape = (count,)

    def __array__(self, dtype=None, copy=None):
        return np.zeros(self.shape)


class MuteError(Exception):
    def __str__(self):
        raise SystemExit


def raises(error):
    raise error


class Ranks(SchedulePolicy):
    def __init__(self, answer):
        self.answer = answer

    def rank(self, columns, ctx):
        return self.answer(columns)


NONSENSE_RANKS = {
    "raises": lambda c: 1 / 0,
    "wrong length": lambda c: (np.zeros(len(c) + 1),),
    "NaN": lambda c: (np.full(len(c), np.nan),),
    "None": lambda c: None,
    "a long matrix": lambda c: np.zeros((2, len(c) + 1)),
    "a list": lambda c: ([0] * len(c),),
    "a matrix": lambda c: np.zeros((2, len(c))),
    "an iterator": lambda c: iter((c.id,)),
    "objects": lambda c: (np.full(len(c), None),),
    "complex": lambda c: (np.full(len(c), 1j * np.nan),),
    "no time": lambda c: (np.full(len(c), "NaT", "datetime64[s]"),),
    "strings": lambda c: (np.full(len(c), "a"),),
    "a hidden NaN": lambda c: (np.ma.array(np.full(len(c), np.nan), mask=True),),
    "a tensor": lambda c: (NotAnArray(len(c)),),
    "more than fits": lambda c: (np.broadcast_to(1.0, 10**15),),
    "exits": lambda c: sys.exit(3),
    "ends": lambda c: raises(GeneratorExit()),
    "raises what has no text": lambda c: raises(MuteError()),
}


@pytest.mark.parametrize("answer", NONSENSE_RANKS.values(), ids=NONSENSE_RANKS)
def test_a_nonsense_rank_becomes_order_of_arrival(answer):
    health = Health()
    columns = random_columns(20, seed=1)
    guarded = GuardedSchedule(Ranks(answer), "odd", health)
    for asked in (1, 2):  # scheduling asks again in the next step
        assert guarded.order(columns, context()).tolist() == list(range(20))
        assert health.faults == {"schedule plugin 'odd'": asked}


def test_the_first_key_is_the_most_important_and_arrival_the_last():
    columns = random_columns(4, seed=1)
    keys = (np.array([1, 0, 1, 0]), np.array([0.5, 2.0, 0.5, 1.0]))
    order = GuardedSchedule(Ranks(lambda c: keys), "fine", Health()).order(columns, context())
    assert order.tolist() == [3, 1, 0, 2]


class Orders(SchedulePolicy):
    def __init__(self, answer):
        self.answer = answer

    def order(self, views, ctx):
        return self.answer([view.id for view in views])


@pytest.mark.parametrize(
    "answer",
    [
        lambda ids: ids[1:],
        lambda ids: [*ids, ids[0]],
        lambda ids: [ids[0]] * len(ids),
        lambda ids: [-1, *ids[1:]],
        lambda ids: [[one] for one in ids],
        lambda ids: itertools.count(),
    ],
    ids=["one missing", "one twice more", "one for all", "a stranger", "lists", "no end"],
)
def test_a_nonsense_order_becomes_order_of_arrival(answer):
    health = Health()
    order = GuardedSchedule(Orders(answer), "odd", health).order(random_columns(5, seed=1), context())
    assert order.tolist() == [0, 1, 2, 3, 4]
    assert health.degraded


def test_order_sees_at_most_a_thousand_and_the_rest_follow():
    seen = []
    policy = Orders(lambda ids: seen.append(len(ids)) or ids[::-1])
    order = GuardedSchedule(policy, "fine", Health()).order(random_columns(1200, seed=1), context())
    assert seen == [1000]
    assert order.tolist() == [*range(999, -1, -1), *range(1000, 1200)]


class Holds(Ranks):
    def __init__(self, held):
        super().__init__(lambda columns: (-columns.id,))
        self.held = held

    def hold(self, columns, ctx):
        return self.held(columns)


def test_requests_on_hold_are_left_out():
    columns = random_columns(6, seed=1)
    guarded = GuardedSchedule(Holds(lambda c: c.id == c.id[2]), "fine", Health())
    assert guarded.order(columns, context()).tolist() == [5, 4, 3, 1, 0]


@pytest.mark.parametrize(
    "held",
    [lambda c: [True], lambda c: np.zeros(len(c)), lambda c: np.zeros((len(c), 1), bool), lambda c: 1 / 0],
)
def test_a_nonsense_hold_holds_nobody(held):
    health = Health()
    order = GuardedSchedule(Holds(held), "odd", health).order(random_columns(3, seed=1), context())
    assert order.tolist() == [2, 1, 0]
    assert health.degraded


def test_an_answer_is_used_as_a_plain_array():
    class Odd(np.ndarray):
        def __getitem__(self, index):
            raise RuntimeError("no")

        __invert__ = __getitem__

    columns = random_columns(3, seed=1)
    guarded = GuardedSchedule(Holds(lambda c: (c.id == c.id[1]).view(Odd)), "odd", Health())
    assert guarded.order(columns, context()).tolist() == [2, 0]


class Scratch(SchedulePolicy):
    """Uses one array for all that it computes."""

    def __init__(self, count):
        self.array = np.zeros(count)

    def rank(self, columns, ctx):
        self.array[:] = -columns.id
        return (self.array,)

    def hold(self, columns, ctx):
        held = self.array < np.inf
        self.array[:] = np.nan
        held[1:] = False
        return held


def test_an_answer_does_not_change_when_the_policy_writes_into_its_array():
    columns, health = random_columns(100, seed=4), Health()
    order = GuardedSchedule(Scratch(100), "scratch", health).order(columns, context())
    assert order.tolist() == list(range(99, 0, -1))
    assert not health.degraded


def test_columns_are_read_only():
    columns = random_columns(3, seed=1)
    for name in Columns.__dataclass_fields__:
        array = getattr(columns, name)
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0
        with pytest.raises(ValueError, match="cannot set WRITEABLE flag"):
            array.setflags(write=True)
        with pytest.raises(ValueError, match="cannot resize"):
            array.resize(0, refcheck=False)


class Spoils(SchedulePolicy):
    """Takes whatever it is given apart."""

    def rank(self, columns, ctx):
        keys = (-columns.id,)
        object.__setattr__(columns, "id", columns.id[:0])
        object.__setattr__(columns, "arrival_s", None)
        object.__setattr__(ctx, "running", -5)
        ctx.rng.getrandbits = None
        return keys


@pytest.mark.stepwise
def test_what_a_policy_spoils_is_its_own():
    harness = Harness(schedule=Spoils(), max_running=1)
    for rid in ("a", "b"):
        harness.add(rid, [ord(rid)], max_new_tokens=1, temperature=1.0)
    harness.step()
    assert list(harness.finished) == ["b"]
    harness.add("c", [1], max_new_tokens=1, temperature=1.0)  # without a seed: it gets one
    harness.run()
    assert list(harness.finished) == ["b", "c", "a"]
    assert not harness.stat("plugin_faults")


class TakesTheViews(SchedulePolicy):
    """Empties the list that it was given."""

    def order(self, views, ctx):
        return [views.pop().id for _ in range(len(views))]


def test_the_list_of_views_is_the_policys():
    health = Health()
    columns = random_columns(1003, seed=1)
    order = GuardedSchedule(TakesTheViews(), "odd", health).order(columns, context())
    assert order.tolist() == [*range(999, -1, -1), 1000, 1001, 1002]
    assert not health.degraded


class PrefersDecode(Ranks):
    def __init__(self, answer):
        super().__init__(lambda columns: (columns.id,))
        self.prefers = answer

    def prefer_decode(self, ctx):
        return self.prefers()


class NoTruth:
    def __bool__(self):
        raise RuntimeError("no")


@pytest.mark.parametrize(
    "answer",
    [lambda: np.array([True, False]), NoTruth, lambda: 1 / 0, lambda: sys.exit()],
    ids=["an array", "no truth", "raises", "exits"],
)
def test_a_nonsense_preference_prefills(answer):
    health = Health()
    assert GuardedSchedule(PrefersDecode(answer), "odd", health).prefer_decode(context()) is False
    assert health.faults == {"schedule plugin 'odd'": 1}


@pytest.mark.stepwise
def test_new_requests_wait_while_the_policy_prefers_decoding_and_some_run():
    harness = Harness(schedule=PrefersDecode(lambda: True))
    harness.add("a", [1], max_new_tokens=3)
    harness.step()  # nothing runs, so nothing is asked
    harness.add("b", [1], max_new_tokens=1)
    harness.step()
    assert (harness.tokens, harness.stat("waiting")) == ({"a": [2, 3]}, 1)
    assert harness.run() == 2
    assert harness.tokens == {"a": [2, 3, 4], "b": [2]}


class HoldsAll(Holds):
    def __init__(self):
        super().__init__(lambda columns: np.ones(len(columns), bool))


@pytest.mark.stepwise
def test_who_keeps_everybody_from_an_idle_engine_is_overruled_in_the_end():
    harness = Harness(schedule=HoldsAll())
    harness.add("a", [1], max_new_tokens=2)
    for _ in range(9):
        harness.step()
    harness.add("b", [1], max_new_tokens=1)
    assert (harness.stat("waiting"), harness.stat("plugin_faults"), harness.scheduler.stalled) == (2, 0, True)
    harness.step()  # the first has waited for 10 s
    assert (harness.stat("waiting"), harness.stat("plugin_faults"), harness.scheduler.stalled) == (0, 1, False)
    harness.run()
    assert harness.tokens == {"a": [2, 3], "b": [2]}
    harness.add("c", [1], max_new_tokens=1)
    assert (harness.run(), harness.stat("plugin_faults")) == (10, 2)


@pytest.mark.stepwise
def test_while_some_run_everybody_may_be_held():
    harness = Harness(schedule=HoldsAll(), pool_tokens=64)
    harness.add("a", [1], max_new_tokens=20)
    for _ in range(10):
        harness.step()
    harness.add("b", [1], max_new_tokens=1)
    for _ in range(18):
        harness.step()
    assert (len(harness.tokens["a"]), harness.stat("waiting")) == (19, 1)
    assert not harness.scheduler.stalled


@pytest.mark.parametrize("error", [KeyboardInterrupt(), BaseException()])
def test_what_may_come_from_outside_ends_only_the_main_thread(error):
    health = Health()
    guarded = GuardedSchedule(Ranks(lambda columns: raises(error)), "odd", health)
    columns = random_columns(3, seed=1)
    with pytest.raises(type(error)):
        guarded.order(columns, context())
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(guarded.order, columns, context()).result().tolist() == [0, 1, 2]
    assert health.faults == {"schedule plugin 'odd'": 1}


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("a\nb"), "ValueError: a b"),
        (MuteError(), "MuteError: its message cannot be read"),
        (SystemExit(3), "SystemExit: 3"),
    ],
)
def test_a_fault_is_one_line(error, line, caplog):
    GuardedSchedule(Ranks(lambda columns: raises(error)), "odd", Health()).order(random_columns(3, seed=1), context())
    assert caplog.messages == [f"schedule plugin 'odd': rank() failed: {line}; the host uses order of arrival instead"]


def test_a_text_that_raises_what_may_come_from_outside(caplog):
    class InterruptingError(Exception):
        def __str__(self):
            raise KeyboardInterrupt

    health, columns = Health(), random_columns(3, seed=1)
    guarded = GuardedSchedule(Ranks(lambda columns: raises(InterruptingError())), "odd", health)
    with pytest.raises(KeyboardInterrupt):
        guarded.order(columns, context())
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(guarded.order, columns, context()).result().tolist() == [0, 1, 2]
    (line,) = caplog.messages
    assert "rank() failed: what it raised cannot be read; the host uses order of arrival" in line


def test_a_wrong_array_is_told_by_its_size_and_not_copied(caplog):
    GuardedSchedule(Ranks(NONSENSE_RANKS["more than fits"]), "odd", Health()).order(
        random_columns(2, seed=1), context()
    )
    assert "answered an array of float64 and shape (1000000000000000,) for 2 requests" in caplog.text


def test_the_first_fault_is_logged_and_the_rest_are_counted(caplog):
    health = Health()
    for _ in range(3):
        health.fault("eviction plugin 'odd'", "key() failed: ValueError: no", "least recently used")
    assert [record.message for record in caplog.records] == [
        "eviction plugin 'odd': key() failed: ValueError: no; the host uses least recently used instead"
    ]
    assert health.faults["eviction plugin 'odd'"] == 3


# --- what a schedule policy is asked beside the order ---------------------------------------------------------------


class Asked(SchedulePolicy):
    """Answers one question with whatever `answer` makes of it."""

    def __init__(self, answer):
        self.answer = answer

    def rank(self, columns, ctx):
        return ()


class Reserves(Asked):
    def chunk_reserve(self, columns, ctx):
        return self.answer()


class Retracts(Asked):
    def retract_key(self, view):
        return self.answer(view)


class Preempts(Asked):
    def preempts(self, waiting, running):
        return self.answer()


class Listens(Asked):
    def on_progress(self, deltas):
        return self.answer()


@pytest.mark.parametrize(("answer", "reserve"), [(lambda: 5, 5), (lambda: np.int64(5), 5), (lambda: -5, 0)])
def test_a_reserve_is_a_number_of_tokens(answer, reserve):
    health = Health()
    guarded = GuardedSchedule(Reserves(answer), "fine", health)
    assert (guarded.chunk_reserve(random_columns(3, seed=1), context()), guarded.reserves) == (reserve, True)
    assert not health.degraded


@pytest.mark.parametrize("answer", [lambda: None, lambda: 2.5, lambda: True, lambda: np.zeros(1), lambda: 1 / 0])
def test_a_nonsense_reserve_reserves_nothing(answer):
    health = Health()
    assert GuardedSchedule(Reserves(answer), "odd", health).chunk_reserve(random_columns(3, seed=1), context()) == 0
    assert health.faults == {"schedule plugin 'odd'": 1}


@pytest.mark.parametrize(
    "nonsense", [lambda v: None, lambda v: [1], lambda v: (None,), lambda v: (float("nan"),), lambda v: (), raises]
)
def test_a_nonsense_key_of_retraction_leaves_the_hosts_order(nonsense):
    health, views = Health(), random_columns(3, seed=1).views()
    guarded = GuardedSchedule(Retracts(nonsense), "odd", health)
    assert sorted(views, key=guarded.retract_key) == views
    assert health.faults == {"schedule plugin 'odd'": 3}


def test_keys_of_retraction_compare_whatever_the_policy_answers():
    health, views = Health(), random_columns(4, seed=1).views()
    answers = iter([(1, "a"), (0, "b"), ("a", 1), (1,)])
    guarded = GuardedSchedule(Retracts(lambda view: next(answers)), "odd", health)
    assert sorted(map(guarded.retract_key, views)) == [(), (), (0, "b"), (1, "a")]
    assert health.faults == {"schedule plugin 'odd'": 2}


@pytest.mark.parametrize("answer", [NoTruth, lambda: np.ones(2), lambda: 1 / 0])
def test_a_nonsense_preemption_preempts_nobody(answer):
    health, view = Health(), random_columns(1, seed=1).views()[0]
    assert GuardedSchedule(Preempts(answer), "odd", health).preempts(view, view) is False
    assert health.faults == {"schedule plugin 'odd'": 1}


class Lacks(Asked):
    @property
    def on_progress(self):
        raise AttributeError("no such method")

    chunk_reserve = retract_key = preempts = prefer_decode = on_progress


@pytest.mark.parametrize("method", ["on_progress", "chunk_reserve", "retract_key", "preempts", "prefer_decode"])
def test_a_method_that_cannot_be_had_is_a_fault(method):
    health, columns = Health(), random_columns(1, seed=1)
    guarded, view = GuardedSchedule(Lacks(None), "odd", health), columns.views()[0]
    args = {"chunk_reserve": (columns, context()), "preempts": (view, view), "prefer_decode": (context(),)}
    assert not getattr(guarded, method)(*args.get(method, (view,)))
    assert health.faults == {"schedule plugin 'odd'": 1}


def test_what_a_policy_makes_of_its_context_does_not_reach_the_host():
    class Writes(Asked):
        def prefer_decode(self, ctx):
            object.__setattr__(ctx, "prefilled_total", None)
            return True

    ctx = context()
    assert GuardedSchedule(Writes(None), "odd", Health()).prefer_decode(ctx)
    assert ctx.prefilled_total == 100_000


def test_who_cannot_listen_is_told_all_the_same(caplog):
    health = Health()
    guarded = GuardedSchedule(Listens(lambda: 1 / 0), "odd", health)
    guarded.on_progress([])
    guarded.on_progress([])
    assert health.faults == {"schedule plugin 'odd'": 2}
    assert len(caplog.messages) == 1


@pytest.mark.parametrize("said", [[3], "abc", None, [b"x"], ["fine", None]])
def test_nonsense_about_falling_back_is_no_note(said):
    health, ctx = Health(), context()
    object.__setattr__(ctx, "fallbacks", said)
    lines = GuardedSchedule(Asked(None), "odd", health).fallbacks(ctx)
    assert lines == (list("abc") if said == "abc" else [])
    assert health.degraded == (said != "abc")


def test_a_policy_may_say_a_few_lines():
    ctx = context()
    object.__setattr__(ctx, "fallbacks", itertools.repeat("again"))  # `list` would never come back
    assert GuardedSchedule(Asked(None), "odd", Health()).fallbacks(ctx) == ["again"] * FALLBACK_LIMIT


@pytest.mark.parametrize(("length", "used"), [(1, 1), (64, 64), (0, 32), (-1, 32), ("9", 32), (True, 32), (None, 32)])
def test_the_length_that_prompts_must_share_is_at_least_one_token(length, used):
    class Shares(Asked):
        in_batch_len = length

    health = Health()
    assert GuardedSchedule(Shares(None), "odd", health).in_batch_len == used
    assert health.degraded == (used != length)


def test_only_what_a_policy_overrides_is_asked():
    guarded = GuardedSchedule(Asked(None), "fine", Health())
    assert (guarded.reserves, guarded.listens, guarded.has_retract_key, guarded.may_preempt) == (False,) * 4
    assert guarded.retract_key(random_columns(1, seed=1).views()[0]) == ()
