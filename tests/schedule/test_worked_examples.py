"""Every row of the worked examples that concern admission, retraction and batches."""

import json
from pathlib import Path

import numpy as np
import pytest

from rtk.cache.key import DEFAULT_NAMESPACE, Key, pack
from rtk.cache.pools import Pools
from rtk.cache.req_table import ReqTable
from rtk.cache.slots import SlotAllocator
from rtk.cache.tree import PrefixCache
from rtk.config.models import Config
from rtk.model.negotiation import page_size
from rtk.plugin.guard import GuardedEviction, Health
from rtk.plugin.host import installed
from rtk.plugin.testing.harness import Harness
from rtk.schedule.admission import balance, plan_admission
from rtk.schedule.budget import CLIP_NEW_TOKENS, Limits, charge
from rtk.schedule.params import SamplingParams
from rtk.schedule.ratio import BASE, DECAY_STEPS, NewTokenRatio
from rtk.schedule.request import Request
from rtk.schedule.retraction import retraction_order
from rtk.serve.computing import mixes
from rtk_attention.torch.backend import TorchAttention

NUMBERS = json.loads((Path(__file__).parents[1] / "data/worked_examples.json").read_text())


def a_request(number, prompt_len, max_new_tokens, *, generated=0, priority=0, running=False):
    request = Request(
        rid=f"r{number}",
        id=number,
        prompt_len=prompt_len,
        tokens=bytearray(pack([number] * prompt_len)),
        params=SamplingParams(),
        key=Key(DEFAULT_NAMESPACE, pack([number] * prompt_len)),
        priority=priority,
        max_new_tokens=max_new_tokens,
        seed=0,
        arrival_s=0.0,
        prefilled_at_arrival=0,
        stop_token_ids=frozenset(),
    )
    request.sampled = generated
    request.launched_len = prompt_len + max(0, generated - 1) if running else 0
    return request


