"""`rtk.Engine` over the real scheduler and a scripted model."""

import gc
import threading
from array import array
from dataclasses import replace

import numpy as np
import pytest
import torch
from tiny_tokenizer import IM_END, byte_level, ids_of

from rtk import Engine
from rtk.config.load import config_from
from rtk.errors import RequestError
from rtk.observe.feed import Feeds
from rtk.plugin import Plugin
from rtk.plugin.host import installed
from rtk.plugin.registry import Origin, Registered, Registry
from rtk.plugin.testing.scripted import ScriptedExecutor
from rtk.plugin.testing.toys import RecorderOptions
from rtk.schedule.budget import Limits
from rtk.schedule.messages import NewRequest
from rtk.serve import runtime
from rtk.serve.computing import Computing
from rtk.serve.protocol import Chat
from rtk.serve.runtime import Runtime
from rtk_eviction.lru import Lru

TOKENIZER = byte_level()
FIRST_BYTE = ids_of(TOKENIZER, b"\x00")[0]


def echo(history):
    """Says the alphabet from the prompt's last letter on, then ends."""
    last = history[-1] - FIRST_BYTE
    return IM_END if last >= ord("z") else FIRST_BYTE + last + 1


class Held:
    """A script that waits in every step until it is let go."""

    def __init__(self):
        self.entered, self.go = threading.Event(), threading.Event()

    def __call__(self, history):
        self.entered.set()
        assert self.go.wait(20)
        return FIRST_BYTE + ord("x")


@pytest.fixture
def engine(loop):
    engines = []

    def build(script=echo, vocab_size=TOKENIZER.size, feeds=None, **config):
        limits = Limits(context_length=128, pool_tokens=512, page_size=1, max_running=4, max_prefill_tokens=4096)
        sizes = {"slots": 512, "page_size": 1, "max_running": 4, "context_length": 128}
        executor = ScriptedExecutor(script, **sizes, lazy=loop["lazy"])
        known = (vocab_size, frozenset({IM_END}), {"temperature": 0.0}, "scripted")
        computing = Computing(executor, limits, *known, overlap=loop["overlap"])
        config = config_from({"model.path": "scripted", **config})
        policies = runtime.build_policies(config)
        engines.append(Engine(runtime=Runtime(config, policies, computing, TOKENIZER, feeds=feeds)))
        return engines[-1]

    yield build
    for one in engines:
        one.close()


def test_one_prompt_gives_one_answer(engine):
    answer = engine().generate("uv", {"max_new_tokens": 3})
    assert (answer.text, answer.prompt_tokens, answer.cached_tokens, answer.finish.reason) == ("wxy", 2, 0, "length")
    assert answer.token_ids == tuple(ids_of(TOKENIZER, "w", "x", "y"))


def test_observers_are_told_of_steps_and_requests_and_end_with_the_engine(engine, tmp_path):
    plugin = Plugin(kind="observer", name="toy", summary="s", target="rtk.plugin.testing.toys:Recorder")
    entry = Registered(plugin, Origin("toy", "rtk-observer-toy", "0.1"))
    built = engine(feeds=Feeds([(entry, RecorderOptions(path=tmp_path / "out"))]))
    built.generate("uv", {"max_new_tokens": 3})
    assert built._runtime.manager.vitals().observers == {"toy": {"dropped": 0}}
    built.close()
    *told, closed = (tmp_path / "out").read_text().splitlines()
    (request,) = (line for line in told if line.startswith("RequestReport("))
    assert "prompt_tokens=2, cached_tokens=0, output_tokens=3, retractions=0" in request
    assert len(told) >= 4
    assert closed == "closed"


def test_several_prompts_give_as_many_answers_in_order(engine):
    answers = engine().generate(["w", ids_of(TOKENIZER, "y"), "z"])
    assert [answer.text for answer in answers] == ["xyz", "z", ""]
    assert {answer.finish.reason for answer in answers} == {"stop"}
    assert engine().generate([]) == []


def test_a_list_of_ids_is_one_prompt(engine):
    assert engine().generate(ids_of(TOKENIZER, "a", "w")).text == "xyz"


@pytest.mark.parametrize(
    "row",
    [np.array, lambda ids: array("i", ids), tuple, lambda ids: [np.int64(i) for i in ids], torch.tensor],
    ids=["numpy", "array", "tuple", "numpy's integers", "torch"],
)
def test_whatever_is_a_row_of_integers_is_ids(engine, row):
    one = engine()
    ids = row(ids_of(TOKENIZER, "a", "w"))
    assert one.generate(ids).text == "xyz"
    assert [answer.text for answer in one.generate([ids, ids])] == ["xyz", "xyz"]


