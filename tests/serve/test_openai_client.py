"""The `openai` package against what it is told of choices, log-probabilities, echo and usage."""

import asyncio

import openai
import pytest
from fake_scheduler import bundled, model
from http_harness import MODEL, Served
from tiny_tokenizer import IM_END, byte_level, ids_of

TOKENIZER = byte_level(b"\xe6\xbc", b"\xa2")
ONE = [*ids_of(TOKENIZER, "a", b"\xe6\xbc", b"\xa2"), IM_END]
OTHER = [*ids_of(TOKENIZER, "b", "\n", "\n", "c"), IM_END]
CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "n": 2, "logprobs": True, "top_logprobs": 2}


@pytest.fixture(scope="module", params=[1, 2])
def http(request):
    """`request.param` tokens in a message."""

    def script(new):
        return bundled(model(TOKENIZER, OTHER if new.leader else ONE), request.param)(new)

    with Served(script, tokenizer=TOKENIZER) as http:
        yield http


@pytest.fixture(scope="module")
def client(http):
    with openai.OpenAI(base_url=http.base + "/v1", api_key="none", max_retries=0) as client:
        yield client


def dumped(parts):
    return [part.model_dump() for part in parts or ()]


def test_chat(client):
    answer = client.chat.completions.create(**CHAT)
    assert [choice.message.content for choice in answer.choices] == ["a漢", "b\n\nc"]
    assert answer.usage.completion_tokens == 9
    for choice in answer.choices:
        together = b"".join(bytes(entry.bytes) for entry in choice.logprobs.content)
        assert together.decode() == choice.message.content
        assert [len(entry.top_logprobs) for entry in choice.logprobs.content] == [2] * len(choice.logprobs.content)


def test_chat_that_is_streamed_and_put_together_by_the_client(client):
    whole = client.chat.completions.create(**CHAT, stop="\n\nc")
    with client.chat.completions.stream(**CHAT, stop="\n\nc", stream_options={"include_usage": True}) as stream:
        final = stream.get_final_completion()
    assert final.usage == whole.usage
    assert [choice.finish_reason for choice in final.choices] == ["stop", "stop"]
    for one, other in zip(final.choices, whole.choices, strict=True):
        assert one.message.content == other.message.content
        assert dumped(one.logprobs.content) == dumped(other.logprobs.content)


def test_chat_without_waiting(http):
    async def both():
        async with openai.AsyncOpenAI(base_url=http.base + "/v1", api_key="none", max_retries=0) as client:
            whole = await client.chat.completions.create(**CHAT)
            stream = await client.chat.completions.create(**CHAT, stream=True, stream_options={"include_usage": True})
            return whole, [chunk async for chunk in stream]

    whole, chunks = asyncio.run(both())
    assert chunks[-1].choices == []
    assert chunks[-1].usage == whole.usage
    choices = [chunk.choices[0] for chunk in chunks[:-1]]
    for index, choice in enumerate(whole.choices):
        own = [part for part in choices if part.index == index]
        assert "".join(part.delta.content or "" for part in own) == choice.message.content
        told = [entry for part in own if part.logprobs for entry in part.logprobs.content]
        assert dumped(told) == dumped(choice.logprobs.content)


def test_completions(client):
    body = {"model": MODEL, "prompt": ["x", "yz"], "n": 2, "logprobs": 1, "echo": True}
    choices = client.completions.create(**body, stream=False).choices
    assert [choice.text for choice in choices] == ["xa漢", "xb\n\nc", "yza漢", "yzb\n\nc"]
    assert choices[3].logprobs.tokens == ["y", "z", "b", "\n", "\n", "c", "<|im_end|>"]
    assert choices[3].logprobs.text_offset == [0, 1, 2, 3, 4, 5, 6]
    parts = [chunk.choices[0] for chunk in client.completions.create(**body, stream=True)]
    for choice in choices:
        own = [part for part in parts if part.index == choice.index]
        assert "".join(part.text for part in own) == choice.text
        told = [part.logprobs for part in own if part.logprobs]
        assert [token for one in told for token in one.tokens] == choice.logprobs.tokens
        assert [top for one in told for top in one.top_logprobs] == choice.logprobs.top_logprobs


def test_the_clients_name_of_a_request(client):
    answer = client.completions.create(model=MODEL, prompt="a", extra_headers={"X-Request-Id": "mine"})
    assert answer._request_id == "mine"
    assert (answer := client.completions.create(model=MODEL, prompt="a"))._request_id == answer.id


def test_scoring_of_a_prompt(client):
    answer = client.completions.create(model=MODEL, prompt="xyz", max_tokens=0, echo=True, logprobs=0)
    (choice,) = answer.choices
    assert (choice.text, answer.usage.completion_tokens) == ("xyz", 0)
    assert choice.logprobs.token_logprobs == [None, -0.5, -9.25]


def test_what_is_refused_by_name(client):
    for field, value in (("logit_bias", {"x": 1}), ("n", 0), ("logprobs", 21), ("presence_penalty", 3)):
        with pytest.raises(openai.BadRequestError) as refused:
            client.completions.create(model=MODEL, prompt="x", **{field: value})
        assert refused.value.param == field
    with pytest.raises(openai.BadRequestError, match="adapters do not exist yet"):
        client.completions.create(model=MODEL, prompt="x", extra_body={"adapter": "a"})
