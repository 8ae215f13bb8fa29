"""Cases D11, D13, D15, D24 and X37 over the real scheduler: what is told is what the model made of it, warm or cold."""

import asyncio

import numpy as np
import pytest
from http_harness import error_of, events
from real_server import Real, run

VOCAB = 259


def logits(history):
    """A model whose logits follow from the last two tokens and the length."""
    seed = hash((tuple(history[-2:]), len(history))) % 2**32
    return np.random.default_rng(seed).normal(0, 3, VOCAB).astype(np.float32)


def logprobs(history):
    values = logits(history).astype(np.float64)
    return values - np.log(np.exp(values - values.max()).sum()) - values.max()


class Scoring(Real):
    """A server whose model has a distribution."""

    def __init__(self, **harness):
        super().__init__(end=False, **harness)

    def _next(self, history):
        return logits(history)


def expected(ids):
    """The log-probability of each token after those before it, and what is most probable there."""
    rows = [logprobs(ids[:i]) for i in range(1, len(ids))]
    own = [row[token] for row, token in zip(rows, ids[1:], strict=True)]
    return own, [int(row.argmax()) for row in rows], [row.max() for row in rows]


async def scored(server, **body):
    response = await server.post("/v1/completions", **body)
    assert response.status_code == 200, response.text
    return response.json()["choices"][0], response.json()["usage"]


def check(choice, ids):
    own, _, best = expected(ids)
    told = choice["logprobs"]
    assert told["token_logprobs"][0] is None
    assert told["top_logprobs"][0] is None
    np.testing.assert_allclose(told["token_logprobs"][1:], own, atol=1e-5)
    np.testing.assert_allclose([max(top.values()) for top in told["top_logprobs"][1:]], best, atol=1e-5)


IDS = [3 + byte for byte in b"The tide comes in, and the tide goes out."]


@pytest.mark.parametrize("page_size", [1, 16])
def test_d13_a_prompt_is_scored_alike_cold_and_warm(page_size):
    async def test(server):
        body = {"prompt": IDS, "max_tokens": 0, "echo": True, "logprobs": 2}
        cold, usage = await scored(server, **body)
        assert (cold["text"], usage["completion_tokens"]) == (bytes(i - 3 for i in IDS).decode(), 0)
        check(cold, IDS)
        warm, _ = await scored(server, **body)
        assert warm == cold
        plain = await server.post("/v1/completions", prompt=IDS, max_tokens=1)
        assert plain.json()["usage"]["prompt_tokens_details"]["cached_tokens"] > 0  # it is in the cache
        longer, _ = await scored(server, **{**body, "prompt": [*IDS, *IDS[:9]]})
        check(longer, [*IDS, *IDS[:9]])
        server.harness.scheduler.check()

    run(Scoring(page_size=page_size), test)


def test_d13_of_a_batch_with_answers():
    async def test(server):
        prompts = [IDS[:7], IDS[4:15]]
        body = {"prompt": prompts, "max_tokens": 3, "echo": True, "logprobs": 1, "n": 2, "seed": 1, "temperature": 1}
        answer = (await server.post("/v1/completions", **body)).json()
        *chunks, _ = events(await server.post("/v1/completions", **body, stream=True))
        assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
        for choice in answer["choices"]:
            prompt = prompts[choice["index"] // 2]
            own = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == choice["index"]]
            assert "".join(part["text"] for part in own) == choice["text"]
            told = choice["logprobs"]["token_logprobs"]
            assert len(told) == len(prompt) + 3
            np.testing.assert_allclose(told[1 : len(prompt)], expected(prompt)[0], atol=1e-5)
            assert [
                value for part in own for value in (part["logprobs"] or {"token_logprobs": []})["token_logprobs"]
            ] == (pytest.approx(told))

    run(Scoring(), test)


def test_d13_from_some_token_on_at_the_native_endpoint():
    async def test(server):
        own, _, _ = expected(IDS)
        for start in (0, 1, 20, len(IDS) - 1, len(IDS)):
            body = {"return_logprob": True, "logprob_start_len": start, "sampling_params": {"max_new_tokens": 1}}
            answer = await server.request("POST", "/generate", {"input_ids": IDS, **body})
            told = answer.json()["meta_info"]["input_token_logprobs"]
            assert [token for _, token, _ in told] == IDS[start:]
            values = [value for value, _, _ in told if value is not None]
            np.testing.assert_allclose(values, own[max(0, start - 1) :], atol=1e-5)
        body = {"return_logprob": True, "logprob_start_len": len(IDS) + 1}
        error = error_of(await server.request("POST", "/generate", {"input_ids": IDS, **body}))
        assert error["param"] == "logprob_start_len"

    run(Scoring(), test)


def test_d11_what_the_model_made_of_it_whatever_was_cut():
    async def test(server):
        body = {"prompt": IDS, "max_tokens": 4, "logprobs": 5, "top_p": 0.1, "temperature": 1, "seed": 4}
        for stream in (False, True):
            answer = await server.post("/v1/completions", **body, stream=stream)
            assert answer.status_code == 200
            assert "NaN" not in answer.text
            assert "Infinity" not in answer.text
        choice, _ = await scored(server, **body)
        assert [len(top) for top in choice["logprobs"]["top_logprobs"]] == [5] * 4
        ids = (await server.post("/generate", text=None, input_ids=IDS, return_ids=True, sampling_params={
            "max_new_tokens": 4, "top_p": 0.1, "temperature": 1, "seed": 4})).json()["output_ids"]  # fmt: skip
        np.testing.assert_allclose(
            choice["logprobs"]["token_logprobs"], expected([*IDS, *ids])[0][len(IDS) - 1 :], atol=1e-5
        )

    run(Scoring(), test)


