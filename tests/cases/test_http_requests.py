"""Cases B10, B17, D07 to D10, D12, D17, D21 and J10: what is refused, how, and that nothing of it stays."""

import asyncio
import json

import msgspec
import pytest
from fake_scheduler import LENGTH, Gate, model, refusal, saying
from http_harness import InProcess, error_of
from tiny_tokenizer import BOS, byte_level, ids_of

from rtk.schedule.messages import NewRequest
from rtk.schedule.request import Request
from rtk.serve.http.fields import FIELDS, Scope

TOKENIZER = byte_level()
(A,) = ids_of(TOKENIZER, "a")
V = TOKENIZER.size


@pytest.fixture
def http():
    with InProcess(model(TOKENIZER, [A]), tokenizer=TOKENIZER) as http:
        yield http


def limited(new):
    """What the scheduler does about the length, with a context of 128."""
    length = len(new.tokens) // 4
    if length >= 128:
        problem = f"the prompt has {length} tokens; with one more for the answer it exceeds 128"
        yield refusal(new, code="context_length_exceeded", problem=problem)
    yield (A,), LENGTH


@pytest.mark.parametrize("more", [{}, {"max_tokens": 1}, {"stream": True}])
def test_b17_prompts_at_the_limit(more):
    with InProcess(limited, tokenizer=TOKENIZER) as http:
        fits = http.complete(prompt=[A] * 127, **more)
        assert fits.status_code == 200
        assert '"length"' in fits.text
        for length in (128, 129):
            error = error_of(http.complete(prompt=[A] * length, **more))
            assert error["code"] == "context_length_exceeded"
            assert str(length) in error["message"]
            assert "128" in error["message"]
        assert http.complete(prompt="x", **more).status_code == 200


def test_d07_batches_with_one_item_too_long_leave_nothing():
    def script(new):
        if len(new.tokens) // 4 >= 128:
            yield refusal(new, code="context_length_exceeded", problem="too long")
        while True:
            yield Gate()

    with InProcess(script, tokenizer=TOKENIZER) as http:
        batch = [[A]] * 4 + [[A] * 129] + [[A]] * 3
        for i in range(100):
            path, name = (("/v1/completions", "prompt"), ("/generate", "input_ids"))[i % 2]
            error = error_of(http.post(path, {name: batch, "stream": i % 3 == 0}))
            assert error["param"] == f"{name}[4]"
            assert http.manager.in_flight == 0


def test_d07_batches_with_one_invalid_item_are_not_sent():
    with InProcess(saying(A), tokenizer=TOKENIZER) as http:
        for _ in range(100):
            error_of(http.complete(prompt=[[A]] * 4 + [[V]] + [[A]] * 3))
        assert not http.fake.received


def test_d08_one_id_for_two_requests(http):
    gate = Gate()
    http.fake.script = lambda new: iter([gate, LENGTH])

    async def twice(path, body):
        first = asyncio.create_task(http.request("POST", path, body))
        await asyncio.to_thread(http.fake.wait_for, lambda f: f.running)
        second = await http.request("POST", path, body)
        assert error_of(second, 409)["code"] == "duplicate_rid"
        http.fake.open(gate)
        assert (await first).status_code == 200
        assert (await http.request("POST", path, body)).status_code == 200

    http.run(twice("/generate", {"text": "x", "rid": "r"}))
    gate.opened = False
    http.run(twice("/v1/completions", {"prompt": "x", "rid": "r"}))


@pytest.mark.parametrize("ids", [[V], [-1], [1.5], [2**40], [[1, 2], [-3]], [None], [True]])
def test_d09_ids_outside_the_vocabulary(http, ids):
    for path, name in (("/v1/completions", "prompt"), ("/generate", "input_ids")):
        for stream in (False, True):
            error = error_of(http.post(path, {name: ids, "stream": stream}))
            assert error["param"].startswith(name)
            assert f"from 0 to {V - 1}" in error["message"]
    assert not http.fake.received


