"""The scheduler over a scripted model; the harness checks all books after each message and each step."""

import numpy as np
import pytest

from rtk.cache.key import AdapterRef, Namespace
from rtk.plugin import SchedulePolicy
from rtk.plugin.testing.harness import Harness, count_up, digest
from rtk.schedule.messages import Finish, Flush, Flushed, Refused


def counting(n, start=0):
    return list(range(start, start + n))


@pytest.mark.stepwise
def test_one_request_from_arrival_to_end():
    h = Harness(pool_tokens=32)
    assert h.add("a", [11, 12, 13], max_new_tokens=5).accepted
    assert h.run() == 5
    assert h.tokens["a"] == [14, 15, 16, 17, 18]
    assert h.finished["a"].reason == "length"
    # The last sampled token has no K/V: 3 + 4 tokens are cached.
    assert (h.stat("free"), h.stat("evictable"), h.stat("held")) == (25, 7, 0)


def test_a_second_turn_reuses_the_whole_history():
    h = Harness()
    h.add("a", counting(10), max_new_tokens=4)
    h.run()
    h.add("b", [*counting(10), *h.tokens["a"], 99], max_new_tokens=1)
    h.run()
    assert h.cached["b"] == 13
    assert h.stat("cached_tokens") == 13


@pytest.mark.parametrize(("page", "length"), [(1, 32), (16, 16), (16, 32), (16, 48)])
def test_at_least_one_token_is_recomputed(page, length):
    h = Harness(script=digest, page_size=page)
    for rid in ("cold", "warm"):
        h.add(rid, counting(length), max_new_tokens=4)
        h.run()
    assert h.cached["warm"] == (length - 1) // page * page
    assert h.tokens["warm"] == h.tokens["cold"]


def test_pages_shared_in_part_are_not_shared():
    h = Harness(script=digest, page_size=16)
    h.add("a", counting(40), max_new_tokens=4)
    h.run()
    h.add("b", [*counting(31), *[500] * 9], max_new_tokens=4)
    h.run()
    assert h.cached["b"] == 16


def test_query_rows_are_uncached_tokens_plus_decode_rows():
    h = Harness(script=digest, page_size=4)
    for i in range(6):
        h.add(f"r{i}", [*counting(9), i], max_new_tokens=3 + i)
        h.step()
    h.run()
    uncached = 6 * 10 - sum(h.cached.values())
    decode_rows = sum(len(tokens) - 1 for tokens in h.tokens.values())
    assert h.stat("attention_query_rows") == uncached + decode_rows
    assert (h.stat("prefill_tokens"), h.stat("decode_tokens")) == (uncached, decode_rows)


@pytest.mark.stepwise
def test_twins_in_one_batch_share_slots_and_answers():
    h = Harness(script=digest, page_size=16, pool_tokens=256, context_length=256)
    for rid in ("a", "b"):
        h.add(rid, counting(64), max_new_tokens=8)
    h.step()
    assert h.stat("protected") == 64  # one copy: b's was freed and its row rewritten
    h.add("c", counting(64, start=900), max_new_tokens=8)  # takes what b gave back
    h.run()
    alone = Harness(script=digest)
    alone.add("a", counting(64), max_new_tokens=8)
    alone.run()
    assert h.tokens["a"] == h.tokens["b"] == alone.tokens["a"]


# --- how requests end ---------------------------------------------------------------------------------------------


def test_end_token_ends_and_is_counted():
    h = Harness(end_tokens=frozenset({6, 8}))
    h.add("a", [4], max_new_tokens=10)
    h.add("b", [4], max_new_tokens=10, ignore_eos=True)
    h.add("c", [4], max_new_tokens=10, ignore_eos=True, stop_token_ids=(7,))
    h.add("d", [6], max_new_tokens=10)
    h.run()
    assert [h.tokens[rid] for rid in "acd"] == [[5, 6], [5, 6, 7], [7, 8]]
    assert len(h.tokens["b"]) == 10
    assert (h.finished["a"].reason, h.finished["a"].matched) == ("stop", 6)
    assert (h.finished["c"].reason, h.finished["c"].matched) == ("stop", 7)
    assert h.finished["b"].reason == "length"


