"""Who lives, who is unwell, and how often an engine is started again; over processes that only pretend."""

import asyncio
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from tiny_tokenizer import byte_level

from rtk.config.load import config_from
from rtk.errors import ConfigError, RequestError, RtkError
from rtk.serve.processes import supervisor as module
from rtk.serve.processes.control import EngineFacts
from rtk.serve.processes.generation import Process
from rtk.serve.processes.supervisor import RESTARTS, Supervisor
from rtk.serve.protocol import ModelFacts, Vitals

WAIT_S = 10


class FakeProcess:
    """Answers pings unless it is `silent`."""

    ping = Process.ping

    def __init__(self, name):
        self.name, self.end, self.vitals, self.turn_s = name, "", Vitals(0.5, process={"gc_collections": 3}), 1.5
        self.unanswered, self.silent_s, self.silent, self.serves = False, 0.0, False, True
        self.killed = threading.Event()

    def tell(self, order):
        self.unanswered = self.silent

    def kill(self):
        self.killed.set()


class FakeGeneration:
    """One of those that a test has made; `fails` at its start where it is told to."""

    made: list = []  # noqa: RUF012 - each test starts with none
    problem = None
    hangs = 0
    """From which of them on a detokenizer says nothing when it starts."""

    def __init__(self, config, place, number, deliver, ended):
        self.scheduler, self.detokenizer = FakeProcess("scheduler"), FakeProcess("detokenizer")
        self.both, self.number, self.done, self.sent = (self.scheduler, self.detokenizer), number, [], []
        self.ended = ended
        self.made.append(self)

    def prepare(self):
        if self.problem:
            raise self.problem

        if self.hangs and self.number >= self.hangs:
            self.detokenizer.silent, self.detokenizer.serves = True, False
            assert self.detokenizer.killed.wait(WAIT_S)
            raise RtkError("the detokenizer process could not start")

    def begin(self, folder):
        self.done.append("begun")

    def ready(self):
        facts = ModelFacts(served_name="m", vocab_size=10, context_length=16)
        return EngineFacts(model=facts, grammar_backends=None)

    def send(self, message):
        self.sent.append(message)

    def stop(self):
        self.done.append("stopped")

    def kill(self):
        self.done.append("killed")

    def dies(self, name="scheduler", end="SIGKILL"):
        process = getattr(self, name)
        process.end = end
        self.ended(process)


@pytest.fixture
def start(monkeypatch):
    monkeypatch.setattr(FakeGeneration, "made", [])
    monkeypatch.setattr(FakeGeneration, "problem", None)
    monkeypatch.setattr(FakeGeneration, "hangs", 0)
    monkeypatch.setattr(module, "START_S", 0.1)
    monkeypatch.setattr(module, "Generation", FakeGeneration)
    monkeypatch.setattr(module, "PING_S", 0.01)
    monkeypatch.setattr(module, "find_or_fetch", lambda config, fetching: "folder")
    monkeypatch.setattr(module.Tokenizer, "load", lambda folder: byte_level())
    started = []

    def build(**serve):
        config = config_from({"model.path": "m", "serve": serve})
        started.append(Supervisor(config))
        return started[-1]

    yield build
    for one in started:
        one.close()


def ticks(condition):
    pause = threading.Event()
    for _ in range(WAIT_S * 100):
        if condition():
            return
        pause.wait(0.01)
    raise AssertionError("it did not come to that")


def test_closing_stops_it_once(start):
    engine = start()
    (generation,) = FakeGeneration.made
    place = engine._meeting.place
    engine.close()
    engine.close()
    assert generation.done == ["begun", "stopped"]
    assert engine.lost == ""
    assert place.folder is None or not Path(place.folder).exists()


def test_what_cannot_start_leaves_nothing(start, monkeypatch):
    monkeypatch.setattr(FakeGeneration, "problem", ConfigError("one", "other"))
    with pytest.raises(ConfigError) as caught:
        start()
    assert caught.value.problems == ("one", "other")
    assert FakeGeneration.made[0].done == ["killed"]


def test_a_death_is_told_once_also_to_who_asks_late(start, caplog):
    engine, told, late = start(), threading.Event(), threading.Event()
    engine.when_lost(told.set)
    (generation,) = FakeGeneration.made
    generation.dies("detokenizer", "exit status 3")
    assert told.wait(WAIT_S)
    generation.dies()
    assert engine.lost == "the detokenizer process has ended (exit status 3)"
    with pytest.raises(RequestError, match="the engine has stopped; restart the server"):
        engine.manager.check_healthy()
    engine.when_lost(late.set)
    assert late.is_set()
    engine._send("nobody hears it")
    assert generation.sent == []
    assert generation.done == ["begun", "killed"]
    assert [record.message for record in caplog.records] == [f"{engine.lost}; requests that ran end with an error"]