def test_d09_the_last_id_is_one_and_texts_are_none(http):
    assert http.complete(prompt=[V - 1], max_tokens=1).status_code == 200
    assert http.generate(input_ids=[V - 1], sampling_params={"max_new_tokens": 1}).status_code == 200
    assert "must be a token id" in error_of(http.generate(input_ids=["7"]))["message"]
    http.complete(prompt=["7"], max_tokens=1)  # a batch of one text, as with OpenAI
    assert http.fake.prompts()[-1] == ids_of(TOKENIZER, "7")


@pytest.mark.parametrize("ids", [[V], [-1], ["7"], [1.5]])
def test_d10_stop_tokens_outside_the_vocabulary(http, ids):
    for minimum in ({}, {"min_tokens": 5}):
        error = error_of(http.complete(prompt="x", stop_token_ids=ids, **minimum))
        assert error["param"] == "stop_token_ids"
        assert "stop_token_ids[0] = " in error["message"]
    error = error_of(http.generate(text="x", sampling_params={"stop_token_ids": ids, "min_new_tokens": 5}))
    assert error["param"] == "sampling_params.stop_token_ids"


@pytest.mark.parametrize(
    "field",
    [{"token_ids_logprob": [-1]}, {"logit_bias": {str(V): 1}}, {"bad_words": [[V]]}],
    ids=lambda f: next(iter(f)),
)
def test_d10_ids_in_other_fields(http, field):
    assert error_of(http.complete(prompt="x", min_tokens=5, **field))["param"] in field


@pytest.mark.parametrize("bos", [False, True])
def test_d12_empty_prompts_get_one_answer(bos):
    tokenizer = byte_level(bos=bos)
    with InProcess(saying(A), tokenizer=tokenizer) as http:
        answers = [
            *(http.complete(prompt=prompt) for prompt in ("", [""], [], [[]], ["x", ""], [[A], []])),
            *(http.complete(prompt=prompt, echo=True, max_tokens=0, logprobs=1) for prompt in ("", [], ["x", ""])),
            *(http.generate(text=text) for text in ("", [""], [])),
            *(http.generate(input_ids=ids) for ids in ([], [[]])),
            http.chat(messages=[]),
        ]
        for answer in answers:
            assert error_of(answer)["code"] == "empty_prompt"
            assert "is empty" in answer.text
        assert not http.fake.received
        assert http.complete(prompt=" ").status_code == 200
        assert http.fake.prompts() == [([BOS] if bos else []) + ids_of(tokenizer, " ")]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "body", "place"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a\ud800"}]}, "messages[0].content"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": "text", "text": "\ud800"}]}]},
         "messages[0].content[0].text"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x", "name": "\ud800"}]},
         "messages[0].name"),
        ("/v1/completions", {"prompt": "\udfff"}, "prompt"),
        ("/v1/completions", {"prompt": ["x", "\udfff"]}, "prompt[1]"),
        ("/v1/completions", {"prompt": "x", "stop": ["a", "\ud800"]}, "stop[1]"),
        ("/generate", {"text": "\ud800"}, "text"),
        ("/generate", {"text": "x", "sampling_params": {"stop": "\ud800"}}, "sampling_params.stop[0]"),
    ],
)  # fmt: skip
def test_d17_unpaired_surrogates(http, path, body, place, stream):
    error = error_of(http.post(path, {**body, "stream": stream}))
    assert error["message"].startswith(f"{place}: unpaired surrogate U+D")
    assert not http.fake.received


def test_d17_surrogates_in_names_and_in_what_messages_quote(http):
    assert http.complete(prompt="x", max_tokens=1, **{"\ud800": 1}).status_code == 200
    assert error_of(http.complete(prompt="x", model="\ud800"), 404)["param"] == "model"
    assert error_of(http.complete(prompt="x", temperature="\ud800"))["param"] == "temperature"
    assert error_of(http.complete(prompt="x", rid="\ud800"))["param"] == "rid"
    assert http.chat(chat_template_kwargs={"x": "\ud800"}, max_tokens=1).status_code == 200  # the template prints no x


