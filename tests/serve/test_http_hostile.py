"""Hundreds of hostile requests while streams run: each is answered with a refusal, and the streams do not notice."""

import contextlib
import json
import logging
import socket
import threading

import httpx
import pytest
from fake_scheduler import LENGTH, WAIT_S, Gate, model, refusal
from hostile import LIMIT, all_of_them
from http_harness import Served
from tiny_tokenizer import byte_level, ids_of

HOSTILE = list(all_of_them())
STREAMS = 8
TOKENIZER = byte_level()
LETTERS = ids_of(TOKENIZER, *"abcdefgh")
TEXT = [letter * len(HOSTILE) for letter in "abcdefgh"]
"""What the streams say: a letter for each hostile request."""


@pytest.fixture
def gates():
    return [Gate() for _ in HOSTILE]


@pytest.fixture
def http(gates):
    """Streams, which are known by their salt, say a letter whenever a gate is opened; all others end soon."""
    usual = model(TOKENIZER, LETTERS)

    def script(new):
        salt = new.namespace.salt or ""
        if salt.startswith("stream"):
            yield (LETTERS[int(salt[-1])],)
            for gate in gates[1:]:
                yield gate
                yield (LETTERS[int(salt[-1])],)
            yield LENGTH
        elif (new.params.max_new_tokens or 0) > 100:
            yield refusal(new, code="context_length_exceeded", problem="too long")
        else:
            yield from usual(new)

    with Served(script, tokenizer=TOKENIZER, settings={"max_body_bytes": LIMIT}) as http:
        yield http


def read_stream(http, number, started, texts):
    body = {"prompt": "x", "stream": True, "cache_salt": f"stream{number}"}
    with httpx.stream("POST", http.base + "/v1/completions", json=body, timeout=6 * WAIT_S) as answer:
        lines = (line.removeprefix("data: ") for line in answer.iter_lines() if line)
        said = []
        for line in lines:
            if line == "[DONE]":
                texts[number] = "".join(said)
                return
            said.append(json.loads(line)["choices"][0]["text"])
            started[number].set()


def status_of(http, hostile):
    """The status of the answer; None where there is none."""
    with socket.create_connection(("127.0.0.1", http.port), timeout=WAIT_S) as sock:
        try:
            sock.sendall(hostile.sent)
            if hostile.silent:  # for the others that would be to hang up
                sock.shutdown(socket.SHUT_WR)
        except ConnectionError:
            pass  # answered before it was all there
        answer = b""
        with contextlib.suppress(ConnectionResetError):
            while part := sock.recv(1 << 16):
                answer += part
    while answer.startswith(b"HTTP/1.1 100 "):
        _, _, answer = answer.partition(b"\r\n\r\n")
    if not answer:
        return None
    assert answer.startswith(b"HTTP/1.1 "), (hostile.name, answer[:100])
    return int(answer[9:12])


def test_there_are_enough_of_them():
    assert len({hostile.name for hostile in HOSTILE}) == len(HOSTILE) >= 200


def test_hostile_requests_are_refused_and_disturb_nobody(http, gates, caplog):
    started, texts = [threading.Event() for _ in TEXT], [None] * STREAMS
    readers = [threading.Thread(target=read_stream, args=(http, i, started, texts)) for i in range(STREAMS)]
    for reader in readers:
        reader.start()
    assert all(event.wait(WAIT_S) for event in started)
    wrong = []
    for hostile, gate in zip(HOSTILE, gates, strict=True):
        status = status_of(http, hostile)
        if status not in (200, 307, None if hostile.silent else 200, *range(400, 500)):
            wrong.append((hostile.name, status))
        http.fake.open(gate)
    for reader in readers:
        reader.join(WAIT_S)
    assert not wrong, "\n".join(map(str, wrong))
    assert texts == TEXT
    assert httpx.get(http.base + "/health").json() == {"status": "ok"}
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR], caplog.text
