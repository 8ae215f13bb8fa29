"""Every installed eviction policy passes the suite; planted faults do not."""

import time

import pytest
from toys import Gdsf, Rising

from rtk.plugin import EvictionPolicy
from rtk.plugin.host import installed
from rtk.plugin.testing import eviction

INSTALLED = installed().of_kind("eviction")


@pytest.mark.parametrize("check", eviction.CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("entry", INSTALLED, ids=lambda entry: entry.plugin.name)
def test_installed(entry, check):
    check(lambda: entry.build(entry.plugin.options()))


@pytest.mark.parametrize("check", eviction.CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("policy", [Gdsf, Rising])
def test_policies_with_a_memory(policy, check):
    check(policy)


@pytest.mark.parametrize("policy", [Gdsf, Rising])
def test_a_policy_with_a_memory_evicts_as_a_full_sort_would(policy):
    """Keys that grow by what happens to other nodes are stale in the heap, and are asked for again at its top."""
    log = eviction.replay(policy(), operations=10_000, seed=7, sort_anew=True)
    assert len(log) > 5_000
    assert log == eviction.replay(policy(), operations=10_000, seed=7)


class Lru(EvictionPolicy):
    facts = frozenset({"last_use"})

    def key(self, node):
        return (node.last_use,)


class ReadsAClock(Lru):
    def key(self, node):
        return (time.perf_counter_ns(),)


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


class ForgetsHits(Lru):
    """Changes its mind about a node without a fact of the node changing."""

    facts = frozenset({"size", "last_use"})

    def __init__(self):
        self.hits = 0

    def on_hit(self, node):
        self.hits += 1

    def key(self, node):
        return (-node.last_use if self.hits % 2 else node.last_use,)


class AnswersNan(Lru):
    def key(self, node):
        return (float("nan"),)


class AnswersANumber(Lru):
    def key(self, node):
        return node.last_use


class RaisesOnHit(Lru):
    def on_hit(self, node):
        raise RuntimeError("no")


@pytest.mark.parametrize(
    ("policy", "check"),
    [
        (ReadsAClock, eviction.keys_are_stable),
        (HidesAFact, eviction.facts_are_declared),
        (HidesPriority, eviction.facts_are_declared),
        (HidesSize, eviction.facts_are_declared),
        (HidesSize, eviction.the_heap_equals_a_full_sort),
        (ForgetsHits, eviction.the_heap_equals_a_full_sort),
        (AnswersNan, eviction.keys_are_stable),
        (AnswersANumber, eviction.keys_are_stable),
        (RaisesOnHit, eviction.no_fault_while_serving),
    ],
    ids=lambda value: value.__name__,
)
def test_planted_faults_are_caught(policy, check):
    with pytest.raises(AssertionError):
        check(policy)
