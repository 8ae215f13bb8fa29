"""A server is three processes: what they are, and what becomes of requests and of the rest when one stops or dies."""

import re
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from served import LONG, Served, checkpoint
from tiny_tokenizer import byte_level

SOME = 400
"""Tokens of an answer whose end is waited for."""

pytestmark = [
    pytest.mark.timeout(180),
    pytest.mark.skipif(sys.platform != "linux", reason="looks at processes as Linux shows them"),
]

COUNTING = """
import os
from rtk.plugin import hookimpl
with open(os.environ["TMPDIR"] + "/../registered", "a") as file:
    file.write(f"{os.getpid()} imported\\n")
@hookimpl
def rtk_plugins():
    with open(os.environ["TMPDIR"] + "/../registered", "a") as file:
        file.write(f"{os.getpid()} asked\\n")
    return []
"""


@pytest.fixture(scope="module")
def folder(zoo):
    return checkpoint(zoo, byte_level())


@pytest.fixture
def start(folder, tmp_path):
    """Starts servers, and ends them."""
    (tmp_path / "t").mkdir()
    servers = []

    def build(*flags, **more):
        servers.append(Served(folder, tmp_path / "t", *flags, **more))
        return servers[-1]

    yield build
    for one in servers:
        one.close()


def refusal(response):
    return response.status_code, response.json()["error"]["code"]


def gone(processes):
    """Whether none of these is left; one that nobody has waited for yet has ended all the same."""
    return all(not one.is_running() or one.status() == psutil.STATUS_ZOMBIE for one in processes)


def test_requests_across_processes_and_a_process_that_is_stopped_for_a_while(start, tmp_path):
    path = tmp_path / "plugin"
    (path / "counting-1.dist-info").mkdir(parents=True)
    (path / "counting.py").write_text(COUNTING)
    (path / "counting-1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: counting\nVersion: 1\n")
    (path / "counting-1.dist-info" / "entry_points.txt").write_text("[rtk]\ncounting = counting\n")
    server = start("--unwell-after-s", "0.5", path=[path])
    children = server.children()
    assert sorted(children) == ["detokenizer", "scheduler"]
    main, scheduler, detokenizer = server.process.pid, children["scheduler"].pid, children["detokenizer"].pid

    # G10: each process loads plugins once, and the detokenizer, which has no use for them, never
    registered = (tmp_path / "registered").read_text().splitlines()
    assert sorted(registered) == sorted(f"{pid} {what}" for pid in (main, scheduler) for what in ("imported", "asked"))
    # torch is where the model is, and nowhere else
    loaded = {pid: "libtorch" in Path(f"/proc/{pid}/maps").read_text() for pid in (main, scheduler, detokenizer)}
    assert loaded == {main: False, scheduler: True, detokenizer: False}

    # eight streams, and a scheduler that is stopped in the middle of them: nothing is lost
    alone = [server.text(i, SOME) for i in range(8)]
    for stopped in ("scheduler", "detokenizer"):
        streams = [server.stream(i, SOME) for i in range(8)]
        children[stopped].send_signal(signal.SIGSTOP)
        server.until(lambda: server.http.get("/health").status_code == 503)
        sick = server.http.get("/health")
        assert refusal(sick) == (503, "engine_unwell") and f"the {stopped} process" in sick.text
        assert sick.headers["Retry-After"] == "1"
        assert refusal(server.http.get("/ready")) == (503, "engine_unwell")
        assert "\nrtk_up 0.0\n" in server.http.get("/metrics").text
        children[stopped].send_signal(signal.SIGCONT)
        assert [stream.rest() for stream in streams] == [(text, None, True) for text in alone]
        server.until(lambda: server.http.get("/health").json() == {"status": "ok"})
    assert {name: child.pid for name, child in server.children().items()} == {
        "scheduler": scheduler,
        "detokenizer": detokenizer,
    }

    # an abort, a client that leaves and a deadline end what runs over there, and give back what it held
    server.stream(0).close()
    with ThreadPoolExecutor() as threads:
        body = {"text": "1", "rid": "r", "max_new_tokens": LONG, "ignore_eos": True}
        ended = threads.submit(server.http.post, "/generate", json=body)
        server.until(lambda: server.http.post("/abort", json={"rid": "r"}).json()["aborted"])
        assert ended.result().json()["meta_info"]["finish_reason"]["type"] == "abort"
    assert refusal(server.complete(2, deadline_ms=50)) == (503, "deadline_exceeded")
    server.until(lambda: server.stats()["running"] == 0)
    stats = server.stats()
    assert (stats["free"] + stats["evictable"], stats["held"]) == (stats["pool"], 0)
    assert (stats["finished_abort"], stats["deadlines_exceeded"], stats["invariant_violations"]) == (2, 1, 0)
    assert stats["gc_collections"] >= 0 and stats["gc_longest_pause_s"] >= 0
    scraped = server.http.get("/metrics").text
    assert "\nrtk_up 1.0\n" in scraped and '\nrtk_requests_finished_total{reason="abort"} 2.0\n' in scraped
    memory = re.findall(r'^rtk_process_memory_bytes\{process="(\w+)"\} [1-9]', scraped, re.MULTILINE)
    assert memory == ["main", "scheduler", "detokenizer"]

    # SIGTERM: those who run end, those who come are told, and nothing is left
    running = server.stream(1)
    with server.http.stream("GET", "/health") as idle:
        idle.read()
    server.signal(signal.SIGTERM)
    server.wait_for_line("SIGTERM: no new requests; 1 have up to 25 s to end")
    assert refusal(server.complete(2)) == (503, "shutting_down")
    assert running.rest()[1:] == (None, True)
    assert server.ended() == 0
    assert gone(children.values())
    assert server.sockets() == []
    assert not any("Traceback" in line or "leaked" in line for line in server.log)


