"""The real scheduler in its thread, and grammars that are compiled in processes: what clients get, and what stays."""

import asyncio
import queue
import time

import pytest
from grammar_toys import BACKENDS, Beacon, Toy, script
from http_harness import error_of, events
from msgspec.structs import replace
from real_server import Real
from tiny_tokenizer import IM_END, byte_level

from rtk.grammar.manager import Chosen, GrammarSettings, start_manager
from rtk.plugin import Options
from rtk.schedule.messages import GrammarOrder, NewRequest
from rtk.serve.vocabulary import vocabulary

WAIT_S = 60


def order(*act):
    return GrammarOrder(backend="toy", kind="choice", text=script(*act))


class Served(Real):
    """A server whose requests have the grammar that is set for their prompts."""

    def __init__(self, **limits):
        toy, words = Chosen(*BACKENDS["toy"], Toy(Options())), vocabulary(byte_level(), 259, {IM_END})
        grammars = start_manager([toy], words, GrammarSettings(**{"workers": 1, **limits}), lambda: self.wake())
        super().__init__("a", "b", "c", end=False, grammars=grammars)
        self.harness.scheduler._clock = self._thread._clock = time.monotonic
        self.orders = {}
        self.sent = queue.SimpleQueue()
        self._onward, self.manager._send = self.manager._send, self._send

    def wake(self):
        self._thread.wake()

    def _send(self, message):
        if isinstance(message, NewRequest):
            message = replace(message, grammar=self.orders.get(message.tokens))
        self._onward(message)
        self.sent.put(message)

    def asks(self, *act):
        """A prompt whose answers must look like that."""
        prompt = [3 + len(self.orders), 4, 5, 6]
        self.orders[b"".join(token.to_bytes(4, "little") for token in prompt)] = order(*act)
        return prompt

    async def sent_all(self, count):
        for _ in range(count):
            await asyncio.to_thread(self.sent.get, True, WAIT_S)

    def ask_for(self, prompt, **more):
        return asyncio.create_task(self.post("/v1/completions", prompt=prompt, **{"max_tokens": 3, **more}))


@pytest.fixture
def beacon():
    one = Beacon()
    yield one
    one.close()


def run(server, test):
    with server:
        return asyncio.run(asyncio.wait_for(test(server), WAIT_S))


def test_it_is_answered_once_its_grammar_is_there_and_at_once_the_next_time(beacon):
    async def test(server):
        prompt = server.asks("wait", beacon.port)
        first = server.ask_for(prompt)
        await asyncio.to_thread(beacon.lit)
        stats = await server.stats()
        assert [stats[name] for name in ("compiling", "waiting", "running", "grammar_pending")] == [1, 0, 0, 1]
        plain = await server.ask_for([9, 9, 9, 9])
        assert plain.json()["choices"][0]["text"] == "abc"  # the scheduler did not wait for it
        assert not first.done()
        beacon.put_out()
        assert (await first).json()["choices"][0]["text"] == '["w'
        *chunks, done = events(await server.ask_for(prompt, stream=True))
        assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == '["w'
        assert done == "[DONE]"
        stats = await server.stats()
        assert [stats[name] for name in ("grammar_misses", "grammar_hits", "grammar_compiles")] == [1, 1, 1]

    run(Served(), test)


@pytest.mark.stepwise
def test_an_error_has_a_status_of_its_own_also_where_the_answer_was_to_stream():
    async def test(server):
        for stream in (False, True):
            prompt = server.asks("refuse", f"no such thing as {stream}")
            for _ in range(2):  # the second is told what the first has found out
                error = error_of(await server.ask_for(prompt, stream=stream), 400)
                assert (error["code"], error["type"]) == ("invalid_grammar", "invalid_request_error")
                assert error["message"] == f"grammar backend 'toy' cannot compile this: no such thing as {stream}"
        assert (await server.stats())["grammar_misses"] == 2

    run(Served(), test)


@pytest.mark.stepwise
def test_a_deadline_ends_it_while_nothing_else_happens(beacon):
    async def test(server):
        prompt = server.asks("loop", beacon.port)
        response = await server.ask_for(prompt, deadline_ms=50)
        assert error_of(response, 503)["code"] == "deadline_exceeded"
        stats = await server.stats()
        assert [stats[name] for name in ("compiling", "grammar_pending", "grammar_cancelled")] == [0, 0, 1]

    run(Served(), test)


@pytest.mark.stepwise
def test_a_client_that_goes_away_leaves_no_work_behind(beacon):
    async def test(server):
        prompt = server.asks("loop", beacon.port)
        clients = [server.ask_for(prompt), server.ask_for(prompt)]
        await asyncio.to_thread(beacon.lit)
        await server.sent_all(2)
        for client in clients:
            client.cancel()
        assert await asyncio.to_thread(beacon.out)

    run(Served(), test)


def test_twenty_that_take_too_long_are_refused_and_nothing_of_them_is_left(beacon):
    """Two different ones, ten times each; a stream goes on beside them."""

    async def test(server):
        prompts = [server.asks("loop", beacon.port, i) for i in range(2)]
        plain = server.ask_for([9, 9, 9, 9], stream=True, max_tokens=100)
        slow = [server.ask_for(prompt, stream=bool(i % 2)) for prompt in prompts for i in range(10)]
        assert "abcabc" in "".join(c["choices"][0]["text"] for c in events(await plain)[:-1])
        responses = await asyncio.gather(*slow)
        assert [response.status_code for response in responses] == [400] * 20
        assert {error_of(response)["code"] for response in responses} == {"grammar_timeout"}
        assert await asyncio.to_thread(beacon.out)
        stats = await server.stats()
        assert [stats[name] for name in ("grammar_timeout", "grammar_pending", "compiling")] == [2, 0, 0]

    run(Served(timeout_s=0.1), test)
