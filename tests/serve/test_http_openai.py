"""OpenAI's endpoints: the shapes of answers and streams, and how requests are read."""

import pytest
from fake_scheduler import LENGTH, STOP, Gate, model, refusal, saying
from http_harness import MODEL, InProcess, error_of, events
from tiny_tokenizer import byte_level, ids_of

from rtk.schedule.messages import Finish, NewRequest

TOKENIZER = byte_level()
A, B, C = ids_of(TOKENIZER, "a", "b", "c")


@pytest.fixture
def http():
    with InProcess(saying(A, B, C), tokenizer=TOKENIZER) as http:
        yield http


def sent(http):
    """The one request that reached the scheduler."""
    (new,) = http.fake.of(NewRequest)
    return new


# --- answers ----------------------------------------------------------------------------------------------------


def test_a_completion(http):
    response = http.complete(model=MODEL, prompt="xyz", max_tokens=3)
    assert response.status_code == 200
    body = response.json()
    assert body.pop("id").startswith("cmpl-")
    assert isinstance(body.pop("created"), int)
    assert body == {
        "object": "text_completion",
        "model": MODEL,
        "choices": [{"index": 0, "text": "abc", "logprobs": None, "finish_reason": "length"}],
        "usage": {
            "prompt_tokens": 3,
            "completion_tokens": 3,
            "total_tokens": 6,
            "prompt_tokens_details": {"cached_tokens": 2},
        },
    }


def test_a_chat_completion(http):
    body = http.chat(max_completion_tokens=3).json()
    assert body.pop("id").startswith("chatcmpl-")
    assert isinstance(body.pop("created"), int)
    assert body.pop("usage")["completion_tokens"] == 3
    message = {"role": "assistant", "content": "abc", "refusal": None}
    assert body == {
        "object": "chat.completion",
        "model": MODEL,
        "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": "length"}],
    }


def test_a_stream_of_completions(http):
    response = http.complete(prompt="x", stream=True)
    assert response.headers["content-type"].startswith("text/event-stream")
    *chunks, done = events(response)
    assert done == "[DONE]"
    assert {(c["object"], c["model"], c["id"]) for c in chunks} == {("text_completion", MODEL, chunks[0]["id"])}
    assert all("usage" not in chunk for chunk in chunks)
    assert [chunk["choices"] for chunk in chunks] == [
        [{"index": 0, "text": text, "logprobs": None, "finish_reason": reason}]
        for text, reason in [("a", None), ("b", None), ("c", None), ("", "length")]
    ]


def test_a_stream_of_chat(http):
    *chunks, done = events(http.chat(stream=True))
    assert done == "[DONE]"
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert [(c["choices"][0]["delta"], c["choices"][0]["finish_reason"]) for c in chunks] == [
        ({"role": "assistant", "content": ""}, None),
        ({"content": "a"}, None),
        ({"content": "b"}, None),
        ({"content": "c"}, None),
        ({}, "length"),
    ]


def test_usage_comes_once_in_a_chunk_of_its_own(http):
    *chunks, last, done = events(http.chat(stream=True, stream_options={"include_usage": True}))
    assert done == "[DONE]"
    assert all(chunk["usage"] is None and chunk["choices"] for chunk in chunks)
    assert last["choices"] == []
    assert last["usage"] == http.chat().json()["usage"]


def test_continuous_usage_counts_every_token():
    split = byte_level(b"\xc3", b"\xa9")
    ids = ids_of(split, b"\xc3", b"\xa9")
    with InProcess(saying(*ids), tokenizer=split) as http:
        options = {"include_usage": True, "continuous_usage_stats": True}
        *chunks, last, _ = events(http.complete(prompt="x", stream=True, stream_options=options))
        seen = [(chunk["choices"][0]["text"], chunk["usage"]["completion_tokens"]) for chunk in chunks]
        assert seen == [("", 1), ("é", 2), ("", 2)]
        assert last["usage"]["completion_tokens"] == 2
        plain = events(http.complete(prompt="x", stream=True))
        assert [chunk["choices"][0]["text"] for chunk in plain[:-1]] == ["é", ""]