def test_min_new_tokens_bans_end_tokens_in_sampling():
    h = Harness(script=lambda history: _peak(history[-1] + 1, then=50), end_tokens=frozenset({6}))
    h.add("a", [4], max_new_tokens=8, min_new_tokens=4, stop_token_ids=(9,))
    h.run()
    # 6 is banned, so 50 comes in its place; from the fourth token on, an end token would end the text.
    assert h.tokens["a"][:4] == [5, 50, 51, 52]
    assert h.finished["a"].reason == "length"


def _peak(token, then, size=64):
    logits = np.zeros(size, dtype=np.float32)
    logits[then], logits[token] = 5.0, 10.0
    return logits


def test_an_end_token_before_the_minimum_does_not_end_the_text():
    h = Harness(end_tokens=frozenset({6}))  # a script that answers ids cannot be banned from one
    h.add("a", [4], max_new_tokens=5, min_new_tokens=3)
    h.run()
    assert h.tokens["a"] == [5, 6, 7, 8, 9]


def test_ending_twice_says_so_once():
    h = Harness()
    h.add("a", [1], max_new_tokens=5)
    h.step()
    [request] = h.scheduler._running.requests
    for _ in range(2):
        h.scheduler.end(request, Finish(reason="abort"))
    h._note(h.scheduler.step())
    assert (h.finished["a"].reason, h.stat("finished_abort")) == ("abort", 1)


def test_stop_strings_are_matched_by_the_injected_checker():
    def match_stop(params, prompt):
        seen = []

        def push(token):
            seen.append(token)
            return "7|8" if seen[-2:] == [7, 8] else None

        return push

    h = Harness(match_stop=match_stop)
    h.add("a", [5], max_new_tokens=10, stop=("7|8",))
    h.run()
    assert h.tokens["a"] == [6, 7, 8]
    assert (h.finished["a"].reason, h.finished["a"].matched) == ("stop", "7|8")


@pytest.mark.stepwise
def test_prefill_only():
    h = Harness()
    h.add("a", counting(12), max_new_tokens=0)
    assert h.run() == 1
    assert (h.tokens["a"], h.finished["a"].reason) == ([], "length")
    h.add("b", counting(20), max_new_tokens=1)
    h.run()
    assert h.cached["b"] == 12


# --- verdicts -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("length", "accepted"), [(127, True), (128, False), (129, False)])
@pytest.mark.parametrize("max_new_tokens", [None, 1])
def test_prompts_at_the_context_limit(length, accepted, max_new_tokens):
    h = Harness(pool_tokens=1024, context_length=128)
    verdict = h.add("a", [1] * length, max_new_tokens=max_new_tokens)
    h.add("b", [1, 2], max_new_tokens=2)
    h.run()
    assert verdict.accepted is accepted
    if accepted:
        assert (len(h.tokens["a"]), h.finished["a"].reason) == (1, "length")
    else:
        assert str(length) in verdict.problem and "128" in verdict.problem
    assert h.tokens["b"] == [3, 4]


def test_a_request_that_can_never_fit_is_refused_and_leaves_nothing():
    h = Harness(pool_tokens=64)
    verdict = h.add("big", counting(60), max_new_tokens=24, ignore_eos=True)
    assert not verdict.accepted and verdict.code == "never_fits"
    assert "85" in verdict.problem and "64" in verdict.problem
    assert not h.scheduler.busy and h.stat("free") == 64
    h.add("small", [1], max_new_tokens=2)
    h.run()
    assert h.tokens["small"] == [2, 3]


def test_an_id_in_use_is_refused_and_free_again_after_the_end():
    h = Harness()
    h.add("a", [1], max_new_tokens=3)
    verdict = h.add("a", [9], max_new_tokens=3)
    assert (verdict.accepted, verdict.status, verdict.code) == (False, 409, "duplicate_rid")
    h.run()
    assert h.tokens["a"] == [2, 3, 4]
    h.forget("a")
    assert h.add("a", [9], max_new_tokens=1).accepted


