"""What lives long is out of the collector's sight, and still freed when nothing refers to it."""

import gc
import weakref

import pytest

from rtk.cache.key import pack
from rtk.plugin.testing.harness import Harness
from rtk.schedule.messages import NewRequest
from rtk.schedule.params import SamplingParams
from rtk.serve.collector import EVERY, Collector
from rtk.serve.scheduler_thread import SchedulerThread


@pytest.fixture(autouse=True)
def thaw():
    yield
    gc.unfreeze()


class Kept:
    """Something that can be referred to weakly."""


def test_it_freezes_every_so_many_nodes():
    collector, frozen = Collector(), []
    for nodes in (0, EVERY - 1, EVERY, EVERY + 1, 2 * EVERY):
        before = gc.get_freeze_count()
        kept = [Kept()]
        collector.after_step(nodes, idle=False)
        frozen.append(gc.get_freeze_count() > before)
        del kept
    assert frozen == [False, False, True, False, True]


def test_garbage_is_collected_before_and_the_rest_is_freed_when_it_goes():
    cycle, kept = Kept(), Kept()
    cycle.itself = cycle
    gone, held = weakref.ref(cycle), weakref.ref(kept)
    del cycle
    Collector().freeze()
    assert gone() is None and held() is kept
    del kept
    assert held() is None


def test_cycles_that_were_frozen_go_when_the_engine_is_idle(monkeypatch):
    monkeypatch.setattr("rtk.serve.collector.FULL", 2)
    collector, open_then = Collector(), Kept()
    open_then.itself = open_then
    gone = weakref.ref(open_then)
    collector.freeze()
    del open_then
    collector.after_step(EVERY, idle=False)
    assert gone() is not None  # frozen before it was given up
    collector.after_step(EVERY, idle=True)
    assert gone() is None


@pytest.mark.stepwise
def test_the_thread_tells_it_how_many_nodes_there_are_after_each_step():
    told = []
    harness = Harness()
    thread = SchedulerThread(harness.scheduler, lambda messages: None, lambda nodes, idle: told.append((nodes, idle)))
    thread.send(NewRequest(rid="a", tokens=pack([1, 2, 3]), params=SamplingParams(temperature=0.0, max_new_tokens=2)))
    for _ in range(2):
        assert thread._turn()
    assert told == [(2, False), (3, True)]  # the root and the prompt; the answer
