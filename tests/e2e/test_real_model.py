"""rtk over the demo model against transformers' own `generate`, ids for ids."""

import hashlib
import json

import numpy as np
import pytest
import torch
from golden_ids import ANSWERS, GOLDEN, PROMPTS

from rtk import Engine
from rtk.plugin.host import installed
from rtk.serve.tokenizer_manager import Chat

IN_FULL = {"schedule__conservativeness": 2, "schedule__mixed_chunk": False}
"""Answers are reserved in full, so that nobody is retracted and computes anything again: what is reserved falls with
every step that decodes, and in mixed steps that is while prompts wait."""

GREEDY = {"temperature": 0, "max_new_tokens": len(ANSWERS[0]), "ignore_eos": True}

pytestmark = [pytest.mark.model, pytest.mark.timeout(600)]


def rows_computed(generations):
    """Query rows of these requests: every uncached prompt token, and every sampled token but the last."""
    return sum(g.prompt_tokens - g.cached_tokens + len(g.token_ids) - 1 for g in generations)


def run_cold_and_warm(engine, oracle, together):
    """All prompts twice; returns the cached tokens of the second time. Prints near ties."""
    near = []
    for _ in range(2):
        before = engine.stats()["attention_query_rows"]
        answers = engine.generate(PROMPTS, GREEDY) if together else [engine.generate(p, GREEDY) for p in PROMPTS]
        near += oracle.compare([answer.token_ids for answer in answers])
        assert engine.stats()["attention_query_rows"] - before == rows_computed(answers)
    print(f"{len(near)} answers part at a near tie: {near}")  # noqa: T201
    stats = engine.stats()
    assert stats["free"] + stats["evictable"] == stats["pool"]
    assert stats["invariant_violations"] == stats["plugin_faults"] == stats["retractions"] == 0
    return sum(answer.cached_tokens for answer in answers)


def test_the_weights_are_those_of_the_golden_ids(model_folder):
    assert hashlib.sha256((model_folder / "model.safetensors").read_bytes()).hexdigest() == GOLDEN["weights_sha256"]


def test_together_in_pieces_cold_and_warm(engine, oracle):
    one = engine(cache__page_size=16, schedule__chunked_prefill_size=64)
    whole_pages = sum((len(prompt) - 1) // 16 * 16 for prompt in PROMPTS)
    assert run_cold_and_warm(one, oracle, together=True) == whole_pages
    assert one.stats()["evicted_tokens"] == 0


def test_with_a_pool_that_forces_evictions(engine, oracle):
    sizes = {"cache__page_size": 1, "cache__pool_tokens": 800}
    one = engine(**sizes, eviction__policy="slru", schedule__policy="hrrn", **IN_FULL)
    run_cold_and_warm(one, oracle, together=True)
    assert one.stats()["evicted_tokens"] > 1000


@pytest.mark.slow
@pytest.mark.parametrize("pool", [16384, 832], ids=["ample pool", "evictions"])
@pytest.mark.parametrize("together", [True, False], ids=["together", "one by one"])
@pytest.mark.parametrize("page", [1, 16, 64])
def test_matrix(engine, oracle, page, together, pool):
    one = engine(cache__page_size=page, cache__pool_tokens=pool, **IN_FULL)
    run_cold_and_warm(one, oracle, together)
    assert (one.stats()["evicted_tokens"] > 0) == (pool == 832)


TIGHT = [PROMPTS[20 + i % 4][5 * i : 5 * i + 3 + i % 4] for i in range(32)]
SHORT = {"temperature": 0, "max_new_tokens": 20, "ignore_eos": True}


@pytest.fixture(scope="module")
def in_an_ample_pool(model_folder):
    """What 32 short prompts are answered where nobody ever waits, is cut or makes room."""
    with Engine({"model.path": str(model_folder), "cache.pool_tokens": 16384}) as ample:
        answers = ample.generate(TIGHT, SHORT)
        assert ample.stats()["retractions"] == ample.stats()["mixed_steps"] == 0
    return [list(answer.token_ids) for answer in answers]


@pytest.mark.parametrize("policy", installed().names("schedule"))
def test_twenty_retractions_change_no_answer(engine, oracle, in_an_ample_pool, policy):
    one = engine(
        cache__pool_tokens=260,
        schedule__policy=policy,
        schedule__chunked_prefill_size=64,
        schedule__mixed_chunk=True,
        schedule__conservativeness=0.01,
        schedule__overlap=policy in ("fcfs", "lpm"),
    )
    answers = one.generate(TIGHT, SHORT)
    near = oracle.compare([answer.token_ids for answer in answers], TIGHT, in_an_ample_pool)
    print(f"{len(near)} answers part at a near tie: {near}")  # noqa: T201
    stats = one.stats()
    assert stats["retractions"] >= 20 and stats["mixed_steps"] > 0 and stats["middle_chunks"] > 0
    assert stats["free"] + stats["evictable"] == stats["pool"]
    assert stats["invariant_violations"] == stats["plugin_faults"] == 0


def test_poison_in_free_slots_changes_nothing_and_a_lost_slot_does(engine, oracle):
    one = engine()
    some = slice(10, 20)
    first = one.generate(PROMPTS[some], GREEDY)
    pools, pool = _pools(one), one._runtime._thread._scheduler._executor._runner._pool
    free = torch.from_numpy(np.flatnonzero(np.frombuffer(pools.allocator._taken, np.uint8) == 0))
    _fill(pool, free, float("nan"))
    one.flush()  # so that the next run computes everything again, into poisoned slots among others
    _fill(pool, torch.from_numpy(np.flatnonzero(np.frombuffer(pools.allocator._taken, np.uint8) == 0)), float("nan"))
    again = one.generate(PROMPTS[some], GREEDY)
    oracle.compare([g.token_ids for g in again], PROMPTS[some], [list(g.token_ids) for g in first])
    assert [g.cached_tokens for g in again] == [g.cached_tokens for g in first]  # of each other, as in an empty cache

    first_slots = torch.tensor([int(node.slots[0]) for node in pools.cache.nodes() if node.start == 0])
    _fill(pool, first_slots, 0.0)
    lost = one.generate(PROMPTS[some], GREEDY)
    assert all(g.cached_tokens for g in lost)
    assert sum(a.token_ids != b.token_ids for a, b in zip(lost, again, strict=True)) >= len(lost) // 2


def _pools(engine):
    return engine._runtime._thread._scheduler._pools


def _fill(pool, slots, value):
    for layer in range(pool.layout.layers):
        for buffer in pool.layer(layer).values():
            buffer[slots] = value


def test_the_capital_of_france(engine):
    chat = Chat([{"role": "user", "content": "What is the capital of France?"}])
    answer = engine().generate(chat, {"temperature": 0, "max_new_tokens": 32})
    assert "Paris" in answer.text
    assert answer.finish.reason == "stop"


def test_ids_are_those_of_the_prompts():
    assert len(PROMPTS) == len(ANSWERS) == 24
    assert {len(answer) for answer in ANSWERS} == {64}
    assert json.dumps(GOLDEN["made_with"])