def test_an_empty_prompt_is_refused():
    h = Harness()
    assert h.add("a", []).code == "empty_prompt"


@pytest.mark.parametrize("page", [1, 16])
def test_the_largest_request_that_is_accepted_ends_by_itself(page):
    h = Harness(pool_tokens=64, page_size=page, context_length=1000)
    h.add("a", counting(20), max_new_tokens=None, ignore_eos=True)
    h.run()
    slack = 64 - (20 if page == 1 else 32) - page - 1
    assert len(h.tokens["a"]) == slack


# --- admission ----------------------------------------------------------------------------------------------------


def test_a_request_that_does_not_fit_waits_and_the_queue_behind_it_too():
    h = Harness(pool_tokens=100, context_length=100)
    h.add("a", counting(40), max_new_tokens=20)
    h.step()
    h.add("b", counting(40, start=500), max_new_tokens=20)
    h.add("c", [1], max_new_tokens=1)
    h.step()
    assert "b" not in h.tokens and "c" not in h.tokens  # strict order of arrival
    h.run()
    assert set(h.finished) == {"a", "b", "c"}


def test_reserved_slots_are_never_given_to_others():
    h = Harness(pool_tokens=64, page_size=4, max_running=64, context_length=64)
    for i in range(30):
        h.add(f"r{i}", counting(3 + i % 5, start=100 * i), max_new_tokens=9, ignore_eos=True)
        h.step()
    h.run()
    assert all(len(tokens) == 9 for tokens in h.tokens.values())
    assert h.stat("invariant_violations") == 0


def test_rows_limit_how_many_run():
    h = Harness(max_running=2)
    for i in range(5):
        h.add(f"r{i}", [i], max_new_tokens=3)
    h.step()
    assert (h.stat("running"), h.stat("waiting"), h.stat("free_rows")) == (2, 3, 0)
    h.run()
    assert len(h.finished) == 5


@pytest.mark.stepwise
def test_prefill_budget_limits_a_step_but_not_its_first_request():
    h = Harness(max_prefill_tokens=20)
    for i, length in enumerate([30, 15, 5, 1]):
        h.add(f"r{i}", counting(length, start=1000 * i), max_new_tokens=1)
    h.step()
    assert set(h.finished) == {"r0"}
    h.step()
    assert set(h.finished) == {"r0", "r1", "r2"}
    h.run()


@pytest.mark.stepwise
def test_prefill_comes_before_decode():
    h = Harness()
    h.add("a", [1], max_new_tokens=5)
    h.step()
    h.add("b", [50], max_new_tokens=5)
    h.step()
    assert (h.tokens["a"], h.tokens["b"]) == ([2], [51])
    h.step()
    assert (h.tokens["a"], h.tokens["b"]) == ([2, 3], [51, 52])


def test_eviction_makes_room_and_answers_stay_the_same():
    h, ample = Harness(script=digest, pool_tokens=48, page_size=4), Harness(script=digest, pool_tokens=4096)
    for harness in (h, ample):
        for i in range(20):
            harness.add(f"r{i}", [i % 3, *counting(14, start=i % 7)], max_new_tokens=6)
            harness.run()
    assert h.stat("evicted_tokens") > 0 == ample.stat("evicted_tokens")
    assert h.tokens == ample.tokens


def test_hrrn_order_follows_its_formula():
    h = Harness(schedule="hrrn", max_running=1, pool_tokens=1024)
    h.add("first", counting(20), max_new_tokens=3)
    h.add("long", counting(100, start=500), max_new_tokens=1)
    h.add("hit", [*counting(20), 7], max_new_tokens=1)
    h.add("short", [900, 901], max_new_tokens=1)
    order = []
    while h.scheduler.busy:
        h.step()
        order += [rid for rid in h.finished if rid not in order]
    # At the first step all ratios are 0 and arrival decides. Then 20 tokens were prefilled: 20/1, 20/2, 20/100.
    assert order == ["first", "hit", "short", "long"]


