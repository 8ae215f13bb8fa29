"""/metrics, /ready and what is counted around requests, over a scripted scheduler and over the real one."""

import asyncio
import re
from pathlib import Path

import pytest
from fake_scheduler import Gate, saying
from http_harness import InProcess, error_of
from msgspec import structs
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics
from prometheus_client.parser import text_string_to_metric_families as families_of
from real_server import Real, run
from tiny_tokenizer import byte_level, ids_of

from rtk.observe.series import SERIES, STATES, Snapshot
from rtk.observe.vitals import process_report
from rtk.schedule.messages import Finish
from rtk.serve.http import metrics as metrics_module
from rtk.serve.protocol import Vitals

ROOT = Path(__file__).parents[2]
TOKENIZER = byte_level()
A, B = ids_of(TOKENIZER, "a", "b")


def scraped(response):
    """Every sample of an answer: the name and the labels, and the value."""
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/plain; version=")
    return samples(families_of(response.text))


def samples(families):
    found = [(sample, family) for family in families for sample in family.samples]
    values = {(sample.name, *sorted(sample.labels.items())): sample.value for sample, _ in found}
    assert len(values) == len(found), "a sample comes twice"
    return values


def labelled(values, name):
    """The values of a series by those of its labels."""
    return {tuple(value for _, value in key[1:]): count for key, count in values.items() if key[0] == name}


@pytest.fixture
def http():
    with InProcess(saying(A, B), tokenizer=TOKENIZER) as http:
        yield http


# --- what is promised -------------------------------------------------------------------------------------------


def documented():
    """Name, kind, labels and their listed values of each series in docs/observability.md."""
    page = (ROOT / "docs/observability.md").read_text(encoding="utf-8")
    table = page.split("| series | kind | labels | what |\n")[1].split("\n\n")[0]
    for line in table.splitlines()[1:]:
        name, kind, labels, _ = (cell.strip() for cell in line.strip("|").split(" |")[:4])
        names, _, values = labels.partition(": ")
        yield name.strip("`"), kind, tuple(re.findall(r"`(\w+)`", names)), set(re.findall(r"`(\w+)`", values))


def test_the_docs_list_every_series():
    found = list(documented())
    assert [series[:3] for series in found] == [(series.name, series.kind, series.labels) for series in SERIES]
    listed = {name: values for name, _, _, values in found if values}
    known = {s.name: {key[-1] for key in s.read(Snapshot())} for s in SERIES if s.name in listed}
    assert listed == known


def test_i04_every_series_is_there_from_the_start_with_0(http):
    values = scraped(http.get("/metrics"))
    names, text = {key[0] for key in values}, http.get("/metrics").text
    unlabelled = {"rtk_observer_dropped_total", "rtk_plugin_faults_total", "rtk_evicted_tokens_total"}  # as configured
    for series in SERIES:
        assert f"# TYPE {series.name} {series.kind}\n" in text
        sample = f"{series.name}_count" if series.kind == "histogram" else series.name
        assert sample in names or series.name in unlabelled, series.name
    nonzero = {key[0] for key, value in values.items() if value}
    process = {"rtk_uptime_seconds", "rtk_process_memory_bytes", "rtk_stats_age_seconds"}
    process |= {name for name in names if name.startswith(("rtk_gc_pause", "rtk_log_drops"))}
    assert nonzero - process == {"rtk_up", "rtk_info"}
    assert all(name.startswith("rtk_") for name in names)


def test_i04_of_an_engine_that_is_there_too():
    async def test(server):
        values = scraped(await server.request("GET", "/metrics"))
        assert labelled(values, "rtk_requests_finished_total") == dict.fromkeys(
            [("stop",), ("length",), ("abort",), ("error",)], 0
        )
        assert labelled(values, "rtk_aborts_total") == dict.fromkeys(
            [("validation",), ("queued",), ("prefill",), ("decode",)], 0
        )
        assert labelled(values, "rtk_pool_tokens") == {
            ("free",): 256,
            ("evictable",): 0,
            ("protected",): 0,
            ("held",): 0,
        }
        assert labelled(values, "rtk_evicted_tokens_total") == {("Lru",): 0}
        assert labelled(values, "rtk_plugin_faults_total") == {
            ("eviction plugin 'Lru'",): 0,
            ("schedule plugin 'Fcfs'",): 0,
        }

    run(Real("a"), test)


@pytest.mark.parametrize("accept", ["application/openmetrics-text; version=1.0.0", "application/openmetrics-text"])
def test_the_format_that_the_client_prefers(http, accept):
    response = http.run(http.request("GET", "/metrics", headers={"Accept": accept}))
    assert response.headers["content-type"].startswith("application/openmetrics-text")
    assert samples(open_metrics(response.text))[("rtk_up",)] == 1