def test_d15_three_answers_with_one_seed():
    async def test(server):
        body = {"prompt": IDS, "n": 3, "seed": 5, "temperature": 1, "max_tokens": 6}
        first = (await server.post("/v1/completions", **body)).json()
        texts = [choice["text"] for choice in first["choices"]]
        assert len(set(texts)) == 3
        again = (await server.post("/v1/completions", **body)).json()
        assert [choice["text"] for choice in again["choices"]] == texts
        alone, _ = await scored(server, **{**body, "n": 1})
        assert alone["text"] == texts[0]
        assert first["usage"]["prompt_tokens"] == len(IDS)
        assert first["usage"]["completion_tokens"] == 18
        # one prefill: the prompt was computed once, and its last token for each answer
        assert (await server.stats())["prefill_tokens"] <= len(IDS) + 2 + 4

    run(Scoring(page_size=1), test)


def test_d13_more_tokens_than_there_is_room_for():
    async def test(server):
        choice, usage = await scored(server, prompt=IDS, ignore_eos=True)
        assert (choice["finish_reason"], usage["total_tokens"]) == ("length", 128)
        error = error_of(await server.post("/v1/completions", prompt=IDS, max_tokens=10**9))
        assert (error["code"], "max_tokens (1000000000)" in error["message"]) == ("context_length_exceeded", True)

    run(Scoring(), test)


def test_d24_an_edited_second_turn_and_a_prefix_that_was_pinned():
    async def test(server):
        one, two, edited = ([{"role": "user", "content": text}] for text in ("first", "second", "another"))
        said = [{"role": "assistant", "content": "yes"}]

        async def cached(messages):
            body = {"messages": messages, "max_tokens": 1, "temperature": 0}
            usage = (await server.ask("/v1/chat/completions", **body))["usage"]
            return usage["prompt_tokens_details"]["cached_tokens"], usage["prompt_tokens"]

        assert (await cached(one))[0] == 0
        hit, _ = await cached([*one, *said, *two])
        assert hit > 0
        again, length = await cached([*one, *said, *edited])
        assert hit < again < length  # all up to the edit
        await server.ask("/cache/pin", name="p", messages=[*one, *said, *two])
        await server.request("POST", "/flush_cache")
        assert (await cached([*one, *said, *edited]))[0] >= again - 1

    run(Real("yes", end=False, pin_budget=400), test)


@pytest.mark.parametrize(("value", "token"), [(np.nan, None), (-np.inf, None), (np.inf, 9)])
def test_x37_a_row_that_is_not_finite_fails_alone(value, token):
    peaks = {100: 5, 101: 7, 102: 9}

    class Broken(Scoring):
        def _next(self, history):
            row = np.zeros(VOCAB, np.float32)
            row[peaks[history[0]]] = 5
            if history[0] == 101:
                row[:] = -1 if value == np.inf else value
                row[9] = value
            return row

    async def test(server):
        body = {"sampling_params": {"max_new_tokens": 2, "temperature": 0}, "return_ids": True, "return_logprob": True}
        asked = [server.request("POST", "/generate", {"input_ids": [first], **body}) for first in peaks]
        answers = await asyncio.gather(*asked)
        assert [answer.json()["output_ids"] for answer in answers[::2]] == [[5, 5], [9, 9]]
        if token is None:
            assert error_of(answers[1], 500)["message"] == "non-finite logits"
            assert (await server.stats())["finished_error"] == 1
        else:
            assert answers[1].json()["output_ids"] == [token, token]
            assert answers[1].json()["meta_info"]["output_token_logprobs"][0][0] in (0.0, -9999.0)

    run(Broken(), test)


def test_keys_that_are_extra_share_nothing():
    async def test(server):
        async def cached(**keys):
            body = {"input_ids": IDS, "sampling_params": {"max_new_tokens": 1}, **keys}
            return (await server.request("POST", "/generate", body)).json()["meta_info"]["cached_tokens"]

        assert [await cached(extra_key="a"), await cached(extra_key="b"), await cached()] == [0, 0, 0]
        assert await cached(cache_salt="a") == 0
        assert await cached(cache_salt="a", extra_key="a") == 0
        assert await cached(extra_key="a") > 0

    run(Real("x", end=False), test)


def test_many_at_once_tell_the_same_as_one_alone():
    async def test(server):
        bodies = [
            {"prompt": IDS[i:], "max_tokens": 3, "logprobs": 2, "echo": i % 2 == 0, "seed": i, "temperature": 0.7}
            for i in range(8)
        ]
        together = await asyncio.gather(*(scored(server, **body) for body in bodies))
        for body, (choice, _) in zip(bodies, together, strict=True):
            alone, _ = await scored(server, **body)
            assert alone == choice

    run(Scoring(page_size=4), test)