@pytest.mark.stepwise
def test_hrrn_counts_from_a_requests_own_arrival():
    h = Harness(schedule="hrrn", max_running=1, pool_tokens=1024)
    h.add("early", counting(50), max_new_tokens=2)
    h.step()
    h.add("waits", counting(40, start=500), max_new_tokens=2)
    h.add("next", counting(60, start=700), max_new_tokens=3)
    h.step()
    h.step()  # "waits" runs: both ratios were 0
    h.add("new", [900, 901], max_new_tokens=1)  # arrives when 90 tokens are prefilled: its ratio starts at 0
    h.run()
    assert list(h.finished) == ["early", "waits", "next", "new"]


# --- aborts, errors, flushing -------------------------------------------------------------------------------------


@pytest.mark.stepwise
def test_abort_while_waiting_and_while_running():
    h = Harness(max_running=1)
    h.add("a", counting(5), max_new_tokens=50)
    h.add("b", counting(5), max_new_tokens=50)
    h.step()
    h.abort("b")
    h.abort("b")
    assert (h.finished["b"].reason, h.tokens["b"]) == ("abort", [])
    h.step()
    h.abort("a")
    assert h.finished["a"].reason == "abort"
    assert not h.scheduler.busy
    assert h.stat("free") + h.stat("evictable") == h.stat("pool")
    assert h.stat("finished_abort") == 2
    h.abort("never heard of")


def test_an_aborted_id_can_be_used_again_at_once():
    h = Harness(max_running=1)
    h.add("a", [1], max_new_tokens=50)
    h.add("r-1", [5], max_new_tokens=2)
    h.step()
    h.abort("r-1")
    h.forget("r-1")
    assert h.add("r-1", [5], max_new_tokens=2).accepted
    h.run()
    assert h.tokens["r-1"] == [6, 7]
    assert not h.scheduler._requests


def test_a_row_without_a_finite_logit_ends_alone():
    def script(history):
        if history[0] == 2:
            return np.full(16, np.nan, dtype=np.float32)
        if history[0] == 3:
            return np.full(16, -np.inf, dtype=np.float32)
        if history[0] == 4:
            return np.array([0, np.inf, *[1] * 14], dtype=np.float32)
        return _peak(5 if history[0] == 0 else 9, then=0, size=16)

    h = Harness(script=script)
    for first in range(5):
        h.add(f"r{first}", [first], max_new_tokens=2)
    h.run()
    assert h.tokens == {"r0": [5, 5], "r1": [9, 9], "r2": [], "r3": [], "r4": [1, 1]}
    for rid in ("r2", "r3"):
        assert (h.finished[rid].reason, h.finished[rid].problem) == ("error", "non-finite logits")
    assert h.stat("sampling_errors") == 2
    # What a failed request computed is not cached: its K/V may be as broken as its logits.
    h.add("again", [2, 2], max_new_tokens=0)
    h.run()
    assert h.cached["again"] == 0


def test_a_model_that_raises_ends_its_step_and_nothing_else(caplog):
    def script(history):
        if history[0] == 666:
            raise ZeroDivisionError("boom")
        return count_up(history)

    h = Harness(script=script)
    h.add("bad", [666], max_new_tokens=2)
    h.run()
    assert h.finished["bad"].reason == "error"
    assert "boom" not in h.finished["bad"].problem  # internals go to the log, not to the client
    assert "boom" in caplog.text
    h.add("good", [1], max_new_tokens=2)
    h.run()
    assert h.tokens["good"] == [2, 3]
    assert h.stat("free") + h.stat("evictable") == h.stat("pool")


def test_flush_is_refused_while_a_request_lives():
    h = Harness()
    h.add("a", counting(10), max_new_tokens=3)
    busy = "the cache stays as it is: 1 requests are running or waiting; try again when idle"
    assert h.scheduler.receive([Flush(id=1)]) == [Refused(id=1, problem=busy, code="cache_busy")]  # it waits
    h.step()
    assert h.scheduler.receive([Flush(id=2)]) == [Refused(id=2, problem=busy, code="cache_busy")]  # it runs
    h.run()
    assert h.tokens["a"] == [10, 11, 12]
    assert h.scheduler.receive([Flush(id=3)]) == [Flushed(id=3, tokens=12)]
    assert h.stat("free") == h.stat("pool")


