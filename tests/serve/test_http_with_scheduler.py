"""The same server over the real scheduler and a scripted model: both sides mean the same by their messages."""

import asyncio

import pytest
from http_harness import error_of, events
from real_server import PROMPT, Real, run

from rtk.plugin import SchedulePolicy

X15 = (b"\xc3", b"\xa9\xe6", b"\xbc\xa2", b"\xf0\x9f", b"\xa7", b"\x8a")


async def both_ways(server, **body):
    """Text and reason, the same streamed and not."""
    choice = (await server.post("/v1/completions", **body)).json()["choices"][0]
    *chunks, done = events(await server.post("/v1/completions", **body, stream=True))
    assert done == "[DONE]"
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == choice["text"]
    assert chunks[-1]["choices"][0]["finish_reason"] == choice["finish_reason"]
    return choice["text"], choice["finish_reason"]


def test_characters_and_stops():
    async def test(server):
        assert await both_ways(server) == ("é漢🧊", "stop")
        assert await both_ways(server, max_tokens=4) == ("é漢\ufffd", "length")
        assert await both_ways(server, stop="漢") == ("é", "stop")
        assert await both_ways(server, stop_token_ids=[server.ids[2]]) == ("é\ufffd", "stop")
        assert await both_ways(server, ignore_eos=True, max_tokens=10) == ("é漢🧊é漢", "length")
        answer = (await server.post("/generate", sampling_params={"stop": ["x", "漢"]})).json()
        assert answer["meta_info"]["finish_reason"] == {"type": "stop", "matched": "漢"}
        assert answer["meta_info"]["cached_tokens"] == PROMPT - 1

    run(Real(*X15), test)


def test_a_stop_string_over_several_tokens():
    async def test(server):
        assert await both_ways(server, stop=["\n\nUser:"]) == ("Hello", "stop")
        assert await both_ways(server, stop=["\n\nUser: x"], max_tokens=5) == ("Hello\n\nUser: hi", "length")
        text, reason = await both_ways(server, stop=["\n\nUser:"], min_tokens=6, max_tokens=60)
        assert (text, reason) == ("Hello\n\nUser: hiHello", "stop")

    run(Real("Hello", "\n", "\nUs", "er", ": hi", end=False), test)


@pytest.mark.parametrize("length", [127, 128, 129])
def test_prompts_at_the_limit(length):
    async def test(server):
        answer = await server.post("/v1/completions", prompt=[100] * length)
        if length == 127:
            assert answer.json()["choices"][0]["finish_reason"] == "length"
            assert answer.json()["usage"]["completion_tokens"] == 1
        else:
            error = error_of(answer)
            assert (error["code"], error["param"]) == ("context_length_exceeded", "prompt")
            assert str(length) in error["message"]
            assert "128" in error["message"]

    run(Real("a", end=False), test)


@pytest.mark.parametrize(
    ("path", "body", "name"),
    [
        ("/v1/completions", {"max_tokens": 200}, "max_tokens"),
        ("/v1/completions", {"max_completion_tokens": 200}, "max_completion_tokens"),
        ("/generate", {"sampling_params": {"max_new_tokens": 200}}, "sampling_params.max_new_tokens"),
    ],
)
def test_a_refusal_calls_the_length_what_the_client_calls_it(path, body, name):
    async def test(server):
        assert error_of(await server.post(path, **body))["message"] == (
            f"prompt (4) + {name} (200) = 204 exceeds 128, the context length of this server (in tokens); "
            f"shorten the prompt or lower {name}"
        )

    run(Real("a"), test)


def test_prefill_only():
    async def test(server):
        answer = (await server.post("/generate", sampling_params={"max_new_tokens": 0})).json()
        assert (answer["text"], answer["meta_info"]["finish_reason"]) == ("", {"type": "length", "length": 0})

    run(Real("a"), test)


def test_an_aborted_request_gives_everything_back():
    async def test(server):
        server.go.clear()
        task = asyncio.create_task(server.post("/generate", rid="r", sampling_params={"max_new_tokens": 50}))
        assert await asyncio.to_thread(server.entered.wait, 10)
        assert server.manager.abort("r")
        server.go.set()
        assert (await task).json()["meta_info"]["finish_reason"]["type"] == "abort"
        again = await server.post("/generate", rid="r", sampling_params={"max_new_tokens": 5})
        assert again.json()["text"] == "aaaaa"
        stats = await server.stats()
        assert (stats["running"], stats["waiting"], stats["held"]) == (0, 0, 0)
        assert (await server.post("/flush_cache")).json()["freed_tokens"] > 0

    run(Real("a", end=False), test)


def test_the_engines_end_is_an_error_for_who_waits():
    async def test(server):
        server.go.clear()
        task = asyncio.create_task(server.post("/v1/completions", stop="zz"))
        assert await asyncio.to_thread(server.entered.wait, 10)
        server._thread.stop(timeout=0)  # asked for while the step is held, so that it is the last one
        server.go.set()
        await asyncio.to_thread(server._thread.stop)
        assert error_of(await task, 500)["message"] == "the engine shut down"
        assert error_of(await server.post("/v1/completions"), 503)["code"] == "engine_stopped"

    run(Real("a", end=False), test)


class Raises(SchedulePolicy):
    def rank(self, columns, ctx):
        raise ValueError("no order today")


def test_a_policy_that_fails_while_serving_is_named_and_no_request_is_lost():
    async def test(server):
        assert (await server.request("GET", "/health")).json() == {"status": "ok"}
        answer = (await server.post("/generate", sampling_params={"max_new_tokens": 3})).json()
        assert answer["text"] == "bbb"
        instead = {"schedule plugin 'Raises'": "order of arrival"}
        assert (await server.request("GET", "/health")).json() == {"status": "degraded", "instead": instead}
        info = (await server.request("GET", "/server_info")).json()
        (faults,) = info["plugin_faults"].values()
        assert faults == {"faults": info["stats"]["plugin_faults"], "instead": "order of arrival"}

    run(Real("b", end=False, schedule=Raises()), test)