@pytest.mark.parametrize(
    ("prompt", "problem"),
    [
        (None, "prompt = None: must be a text, token ids, or a chat"),
        (5, "prompt = 5: must be a text"),
        (b"abc", "prompt = b'abc': must be a text"),
        ({1, 2}, "prompt = {1, 2}: must be a text"),
        (np.array([[1, 2]]), r"prompt = array\(\[\[1, 2\]\]\): must be a text"),
        (np.array([1.5]), r"prompt = array\(\[1.5\]\): must be a text"),
        ([1, True], r"prompt\[1\] = True: must be a token id"),
        ([1, 2**64], r"prompt\[1\] = 18446744073709551616: must be a token id"),
        (Chat("abc"), "prompt = 'abc': must be a list of messages"),
        (Chat([5]), r"prompt = \[5\]: must be a list of messages"),
    ],
    ids=str,
)
def test_what_is_no_prompt(engine, prompt, problem):
    with pytest.raises(RequestError, match=problem):
        engine().generate(prompt)


def test_parameters_may_be_numbers_of_numpy(engine):
    params = {"max_new_tokens": np.int64(2), "temperature": np.float32(0), "stop_token_ids": np.array([3])}
    assert engine().generate("uv", params).text == "wx"


def test_ids_that_the_model_does_not_know_reach_nobody(engine):
    unknown = FIRST_BYTE + ord("y")
    one = engine(vocab_size=unknown)
    with pytest.raises(RequestError, match=rf"prompt becomes token {unknown}, which the model lacks"):
        one.generate("ay")
    with pytest.raises(RequestError, match=rf"prompt\[1\] = {unknown}: must be a token id from 0 to {unknown - 1}"):
        one.generate([unknown - 1, unknown])
    assert one.generate("a", {"max_new_tokens": 1}).text == "b"


def test_a_parameter_that_is_none(engine):
    with pytest.raises(
        RequestError, match=r"unknown parameter 'max_tokens'; there are temperature, top_p, .*, max_new"
    ):
        engine().generate("uv", {"max_tokens": 5})


def test_messages_go_through_the_chat_template(engine):
    one = engine()
    answer = one.generate(Chat([{"role": "user", "content": "hi"}]), {"max_new_tokens": 1})
    [delta] = one.stream("hi", {"max_new_tokens": 1}, chat=True)
    assert delta.prompt_tokens == answer.prompt_tokens > 10
    assert delta.cached_tokens == answer.prompt_tokens - 1


def test_a_stream_comes_token_by_token(engine):
    deltas = list(engine().stream("w", {"max_new_tokens": 10}))
    assert [delta.text for delta in deltas] == ["x", "y", "z", ""]
    assert [delta.completion_tokens for delta in deltas] == [1, 2, 3, 4]
    assert deltas[-1].finish.matched == IM_END


def test_stop_strings(engine):
    answer = engine().generate("a", {"stop": ["ef"]})
    assert (answer.text, answer.finish.reason, answer.finish.matched) == ("bcd", "stop", "ef")


@pytest.mark.parametrize(
    ("prompt", "params", "problem"),
    [
        ("", {}, "prompt is empty"),
        ([1, 2.5], {}, r"prompt\[1\] = 2.5"),
        ([TOKENIZER.size], {}, r"must be a token id from 0 to"),
        (["fine", "a\ud800"], {}, "unpaired surrogate"),
        ("a", {"temperature": -1}, "temperature = -1"),
        ("a" * 200, {}, r"200 tokens.*128"),
        ("a", {"max_new_tokens": 500}, r"500.*128"),
    ],
    ids=["empty", "no id", "unknown id", "surrogate", "parameter", "too long", "answer too long"],
)
def test_a_refused_prompt_is_an_error_and_leaves_nothing(engine, prompt, params, problem):
    one = engine()
    with pytest.raises(RequestError, match=problem):
        one.generate(prompt, params)
    assert one.stats()["running"] == one.stats()["waiting"] == 0
    assert one.generate("y").text == "z"


def test_leaving_a_stream_aborts_the_request(engine):
    one = engine()
    stream = one.stream("a", {"max_new_tokens": 100, "ignore_eos": True}, rid="r")
    assert next(stream).text == "b"
    stream.close()
    stats = one.stats()
    assert stats["finished_abort"] == 1 or stats["finished_length"] == 1  # unless it was at its end by then
    assert stats["running"] == 0
    while stats["held"] or stats["protected"]:  # by the step in flight, where steps overlap
        stats = one.stats()
    assert stats["free"] + stats["evictable"] == stats["pool"]