def test_abandoning_ends_everybody_with_an_error():
    h = Harness(max_running=1)
    for rid in ("a", "b"):
        h.add(rid, [1], max_new_tokens=5)
    h.step()
    h._note(h.scheduler.abandon("the engine shut down"))
    assert {rid: f.problem for rid, f in h.finished.items()} == dict.fromkeys("ab", "the engine shut down")
    h.scheduler.check()
    assert not h.scheduler.busy


# --- namespaces, sampling, no cache -------------------------------------------------------------------------------


def test_namespaces_do_not_share():
    h = Harness(script=digest)
    spaces = {"lora": Namespace(AdapterRef("alpha", 1)), "salt": Namespace(None, "alpha"), "none": Namespace()}
    for _ in range(2):
        for rid, space in spaces.items():
            h.forget(rid)
            h.add(rid, counting(16), namespace=space, max_new_tokens=1)
            h.run()
        cached = dict(h.cached)
    assert cached == dict.fromkeys(spaces, 15)
    h.add("v2", counting(16), namespace=Namespace(AdapterRef("alpha", 2)), max_new_tokens=1)
    h.run()
    assert h.cached["v2"] == 0


@pytest.mark.parametrize("page", [1, 4])
def test_without_a_cache_nothing_is_reused_and_answers_are_equal(page):
    off, on = (Harness(script=digest, page_size=page, cache_enabled=flag) for flag in (False, True))
    for h in (off, on):
        for i in range(5):
            h.add(f"r{i}", [*counting(9), i % 2], max_new_tokens=5)
            h.run()
    assert off.tokens == on.tokens
    assert set(off.cached.values()) == {0} and off.stat("free") == off.stat("pool")


def flat(history):
    return np.zeros(200, dtype=np.float32)


def test_a_seed_gives_one_text_alone_and_in_company():
    alone = Harness(script=flat)
    alone.add("a", [1], max_new_tokens=12, temperature=1.0, seed=5)
    alone.run()
    company = Harness(script=flat, seed=99)
    for i in range(6):
        company.add(f"r{i}", [1, i], max_new_tokens=3 + i, temperature=1.0)
    company.add("a", [1], max_new_tokens=12, temperature=1.0, seed=5)
    company.run()
    assert company.tokens["a"] == alone.tokens["a"]
    assert len(set(alone.tokens["a"])) > 4


def test_zero_is_a_seed():
    h = Harness()
    h.add("a", [1], max_new_tokens=1, seed=0)
    h.add("b", [1], max_new_tokens=1)
    assert [h.scheduler._requests[rid].seed == 0 for rid in ("a", "b")] == [True, False]


class Notes(SchedulePolicy):
    def __init__(self):
        self.matched = []

    def rank(self, columns, ctx):
        self.matched.append(columns.matched_len.tolist())
        return (columns.id,)


@pytest.mark.parametrize("cache_enabled", [True, False])
def test_a_match_leaves_a_token_to_compute(cache_enabled):
    policy = Notes()
    h = Harness(schedule=policy, cache_enabled=cache_enabled)
    for rid in ("a", "b"):
        h.add(rid, counting(10), max_new_tokens=1)
        h.run()
    assert policy.matched == [[0], [9 * cache_enabled]]


def test_requests_without_a_seed_differ_and_the_engine_seed_fixes_them():
    def texts(seed):
        h = Harness(script=flat, seed=seed)
        for i in range(8):
            h.add(f"r{i}", [1], max_new_tokens=6, temperature=1.0)
        h.run()
        return [tuple(h.tokens[f"r{i}"]) for i in range(8)]

    assert len(set(texts(0))) == 8
    assert texts(0) == texts(0) != texts(1)


def test_greedy_ignores_the_seed_and_takes_the_lowest_id_of_a_tie():
    h = Harness(script=lambda history: np.array([0, 3, 3, 1], dtype=np.float32))
    for i in range(3):
        h.add(f"r{i}", [1], max_new_tokens=2, temperature=0.0, top_p=0.5, top_k=3, seed=i)
    h.run()
    assert set(map(tuple, h.tokens.values())) == {(1, 1)}
