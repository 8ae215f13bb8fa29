"""The calls of whoever runs the server."""

import asyncio

import pytest
from fake_scheduler import LENGTH, Gate, saying
from http_harness import InProcess, error_of
from tiny_tokenizer import byte_level, ids_of

TOKENIZER = byte_level()
(A,) = ids_of(TOKENIZER, "a")


@pytest.fixture
def http():
    with InProcess(saying(A), tokenizer=TOKENIZER, info={"version": "1.2.3"}) as http:
        yield http


def test_health(http):
    assert http.get("/health").json() == {"status": "ok"}
    http.fake.healthy = False
    assert error_of(http.get("/health"), 503)["code"] == "engine_stopped"
    assert error_of(http.complete(prompt="x"), 503)["code"] == "engine_stopped"


def test_server_info(http):
    info = http.get("/server_info").json()
    assert info["version"] == "1.2.3"
    assert info["model"] == {
        "served_name": "tiny",
        "vocab_size": TOKENIZER.size,
        "context_length": 128,
        "default_sampling": {},
    }
    assert (info["in_flight"], info["stats"]) == (0, {"running": 0})


def test_flush_and_abort():
    gate = Gate()

    async def test():
        assert (await http.request("POST", "/flush_cache")).json() == {"freed_tokens": 7}
        running = asyncio.create_task(http.request("POST", "/generate", {"text": "x", "rid": "r"}))
        await asyncio.to_thread(http.fake.wait_for, lambda f: f.running)
        busy = await http.request("POST", "/flush_cache")
        error = error_of(busy, 409)
        assert (error["code"], error["message"]) == (
            "cache_busy",
            "the cache stays as it is: 1 requests are running or waiting",
        )
        assert (await http.request("POST", "/abort", {"rid": "r"})).json() == {"rid": "r", "aborted": True}
        assert (await running).json()["meta_info"]["finish_reason"]["type"] == "abort"
        assert (await http.request("POST", "/abort", {"rid": "r"})).json() == {"rid": "r", "aborted": False}

    with InProcess(lambda new: iter([gate, LENGTH]), tokenizer=TOKENIZER) as http:
        http.run(test())


@pytest.mark.parametrize("body", [{}, {"rid": None}, {"rid": 5}, {"rid": ""}, {"rid": ["a"]}])
def test_abort_needs_an_id(http, body):
    assert error_of(http.post("/abort", body))["param"] == "rid"