def test_a_stream_that_nobody_holds_ends_wherever_garbage_is_collected(engine):
    one = engine()
    stream = one.stream("a", {"max_new_tokens": 100, "ignore_eos": True})
    assert next(stream).text == "b"
    circle = [stream]
    circle.append(circle)
    del stream, circle
    one._loop.call_soon_threadsafe(gc.collect)
    waiter = threading.Thread(target=one.generate, args=("y",), daemon=True)
    waiter.start()
    waiter.join(20)
    assert not waiter.is_alive()
    assert one.stats()["running"] == 0


def test_abort_from_another_thread(engine):
    script = Held()
    one = engine(script)
    ends = []

    def consume():
        ends.extend(delta.finish for delta in one.stream("a", {"max_new_tokens": 100}, rid="r"))

    reader = threading.Thread(target=consume)
    reader.start()
    assert script.entered.wait(20)
    assert one.abort("r") is True
    script.go.set()
    reader.join(20)
    assert not reader.is_alive()
    assert ends[-1].reason == "abort"
    assert one.abort("r") is False


def test_an_id_in_use_is_refused(engine):
    script = Held()
    one = engine(script)
    first = one.stream("a", {"max_new_tokens": 2}, rid="r")
    reader = threading.Thread(target=list, args=(first,))
    reader.start()
    assert script.entered.wait(20)
    with pytest.raises(RequestError, match="'r'") as refused:
        list(one.stream("b", rid="r"))
    assert refused.value.status == 409
    script.go.set()
    reader.join(20)


def test_flush_gives_the_cache_back(engine):
    one = engine()
    one.generate("abcdef", {"max_new_tokens": 1})
    assert one.generate("abcdef", {"max_new_tokens": 1}).cached_tokens == 5
    assert one.flush() == 6
    assert one.generate("abcdef", {"max_new_tokens": 1}).cached_tokens == 0


# --- the prefix cache ---------------------------------------------------------------------------------------------


def test_salts_do_not_share(engine):
    one = engine()
    for salt, hit in ((None, 0), ("s", 0), ("t", 0), ("s", 5), (None, 5)):
        assert one.generate("abcdef", {"max_new_tokens": 1}, cache_salt=salt).cached_tokens == hit
        [delta] = one.stream("abcdef", {"max_new_tokens": 1}, cache_salt=salt)
        assert delta.cached_tokens == 5
    answers = one.generate(["abcdef", "abcdef"], {"max_new_tokens": 1}, cache_salt="s")
    assert [answer.cached_tokens for answer in answers] == [5, 5]


@pytest.mark.parametrize(
    ("eviction", "schedule", "retraction", "reads"),
    [
        ("lru", "fcfs", "length", False),
        ("priority", "fcfs", "length", True),
        ("lru", "priority", "length", True),
        ("lru", "fcfs", "priority", True),
        ("slru", "lof", "length", False),
    ],
)
def test_whether_a_priority_changes_anything(engine, eviction, schedule, retraction, reads):
    keys = {"eviction.policy": eviction, "schedule.policy": schedule, "schedule.retraction": retraction}
    one = engine(**keys)
    assert one._manager.facts.reads_priority is reads


@pytest.mark.parametrize("reads", [False, True])
def test_a_priority_is_taken_whatever_the_policy_reads(engine, monkeypatch, reads):
    if reads:
        monkeypatch.setattr(Lru, "facts", Lru.facts | {"priority"})
    one = engine()
    assert one._manager.facts.reads_priority is reads
    assert one.generate("y", priority=np.int64(3)).text == "z"
    for wrong in ("high", 2.5, 10**30, None):
        with pytest.raises(RequestError, match=r"priority = .*: must be an integer from -2147483647 to 2147483647"):
            one.generate("y", priority=wrong)
        with pytest.raises(RequestError, match="priority = "):
            list(one.stream("y", priority=wrong))


def test_what_policies_and_deadlines_need_reaches_the_scheduler(engine, monkeypatch):
    one, sent = engine(), []
    send = one._manager._send
    monkeypatch.setattr(one._manager, "_send", lambda message: (sent.append(message), send(message)))
    handling = {"routing_key": np.str_("k"), "deadline_ms": np.float64(60_000), "tenant": "t"}
    one.generate("y", **handling)
    one.generate(["y"], **handling)
    list(one.stream("y", **handling))
    one.generate("y")
    given = [(new.routing_key, new.deadline_s, new.tenant) for new in sent if isinstance(new, NewRequest)]
    assert given == [("k", 60.0, "t")] * 3 + [("", None, "")]
    for wrong in ({"routing_key": ""}, {"tenant": 5}, {"deadline_ms": 0}, {"deadline_ms": float("nan")}):
        with pytest.raises(RequestError, match=rf"{next(iter(wrong))}( = .*)?: must be a "):
            one.generate("y", **wrong)


