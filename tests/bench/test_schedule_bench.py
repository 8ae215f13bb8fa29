"""The scheduling benchmark at a tiny size: what it compares is exact; what it times is not looked at."""

import importlib
import sys
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def ranking():
    sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))  # as for a script that lies there
    try:
        return importlib.import_module("schedule_ranking")
    finally:
        sys.path.pop(0)


@pytest.mark.parametrize("name", ["lpm", "hrrn"])
def test_both_ways_order_alike_while_prefixes_come_and_go(ranking, monkeypatch, name):
    monkeypatch.setattr(ranking, "POOL", 3000)
    monkeypatch.setattr(ranking, "STEMS", 12)
    scene = ranking.Scene(50, ranking.build(name))
    for _ in range(40):
        assert ranking.incremental(scene) == ranking.rematching(scene)
        scene.steps(1, lambda: ranking.incremental(scene))
    assert (len(scene.queue), scene.health.degraded) == (50, False)
    assert scene.evicted > 3000
    scene.cache.check()


def test_what_is_measured_is_named(ranking, monkeypatch):
    monkeypatch.setattr(ranking, "POOL", 3000)
    figures = ranking.measure("lpm", waiting=20, steps=2)
    assert set(figures) == {"told_ms", "told_p90_ms", "anew_ms", "evicted_tokens_a_step"}