def test_it_is_started_again_so_often_and_then_given_up(start):
    engine, told = start(restart=True), threading.Event()
    engine.when_lost(told.set)
    for i in range(RESTARTS):
        FakeGeneration.made[i].dies()
        ticks(lambda i=i: len(FakeGeneration.made) == i + 2 and engine._state == "serving")
        assert FakeGeneration.made[i].done == ["begun", "killed"]
        engine._send("hello")
        assert (FakeGeneration.made[i].sent, FakeGeneration.made[i + 1].sent) == (["hello"] * bool(i), ["hello"])
    FakeGeneration.made[-1].dies()
    assert told.wait(WAIT_S)
    assert [one.number for one in FakeGeneration.made] == [*range(1, RESTARTS + 2)]
    assert engine.lost == "the scheduler process has ended (SIGKILL)"


def test_restarts_long_ago_do_not_count(start, monkeypatch):
    engine, now = start(restart=True), [0.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    allowed = []
    for now[0] in (0.0, 1.0, 2.0, 3.0, module.WITHIN_S, module.WITHIN_S + 0.5, module.WITHIN_S + 1):
        allowed.append(engine._may_start())
    assert allowed == [True, True, True, False, True, False, True]


def test_one_that_cannot_be_started_again_is_lost(start, monkeypatch):
    engine, told = start(restart=True), threading.Event()
    engine.when_lost(told.set)
    monkeypatch.setattr(FakeGeneration, "problem", RtkError("no memory"))
    FakeGeneration.made[0].dies()
    assert told.wait(WAIT_S)
    assert engine.lost == (
        "the scheduler process has ended (SIGKILL), and the engine cannot be started again: no memory"
    )
    assert FakeGeneration.made[1].done == ["killed"]


def test_silence_is_told_and_then_ended(start):
    engine = start(unwell_after_s=0.05, dead_after_s=0.2)
    (generation,) = FakeGeneration.made
    said = {"gc_collections": 3}
    assert engine.vitals == Vitals(1.5, process=said, processes={"scheduler": said, "detokenizer": said})
    generation.detokenizer.silent = True
    ticks(lambda: engine.vitals.unwell)
    assert engine.vitals.unwell.startswith("the detokenizer process has answered nothing for ")
    assert engine._state == "serving"
    assert generation.detokenizer.killed.wait(WAIT_S)
    assert not generation.scheduler.killed.is_set()


def test_one_that_is_silent_while_it_starts_counts_as_dead_too(start, monkeypatch):
    monkeypatch.setattr(FakeGeneration, "hangs", 1)
    with pytest.raises(RtkError, match="the detokenizer process could not start"):
        start(unwell_after_s=0.01, dead_after_s=0.02)
    assert FakeGeneration.made[0].done == ["killed"]

    monkeypatch.setattr(FakeGeneration, "hangs", 2)
    FakeGeneration.made.clear()
    engine, told = start(restart=True, unwell_after_s=0.02, dead_after_s=0.02), threading.Event()
    engine.when_lost(told.set)
    FakeGeneration.made[0].dies()
    assert told.wait(WAIT_S)
    assert engine.lost.endswith("cannot be started again: the detokenizer process could not start")


def test_one_that_answers_again_is_well(start):
    engine = start(unwell_after_s=0.02, dead_after_s=1000)
    scheduler = FakeGeneration.made[0].scheduler
    scheduler.silent = True
    ticks(lambda: engine.vitals.unwell)
    scheduler.silent = scheduler.unanswered = False
    ticks(lambda: not engine.vitals.unwell)


def test_a_server_that_was_stopped_itself_blames_nobody(start, monkeypatch):
    engine = start(unwell_after_s=1, dead_after_s=2)
    scheduler = FakeGeneration.made[0].scheduler
    scheduler.silent = True
    ticks(lambda: scheduler.unanswered)
    real = module.time.monotonic
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: real() + 3600))
    silent = scheduler.silent_s
    ticks(lambda: scheduler.silent_s > silent)
    assert scheduler.silent_s < 1 and not engine.vitals.unwell


def test_drained_managers_take_nobody(start):
    engine = start()
    engine.manager.drain()

    async def ask():
        from rtk.serve.protocol import GenerateRequest

        with pytest.raises(RequestError) as caught:
            await anext(engine.manager.generate(GenerateRequest(prompt=[1])))
        assert (caught.value.code, caught.value.status) == ("shutting_down", 503)

    asyncio.run(ask())