def test_usage_of_a_batch_is_the_sum():
    def script(new):
        return saying(*([A] * (len(new.tokens) // 4)))(new)

    with InProcess(script, tokenizer=TOKENIZER) as http:
        body = http.complete(prompt=["x", "xyz"]).json()
        assert [choice["text"] for choice in body["choices"]] == ["a", "aaa"]
        assert [choice["index"] for choice in body["choices"]] == [0, 1]
        assert (body["usage"]["prompt_tokens"], body["usage"]["completion_tokens"]) == (4, 4)
        options = {"include_usage": True}
        *chunks, last, _ = events(http.complete(prompt=["x", "xyz"], stream=True, stream_options=options))
        assert last["usage"] == body["usage"]
        texts = ["".join(c["choices"][0]["text"] for c in chunks if c["choices"][0]["index"] == i) for i in (0, 1)]
        assert texts == ["a", "aaa"]


@pytest.mark.parametrize(("finish", "reason"), [(STOP, "stop"), (LENGTH, "length"), (Finish(reason="abort"), "abort")])
def test_finish_reasons(finish, reason):
    with InProcess(saying(A, finish=finish), tokenizer=TOKENIZER) as http:
        assert http.complete(prompt="x").json()["choices"][0]["finish_reason"] == reason
        assert http.chat().json()["choices"][0]["finish_reason"] == reason


def test_models(http):
    (listed,) = http.get("/v1/models").json()["data"]
    assert (listed["id"], listed["object"], listed["max_model_len"]) == (MODEL, "model", 128)
    assert http.get(f"/v1/models/{MODEL}").json() == listed
    assert error_of(http.get("/v1/models/org/other"), 404)["code"] == "model_not_found"


def test_a_served_name_may_have_slashes():
    with InProcess(saying(A), tokenizer=TOKENIZER, served_name="org/name") as http:
        assert http.get("/v1/models/org/name").json()["id"] == "org/name"
        assert http.complete(model="org/name", prompt="x").json()["model"] == "org/name"


# --- requests ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("ab", [[A, B]]), ([A, B], [[A, B]]), (["a", "b"], [[A], [B]]), ([[A], [B, C]], [[A], [B, C]]),
        (["7"], [ids_of(TOKENIZER, "7")]),
    ],
)  # fmt: skip
def test_prompts(http, prompt, prompts):
    assert http.complete(prompt=prompt).status_code == 200
    assert sorted(http.fake.prompts()) == sorted(prompts)


@pytest.mark.parametrize(
    ("prompt", "field", "text"),
    [
        (None, "prompt", "prompt is missing"), (5, "prompt", "must be a string"), ({}, "prompt", "must be a string"),
        ([A, "b"], "prompt", "prompt[1] = 'b'"), (["a", 1], "prompt[1]", "must be a string, like prompt[0]"),
        ([[A], "b"], "prompt[1]", "must be a list of token ids, like prompt[0]"),
        ([None], "prompt", "prompt[0] = None"),
        ([[A], [[B]]], "prompt[1]", "prompt[1][0]"), ([True], "prompt", "prompt[0] = True"),
        (["x"] * 129, "prompt", "129 prompts in one request; at most 128"),
    ],
)  # fmt: skip
def test_prompts_of_the_wrong_kind(http, prompt, field, text):
    error = error_of(http.complete(prompt=prompt))
    assert error["param"] == field
    assert text in error["message"]
    assert not http.fake.received


def test_sampling_parameters_arrive(http):
    http.complete(
        prompt="x", temperature=0.5, top_p=0.25, top_k=7, seed=3, max_tokens=9, min_tokens=2, ignore_eos=True,
        stop=["u", "v"], stop_token_ids=[A], user="me", n=1,
    )  # fmt: skip
    params = sent(http).params
    assert (params.temperature, params.top_p, params.top_k, params.seed) == (0.5, 0.25, 7, 3)
    assert (params.max_new_tokens, params.min_new_tokens, params.ignore_eos) == (9, 2, True)
    assert (params.stop, params.stop_token_ids) == (("u", "v"), (A,))


def test_null_is_absent(http):
    names = ("temperature", "top_p", "top_k", "seed", "max_tokens", "min_tokens", "stop", "stop_token_ids", "stream")
    http.complete(prompt="x", model=None, **dict.fromkeys(names))
    assert sent(http).params.max_new_tokens is None
    assert sent(http).params.temperature == 1.0


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
@pytest.mark.parametrize("value", [0, -1, "5", 1.0, True, [5], 2**31])
def test_lengths_count_from_one(http, name, value):
    error = error_of(http.chat(**{name: value}))
    assert error["param"] == name
    assert error["message"].startswith(f"{name} = {value!r}: must be an integer from 1 to 2147483647")


def test_two_lengths_must_agree(http):
    assert http.chat(max_tokens=5, max_completion_tokens=5).status_code == 200
    assert "differ" in error_of(http.chat(max_tokens=5, max_completion_tokens=6))["message"]


def test_messages_name_the_clients_fields(http):
    assert (
        "min_tokens = 6: must be at most max_completion_tokens = 5"
        in (error_of(http.chat(min_tokens=6, max_completion_tokens=5))["message"])
    )
    assert error_of(http.chat(min_tokens=-1))["param"] == "min_tokens"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("stream", "yes"), ("stream", 1), ("model", 5), ("user", 5), ("temperature", "0.5"), ("top_p", 1.1),
        ("top_k", -2),
        ("seed", 1.5), ("stop", 5), ("stop_token_ids", "5"), ("ignore_eos", 1), ("stream_options", []), ("rid", 5),
        ("rid", ""), ("chat_template_kwargs", []),
    ],
)  # fmt: skip
def test_values_of_the_wrong_kind(http, field, value):
    assert error_of(http.chat(**{field: value}))["param"] == field
    assert not http.fake.received


