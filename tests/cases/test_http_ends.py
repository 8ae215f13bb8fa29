"""Cases D05, D06, D16 (X38) and X37: clients that leave, and requests that fail."""

import json
import time

import httpx
import pytest
from fake_scheduler import LENGTH, WAIT_S, Gate, saying
from http_harness import Served, error_of
from tiny_tokenizer import byte_level, ids_of

from rtk.cache.key import pack
from rtk.schedule.messages import Abort, Finish

TOKENIZER = byte_level()
A, B, C, X = ids_of(TOKENIZER, *"abcx")
BROKEN = Finish(reason="error", problem="non-finite logits")


def served(script):
    return Served(script, tokenizer=TOKENIZER)


def one_slot():
    """A model with room for one request: the others wait until it has ended. Only the prompt "x" comes to an end."""
    running = []

    def script(new):
        while running and running[0] != new.rid:
            yield Gate(opened=True)
        running[:] = [new.rid]
        try:
            if new.tokens != pack([X]):
                yield from [(A,), (A,), Gate()]
            yield (A,), LENGTH
        finally:
            running.clear()

    return script


@pytest.mark.parametrize("path", ["/v1/completions", "/generate"])
def test_d05_the_slot_of_a_stream_whose_client_left_is_free_within_a_second(path):
    with served(one_slot()) as http:
        body = {"prompt": "long", "text": "long", "max_tokens": 4000, "stream": True}
        with http.connection(path, body) as sock:
            seen = b""
            while seen.count(b"data: ") < 2:
                seen += sock.recv(4096)
        start = time.perf_counter()
        answer = httpx.post(http.base + "/v1/completions", json={"prompt": "x"}, timeout=WAIT_S)
        assert answer.json()["choices"][0]["text"] == "a"
        assert time.perf_counter() - start < 1
        assert len(http.fake.of(Abort)) == 1


def test_d06_and_of_a_client_that_waits_for_the_whole():
    gate = Gate()
    with served(lambda new: iter([(A,), gate, LENGTH])) as http:
        with http.connection("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}):
            http.fake.wait_for(lambda f: f.running)
        start = time.perf_counter()
        http.fake.wait_for(lambda f: f.of(Abort))
        assert time.perf_counter() - start < 1
        assert http.manager.in_flight == 0


def test_d06_a_normal_end_leaves_nothing_either():
    with served(saying(A)) as http:
        assert httpx.post(http.base + "/v1/completions", json={"prompt": "x"}, timeout=WAIT_S).status_code == 200
        assert http.manager.in_flight == 0
        assert not http.fake.of(Abort)


BODIES = {
    "/v1/completions": {"prompt": "x"}, "/v1/chat/completions": {"messages": [{"role": "user", "content": "x"}]},
    "/generate": {"text": "x"},
}  # fmt: skip


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", BODIES)
def test_x38a_a_failure_before_the_first_token_is_a_status(path, stream):
    with served(saying(finish=BROKEN)) as http:
        answer = httpx.post(http.base + path, json={**BODIES[path], "stream": stream}, timeout=WAIT_S)
        error = error_of(answer, 500)
        assert (error["message"], error["code"]) == ("non-finite logits", "generation_failed")
        assert http.manager.in_flight == 0


def stream_of(http, path, **more):
    """The events of a stream that fails: it ends within a second, and nothing says that it is done."""
    start = time.perf_counter()
    answer = httpx.post(http.base + path, json={**BODIES[path], **more, "stream": True}, timeout=WAIT_S)
    assert time.perf_counter() - start < 1
    assert "[DONE]" not in answer.text
    *parts, last = [json.loads(line[6:]) for line in answer.text.splitlines() if line]
    assert set(last) == {"error"}
    assert last["error"]["message"] == "non-finite logits"
    assert http.manager.in_flight == 0
    return parts


@pytest.mark.parametrize("ids", [(A, B, C), (A, B)])
@pytest.mark.parametrize("path", BODIES)
def test_x38bc_a_failure_after_tokens_is_an_event_and_the_end(path, ids):
    with served(saying(*ids, finish=BROKEN)) as http:
        parts = stream_of(http, path)
        assert len(parts) == len(ids) + (path == "/v1/chat/completions")  # who speaks
        reasons = [part["choices"][0] if "choices" in part else part["meta_info"] for part in parts]
        assert {part["finish_reason"] for part in reasons} == {None}


@pytest.mark.parametrize("path", list(BODIES)[:2])
def test_x38_one_of_two_answers_fails(path):
    gate = Gate()

    def script(new):
        return saying(A, B, finish=BROKEN)(new) if new.leader else iter([(A,), gate])

    with served(script) as http:
        parts = stream_of(http, path, n=2, logprobs=0 if path == "/v1/completions" else True)
        assert {part["choices"][0]["index"] for part in parts} == {0, 1}
        http.fake.wait_for(lambda f: f.of(Abort))  # the other one is not left running
        answer = httpx.post(http.base + path, json={**BODIES[path], "n": 2}, timeout=WAIT_S)
        assert error_of(answer, 500)["code"] == "generation_failed"


def test_x37_a_request_fails_alone():
    def script(new):
        return saying(A, B, finish=BROKEN if new.tokens[0] == C else LENGTH)(new)

    with served(script) as http:
        answers = [
            httpx.post(http.base + "/generate", json={"input_ids": [token]}, timeout=WAIT_S) for token in (A, C, B)
        ]
        assert [answer.status_code for answer in answers] == [200, 500, 200]
        assert [answer.json()["text"] for answer in answers[::2]] == ["ab", "ab"]
