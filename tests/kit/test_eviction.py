"""Planted faults of eviction policies: the contract suite catches each."""

import math
import random
import time
from time import monotonic

import pytest
from planted import assert_caught, assert_passes
from toys import Gdsf, Rising

from rtk.plugin import EvictionPolicy
from rtk.plugin.testing import eviction


@pytest.mark.parametrize("policy", [Gdsf, Rising])
def test_policies_with_a_memory_pass(policy):
    assert_passes("eviction", policy)


@pytest.mark.parametrize("policy", [Gdsf, Rising])
def test_a_policy_with_a_memory_evicts_as_a_full_sort_would(policy):
    """Keys that grow by what happens to other nodes are stale in the heap, and are asked for again at its top."""
    log = eviction.replay(policy(), operations=4_000, seed=7, sort_anew=True)
    assert len(log) > 2_000
    assert log == eviction.replay(policy(), operations=4_000, seed=7)


class Lru(EvictionPolicy):
    facts = frozenset({"last_use"})

    def key(self, node):
        return (node.last_use,)


def test_the_policy_that_the_faults_are_planted_in_passes():
    assert_passes("eviction", Lru)


class ReadsAClock(Lru):
    def key(self, node):
        return (time.perf_counter_ns(),)


class ReadsTheDate(Lru):
    """A clock that seems to stand still while the suite runs."""

    def key(self, node):
        return (int(monotonic()) // 3600 % 1000 * -node.last_use,)


class RollsDice(Lru):
    def key(self, node):
        return (random.random(),)


class HidesAFact(Lru):
    def key(self, node):
        return (node.hits, node.last_use)


class HidesPriority(Lru):
    def key(self, node):
        return (node.priority, node.last_use)


class HidesSize(Lru):
    """A split changes the size of a leaf that stays where it is in the heap."""

    def key(self, node):
        return (node.size, node.last_use)


class DeclaresWhatIsNotThere(Lru):
    facts = frozenset({"last_use", "colour"})


class ForgetsHits(Lru):
    """Changes its mind about a node without a fact of the node changing."""

    facts = frozenset({"size", "last_use"})

    def __init__(self):
        self.hits = 0

    def on_hit(self, node):
        self.hits += 1

    def key(self, node):
        return (-node.last_use if self.hits % 2 else node.last_use,)


class SharesItsMemory(Lru):
    """What one cache did counts in the next."""

    gone = 0

    def on_evict(self, node, key):
        type(self).gone += 1

    def key(self, node):
        return (node.last_use * (-1) ** (self.gone // 100),)


class AnswersNan(Lru):
    def key(self, node):
        return (float("nan"),)


class AnswersANumber(Lru):
    def key(self, node):
        return node.last_use


class GrowsTooFast(Lru):
    """Fails at 710 hits."""

    facts = frozenset({"hits"})

    def key(self, node):
        return (math.exp(node.hits),)


class ChangesItsKeys(Lru):
    """Text for big nodes, and a number for the others."""

    facts = frozenset({"size"})

    def key(self, node):
        return ("big",) if node.size > 10_000 else (node.size,)


class RaisesOnHit(Lru):
    def on_hit(self, node):
        raise RuntimeError("no")


class KnowsTheFirstHundred(Lru):
    """Gives up in the course of a longer run."""

    def __init__(self):
        self.seen = {}

    def on_insert(self, node):
        self.seen[node.id] = len(self.seen)

    def key(self, node):
        assert len(self.seen) < 200
        return (node.last_use,)


class ListensLater(Lru):
    async def on_hit(self, node):
        pass


class TakesNoKey(Lru):
    def on_evict(self, node):
        pass


class GrowsWhenAsked(Lru):
    """A memory, and a key that counts its calls."""

    def __init__(self):
        self.asked = 0

    def on_hit(self, node):
        pass

    def key(self, node):
        self.asked += 1
        return (self.asked,)


@pytest.mark.parametrize(
    ("policy", "check"),
    [
        (ListensLater, "keys are stable"),
        (TakesNoKey, "no fault while serving"),
        (GrowsWhenAsked, "keys are stable"),
        (GrowsWhenAsked, "no fault while serving"),
        (ReadsAClock, "keys are stable"),
        (ReadsTheDate, "keys are stable"),
        (RollsDice, "keys are stable"),
        (HidesAFact, "facts are declared"),
        (HidesPriority, "facts are declared"),
        (HidesSize, "facts are declared"),
        (HidesSize, "the heap equals a full sort"),
        (HidesSize, "any requests evict as a full sort would"),
        (DeclaresWhatIsNotThere, "facts are declared"),
        (ForgetsHits, "the heap equals a full sort"),
        (ForgetsHits, "any requests evict as a full sort would"),
        (SharesItsMemory, "replays are equal"),
        (AnswersNan, "keys are stable"),
        (AnswersANumber, "keys are stable"),
        (GrowsTooFast, "any nodes have keys"),
        (ChangesItsKeys, "any nodes have keys"),
        (RaisesOnHit, "no fault while serving"),
        (KnowsTheFirstHundred, "a trace is replayed"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
@pytest.mark.filterwarnings("ignore:coroutine:RuntimeWarning")
def test_planted_faults_are_caught(policy, check):
    assert_caught("eviction", policy, check)
