"""Cases I02 to I06: every request is counted once, whatever becomes of it; nothing that is measured can fail."""

import asyncio

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families
from real_server import Real, run

from rtk.observe.render import rendered
from rtk.observe.series import SERIES, Snapshot
from rtk.plugin.testing.harness import Harness
from rtk.schedule.messages import Abort, GetStats, Stats


def values_of(h):
    """What is scraped of a scheduler, after a way through a wire."""
    h.send(GetStats(id=len(h.answers)))
    stats = msgspec.msgpack.decode(msgspec.msgpack.encode(h.answers[len(h.answers) - 1]), type=Stats)
    return scraped(rendered(Snapshot(stats=stats))[0].decode())


def scraped(text):
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return {(sample.name, *sample.labels.values()): sample.value for sample in samples}


def finished(values):
    return {key[1]: count for key, count in values.items() if key[0] == "rtk_requests_finished_total"}


def stages(values):
    return {key[1]: int(count) for key, count in values.items() if key[0] == "rtk_aborts_total" and count}


def test_i02_first_tokens_are_the_answers_that_have_one_and_each_end_has_one_reason():
    h = Harness(pool_tokens=96, context_length=48, conservativeness=0.05, end_tokens=frozenset({1003}))
    h.add("stops", [1000], max_new_tokens=20)
    h.add("answer 1", [2000, 2001], max_new_tokens=3)
    h.add("answer 2", [2000, 2001], max_new_tokens=3, leader="answer 1")
    for i in range(4):  # too many for the pool: some have to make room, and go on
        h.add(f"long{i}", [100 * i + j for j in range(8)], max_new_tokens=24)
    h.add("prefill only", [900, 901], max_new_tokens=0)
    h.add("aborted early", [800], max_new_tokens=20)
    h.abort("aborted early")
    h.add("aborted late", [700], max_new_tokens=20)
    while not h.tokens.get("aborted late"):
        h.step()
    h.abort("aborted late")
    h.add("late", [600], max_new_tokens=40, deadline_s=0.5)
    h.run()
    values = values_of(h)
    assert h.stat("retractions") > 0
    with_tokens = [rid for rid, tokens in h.tokens.items() if tokens]
    assert set(with_tokens) == {"stops", "long0", "long1", "long2", "long3", "aborted late", "answer 1", "answer 2"}
    assert values[("rtk_time_to_first_token_seconds_count",)] == len(with_tokens)
    assert values[("rtk_observations_skipped_total", "rtk_time_to_first_token_seconds", "no_token")] == 3
    assert finished(values) == {"stop": 1, "length": 7, "abort": 2, "error": 1}
    assert sum(finished(values).values()) == values[("rtk_requests_accepted_total",)] == len(h.finished)
    tokens = sum(map(len, h.tokens.values()))
    assert values[("rtk_inter_token_seconds_count",)] == tokens - len(with_tokens)
    assert values[("rtk_generated_tokens_total",)] == tokens


def test_i03_a_clock_that_goes_back_and_ends_without_a_token_are_skipped_and_counted():
    h = Harness(max_running=2)
    h.now = 100.0
    h.add("a", [1, 2], max_new_tokens=4)
    h.step()
    h.now = 7.0
    h.add("b", [5], max_new_tokens=0)
    h.add("c", [6], max_new_tokens=3)
    h.abort("c")
    h.run()
    h.now = 3.0
    values = values_of(h)
    assert list(h.tokens["a"]) == [3, 4, 5, 6]
    assert finished(values) == {"stop": 0, "length": 2, "abort": 1, "error": 0}
    skipped = {key[1:]: int(n) for key, n in values.items() if key[0] == "rtk_observations_skipped_total" and n}
    assert skipped.pop(("rtk_time_to_first_token_seconds", "no_token")) == 2
    assert ("rtk_inter_token_seconds", "clock") in skipped or ("rtk_time_to_first_token_seconds", "clock") in skipped
    assert ("rtk_request_seconds", "clock") in skipped
    for name in {series.name for series in SERIES if series.kind == "histogram"} - {"rtk_gc_pause_seconds"}:
        assert values[f"{name}_sum",] >= 0
    parts = {key[1]: seconds for key, seconds in values.items() if key[0] == "rtk_step_part_seconds_total"}
    assert min(parts.values()) >= 0


def test_i04_documented_series_exist_before_anything_has_happened():
    values = values_of(Harness())
    names = {key[0] for key in values}
    of_processes = {"rtk_process_memory_bytes", "rtk_gc_pause_seconds", "rtk_log_drops_total"}
    of_http = {"rtk_http_responses_total", "rtk_observer_dropped_total"}  # one for each that there is
    for series in SERIES:
        if series.name not in of_processes | of_http:
            assert (f"{series.name}_count" if series.kind == "histogram" else series.name) in names
    free = ("rtk_pool_tokens", "free"), ("rtk_pool_size_tokens",), ("rtk_new_token_ratio",), ("rtk_up",)
    assert {key for key, value in values.items() if value} - {("rtk_info", "", "")} == set(free)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.stepwise
def test_i05_each_abort_is_counted_once_by_its_stage(overlap):
    h = Harness(max_running=2, chunk_tokens=4, overlap=overlap)
    h.add("decodes", [1], max_new_tokens=50)
    while len(h.tokens.get("decodes", ())) < 2:
        h.step()
    h.add("prefills", range(100, 140), max_new_tokens=5)
    h.step()
    h.add("waits", [9], max_new_tokens=5)
    assert (h.stat("running"), h.stat("waiting")) == (2, 1)
    for rid in ("decodes", "prefills", "waits"):
        h.scheduler.receive([Abort(rid), Abort(rid)])
        h.scheduler.receive([Abort(rid)])
    h.run()
    h.send(Abort("decodes"))
    values = values_of(h)
    assert stages(values) == {"queued": 1, "prefill": 1, "decode": 1}
    assert finished(values) == {"stop": 0, "length": 0, "abort": 3, "error": 0}


def test_i05_over_http_a_client_that_leaves_counts_like_one_that_aborts_and_both_count_once():
    async def test(server):
        server.go.clear()
        for rid in ("told", "gone"):
            server.entered.clear()
            server.go.clear()
            task = asyncio.create_task(server.post("/generate", rid=rid, sampling_params={"max_new_tokens": 90}))
            assert await asyncio.to_thread(server.entered.wait, 10)
            if rid == "told":
                assert server.manager.abort(rid) and server.manager.abort(rid)
            else:
                task.cancel()
            server.go.set()
            await asyncio.wait([task])
            while server.manager.in_flight:
                await asyncio.sleep(0)
        values = scraped((await server.request("GET", "/metrics")).text)
        assert sum(stages(values).values()) == 2
        assert finished(values) == {"stop": 0, "length": 0, "abort": 2, "error": 0}

    run(Real("a", end=False), test)


@pytest.mark.parametrize("page", [1, 4])
def test_i06_an_idle_cache_is_not_empty_and_the_states_add_up(page):
    h = Harness(page_size=page)
    for i in range(10):
        h.add(f"r{i}", [50 * i + j for j in range(8)], max_new_tokens=4)
        h.run()
        values = values_of(h)
        pool = {key[1]: count for key, count in values.items() if key[0] == "rtk_pool_tokens"}
        assert set(pool) == {"free", "evictable", "protected", "held"}
        assert sum(pool.values()) == values[("rtk_pool_size_tokens",)] == 256
    assert (pool["protected"], pool["held"]) == (0, 0)
    assert pool["evictable"] == 10 * (11 // page * page)
