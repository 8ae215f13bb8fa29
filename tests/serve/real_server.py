"""The HTTP application over the real scheduler and a scripted model."""

import asyncio
import threading

import httpx
from http_harness import MODEL
from tiny_tokenizer import IM_END, byte_level, ids_of

from rtk.plugin.testing.harness import Harness
from rtk.serve.detokenizer import Detokenizer
from rtk.serve.http.app import create_app
from rtk.serve.protocol import ModelFacts
from rtk.serve.scheduler_thread import SchedulerThread
from rtk.serve.tokenizer_manager import TokenizerManager

PROMPT = 4


class Real:
    """A server whose model says `pieces` after any prompt of `PROMPT` tokens, over and over."""

    def __init__(self, *pieces, end=True, **harness):
        self.tokenizer = byte_level(*(p.encode() if isinstance(p, str) else p for p in pieces))
        self.ids = ids_of(self.tokenizer, *pieces) + [IM_END] * end
        self.entered, self.go = threading.Event(), threading.Event()
        self.go.set()
        self.harness = Harness(
            script=self._next,
            context_length=128,
            end_tokens=frozenset({IM_END}),
            match_stop=self.tokenizer.match_stop,
            **harness,
        )
        detokenizer = Detokenizer(self.tokenizer.assembler)
        self._thread = SchedulerThread(
            self.harness.scheduler, lambda messages: self.manager.deliver(detokenizer.process(messages))
        )
        facts = ModelFacts(served_name=MODEL, vocab_size=self.tokenizer.size, context_length=128)
        healthy = lambda: self._thread.healthy  # noqa: E731
        vitals = lambda: self._thread.vitals  # noqa: E731
        send = detokenizer.before(self._thread.send)
        self.manager = TokenizerManager(self.tokenizer, send, facts, healthy=healthy, vitals=vitals)
        self.app = create_app(self.manager)

    def _next(self, history):
        self.entered.set()
        assert self.go.wait(10)
        return self.ids[(len(history) - PROMPT) % len(self.ids)]

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *exc):
        self.go.set()
        self._thread.stop()
        assert self._thread.failure is None

    async def request(self, method, path, body=None):
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(app=self.app), base_url="http://localhost"
        ) as client:
            return await client.request(method, path, json=body, timeout=20)

    async def post(self, path, **body):
        prompt = {"text": "abcd"} if path == "/generate" else {"prompt": "abcd", "temperature": 0}
        return await self.request("POST", path, {**prompt, **body})

    async def ask(self, path, **body):
        """What a POST with this body, or without one a GET, is answered with; it must be no error."""
        response = await self.request("POST" if body else "GET", path, body or None)
        assert response.status_code == 200, response.text
        return response.json()

    async def beside(self, generation, method, path, body=None):
        """The answers to a generation and to what is asked after its first step, while it runs."""
        self.entered.clear()
        self.go.clear()
        generating = asyncio.create_task(self.post("/generate", **generation))
        assert await asyncio.to_thread(self.entered.wait, 10)
        asking = asyncio.create_task(self.request(method, path, body))
        while not self.manager._questions:  # until it is in the scheduler's inbox
            await asyncio.sleep(0)
        self.go.set()
        return await generating, await asking

    async def stats(self):
        return await self.manager.stats()


def run(server, test):
    with server:
        return asyncio.run(asyncio.wait_for(test(server), 20))
