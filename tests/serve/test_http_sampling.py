"""Sampling parameters as they reach the scheduler, several answers, and texts with what is usually left out."""

import pytest
from fake_scheduler import bundled, model, saying
from http_harness import InProcess, error_of, events
from tiny_tokenizer import IM_END, IM_START, byte_level, ids_of

from rtk.cache.key import Namespace
from rtk.schedule.messages import NewRequest

TOKENIZER = byte_level(b"b!")
A, B, C, BANG = ids_of(TOKENIZER, "a", "b", "c", b"b!")
MORE = {
    "min_p": 0.25, "repetition_penalty": 1.5, "presence_penalty": -2, "frequency_penalty": 0.5, "top_k": 3,
    "logit_bias": {"5": -100}, "include_stop_str_in_output": True, "skip_special_tokens": False,
}  # fmt: skip


@pytest.fixture
def http():
    with InProcess(saying(A, B, C), tokenizer=TOKENIZER) as http:
        yield http


def params_of(http):
    return http.fake.of(NewRequest)[-1].params


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/generate"])
def test_parameters_arrive_everywhere(http, path):
    body = {"prompt": "x"} if path == "/v1/completions" else {"text": "x"}
    body = {"messages": [{"role": "user", "content": "x"}]} if "chat" in path else body
    response = http.post(path, {**body, **({"sampling_params": MORE} if path == "/generate" else MORE)})
    assert response.status_code == 200
    assert "x-rtk-ignored-fields" not in response.headers
    assert {name: getattr(params_of(http), name) for name in MORE} == {**MORE, "logit_bias": ((5, -100.0),)}


@pytest.mark.parametrize("field", MORE)
def test_each_is_named_where_it_is_wrong(http, field):
    assert error_of(http.complete(prompt="x", **{field: []}))["param"] == field
    error = error_of(http.generate(text="x", sampling_params={field: []}))
    assert error["param"] == f"sampling_params.{field}"
    assert error["message"].startswith(f"sampling_params.{field} = []: must be ")
    assert not http.fake.received


# --- several answers --------------------------------------------------------------------------------------------


def by_number(new):
    """Each answer says its number, as often as that."""
    number = int(new.name.rpartition("-")[2]) if new.leader else 0
    return saying(*[[A, B, C][number]] * (number + 1))(new)


