"""Streams and clients on real connections: when the status goes out, how a stream ends, what a departure does."""

import asyncio
import importlib.util
import json
import time
from pathlib import Path

import httpx
import openai
import pytest
from fake_scheduler import LENGTH, WAIT_S, Gate, refusal, saying
from http_harness import MODEL, Served, error_of
from tiny_tokenizer import byte_level, ids_of

from rtk.schedule.messages import Abort, Finish, NewRequest

TOKENIZER = byte_level()
A, B, C = ids_of(TOKENIZER, "a", "b", "c")
CALLS = [
    ("/v1/completions", {"prompt": "x"}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}),
    ("/generate", {"text": "x"}),
]


def served(script, **given):
    return Served(script, tokenizer=TOKENIZER, **given)


def post(http, path, body):
    return httpx.post(http.base + path, json=body, timeout=WAIT_S)


def read_until(sock, what):
    seen = b""
    while what not in seen:
        part = sock.recv(65536)
        assert part, seen
        seen += part
    return seen


def aborted_within_a_second(http):
    start = time.perf_counter()
    http.fake.wait_for(lambda f: f.of(Abort))
    assert time.perf_counter() - start < 1


# --- when things go out -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("path", "body"), CALLS)
def test_tokens_go_out_one_by_one(path, body):
    gates = [Gate(), Gate()]

    def script(new):
        yield (A,)
        yield gates[0]
        yield (B,)
        yield gates[1]
        yield LENGTH

    with served(script) as http, http.connection(path, {**body, "stream": True}) as sock:
        first = read_until(sock, b'a"')
        assert b" 200 OK" in first
        http.fake.open(gates[0])
        read_until(sock, b'b"')
        http.fake.open(gates[1])
        assert read_until(sock, b"0\r\n\r\n").count(b"data: [DONE]") == 1


def test_the_status_waits_for_the_first_token_or_an_error():
    gate = Gate()

    def script(new):
        yield gate
        yield refusal(new, status=503, code="waited_too_long")

    with served(script) as http, http.connection("/v1/completions", {"prompt": "x", "stream": True}) as sock:
        http.fake.wait_for(lambda f: f.running)
        http.fake.open(gate)
        answer = read_until(sock, b"}}")
        assert answer.startswith(b"HTTP/1.1 503")
        assert b"waited_too_long" in answer
        assert b"data:" not in answer


# --- clients that leave -----------------------------------------------------------------------------------------


def endless(new):
    yield from [(A,)] * 3000  # far more at once than a connection that is gone should be offered
    yield Gate()


@pytest.mark.parametrize(("path", "body"), CALLS)
def test_a_client_that_leaves_a_stream(path, body, caplog):
    with served(endless) as http:
        with http.connection(path, {**body, "stream": True}) as sock:
            read_until(sock, b"data: ")
        aborted_within_a_second(http)
    assert not caplog.records


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("path", "body"), CALLS)
def test_a_client_that_leaves_before_the_first_token(path, body, stream, caplog):
    gate = Gate()
    with served(lambda new: iter([gate])) as http:
        with http.connection(path, {**body, "stream": stream}):
            http.fake.wait_for(lambda f: f.running)
        aborted_within_a_second(http)
    assert not caplog.records


def test_a_client_that_leaves_a_stream_that_is_silent():
    gate = Gate()

    def script(new):
        yield (A,)
        yield gate

    with served(script) as http:
        with http.connection("/v1/completions", {"prompt": "x", "stream": True}) as sock:
            read_until(sock, b"data: ")
        aborted_within_a_second(http)


def test_a_client_that_leaves_in_the_middle_of_its_body(caplog):
    import socket

    with served(endless) as http:
        with socket.create_connection(("127.0.0.1", http.port)) as sock:
            sock.sendall(b"POST /generate HTTP/1.1\r\nHost: t\r\nContent-Length: 100\r\n\r\n{")
        assert post(http, "/health", {}).status_code == 405  # and the server goes on
    assert not caplog.records


def test_a_body_that_is_too_large_is_refused_before_it_is_read():
    import socket

    with served(endless, settings={"max_body_bytes": 1000}) as http:
        with socket.create_connection(("127.0.0.1", http.port), timeout=WAIT_S) as sock:
            sock.sendall(b"POST /generate HTTP/1.1\r\nHost: t\r\nContent-Length: 100000000\r\n\r\n{")
            assert b" 413 " in read_until(sock, b"\r\n")
        chunked = httpx.post(http.base + "/generate", content=(b"x" * 600 for _ in range(3)), timeout=WAIT_S)
        assert error_of(chunked, 413)["code"] == "body_too_large"


