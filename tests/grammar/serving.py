"""A whole engine but for its weights, with all three backends, behind HTTP and behind `Engine`."""

import asyncio

import httpx
from tiny_tokenizer import IM_END, byte_level, ids_of

from rtk import Engine
from rtk.config.load import config_from
from rtk.plugin.testing import scripted  # not its class: what steps do is tested elsewhere, with every loop
from rtk.schedule.budget import Limits
from rtk.serve.computing import Computing
from rtk.serve.http.app import create_app
from rtk.serve.runtime import Runtime, build_policies

THINKS = (
    "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    "{{ '<think>\n' if enable_thinking is not defined or enable_thinking else '<think>\n\n</think>\n\n' }}"
)
TOKENIZER = byte_level(b"</th", b"ink>", template=THINKS)
FIRST = ids_of(TOKENIZER, b"\x00")[0]
LENGTH = 512


def mumble(history):
    """A model that says anything, letters rather than what ends a text: but it must end somewhere."""
    return FIRST + (len(history) * 37 + history[-1] * 11) % 128


def says(*tokens):
    """A model that says this after any prompt, over and over; the prompt's last token is a line end, or a `|`."""
    ids = ids_of(TOKENIZER, *tokens)
    ends = ids_of(TOKENIZER, b"|", b"\n")

    def script(history):
        start = max(len(history) - 1 - history[::-1].index(end) if end in history else -1 for end in ends)
        return ids[(len(history) - 1 - start) % len(ids)]

    return script


class Serving:
    """Two doors to one engine: HTTP, and `Engine`."""

    def __init__(self, **config):
        self.script = mumble
        sizes = {"slots": 4096, "page_size": 1, "max_running": 8, "context_length": LENGTH}
        limits = Limits(context_length=LENGTH, pool_tokens=4096, page_size=1, max_running=8, max_prefill_tokens=4096)
        executor = scripted.ScriptedExecutor(lambda history: self.script(history), **sizes)
        known = (TOKENIZER.size, frozenset({IM_END}), {"temperature": 0.0}, "scripted")
        config = config_from({"model.path": "tiny", "model.thinking_end": "</think>", **config})
        self.runtime = Runtime(config, build_policies(config), Computing(executor, limits, *known), TOKENIZER)
        self.engine = Engine(runtime=self.runtime)
        self.app = create_app(self.runtime.manager)

    async def request(self, path, body):
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=self.app), base_url="http://test") as client:
            return await client.request("POST" if body else "GET", path, json=body, timeout=30)

    def run(self, *requests):
        """The answers to requests that are sent together, on the engine's loop."""

        async def all_of_them():
            return await asyncio.gather(*(self.request(path, body) for path, body in requests))

        return asyncio.run_coroutine_threadsafe(all_of_them(), self.engine._loop).result(60)

    def post(self, path, **body):
        prompt = {"/generate": {"text": "x|"}, "/v1/completions": {"prompt": "x|"}}
        chat = {"messages": [{"role": "user", "content": "hi"}]}
        return self.run((path, {**prompt.get(path, chat), **body}))[0]


def form(schema, **more):
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, **more}}