def some_pools(free, evictable, page_size=1, rows=64):
    """Pools with so many slots of each state."""
    allocator = SlotAllocator(free + evictable, page_size)
    entry = installed().get("eviction", "lru")
    cache = PrefixCache(allocator, GuardedEviction(entry.build(entry.plugin.options()), "lru", Health()))
    if evictable:
        key = Key(DEFAULT_NAMESPACE, pack(range(10**6, 10**6 + evictable)))
        lease = cache.acquire(key, cache.peek(key))
        lease.grow(key.tokens, allocator.alloc(evictable // page_size))
        lease.release()
    return Pools(allocator, ReqTable(rows, 8192), cache)


def limits(**sizes):
    return Limits(**{"context_length": 8192, "pool_tokens": 50000, "page_size": 1, "max_running": 64, **sizes})


ADMISSION = NUMBERS["admission"]


@pytest.mark.parametrize("case", ADMISSION["cases"], ids=lambda case: f"ratio {case['rho']}")
def test_admission(case):
    pools = some_pools(ADMISSION["free"], ADMISSION["evictable"])
    most, generated = ADMISSION["max_new_tokens"], ADMISSION["generated_each"]
    running = [a_request(i, 100, most, generated=generated, running=True) for i in range(ADMISSION["running"])]
    reserved = case["rho"] * sum(min(r.left, ADMISSION["clip"]) for r in running)
    assert reserved == pytest.approx(case["reserved"])
    assert balance(pools, running, case["rho"]) == pytest.approx(case["R"])
    asked = ADMISSION["request"]
    waiting = [a_request(100 + i, asked["uncached"], asked["max_new_tokens"]) for i in range(20)]
    plan = plan_admission(waiting, running, pools, limits(max_prefill_tokens=10**6), ratio=case["rho"])
    assert [attempt.charge for attempt in plan.attempts] == [asked["charge"]] * (case["admitted_in_a_row"] + 1)
    assert len(plan.admitted) == case["admitted_in_a_row"]
    assert plan.total == pytest.approx(case["left"])
    assert (plan.verdict, plan.attempts[-1].reason, plan.refused) == ("NO_TOKEN", "kv", waiting[len(plan.admitted)])


def test_a_hit_path_is_moved_before_the_charge_is_compared():
    """free 100, evictable 1000, a request that hits all of it: R for it is 100."""
    for uncached, admitted in ((48, True), (49, False)):  # + 50 to generate + 1
        pools = some_pools(100, 1000)
        request = a_request(1, 1000 + uncached, 50)
        request.key = Key(DEFAULT_NAMESPACE, pack([*range(10**6, 10**6 + 1000), *[1] * uncached]))
        runs = [a_request(2, 10, 1, generated=1, running=True)]  # not alone, and nothing reserved
        plan = plan_admission([request], runs, pools, limits(max_prefill_tokens=4096), ratio=1.0)
        assert (bool(plan.admitted), plan.attempts[0].prefix) == (admitted, 1000)
    # What is moved comes back with the candidate that is refused.
    assert plan.total == 1100 and plan.attempts[0].before == plan.attempts[0].after


def test_new_token_ratio():
    numbers = NUMBERS["new_token_ratio"]
    example = numbers["example"]
    ratio = NewTokenRatio(1.0)
    assert (ratio.initial, ratio.floor) == (0.7, pytest.approx(0.098))
    assert [NewTokenRatio(c).initial for c in (0.5, 1.4, 100)] == [pytest.approx(0.35), pytest.approx(0.98), 1.0]
    assert numbers["decay_steps"] == DECAY_STEPS
    for _ in range(DECAY_STEPS - 1):
        ratio.decay()
    assert ratio.value == pytest.approx(0.098 + 0.602 / 600, abs=1e-9)
    for _ in range(3):
        ratio.decay()
        assert ratio.value == pytest.approx(ratio.floor, abs=1e-12) and ratio.value >= ratio.floor
    ratio.estimate([(example["generated_each"], example["max_new_each"])] * example["stay"])
    assert round(ratio.value, example["decimals"]) == example["value"]
    ratio.estimate([(90, 100)])
    assert ratio.value == 1.0  # 110 / 101, clamped
    ratio.estimate([(0, 10**6)])
    assert ratio.value == ratio.floor  # overwrites downwards too, and stays on the floor
    ratio.reset()
    assert ratio.value == 0.7


def test_retraction_order():
    rows = [
        a_request(1, 10, 100, generated=5, priority=1),
        a_request(2, 30, 100, generated=3, priority=2),
        a_request(3, 40, 100, generated=3, priority=0),
        a_request(4, 40, 100, generated=9, priority=0),
    ]
    first = NUMBERS["retraction_order"]["length"]
    assert first == "fewest generated tokens first; ties: longest input first"
    assert [r.id for r in retraction_order(rows, "length")] == [3, 2, 1, 4]
    assert [r.id for r in retraction_order(rows, "priority")] == [3, 4, 1, 2]
    # Who was retracted last goes after the others of its class.
    assert [r.id for r in retraction_order(rows, "length", last=rows[2].id)] == [2, 1, 4, 3]
    assert [r.id for r in retraction_order(rows, "priority", last=rows[2].id)] == [4, 3, 1, 2]
    assert [r.id for r in retraction_order(rows, "priority", last=rows[0].id)] == [3, 4, 1, 2]


def test_retraction_reserve():
    numbers = NUMBERS["retraction_reserve"]
    assert charge(numbers["extend"], numbers["max_output"], 1) == numbers["kv_charge_page_1"]
    pools = some_pools(5000, numbers["hit"])
    request = a_request(1, numbers["history"], numbers["max_output"])
    hit = [*range(10**6, 10**6 + numbers["hit"])]
    request.key = Key(DEFAULT_NAMESPACE, pack([*hit, *[1] * numbers["extend"]]))
    runs = [a_request(2, 10, 1, generated=1, running=True)]
    [attempt] = plan_admission([request], runs, pools, limits(max_prefill_tokens=4096), ratio=1.0).attempts
    assert (attempt.prefix, attempt.selected, attempt.charge) == (
        numbers["hit"],
        numbers["q_rows"],
        numbers["kv_charge_page_1"],
    )
    assert attempt.before.input_tokens - attempt.after.input_tokens == numbers["compute_charge"]
    assert attempt.before.total - attempt.after.total == numbers["kv_charge_page_1"] + numbers["hit"]


def test_a_retracted_request_reserves_only_what_is_left():
    request = a_request(1, 1000, 500, generated=200)
    request.output = [7] * 200
    request.tokens += pack(request.output)
    request.step_back()
    runs = [a_request(2, 10, 1, generated=1, running=True)]
    plan = plan_admission([request], runs, some_pools(5000, 0), limits(max_prefill_tokens=4096), ratio=1.0)
    assert plan.attempts[0].charge == 1200 + 300 + 1
    assert (request.retractions, plan.admitted[0].extend_len) == (1, 1200)


def test_extend_shape():
    numbers = NUMBERS["extend_shape"]
    h = Harness(pool_tokens=4000, context_length=2000)
    h.add("a", range(numbers["cached"]), max_new_tokens=0)
    h.run()
    h.add("b", [*range(numbers["cached"]), *[5000] * (numbers["prompt"] - numbers["cached"])], max_new_tokens=1)
    h.run()
    [row] = h.executor.plans[-1].rows
    assert [row.q_len, row.start + row.q_len] == numbers["scores"] == [numbers["q_rows"], numbers["k_rows"]]


FOUR = NUMBERS["four_requests"]


def eight_decode(schedule):
    """Eight requests that decode, and A to D waiting."""
    h = Harness(
        page_size=FOUR["page_size"],
        pool_tokens=4096,
        context_length=512,
        max_running=16,
        max_prefill_tokens=FOUR["max_prefill_tokens"],
        chunk_tokens=FOUR["chunked_prefill_size"],
        mixed_chunk=FOUR["mixed_chunk"],
        schedule=schedule,
    )
    for i in range(FOUR["decoding"]):
        h.add(f"d{i}", [i], max_new_tokens=40)
    while h.stat("waiting"):
        h.step()
    for i, (rid, sizes) in enumerate(FOUR["requests"].items()):
        h.add(rid, [1000 * (i + 1)] * sizes["uncached"], max_new_tokens=1)
    return h


def round_of(h):
    """Plan a round and make its step: who gets how much, and what is left of the accounts."""
    plan = h.scheduler._batches._plan(h.scheduler._batches._context())
    before = h.executor.plans[-1] if h.executor.plans else None
    h.step()
    assert h.executor.plans[-1] is not before
    selected = {attempt.rid: attempt.selected for attempt in plan.attempts if attempt.selected}
    after = plan.attempts[-1].after
    return plan, selected, {"input": after.input_tokens, "chunk": after.chunk_tokens}


def decode_rows(h):
    return sum(row.q_len == 1 and row.start > 0 for row in h.executor.plans[-1].rows)


@pytest.mark.stepwise
def test_four_requests_in_order_of_arrival():
    expected, h = FOUR["fcfs"], eight_decode("fcfs")
    plan, selected, left = round_of(h)
    before = plan.attempts[0].before
    assert {"input": before.input_tokens, "chunk": before.chunk_tokens} == FOUR["budget_after_decode_rows"]
    assert (selected, left) == (expected["round_1"], expected["left_after_round_1"])
    assert (plan.attempts[1].rid, plan.verdict) == ("B", expected["B_verdict_round_1"])
    assert decode_rows(h) == FOUR["decoding"] and "A" not in h.tokens
    plan, selected, left = round_of(h)
    assert (selected, left) == ({"A": expected["round_2"]["A"]}, expected["left_after_round_2"])
    assert plan.attempts[0].is_chunked is not expected["round_2"]["final"]
    assert [r.rid for r in h.scheduler._queue] == expected["waiting_after_round_2"]
    assert decode_rows(h) == FOUR["decoding"] and len(h.tokens["A"]) == 1
    h.run()
    assert h.tokens["d0"] == list(range(1, 41))


@pytest.mark.stepwise
def test_four_requests_shortest_prefill_first():
    expected, h = FOUR["shortest_prefill_first"], eight_decode("shortest-prefill-first")
    plan, selected, left = round_of(h)
    assert (selected, left) == (expected["round_1"], expected["left_after_round_1"])
    assert [attempt.rid for attempt in plan.attempts] == expected["order"]
    assert plan.attempts[2].before.chunk_tokens == expected["chunk_left_before_C"]
    assert h.scheduler._running.chunked.rid == expected["chunked"]
    assert [r.rid for r in h.scheduler._queue] == expected["waiting"]
    assert set("BD") <= set(h.finished) and decode_rows(h) == FOUR["decoding"]


def test_defaults():
    defaults, config = NUMBERS["defaults"], Config()
    schedule = config.schedule
    assert (config.eviction.policy, schedule.policy) == (defaults["eviction"], defaults["schedule"])
    assert (config.cache.page_size, config.cache.disable) == (None, defaults["disable_radix"])
    assert page_size(TorchAttention.capabilities, config.cache.page_size) == defaults["page_size"]
    assert schedule.max_prefill_tokens == defaults["max_prefill_tokens"]
    assert (schedule.conservativeness, schedule.retraction) == (defaults["conservativeness"], defaults["retraction"])
    assert (schedule.mixed_chunk, schedule.chunked_prefill_size) == (None, None)
    assert (mixes(config, "cuda"), mixes(config, "cpu")) == (defaults["mixed_chunk"], True)
    assert (defaults["clip_max_new_tokens"], defaults["new_token_ratio_base"]) == (CLIP_NEW_TOKENS, BASE)
    assert np.isclose(NewTokenRatio().initial, defaults["new_token_ratio_base"])
