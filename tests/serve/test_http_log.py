"""The log: a line for each request, and never what a client wrote unless that was asked for."""

import asyncio
import json
import logging
import logging.config
import re

import pytest
from fake_scheduler import LENGTH, Finish, Gate, Verdict, saying
from http_harness import InProcess, error_of
from tiny_tokenizer import byte_level, ids_of

from rtk.errors import RequestError
from rtk.observe.logs import loggable, quotes
from rtk.plugin.guard import Health
from rtk.schedule.constraints import Constraints
from rtk.serve.http.rights import ApiKeys

TOKENIZER = byte_level()
(A,) = ids_of(TOKENIZER, "a")
MARK = "Mark-Of-A-Prompt"
PATHS = [
    ("/v1/completions", "prompt"), ("/generate", "text"), ("/v1/chat/completions", "messages"),
    ("/v1/responses", "input"),
]  # fmt: skip


def marked(name, text=MARK):
    return {name: [{"role": "user", "content": text}] if name == "messages" else text}


def over(script=None, **settings):
    return InProcess(script or saying(A), tokenizer=TOKENIZER, settings={"access_log": True, **settings})


def lines(caplog, name="rtk.access"):
    return [record.message for record in caplog.records if record.name == name]


@pytest.fixture(autouse=True)
def everything_is_logged(caplog):
    caplog.set_level(logging.WARNING, "httpx")  # the client's own lines
    caplog.set_level(logging.DEBUG)
    return caplog


# --- prompts ----------------------------------------------------------------------------------------------------


def failing(error):
    async def generate(*args, **kwargs):
        raise error
        yield

    return generate


def bug():
    try:
        try:
            raise KeyError(MARK)
        except KeyError as error:
            raise ValueError(f"what about {MARK}?") from error
    except ValueError as error:
        return error


OUTCOMES = {
    "ok": {},
    "a wrong value": {"temperature": MARK},
    "an unknown field": {MARK: MARK},
    "half a character": {"stop": f"{MARK}\ud800"},
    "not supported": {"audio": MARK},
    "a form, and nobody to see to it": {
        "response_format": {"type": "json_schema", "json_schema": {"schema": {MARK: 1}}}
    },
    "a form that is none": {"response_format": {"type": MARK}},
    "another model": {"model": MARK},
    "a salt": {"cache_salt": MARK},
    "a pattern": {"regex": MARK},
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("more", OUTCOMES.values(), ids=OUTCOMES)
def test_no_line_has_what_a_client_wrote(caplog, more, stream):
    with over() as http:
        for path, name in PATHS:
            for text in (MARK, f"{MARK}\udfff", MARK * 200):
                http.post(path, {**marked(name, text), **more, "stream": stream})
                http.post("/tokenize", {"prompt": text, **more})
    assert MARK not in caplog.text
    assert len(lines(caplog)) == 2 * 3 * len(PATHS)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "script",
    [
        lambda new: iter([Verdict(rid=new.rid, accepted=False, code="never_fits", problem="no", status=400)]),
        lambda new: iter([(A,), Finish(reason="error", problem="non-finite logits")]),
        lambda new: iter([((A,), Finish(reason="error", problem="late", code="grammar_failed"))]),
    ],
    ids=["refused", "failed", "failed late"],
)
def test_nor_where_the_engine_refuses_or_fails(caplog, script, stream):
    with over(lambda new: iter(list(script(new)))) as http:
        for path, name in PATHS:
            http.post(path, {**marked(name), "stream": stream})
    assert MARK not in caplog.text


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("path", "name"), PATHS)
def test_a_bug_keeps_its_frames_and_loses_its_words(caplog, monkeypatch, path, name, stream):
    with over() as http:
        monkeypatch.setattr(http.manager, "generate_batch", failing(bug()))
        answer = http.post(path, {**marked(name), "stream": stream})
    assert error_of(answer, 500) == {
        "message": "the server failed on this request", "type": "server_error", "param": None, "code": "internal_error"
    }  # fmt: skip
    assert MARK not in caplog.text + answer.text
    assert "in bug\n" in caplog.text
    assert caplog.text.index("KeyError\n") < caplog.text.index("ValueError\n")
    assert f"POST {path} failed" in caplog.text


def test_a_bug_in_a_stream_that_has_begun(caplog, monkeypatch):
    with over() as http:
        generate = http.manager.generate_batch

        async def broken(*args):
            async for delta in generate(*args):
                yield delta
                raise bug()

        monkeypatch.setattr(http.manager, "generate_batch", broken)
        answer = http.complete(prompt=MARK, stream=True)
    assert answer.text.endswith('"code":"internal_error"}}\n\n')
    assert MARK not in caplog.text + answer.text
    assert "a stream failed" in caplog.text


def test_hostile_bodies_leave_nothing(caplog):
    with over() as http:
        for content in (MARK, f'{{"{MARK}"', f'["{MARK}"]', f'{{"prompt": "{MARK}" , NaN}}', '"\\ud800' + MARK,
                        "[" * 20_000 + MARK, f'{{"rid": "r", "prompt": {{"{MARK}": 1}}}}'):  # fmt: skip
            for path, _ in PATHS:
                assert http.post(path, content=content.encode()).status_code == 400
    assert MARK not in caplog.text


def test_a_grammar_plugin_that_fails_loses_its_words_too(caplog):
    def fails():
        raise RuntimeError(f"cannot go on after {MARK}")

    constraints = Constraints(1, Health(), {}, jump_forward=False)
    assert constraints._try("accept", fails) == (None, "accept() failed: RuntimeError")


def test_what_is_behind_an_error_is_bounded():
    error = None
    for i in range(100):
        error, below = ValueError(i), error
        error.__cause__ = below
    found, count = loggable(error), 0
    while found is not None:
        found, count = found.__context__, count + 1
    assert count == 17