@pytest.mark.parametrize("reads", [False, True])
def test_whether_a_routing_key_changes_anything(engine, monkeypatch, reads):
    fcfs = installed().get("schedule", "fcfs")
    plugin = replace(fcfs.plugin, requires=frozenset({"routing_key"} if reads else ()))
    others = [entry for entry in installed().all() if entry is not fcfs]
    monkeypatch.setattr(runtime, "installed", lambda: Registry([*others, replace(fcfs, plugin=plugin)]))
    assert engine()._manager.facts.reads_routing_key is reads


def test_the_queue_is_bounded_by_configuration(engine):
    scheduler = engine(**{"schedule.max_queue": 3, "schedule.max_wait_s": 0.5})._runtime._thread._scheduler
    assert (scheduler._settings.max_queue, scheduler._time._max_wait_s) == (3, 0.5)
    scheduler = engine()._runtime._thread._scheduler
    assert (scheduler._settings.max_queue, scheduler._time._max_wait_s) == (None, None)


def test_an_explanation(engine):
    one = engine()
    first = one.explain("abcdef")
    assert (first.ends, first.cached_tokens, first.prompt_tokens) == ("new", 0, 6)
    one.generate("abcdef", {"max_new_tokens": 1})
    found = one.explain("abcxyz")
    assert (found.ends, found.cached_tokens, found.matched_tokens, found.namespace.salt) == ("differs", 3, 3, None)
    assert (found.differs.position, found.differs.prompt.text, found.differs.cached.text) == (3, "x", "d")
    x, d = ids_of(TOKENIZER, "x", "d")
    assert found.reason == (
        f"3 of 6 tokens would be reused: at position 3 the prompt has token {x} ('x'), and the most similar of what is "
        f"cached has {d} ('d')."
    )
    salted = one.explain(np.array(ids_of(TOKENIZER, *"abcdef")), cache_salt="s")
    assert (salted.ends, salted.namespace.salt) == ("new", "s")
    with pytest.raises(RequestError, match="prompt is empty"):
        one.explain("")


def test_pins_and_the_report(engine):
    one = engine()
    pin = one.pin(np.str_("p"), Chat([{"role": "user", "content": "hi"}]), cache_salt="s", ttl_s=np.float64(60))
    assert (type(pin.name), pin.name, pin.namespace.salt) == (str, "p", "s")
    assert 59 < pin.expires_in_s <= 60
    tokens = pin.tokens
    report = one.cache()
    assert (report.protected, report.pinned, report.pin_budget, report.pool) == (tokens, tokens, 128, 512)
    assert report.free + report.evictable + report.protected + report.held == 512
    assert [kept.name for kept in report.pins] == ["p"]
    assert one.flush() == 0
    with pytest.raises(RequestError, match="there is a pin 'p' already") as refused:
        one.pin("p", "abc")
    assert (refused.value.status, refused.value.code) == (409, "duplicate_pin")
    assert one.unpin(np.str_("p")).tokens == tokens
    assert one.cache().pins == ()
    assert one.flush() == tokens
    with pytest.raises(RequestError, match="there is no pin 'p'; pins: none"):
        one.unpin("p")


def test_the_configured_budget_holds(engine):
    one = engine(**{"cache.pins.budget": 3})
    with pytest.raises(RequestError, match="takes 4 tokens, 0 are taken, and the budget is 3"):
        one.pin("p", "abcd")
    assert one.pin("p", "abc").expires_in_s is None


# --- the end ------------------------------------------------------------------------------------------------------


def test_closing_ends_who_still_waits(engine):
    script = Held()
    one = engine(script)
    problems = []

    def ask():
        try:
            one.generate("a", {"max_new_tokens": 100})
        except RequestError as error:
            problems.append(str(error))

    asker = threading.Thread(target=ask)
    asker.start()
    assert script.entered.wait(20)
    one._runtime._thread.stop(timeout=0)  # asked for while the step is held, so that it is the last one
    script.go.set()
    one.close()
    asker.join(20)
    assert not asker.is_alive()
    assert problems == ["the engine shut down"]
    one.close()


def test_a_closed_engine_says_so(engine):
    one = engine()
    one.close()
    with pytest.raises(RequestError, match="closed"):
        one.generate("a")
    with pytest.raises(RequestError, match="closed"):
        one.stats()


def test_as_a_context_manager(engine):
    with engine() as one:
        assert one.generate("y").text == "z"
    with pytest.raises(RequestError, match="closed"):
        one.flush()


def test_what_became_of_a_request(engine):
    e = engine()
    assert "".join(delta.text for delta in e.stream("abw", rid="mine")) == "xyz"
    told = e.explain_request("mine")
    assert (told.timeline.state, told.timeline.end, told.timeline.prompt_tokens) == ("finished", "stop", 3)
    assert "None of its 3 prompt tokens came from the cache." in told.sentences
    with pytest.raises(RequestError, match="no request 'other' is known"):
        e.explain_request("other")