def test_with_restart_a_dead_process_ends_what_runs_and_nothing_else(start):
    server = start("--restart")
    text = server.text(1, 20)
    for killed in ("scheduler", "detokenizer"):
        before = server.children()
        stream = server.stream(0)
        with ThreadPoolExecutor() as threads:
            whole = threads.submit(server.complete, 1)
            server.until(lambda: server.stats()["running"] == 2)
            before[killed].kill()
            assert refusal(whole.result()) == (503, "engine_restarting")
        _, error, done = stream.rest()
        assert (error, done) == ("engine_restarting", False)
        assert refusal(server.http.get("/health")) == (503, "engine_restarting")
        assert refusal(server.complete(1, 20)) == (503, "engine_restarting")
        server.wait_for_line("the engine was started again")
        assert server.http.get("/health").json() == {"status": "ok"}
        assert server.text(1, 20) == text
        assert gone(before.values())

    # a second signal ends what runs at once
    streams = [server.stream(i) for i in range(8)]
    server.signal(signal.SIGTERM)
    server.wait_for_line("8 have up to 25 s")
    server.signal(signal.SIGTERM)
    assert {stream.rest()[1:] for stream in streams} == {("generation_failed", False)}
    assert server.ended() == 0
    assert server.sockets() == []


def test_without_a_dead_process_ends_the_server_and_a_silent_one_counts_as_dead(start):
    server = start("--unwell-after-s", "0.25", "--dead-after-s", "0.5")
    children, stream = server.children(), server.stream(0)
    children["scheduler"].send_signal(signal.SIGSTOP)
    _, error, done = stream.rest()
    assert (error, done) == ("engine_stopped", False)
    assert server.ended() == 1
    assert server.log[-1] == "error: the scheduler process has ended (SIGKILL); restart the server\n"
    assert gone(children.values())
    assert server.sockets() == []


def test_nothing_outlives_the_main_process(start):
    server = start()
    children = server.children()
    for child in children.values():
        child.send_signal(signal.SIGSTOP)
    server.process.kill()
    assert server.ended() == -signal.SIGKILL
    server.until(lambda: gone(children.values()))
    assert server.sockets() == []


def test_what_a_child_cannot_start_with_is_one_line(folder, tmp_path):
    with pytest.raises(AssertionError) as ended:
        Served(folder, tmp_path, "--device", "meta").close()
    (line,) = str(ended.value).splitlines()
    assert line.startswith("error: model.device = 'meta': not usable here: ")
    assert list(tmp_path.iterdir()) == []