# --- what is counted --------------------------------------------------------------------------------------------


def test_answers_by_path_and_status_and_errors_by_code(http):
    http.complete(prompt="x")
    http.complete(prompt="x", stream=True)
    http.complete(prompt="")
    http.complete(prompt="x", temperature="hot")
    http.get("/v1/models/none")
    http.get("/nowhere")
    http.run(http.request("DELETE", "/generate"))
    values = scraped(http.get("/metrics"))
    answered = {key: count for key, count in labelled(values, "rtk_http_responses_total").items() if count}
    assert answered == {
        ("/v1/completions", "200"): 2, ("/v1/completions", "400"): 2, ("/v1/models/{model}", "404"): 1,
        ("other", "404"): 1, ("/generate", "405"): 1,
    }  # fmt: skip
    errors = {key[0]: count for key, count in labelled(values, "rtk_http_errors_total").items() if count}
    assert errors == {
        "empty_prompt": 1, "invalid_request": 1, "model_not_found": 1, "unknown_path": 1, "method_not_allowed": 1,
    }  # fmt: skip


def test_an_error_inside_a_stream_is_counted():
    script = lambda new: iter([(A,), Finish(reason="error", problem="no", code="generation_failed")])  # noqa: E731
    with InProcess(script, tokenizer=TOKENIZER) as http:
        assert http.complete(prompt="x", stream=True).status_code == 200
        values = scraped(http.get("/metrics"))
    assert labelled(values, "rtk_http_responses_total")["/v1/completions", "200"] == 1
    assert labelled(values, "rtk_http_errors_total")["generation_failed",] == 1


def test_what_observers_missed_and_requests_in_flight(http):
    http.fake.vitals = Vitals(observers={"tape": {"dropped": 3}})
    values = scraped(http.get("/metrics"))
    assert labelled(values, "rtk_observer_dropped_total") == {("tape",): 3}
    assert values[("rtk_requests_in_flight",)] == 0


def test_a_request_that_is_aborted_before_it_was_sent_is_counted():
    gate = Gate()

    async def test():
        prepare = http.manager._prepare

        async def slow(entry):
            http.manager.abort("r")
            return await prepare(entry)

        http.manager._prepare = slow
        answer = (await http.request("POST", "/generate", {"text": "x", "rid": "r"})).json()
        assert answer["meta_info"]["finish_reason"]["type"] == "abort"
        values = scraped(await http.request("GET", "/metrics"))
        assert labelled(values, "rtk_aborts_total")["validation",] == 1

    with InProcess(lambda new: iter([gate]), tokenizer=TOKENIZER) as http:
        http.run(test())


def test_numbers_of_the_engine_over_http():
    async def test(server):
        for _ in range(3):
            await server.post("/generate", sampling_params={"max_new_tokens": 5})
        await server.post("/generate", sampling_params={"max_new_tokens": 0})
        values = scraped(await server.request("GET", "/metrics"))
        assert labelled(values, "rtk_requests_finished_total")["length",] == 4
        assert values[("rtk_generated_tokens_total",)] == 15
        assert labelled(values, "rtk_prompt_tokens_total") == {("computed",): 4 + 3, ("device",): 9}
        assert values[("rtk_time_to_first_token_seconds_count",)] == 3
        assert values[("rtk_inter_token_seconds_count",)] == 12
        buckets = labelled(values, "rtk_time_to_first_token_seconds_bucket")
        assert buckets["+Inf",] == 3 and list(buckets.values()) == sorted(buckets.values())
        assert labelled(values, "rtk_observations_skipped_total")["rtk_time_to_first_token_seconds", "no_token"] == 1
        pool = labelled(values, "rtk_pool_tokens")
        assert sum(pool.values()) == values[("rtk_pool_size_tokens",)] and set(pool) == {(state,) for state in STATES}
        assert list(labelled(values, "rtk_process_memory_bytes")) == [("main",)]

    run(Real("a", end=False), test)


# --- an engine that says nothing --------------------------------------------------------------------------------