# --- asked for --------------------------------------------------------------------------------------------------


def test_who_sets_up_other_logs_does_not_ask_for_it():
    assert not quotes()
    logging.config.dictConfig({"version": 1, "disable_existing_loggers": False})
    assert not quotes()


@pytest.fixture
def asked_for(everything_is_logged):
    everything_is_logged.set_level(logging.INFO, "rtk.requests")


@pytest.mark.usefixtures("asked_for")
def test_what_clients_send_is_logged_where_it_is_asked_for(caplog, monkeypatch):
    with over() as http:
        http.complete(prompt=MARK, cache_salt="s3cret-salt", max_tokens=1)
        monkeypatch.setattr(http.manager, "generate_batch", failing(bug()))
        http.complete(prompt="x")
    first, _ = lines(caplog, "rtk.requests")
    assert first == "/v1/completions " + json.dumps({"prompt": MARK, "max_tokens": 1})
    assert f"ValueError: what about {MARK}?" in caplog.text
    assert "s3cret" not in caplog.text


# --- a line for each request ------------------------------------------------------------------------------------


def test_a_line_for_each_request(caplog):
    with over(keys=ApiKeys([("acme", "k")])) as http:
        headers = {"Authorization": "Bearer k", "x-request-id": "mine"}
        http.run(http.request("POST", "/v1/completions?x=s3cret", {"prompt": MARK, "rid": "r\u00e9"}, headers=headers))
        http.run(http.request("POST", "/generate", {"text": "x", "rid": "g"}, headers={"x-request-id": "no key"}))
        http.run(http.request("POST", "/generate", {"text": "x", "rid": "g"}, headers={"Authorization": "Bearer k"}))
        http.run(http.request("GET", "/no%0A%1B[31mWARNING: x/" + "p" * 300, headers=headers))
    records = [record for record in caplog.records if record.name == "rtk.access"]
    found = [record.message.replace(f"{record.seconds:.3f}", "T") for record in records]
    assert found == [
        "POST /v1/completions 200 T s; r\u00e9; x-request-id mine; tenant acme",
        f"POST /generate 401 T s; x-request-id {records[1].x_request_id}",
        "POST /generate 200 T s; g; tenant acme",
        "GET /no\\n\\x1b[31mWARNING: x/" + "p" * 180 + " 404 T s; x-request-id mine; tenant acme",
    ]
    named = [record.x_request_id for record in records]
    assert (named[0], re.fullmatch("[0-9a-f]{32}", named[1]) is None, named[2:]) == ("mine", False, ["g", "mine"])
    record = records[0]
    assert (record.method, record.path, record.status, record.rid, record.tenant, record.whole) == (
        "POST", "/v1/completions", 200, "r\u00e9", "acme", True
    )  # fmt: skip
    assert "s3cret" not in caplog.text


def test_probes_that_find_all_well_are_not_worth_a_line(caplog):
    with over() as http:
        http.get("/health")
        http.fake.healthy = False
        http.get("/health")
        http.fake.healthy = True
    levels = [(record.levelname, record.status) for record in caplog.records if record.name == "rtk.access"]
    assert levels == [("DEBUG", 200), ("INFO", 503)]


def test_it_can_be_switched_off(caplog):
    with over(access_log=False) as http:
        http.complete(prompt="x")
    assert not lines(caplog)


@pytest.mark.parametrize(("stream", "status"), [(False, 499), (True, 200)])
def test_d05_a_client_that_leaves_is_one_line(caplog, stream, status):
    gate = Gate()
    with over(lambda new: iter([(A,), gate, LENGTH])) as http:
        body = json.dumps({"prompt": MARK, "stream": stream, "rid": "r"}).encode()
        scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": [], "query_string": b""}
        begun = asyncio.Event()
        sent = []

        async def receive():
            if not sent:
                sent.append(body)
                return {"type": "http.request", "body": body, "more_body": False}
            if stream:
                await begun.wait()
            else:
                await asyncio.to_thread(http.fake.wait_for, lambda f: f.running)
            return {"type": "http.disconnect"}

        async def send(message):
            begun.set()

        http.run(http.app(scope, receive, send))
    (line,) = lines(caplog)
    assert line.startswith(f"POST /v1/completions {status} ")
    assert line.endswith("; r; the client left")
    levels = {
        record.levelname for record in caplog.records if record.name.startswith("rtk") and record.levelno > logging.INFO
    }
    assert not levels


def test_no_error_of_the_inside_reaches_a_client(caplog, monkeypatch):
    """Whatever raises, and wherever."""
    with over() as http:
        for target, name in (
            (http.manager, "form"), (http.manager, "stats"), (http.manager, "cache"), (http.manager, "explain"),
            (http.manager, "explain_request"), (http.manager, "pin"), (http.manager, "unpin"), (http.manager, "flush"),
            (http.manager, "abort"), (http.manager, "check_healthy"), (http.manager, "vitals"),
        ):  # fmt: skip
            monkeypatch.setattr(target, name, lambda *_, **__: (_ for _ in ()).throw(OSError(2, MARK, f"/etc/{MARK}")))
        answers = [
            http.complete(prompt="x", regex="a"), http.get("/server_info"), http.get("/cache"), http.get("/health"),
            http.post("/cache/explain", {"text": "x"}), http.get("/requests/r/explain"), http.post("/flush_cache"),
            http.post("/cache/pin", {"name": "p", "text": "x"}), http.post("/cache/unpin", {"name": "p"}),
            http.post("/abort", {"rid": "r"}),
        ]  # fmt: skip
        for answer in answers:
            assert error_of(answer, 500)["message"] == "the server failed on this request"
    assert MARK not in caplog.text
    assert RequestError("x").retry_after_s is None
