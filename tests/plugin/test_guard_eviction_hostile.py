"""Whatever an eviction policy raises or answers, serving goes on, by least recently used, with its books right."""

import functools
import itertools
import threading

import numpy as np
import pytest

from rtk.plugin import EvictionPolicy, NodeView
from rtk.plugin.eviction import FACTS
from rtk.plugin.guard import GuardedEviction, Health
from rtk.plugin.testing.harness import Harness

VIEW = NodeView(id=3, size=4, start=0, created=1, last_use=9, hits=2)


class MuteError(Exception):
    def __str__(self):
        raise RuntimeError("no text")


class Unordered:
    """A mixin for numbers and strings that cannot be compared."""

    def __lt__(self, other):
        raise RuntimeError("no order")

    __gt__ = __le__ = __ge__ = __lt__


class Int(Unordered, int):
    pass


class Float(Unordered, float):
    pass


class Str(Unordered, str):
    pass


def raises(error, *args):
    raise error


class Policy(EvictionPolicy):
    """LRU, but for what a test replaces."""

    def __init__(self, **methods):
        for name, method in methods.items():
            setattr(self, name, method)

    def key(self, node):
        return (node.last_use,)


class HasNoOnHit(Policy):
    @property
    def on_hit(self):
        raise RuntimeError("no such method")


class HasNoOnInsert(Policy):
    @property
    def on_insert(self):
        raise RuntimeError("no such method")


class HasNoOnEvict(Policy):
    @property
    def on_evict(self):
        raise RuntimeError("no such method")


HOSTILE = {
    "key exits": Policy(key=functools.partial(raises, SystemExit(3))),
    "key ends": Policy(key=functools.partial(raises, GeneratorExit())),
    "key raises what has no text": Policy(key=functools.partial(raises, MuteError())),
    "an int without order": Policy(key=lambda node: (Int(node.last_use),)),
    "a float without order": Policy(key=lambda node: (Float(node.last_use),)),
    "a string without order": Policy(key=lambda node: (Str(node.last_use),)),
    "on_insert without a name": Policy(on_insert=functools.partial(raises, ValueError("x"))),
    "on_hit without a name": Policy(on_hit=functools.partial(raises, ValueError("x"))),
    "on_evict without a name": Policy(on_evict=functools.partial(raises, ValueError("x"))),
    "on_insert exits": Policy(on_insert=functools.partial(raises, SystemExit())),
    "on_hit exits": Policy(on_hit=functools.partial(raises, SystemExit())),
    "on_evict exits": Policy(on_evict=functools.partial(raises, SystemExit())),
    "on_insert raises what has no text": Policy(on_insert=functools.partial(raises, MuteError())),
    "no on_insert": HasNoOnInsert(),
    "no on_hit": HasNoOnHit(),
    "no on_evict": HasNoOnEvict(),
}


@pytest.mark.parametrize("policy", HOSTILE.values(), ids=HOSTILE)
def test_serving_survives_a_hostile_policy(policy):
    harness = Harness(pool_tokens=32, eviction=policy)
    for i in range(8):  # every other one hits what the one before left
        harness.add(f"r{i}", [100 * (i // 2) + j for j in range(6)], max_new_tokens=4)
        harness.run()
    assert {finish.reason for finish in harness.finished.values()} == {"length"}
    assert len(harness.finished) == 8
    assert harness.stat("plugin_faults") == 1
    assert harness.stat("invariant_violations") == 0


def test_in_its_own_thread_a_policy_cannot_interrupt_the_host():
    guarded = GuardedEviction(Policy(key=functools.partial(raises, KeyboardInterrupt())), "odd", Health())
    keys = []
    thread = threading.Thread(target=lambda: keys.append(guarded.key(VIEW)))
    thread.start()
    thread.join(10)
    assert keys == [(9,)]
    assert guarded.faulted


@pytest.mark.parametrize("facts", [None, ["last_use"], "last_use"], ids=["None", "a list", "a string"])
def test_facts_that_are_no_set_are_a_fault(facts):
    policy = Policy()
    policy.facts = facts
    harness = Harness(pool_tokens=32, eviction=policy)
    harness.add("a", [1, 2, 3], max_new_tokens=2)
    harness.run()
    assert harness.stat("plugin_faults") == 1


def test_facts_that_cannot_be_had_are_a_fault():
    class Closed(Policy):
        facts = property(functools.partial(raises, SystemExit("no")))

    health = Health()
    guarded = GuardedEviction(Closed(), "odd", health)
    assert (guarded.key(VIEW), guarded.facts) == ((9,), FACTS)
    assert health.faults == {"eviction plugin 'odd'": 1}


@pytest.mark.parametrize("part", [np.float64(1.5), True, 7, 0.5, "a"], ids=["float64", "bool", "int", "float", "str"])
def test_what_a_key_may_hold(part):
    health = Health()
    guarded = GuardedEviction(Policy(key=lambda node: (part,)), "fine", health)
    assert guarded.key(VIEW) == (part,)
    assert not health.degraded


@pytest.mark.parametrize("event", ["on_insert", "on_hit", "on_evict"])
def test_a_policy_that_is_told_anything_may_change_its_mind(event):
    assert GuardedEviction(Policy(**{event: lambda *args: None}), "fine", Health()).remembers
    assert not GuardedEviction(Policy(), "fine", Health()).remembers


def test_keys_that_numpy_could_not_compare():
    """A huge int and NumPy's float raise `OverflowError` where Python's compares them."""
    policy = Policy(key=lambda node: (np.float64(1.5) if node.created % 4 else 10**400,))
    harness = Harness(pool_tokens=16, eviction=policy)
    for i in range(8):
        harness.add(f"r{i}", [i, i, i], max_new_tokens=2)
        harness.run()
    assert harness.stat("plugin_faults") == 0
    assert harness.stat("evicted_tokens") > 0
    (kept,) = GuardedEviction(Policy(key=lambda node: (np.float64(1.5),)), "fine", Health()).key(VIEW)
    assert type(kept) is float


def test_a_key_that_grows_each_time_it_is_asked_gives_the_policy_up(caplog):
    """As one that reads a clock does. Nobody would ever be first."""
    asked = itertools.count()

    def key(node):
        if next(asked) > 1000:
            pytest.fail("it is asked for ever")
        return (next(asked),)

    harness = Harness(pool_tokens=16, eviction=Policy(key=key, on_hit=lambda node: None))
    for i in range(8):
        harness.add(f"r{i}", [10 * i + j for j in range(4)], max_new_tokens=2)
        harness.run()
    assert {rid: len(tokens) for rid, tokens in harness.tokens.items()} == dict.fromkeys(harness.finished, 2)
    assert (len(harness.finished), harness.stat("plugin_faults")) == (8, 1)
    assert "key() answers more each time it is asked; the host uses least recently used instead" in caplog.text


def test_who_was_given_up_is_told_nothing_more():
    told = []
    guarded = GuardedEviction(Policy(on_insert=told.append, on_hit=lambda node: 1 / 0), "odd", Health())
    guarded.on_insert(VIEW)
    guarded.on_hit(VIEW)
    guarded.on_insert(VIEW)
    assert told == [VIEW]