# --- errors inside a stream -------------------------------------------------------------------------------------


def test_an_error_after_tokens_is_the_last_event_and_closes():
    failing = saying(A, B, C, finish=Finish(reason="error", problem="non-finite logits"))
    with served(failing) as http:
        for path, body in CALLS:
            with httpx.stream("POST", http.base + path, json={**body, "stream": True}, timeout=WAIT_S) as response:
                assert response.status_code == 200
                *parts, last = [line[6:] for line in response.iter_lines() if line]
            assert json.loads(last)["error"]["message"] == "non-finite logits"
            assert json.loads(last)["error"]["type"] == "server_error"
            assert 'finish_reason":"' not in "".join(parts)


def test_a_bug_inside_a_stream_is_an_error_event_too(monkeypatch, caplog):
    gate = Gate()
    with served(lambda new: iter([(A,), gate, (B,), LENGTH])) as http:

        def broken(entry, output):
            raise KeyError("secret_name")

        with http.connection("/v1/completions", {"prompt": "x", "stream": True}) as sock:
            read_until(sock, b"data: ")
            monkeypatch.setattr("rtk.serve.http.openai.Tally.add", broken)
            http.fake.open(gate)
            answer = read_until(sock, b"0\r\n\r\n")
        assert b"the server failed on this request" in answer
        assert b"secret_name" not in answer
        assert b"[DONE]" not in answer
    assert caplog.text.count("secret_name") >= 1


# --- real clients -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def http():
    with served(saying(A, B, C)) as http:
        yield http


@pytest.fixture(scope="module")
def client(http):
    with openai.OpenAI(base_url=http.base + "/v1", api_key="none", max_retries=0) as client:
        yield client


def test_openai_client_chat(client):
    answer = client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "hi"}], max_tokens=5)
    assert answer.choices[0].message.content == "abc"
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.prompt_tokens_details.cached_tokens == 2


def test_openai_client_chat_stream(client):
    stream = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "hi"}],
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"top_k": 5, "ignore_eos": True},
    )
    chunks = list(stream)
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "abc"
    assert chunks[-1].usage.completion_tokens == 3


def test_openai_client_completions(client):
    assert client.completions.create(model=MODEL, prompt=[A, B]).choices[0].text == "abc"
    assert [c.text for c in client.completions.create(model=MODEL, prompt=["x", "y"]).choices] == ["abc", "abc"]
    stream = client.completions.create(model=MODEL, prompt="x", stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream) == "abc"


def test_openai_client_models_and_errors(client):
    assert [model.id for model in client.models.list()] == [MODEL]
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        client.models.retrieve("other")
    with pytest.raises(openai.BadRequestError, match="temperature = -1") as refused:
        client.completions.create(model=MODEL, prompt="x", temperature=-1)
    assert refused.value.param == "temperature"


def test_openai_client_error_inside_a_stream():
    failing = saying(A, finish=Finish(reason="error", problem="non-finite logits"))
    with served(failing) as http, openai.OpenAI(base_url=http.base + "/v1", api_key="none", max_retries=0) as client:
        stream = client.completions.create(model=MODEL, prompt="x", stream=True)
        assert next(stream).choices[0].text == "a"
        with pytest.raises(openai.APIError, match="non-finite logits"):
            next(stream)


def test_the_benchmarks_client(http):
    path = Path(__file__).parents[2] / "bench" / "peers" / "load.py"
    spec = importlib.util.spec_from_file_location("load", path)
    load = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(load)
    result = load.Client(http.base, MODEL).stream([A, B], 3)
    assert (result["tokens"], result["events"], result["text"]) == (3, 3, "abc")


def test_many_clients_at_once(http):
    async def all_of_them():
        async with httpx.AsyncClient(base_url=http.base, timeout=WAIT_S) as client:
            calls = [client.post(path, json={**body, "stream": i % 2 == 0}) for i in range(20) for path, body in CALLS]
            return await asyncio.gather(*calls)

    before = len(http.fake.of(NewRequest))
    answers = asyncio.run(all_of_them())
    assert {answer.status_code for answer in answers} == {200}
    assert len(http.fake.of(NewRequest)) - before == len(answers)
