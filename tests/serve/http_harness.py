"""The HTTP application over a scripted scheduler: called in process, or served on a port."""

import asyncio
import json
import socket
import threading
from contextlib import contextmanager

import httpx
import uvicorn
from fake_scheduler import WAIT_S, FakeScheduler
from tiny_tokenizer import byte_level

from rtk.serve.detokenizer import Detokenizer
from rtk.serve.http.app import create_app
from rtk.serve.http.endpoints import HttpSettings
from rtk.serve.protocol import ModelFacts
from rtk.serve.tokenizer_manager import TokenizerManager

MODEL = "tiny"


def manager_over(fake, tokenizer, **facts):
    """A manager whose scheduler is `fake`."""
    facts = {"served_name": MODEL, "vocab_size": tokenizer.size, "context_length": 128, **facts}
    detokenizer = fake.detokenizer = Detokenizer(tokenizer.assembler)
    manager = TokenizerManager(
        tokenizer,
        detokenizer.before(fake.send),
        ModelFacts(**facts),
        healthy=lambda: fake.healthy,
        vitals=lambda: fake.vitals,
    )
    fake.deliver = lambda messages: manager.deliver(detokenizer.process(messages))
    return manager


def assert_idle(manager, fake):
    """Nothing of any request is left, here or there."""
    fake.wait_for(lambda f: not f.running and not len(f.detokenizer))  # the last may not have reached it yet
    assert manager.in_flight == 0
    assert not manager._names
    assert not manager._questions


class InProcess:
    """A client without a network, all of it on one loop."""

    def __init__(self, script, *, tokenizer=None, settings=None, config=None, **facts):
        self.tokenizer = tokenizer or byte_level()
        self.fake = FakeScheduler(script)
        self.manager = manager_over(self.fake, self.tokenizer, **facts)
        self.app = create_app(self.manager, HttpSettings(**settings or {}), version="1.2.3", config=config or {})
        self._runner = asyncio.Runner()

    def __enter__(self):
        self.fake.__enter__()
        return self

    def __exit__(self, kind, *exc):
        try:
            if kind is None:
                assert_idle(self.manager, self.fake)
        finally:
            self._runner.close()
            self.fake.__exit__()

    def run(self, coroutine):
        return self._runner.run(coroutine)

    async def request(self, method, path, body=None, content=None, headers=None):
        transport = httpx.ASGITransport(app=self.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            if body is not None:
                content = json.dumps(body)  # surrogates and NaN go out as they are
            return await client.request(method, path, content=content, headers=headers)

    def post(self, path, body=None, content=None):
        return self.run(self.request("POST", path, body, content))

    def get(self, path):
        return self.run(self.request("GET", path))

    def complete(self, **body):
        return self.post("/v1/completions", body)

    def chat(self, **body):
        return self.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], **body})

    def generate(self, **body):
        return self.post("/generate", body)


class Served(InProcess):
    """The same behind uvicorn, on a port of its own."""

    def __enter__(self):
        super().__enter__()
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self.base = f"http://127.0.0.1:{self.port}"
        config = uvicorn.Config(self.app, log_level="warning", ws="none", lifespan="off", access_log=False)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._socket]})
        self._thread.start()
        return self

    def __exit__(self, *exc):
        self._server.should_exit = True
        self._thread.join(WAIT_S)
        self._socket.close()
        assert not self._thread.is_alive()
        super().__exit__(*exc)

    @contextmanager
    def connection(self, path, body):
        """A raw socket on which a request was sent."""
        content = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: test\r\nContent-Length: {len(content)}\r\n\r\n"
        with socket.create_connection(("127.0.0.1", self.port), timeout=WAIT_S) as sock:
            sock.sendall(head.encode() + content)
            yield sock


def events(response):
    """The events of a stream, parsed; the last is "[DONE]" where there is one."""
    parts = [part for part in response.text.split("\n\n") if part]
    assert all(part.startswith("data: ") for part in parts), parts
    return [part if part == "[DONE]" else json.loads(part) for part in (part[6:] for part in parts)]


def error_of(response, status=400):
    """The error that a response brings, after a look at its form."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["type"] == ("server_error" if status >= 500 else "invalid_request_error")
    return body["error"]