def test_d21_unknown_fields_are_ignored_and_named(http):
    answer = http.complete(prompt="x", max_tokens=1, temprature=0, metadata={})
    assert answer.status_code == 200
    assert answer.headers["x-rtk-ignored-fields"] == "temprature,metadata"


def test_d21_or_refused_with_the_nearest_name():
    with InProcess(saying(A), tokenizer=TOKENIZER, settings={"strict_fields": True}) as http:
        error = error_of(http.complete(prompt="x", temprature=0, metadata={}))
        assert (error["message"], error["code"]) == (
            'unknown field "temprature"; did you mean "temperature"?', "unknown_field"
        )  # fmt: skip
        error = error_of(http.generate(text="x", sampling_params={"zzz": 1}))
        assert error["message"] == 'unknown field "sampling_params.zzz"'
        assert http.complete(prompt="x", metadata={}).status_code == 200


@pytest.mark.parametrize(
    ("field", "value", "accepted"),
    [
        ("top_p", 0, True), ("top_p", 1, True), ("top_p", 1.0000001, False), ("top_k", 0, True), ("top_k", -1, True),
        ("top_k", V + 5, True), ("top_k", 10**30, False), ("top_k", -2, False), ("min_p", 0, True), ("min_p", 1, True),
        ("min_p", 1.01, False), ("n", 0, False), ("n", 1, True), ("n", 128, True), ("n", 129, False), ("n", 1.0, False),
        ("n", True, False), ("temperature", 0, True), ("temperature", 1e-30, True),
        ("temperature", 1001, False), ("temperature", 10**400, False), ("presence_penalty", 2, True),
        ("presence_penalty", 2.01, False), ("presence_penalty", -2, True), ("frequency_penalty", -2, True),
        ("frequency_penalty", -2.01, False), ("repetition_penalty", 2, True), ("repetition_penalty", 2.01, False),
        ("repetition_penalty", 0, False), ("repetition_penalty", 0.01, True), ("seed", 2**63 - 1, True),
        ("seed", 2**63, False), ("max_tokens", 2**31 - 1, True),
        ("max_tokens", 2**31, False), ("max_tokens", 10**30, False), ("min_tokens", 10**30, False),
    ],
)  # fmt: skip
def test_j10_edge_values(http, field, value, accepted):
    http.fake.script = saying(A)
    answer = http.complete(prompt="x", **{field: value})
    assert answer.status_code == (200 if accepted else 400), answer.text
    if not accepted:
        assert error_of(answer)["param"] == field


def test_b10_nothing_but_the_table_reaches_the_scheduler(http):
    plain = {"prompt": "x", "seed": 5, "max_tokens": 1}
    ours = {field.name for field in FIELDS if field.scope & Scope.COMPLETIONS}
    inner = {*Request.__dataclass_fields__, *NewRequest.__struct_fields__, "max_new_tokens", "stop_token"} - ours
    assert {"tenant", "tokens", "namespace", "deadline_s", "lease", "pin", "status"} <= inner
    assert http.complete(**plain).json()["usage"] == http.complete(**plain, **dict.fromkeys(inner, 1)).json()["usage"]
    first, second = http.fake.of(NewRequest)
    assert msgspec.structs.replace(second, rid=first.rid, name=first.name) == first


def test_hostile_bodies_change_nothing_for_anybody_else(http):
    bodies = [b"\x00", b"{", b'{"prompt":', b'{"prompt": 1e400}', b'{"prompt": {"a": [1,2]}}', b"[[[[]]]]", b"\xff\xfe"]
    for path in ("/v1/completions", "/v1/chat/completions", "/generate", "/abort"):
        for body in bodies * 4:
            assert 400 <= http.post(path, content=body).status_code < 500
    assert http.complete(prompt="x", max_tokens=1).status_code == 200
    assert json.loads(http.get("/health").text) == {"status": "ok"}