def test_an_engine_that_hangs_leaves_what_was_known_last(monkeypatch):
    monkeypatch.setattr(metrics_module, "PATIENCE_S", 0.02)

    async def test(server):
        await server.post("/generate", sampling_params={"max_new_tokens": 5})
        before = scraped(await server.request("GET", "/metrics"))
        monkeypatch.setattr(metrics_module, "PATIENCE_S", 0.02)
        server.go.clear()
        server.entered.clear()
        task = asyncio.create_task(server.post("/generate", sampling_params={"max_new_tokens": 5}))
        assert await asyncio.to_thread(server.entered.wait, 10)
        for _ in range(3):
            stuck = scraped(await server.request("GET", "/metrics"))
            assert (stuck[("rtk_up",)], stuck[("rtk_requests_in_flight",)]) == (0, 1)
            assert stuck[("rtk_generated_tokens_total",)] == before[("rtk_generated_tokens_total",)] == 5
        assert len(server.manager._questions) == 1  # all of them wait for the same answer
        assert (await server.request("GET", "/ready")).json() == {"status": "ready"}  # it may be a long step
        server.go.set()
        await task
        monkeypatch.setattr(metrics_module, "PATIENCE_S", 10)
        after = scraped(await server.request("GET", "/metrics"))
        assert (after[("rtk_up",)], after[("rtk_generated_tokens_total",)]) == (1, 10)

    run(Real("a", end=False), test)


def test_an_engine_that_has_stopped(http):
    http.complete(prompt="x")
    http.fake.healthy = False
    values = scraped(http.get("/metrics"))
    assert values[("rtk_up",)] == 0
    assert labelled(values, "rtk_http_responses_total")["/v1/completions", "200"] == 1
    assert error_of(http.get("/ready"), 503)["code"] == "engine_stopped"


# --- ready ------------------------------------------------------------------------------------------------------


def test_ready(http):
    assert http.get("/ready").json() == {"status": "ready"}
    for vitals, code in ((Vitals(turn_s=61.2), "engine_stuck"), (Vitals(unwell="it is stopped"), "engine_unwell")):
        http.fake.vitals = vitals
        assert error_of(http.get("/ready"), 503)["code"] == error_of(http.get("/health"), 503)["code"] == code
    http.fake.vitals = Vitals()
    http.manager.drain()
    answer = http.get("/ready")
    assert error_of(answer, 503)["code"] == "shutting_down"
    assert answer.headers["retry-after"] == "1"
    assert http.get("/health").status_code == 200


def test_each_process_has_its_memory_and_pauses(http):
    report = structs.replace(process_report(), memory_bytes=7, log_drops=3)
    http.fake.vitals = Vitals(processes={"scheduler": report, "detokenizer": structs.replace(report, memory_bytes=5)})
    values = scraped(http.get("/metrics"))
    memory = labelled(values, "rtk_process_memory_bytes")
    assert set(memory) == {("main",), ("scheduler",), ("detokenizer",)}
    assert (memory["scheduler",], memory["detokenizer",]) == (7, 5)
    assert labelled(values, "rtk_log_drops_total")["scheduler",] == 3
    assert labelled(values, "rtk_gc_pause_seconds_count")["detokenizer",] == report.gc_pauses.count


def test_a_full_queue_is_not_ready_and_well():
    async def test(server):
        server.go.clear()
        first = asyncio.create_task(server.post("/generate", sampling_params={"max_new_tokens": 3}))
        assert await asyncio.to_thread(server.entered.wait, 10)
        second = asyncio.create_task(server.post("/generate", sampling_params={"max_new_tokens": 50}))
        while sum(entry.sent for entry in server.manager._entries.values()) < 2:
            await asyncio.sleep(0)
        third = asyncio.create_task(server.request("GET", "/ready"))
        while not server.manager._questions:
            await asyncio.sleep(0)
        server.go.set()
        assert error_of(await third, 503)["code"] == "queue_full"
        assert (await server.request("GET", "/health")).status_code == 200
        await first
        await second
        assert (await server.request("GET", "/ready")).json() == {"status": "ready"}

    run(Real("a", end=False, max_running=1, max_queue=1), test)


def test_who_asks_when_an_answer_has_come_takes_it_from_nobody():
    class Manager:
        answer = None

        async def measured(self):
            self.answer = asyncio.get_running_loop().create_future()
            return await self.answer

    async def ask():
        manager = Manager()
        measured, later = metrics_module.Measured(manager), []
        first = asyncio.create_task(measured.renew(10))
        await asyncio.sleep(0)
        measured._asking.add_done_callback(lambda _: later.append(asyncio.create_task(measured.renew(10))))
        second = asyncio.create_task(measured.renew(10))
        while manager.answer is None:
            await asyncio.sleep(0)
        manager.answer.set_result("stats")
        assert await asyncio.gather(first, second) == [True, True]
        manager.answer.set_result("newer")
        assert (await later[0], measured.stats) == (True, "newer")

    asyncio.run(asyncio.wait_for(ask(), 10))