def test_choices_are_numbered_through():
    with InProcess(by_number, tokenizer=TOKENIZER) as http:
        body = {"prompt": ["x", "yz"], "n": 3, "rid": "r"}
        answer = http.complete(**body).json()
        assert [(c["index"], c["text"]) for c in answer["choices"]] == [*enumerate(["a", "bb", "ccc"] * 2)]
        assert [new.name for new in http.fake.of(NewRequest)] == ["r-0", "r-0-1", "r-0-2", "r-1", "r-1-1", "r-1-2"]
        assert (answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"]) == (3, 12)
        *chunks, _ = events(http.complete(**body, stream=True))
        texts = ["".join(c["choices"][0]["text"] for c in chunks if c["choices"][0]["index"] == i) for i in range(6)]
        assert texts == ["a", "bb", "ccc"] * 2


def test_a_native_batch_with_several_answers():
    with InProcess(by_number, tokenizer=TOKENIZER) as http:
        body = {"text": ["x", "yz"], "rid": ["p", "q"], "sampling_params": {"n": 2}}
        answers = http.generate(**body).json()
        assert [(one["text"], one["meta_info"]["id"]) for one in answers] == [
            ("a", "p"), ("bb", "p-1"), ("a", "q"), ("bb", "q-1"),
        ]  # fmt: skip
        *parts, _ = events(http.generate(**body, stream=True))
        assert {part["index"]: part["text"] for part in parts} == {0: "a", 1: "bb", 2: "a", 3: "bb"}
        assert len(http.generate(text="x", sampling_params={"n": 2}).json()) == 2


@pytest.mark.parametrize("size", [1, 2])
def test_roles_come_once_for_each_answer(size):
    with InProcess(bundled(model(TOKENIZER, [A, IM_END]), size), tokenizer=TOKENIZER) as http:
        *chunks, _ = events(http.chat(n=2, stream=True))
        roles = [chunk["choices"][0]["index"] for chunk in chunks if "role" in chunk["choices"][0]["delta"]]
        assert roles == [0, 1]


def test_one_request_has_so_many_answers_at_most(http):
    error = error_of(http.complete(prompt=["x", "y"], n=65))
    assert (error["param"], error["message"]) == ("n", "n: 130 answers to one request; at most 128")
    error = error_of(http.generate(text=["x", "y"], sampling_params={"n": 65}))
    assert error["param"] == "sampling_params.n"
    assert http.complete(prompt=["x", "y"], n=64).status_code == 200


def test_best_of_is_n(http):
    assert len(http.complete(prompt="x", n=2, best_of=2).json()["choices"]) == 2
    for value in (0, 129, True, 1.0):
        assert error_of(http.complete(prompt="x", best_of=value))["code"] == "invalid_request"
    for body in ({"best_of": 2}, {"n": 2, "best_of": 3}, {"n": 2, "best_of": 1}):
        error = error_of(http.complete(prompt="x", **body))
        assert (error["param"], error["code"]) == ("best_of", "not_supported")
    assert error_of(http.generate(text="x", sampling_params={"best_of": 2}))["param"] == "sampling_params.best_of"


# --- what is usually left out of texts --------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 3])
def test_special_tokens_have_text_if_asked_for(size):
    with InProcess(bundled(model(TOKENIZER, [A, IM_START, B, IM_END]), size), tokenizer=TOKENIZER) as http:
        assert http.complete(prompt="x").json()["choices"][0]["text"] == "ab"
        body = {"prompt": "x", "skip_special_tokens": False}
        assert http.complete(**body).json()["choices"][0]["text"] == "a<|im_start|>b"
        whole = http.complete(**body, include_stop_str_in_output=True).json()["choices"][0]
        assert (whole["text"], whole["finish_reason"]) == ("a<|im_start|>b<|im_end|>", "stop")
        stopped = http.complete(**body, stop="<|im_start|>").json()["choices"][0]
        assert (stopped["text"], stopped["finish_reason"]) == ("a", "stop")


@pytest.mark.parametrize("size", [1, 3])
def test_the_stop_string_stays_if_asked_for(size):
    with InProcess(bundled(model(TOKENIZER, [A, BANG, C, IM_END]), size), tokenizer=TOKENIZER) as http:
        for name in ("include_stop_str_in_output", "no_stop_trim"):
            body = {"prompt": "x", "stop": ["c", "b"], name: True}
            choice = http.complete(**body).json()["choices"][0]
            assert (choice["text"], choice["finish_reason"]) == ("ab", "stop")  # what follows it is cut off
            *chunks, _ = events(http.complete(**body, stream=True))
            assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "ab"
        native = {"stop_token_ids": [C], "no_stop_trim": True}
        answer = http.generate(text="x", sampling_params=native).json()
        assert (answer["text"], answer["meta_info"]["finish_reason"]) == ("ab!c", {"type": "stop", "matched": C})
        assert error_of(http.generate(text="x", sampling_params={"no_stop_trim": 1}))["param"] == (
            "sampling_params.no_stop_trim"
        )


# --- namespaces -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/generate"])
def test_an_extra_key_is_part_of_the_namespace(http, path):
    body = {"prompt": "x"} if path == "/v1/completions" else {"text": "x"}
    body = {"messages": [{"role": "user", "content": "x"}]} if "chat" in path else body
    for more in ({"extra_key": "a"}, {"cache_salt": "a"}, {"cache_salt": "a", "extra_key": "b"}):
        response = http.post(path, {**body, **more})
        assert "x-rtk-ignored-fields" not in response.headers
    assert [new.namespace for new in http.fake.of(NewRequest)] == [
        Namespace(None, None, "a"), Namespace(None, "a", None), Namespace(None, "a", "b"),
    ]  # fmt: skip


@pytest.mark.parametrize("value", ["", 5, [], "x" * 65_537, "\ud800"])
def test_extra_keys_that_are_none(http, value):
    assert error_of(http.generate(text="x", extra_key=value))["param"] == "extra_key"
    assert error_of(http.post("/cache/explain", {"text": "x", "extra_key": value}))["param"] == "extra_key"