def test_stream_options(http):
    assert error_of(http.chat(stream_options={"include_usage": True}))["param"] == "stream_options"
    error = error_of(http.chat(stream=True, stream_options={"include_usage": 1}))
    assert error["param"] == "stream_options.include_usage"
    response = http.chat(stream=True, stream_options={"include_obfuscation": False, "include_usage": None})
    assert response.headers["x-rtk-ignored-fields"] == "stream_options.include_obfuscation"


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_another_model_does_not_exist(http, path):
    body = {"model": "gpt", "prompt": "x", "messages": [{"role": "user", "content": "x"}]}
    error = error_of(http.post(path, body), 404)
    assert (error["code"], error["param"]) == ("model_not_found", "model")
    assert MODEL in error["message"]


# --- messages ---------------------------------------------------------------------------------------------------


def rendered(http):
    return TOKENIZER._backend.decode(http.fake.prompts()[0], skip_special_tokens=False)


def test_text_parts_are_joined_by_line_ends(http):
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    http.chat(messages=[{"role": "user", "content": parts}])
    assert rendered(http).startswith("<|im_start|>user\na\nb<|im_end|>")


def test_developers_rank_like_the_system(http):
    http.chat(messages=[{"role": "developer", "content": "x"}, {"role": "user", "content": "y"}])
    assert rendered(http).startswith("<|im_start|>system\nx")


