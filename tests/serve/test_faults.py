"""What breaks around requests or beneath them: who is hit is told, everybody else goes on, and nothing is left."""

import asyncio
import re
import signal
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from http_harness import error_of, events
from real_server import Real, run
from served import Served, checkpoint
from tiny_tokenizer import byte_level, ids_of

from rtk.plugin.testing.scripted import ScriptedExecutor, ScriptedInFlight

BROKEN = "?"
"""What follows this character is not a number, in the model of the real server."""

BREAKS = """
import os
import pathlib
from rtk.plugin import EvictionPolicy, Plugin, SchedulePolicy, hookimpl

FAULT = pathlib.Path(os.environ["TMPDIR"]) / ".." / "faults"

@hookimpl
def rtk_plugins():
    return [
        Plugin(kind="attention", name="breaks", summary="raises where a file is", target="breaking:attention"),
        Plugin(kind="eviction", name="breaks", summary="always raises", target="breaking:Eviction"),
        Plugin(kind="schedule", name="breaks", summary="always raises", target="breaking:Schedule"),
    ]

def attention(options):
    from rtk_attention.torch.backend import TorchAttention

    class Attention(TorchAttention):
        def plan(self, batch, workspace):
            if (FAULT / "plan").exists():
                raise RuntimeError("plan")
            return super().plan(batch, workspace)

        def forward(self, q, kv, call, plan):
            if (FAULT / "forward").exists():
                raise RuntimeError("forward")
            return super().forward(q, kv, call, plan)

    return Attention(options)

class Eviction(EvictionPolicy):
    def __init__(self, options):
        pass
    def key(self, view):
        raise ValueError("no key")

class Schedule(SchedulePolicy):
    def __init__(self, options):
        pass
    def rank(self, columns, ctx):
        raise ValueError("no order")
"""


# --- in the processes of a server --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(zoo, tmp_path_factory):
    """A tiny model which computes nothing that is a number behind one of its tokens."""
    from transformers import AutoModelForCausalLM

    tokenizer = byte_level()
    model = AutoModelForCausalLM.from_pretrained(checkpoint(zoo, tokenizer))
    model.get_input_embeddings().weight.data[ids_of(tokenizer, BROKEN)] = float("nan")
    folder = tmp_path_factory.mktemp("broken")
    model.save_pretrained(folder)
    tokenizer._backend.save(str(folder / "tokenizer.json"))
    return folder


@pytest.mark.timeout(180)
@pytest.mark.skipif(sys.platform != "linux", reason="needs a device that is full")
@pytest.mark.stepwise
def test_policies_logs_a_model_and_an_attention_that_break_under_one_server(folder, tmp_path):
    (tmp_path / "breaking-1.dist-info").mkdir()
    (tmp_path / "breaking.py").write_text(BREAKS)
    (tmp_path / "breaking-1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: breaking\nVersion: 1\n")
    (tmp_path / "breaking-1.dist-info" / "entry_points.txt").write_text("[rtk]\nbreaking = breaking\n")
    for name in ("t", "faults"):
        (tmp_path / name).mkdir()
    flags = [flag for kind in ("schedule", "eviction", "attention") for flag in (f"--{kind}", "breaks")]
    server = Served(folder, tmp_path / "t", *flags, "--overlap", "true", path=[tmp_path], log="/dev/full")
    try:
        _break(server, tmp_path / "faults")
        server.signal(signal.SIGTERM)
        assert server.ended() == 0
        assert server.sockets() == []
    finally:
        server.close()


def _break(server, faults):
    pids = {name: child.pid for name, child in server.children().items()}
    (broken,) = ids_of(byte_level(), BROKEN)
    fine = {"logit_bias": {str(broken): -100}}
    alone = [server.complete(i, 150, **fine).json()["choices"][0]["text"] for i in range(4)]

    # policies that raise: the host's own order, and whoever looks is told
    health = server.http.get("/health").json()
    instead = {"schedule plugin 'breaks'": "order of arrival", "eviction plugin 'breaks'": "least recently used"}
    assert health == {"status": "degraded", "instead": instead}

    # X37: rows that are not finite, at once and after a token, beside four streams
    streams = [server.stream(i, 150, **fine) for i in range(4)]
    with ThreadPoolExecutor() as threads:
        bad = [threads.submit(server.complete, f"{i}{BROKEN}") for i in range(4)]
        later = server.stream("7", logit_bias={str(broken): 100}).rest()
        assert [error_of(one.result(), 500)["message"] for one in bad] == ["non-finite logits"] * 4
    assert later == (BROKEN, "generation_failed", False)
    assert [stream.rest() for stream in streams] == [(text, None, True) for text in alone]

    # X38: steps that raise when they are launched, and when they are computed
    for fault in ("plan", "forward"):
        streams = [server.stream(i, **fine) for i in range(4)]
        (faults / fault).touch()
        assert {stream.rest()[1:] for stream in streams} == {("generation_failed", False)}
        assert error_of(server.complete(1), 500)["message"] == "the engine failed to compute this step"
        (faults / fault).unlink()

    # nothing is left of it, and what was computed in vain is in nobody's way
    assert [server.complete(i, 150, **fine).json()["choices"][0]["text"] for i in range(4)] == alone
    server.until(lambda: server.stats()["running"] == 0)
    stats = server.stats()
    assert (stats["free"] + stats["evictable"], stats["held"]) == (stats["pool"], 0)
    assert (stats["sampling_errors"], stats["finished_error"], stats["invariant_violations"]) == (5, 15, 0)
    assert stats["steps_failed"] >= 4
    assert {name: child.pid for name, child in server.children().items()} == pids

    # what all of this had to say found no place, and that is told
    lost = re.findall(r'^rtk_log_drops_total\{process="(\w+)"\} [1-9]', server.http.get("/metrics").text, re.MULTILINE)
    assert lost == ["main", "scheduler"]


# --- an executor that raises --------------------------------------------------------------------------------------


def breaks(monkeypatch, where):
    """The third step in which two requests decode raises. Answers how often that happened."""
    kind = ScriptedExecutor if where == "launch" else ScriptedInFlight
    do, seen, raised = getattr(kind, where), [], []

    def step(self, *args):
        plan = args[0] if where == "launch" else self._plan
        if [row.q_len for row in plan.rows] == [1, 1] and plan.step not in seen:
            seen.append(plan.step)
            if len(seen) == 3:
                raised.append(plan.step)
                raise RuntimeError("the device is gone")
        return do(self, *args)

    monkeypatch.setattr(kind, where, step)
    return raised


@pytest.mark.parametrize("where", ["launch", "sample", "result"])
def test_x38_a_step_that_raises_ends_the_streams_that_it_computes_and_no_other(where, monkeypatch):
    raised = breaks(monkeypatch, where)

    async def test(server):
        asked = [server.post("/v1/completions", rid=f"{i}", stream=True, max_tokens=40) for i in range(3)]
        answers = [events(answer) for answer in await asyncio.gather(*asked)]
        failed = [answer for answer in answers if "error" in answer[-1]]
        assert len(raised) == 1
        assert len(failed) == 2
        for answer in failed:
            assert answer[-1]["error"]["message"] == "the engine failed to compute this step"
            assert 1 <= len(answer) - 1 < 40
            assert {part["choices"][0]["finish_reason"] for part in answer[:-1]} == {None}
        (whole,) = [answer for answer in answers if answer not in failed]  # the one that waited meanwhile
        assert whole[-1] == "[DONE]"
        assert "".join(part["choices"][0]["text"] for part in whole[:-1]) == "a" * 40
        stats = await server.stats()
        assert (stats["finished_error"], stats["finished_length"], stats["steps_failed"] >= 1) == (2, 1, True)
        assert (stats["free"] + stats["evictable"], stats["free_rows"]) == (stats["pool"], 2)
        assert server.manager.in_flight == 0
        assert (await server.request("GET", "/health")).json() == {"status": "ok"}

    run(Real("a", end=False, max_running=2), test)


# --- a clock that jumps -------------------------------------------------------------------------------------------

DAY = 86400.0


@pytest.mark.parametrize("jump", [DAY, -DAY])
def test_a_clock_that_jumps_ends_at_most_what_has_a_limit(jump):
    async def test(server):
        server.entered.clear()
        server.go.clear()
        bodies = [{}, {"deadline_ms": 60_000}, {}]
        asked = [
            asyncio.create_task(server.post("/v1/completions", rid=f"r{i}", max_tokens=20, **body))
            for i, body in enumerate(bodies)
        ]
        assert await asyncio.to_thread(server.entered.wait, 10)
        while len(server.manager._names) < 3:
            await asyncio.sleep(0)
        server.harness.now += jump
        server.go.set()
        answers = await asyncio.gather(*asked)
        told = [answer.json()["error"]["code"] if answer.is_error else "" for answer in answers]
        assert told == (["", "deadline_exceeded", "queue_timeout"] if jump > 0 else ["", "", ""])  # the first one runs
        assert answers[0].json()["choices"][0]["text"] == "a" * 20
        # the clock goes back, or on, and all is as it was
        server.harness.now -= jump
        after = await server.post("/v1/completions", max_tokens=20, deadline_ms=60_000)
        assert after.json()["choices"][0]["text"] == "a" * 20
        stats = await server.stats()
        assert (stats["free"] + stats["evictable"], stats["free_rows"]) == (stats["pool"], 1)
        assert stats["invariant_violations"] == 0
        scraped = (await server.request("GET", "/metrics")).text
        values = re.findall(r"^rtk_\S+ (\S+)$", scraped, re.MULTILINE)
        assert len(values) > 100
        assert [value for value in values if not 0 <= float(value) < float("inf")] == []
        explained = (await server.request("GET", "/requests/r0/explain")).json()
        assert explained["output_tokens"] == 20

    run(Real("a", end=False, max_running=1, max_wait_s=3600), test)