@pytest.mark.parametrize(
    ("message", "field"),
    [
        ("hi", "messages[1]"), ({"content": "x"}, "messages[1].role"),
        ({"role": "king", "content": "x"}, "messages[1].role"),
        ({"role": ["user"], "content": "x"}, "messages[1].role"),
        ({"role": "tool", "content": "x"}, "messages[1].tool_call_id"),
        ({"role": "function", "name": "f", "content": "x"}, "messages[1].role"),
        ({"role": "user"}, "messages[1].content"), ({"role": "user", "content": None}, "messages[1].content"),
        ({"role": "user", "content": 5}, "messages[1].content"),
        ({"role": "user", "content": ["x"]}, "messages[1].content[0]"),
        ({"role": "user", "content": [{"type": "image_url"}]}, "messages[1].content[0].type"),
        ({"role": "user", "content": [{"type": "text"}]}, "messages[1].content[0].text"),
        ({"role": "user", "content": "x", "name": 5}, "messages[1].name"),
        ({"role": "assistant", "content": "x", "tool_calls": [{}]}, "messages[1].tool_calls[0]"),
    ],
)  # fmt: skip
def test_messages_that_cannot_be_used(http, message, field):
    error = error_of(http.chat(messages=[{"role": "user", "content": "x"}, message]))
    assert error["param"] == field
    assert not http.fake.received


def test_harmless_and_unknown_parts_of_messages(http):
    message = {"role": "assistant", "content": "x", "tool_calls": [], "refusal": None, "audio": None}
    response = http.chat(messages=[message])
    assert response.status_code == 200
    assert response.headers["x-rtk-ignored-fields"] == "messages%5B0%5D.refusal"


@pytest.mark.parametrize(
    ("messages", "text"), [(None, "messages is missing"), ({}, "must be a list"), ("x", "must be")]
)
def test_messages_must_be_a_list(http, messages, text):
    assert text in error_of(http.chat(messages=messages))["message"]


def test_template_variables():
    tokenizer = byte_level(template="{{ messages[0].content }}{{ enable_thinking }}")
    with InProcess(saying(A), tokenizer=tokenizer) as http:
        http.chat(chat_template_kwargs={"enable_thinking": False, "messages": []})
        assert tokenizer.decode(http.fake.prompts()[0]) == "hiFalse"


def test_a_model_without_a_template_points_to_completions():
    with InProcess(saying(A), tokenizer=byte_level(template=None)) as http:
        assert error_of(http.chat())["code"] == "no_chat_template"


# --- refusals after the body was read ---------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
def test_a_verdict_is_a_status(stream):
    def script(new):
        yield refusal(new, status=503, code="queue_full", problem="2 requests wait already", where=None)

    with InProcess(script, tokenizer=TOKENIZER) as http:
        response = http.complete(prompt="x", stream=stream)
        error = error_of(response, 503)
        assert (error["code"], error["message"], error["param"]) == ("queue_full", "2 requests wait already", None)
        assert response.headers["retry-after"] == "1"


def test_a_stop_string_cuts_the_text_and_the_stream_alike():
    ids = ids_of(TOKENIZER, *"ab c")
    with InProcess(model(TOKENIZER, ids), tokenizer=TOKENIZER) as http:
        for stop, text in (("b c", "a"), ([" c", "c"], "ab"), ("zz", "ab cab c")):
            whole = http.complete(prompt="x", stop=stop, max_tokens=8).json()["choices"][0]
            chunks = events(http.complete(prompt="x", stop=stop, max_tokens=8, stream=True))[:-1]
            assert whole["text"] == "".join(chunk["choices"][0]["text"] for chunk in chunks) == text
            assert whole["finish_reason"] == chunks[-1]["choices"][0]["finish_reason"]


def test_an_id_of_the_clients_own(http):
    body = http.complete(prompt="x", rid="mine").json()
    assert body["id"] == "mine"
    gate = Gate()
    http.fake.script = lambda new: iter([gate, LENGTH])

    async def twice():
        import asyncio

        first = asyncio.create_task(http.request("POST", "/v1/completions", {"prompt": "x", "rid": "mine"}))
        await asyncio.to_thread(http.fake.wait_for, lambda f: f.running)
        second = await http.request("POST", "/v1/completions", {"prompt": "x", "rid": "mine"})
        http.fake.open(gate)
        return await first, second

    first, second = http.run(twice())
    assert first.status_code == 200
    assert error_of(second, 409)["code"] == "duplicate_rid"
