"""The native endpoint: SGLang's shape, and the fields it takes."""

import pytest
from fake_scheduler import model, refusal, saying
from http_harness import InProcess, error_of, events
from tiny_tokenizer import IM_END, byte_level, ids_of

from rtk.schedule.messages import Finish, NewRequest

TOKENIZER = byte_level()
A, B, C = ids_of(TOKENIZER, "a", "b", "c")


@pytest.fixture
def http():
    with InProcess(model(TOKENIZER, [A, B, C]), tokenizer=TOKENIZER) as http:
        yield http


def test_a_text(http):
    body = http.generate(text="xyz", sampling_params={"max_new_tokens": 4}, rid="r").json()
    assert body == {
        "text": "abca",
        "meta_info": {
            "id": "r",
            "finish_reason": {"type": "length", "length": 4},
            "prompt_tokens": 3,
            "completion_tokens": 4,
            "cached_tokens": 2,
        },
    }


def test_ids_in_and_out(http):
    body = http.generate(input_ids=[A, B], sampling_params={"max_new_tokens": 2}, return_ids=True).json()
    assert http.fake.prompts() == [[A, B]]
    assert body["output_ids"] == [A, B]


def test_a_stream_repeats_the_text_so_far(http):
    *parts, done = events(http.generate(text="x", sampling_params={"max_new_tokens": 3}, stream=True, return_ids=True))
    assert done == "[DONE]"
    assert [(part["text"], part["output_ids"]) for part in parts] == [
        ("a", [A]),
        ("ab", [A, B]),
        ("abc", [A, B, C]),
    ]
    assert [part["meta_info"]["finish_reason"] for part in parts] == [None, None, {"type": "length", "length": 3}]


@pytest.mark.parametrize(
    ("sampling", "reason"),
    [
        ({"stop": "bc"}, {"type": "stop", "matched": "bc"}),
        ({"stop_token_ids": [B]}, {"type": "stop", "matched": B}),
        ({"max_new_tokens": 1}, {"type": "length", "length": 1}),
    ],
)
def test_finish_reasons(http, sampling, reason):
    assert http.generate(text="x", sampling_params=sampling).json()["meta_info"]["finish_reason"] == reason


def test_an_aborted_request_says_so():
    with InProcess(saying(A, finish=Finish(reason="abort")), tokenizer=TOKENIZER) as http:
        body = http.generate(text="x").json()
        assert (body["text"], body["meta_info"]["finish_reason"]["type"]) == ("a", "abort")


def test_prefill_only(http):
    body = http.generate(text="x", sampling_params={"max_new_tokens": 0}).json()
    assert (body["text"], body["meta_info"]["completion_tokens"]) == ("", 0)
    assert events(http.generate(text="x", sampling_params={"max_new_tokens": 0}, stream=True))[1:] == ["[DONE]"]


@pytest.mark.parametrize("given", [{"text": ["x", "xy"]}, {"input_ids": [[A], [A, B]]}])
def test_batches(http, given):
    sampling = {"max_new_tokens": 2}
    answers = http.generate(**given, sampling_params=sampling, rid="b").json()
    assert [answer["meta_info"]["id"] for answer in answers] == ["b-0", "b-1"]
    assert [answer["meta_info"]["prompt_tokens"] for answer in answers] == [1, 2]
    named = http.generate(**given, sampling_params=sampling, rid=["p", "q"]).json()
    assert [answer["meta_info"]["id"] for answer in named] == ["p", "q"]
    *parts, _ = events(http.generate(**given, sampling_params=sampling, stream=True))
    assert {part["index"]: part["text"] for part in parts} == {0: "ab", 1: "ab"}


def test_a_batch_of_one_is_a_list(http):
    assert len(http.generate(text=["x"], sampling_params={"max_new_tokens": 1}).json()) == 1


def test_parameters_arrive_and_end_tokens_can_be_ignored():
    with InProcess(model(TOKENIZER, [A, IM_END]), tokenizer=TOKENIZER) as http:
        given = {"max_new_tokens": 6, "min_new_tokens": 3, "ignore_eos": True, "temperature": 0, "top_k": 5, "seed": 1}
        body = http.generate(text="x", sampling_params=given).json()
        assert (body["text"], body["meta_info"]["completion_tokens"]) == ("aaa", 6)
        (new,) = http.fake.of(NewRequest)
        assert new.params.greedy
        assert (new.params.min_new_tokens, new.params.top_k, new.params.seed) == (3, 5, 1)
        assert http.generate(text="x").json()["meta_info"]["finish_reason"] == {"type": "stop", "matched": IM_END}


@pytest.mark.parametrize(
    ("body", "field", "text"),
    [
        ({}, "text", "nothing given"), ({"text": "x", "input_ids": [A]}, "text", "send either"),
        ({"text": 5}, "text", "must be a string"), ({"text": ["x", 5]}, "text[1]", "must be a string"),
        ({"text": []}, "text", "is empty"), ({"input_ids": []}, "input_ids", "is empty"),
        ({"input_ids": "x"}, "input_ids", "a list of token ids"),
        ({"input_ids": ["7"]}, "input_ids", "input_ids[0] = '7'"),
        ({"input_ids": [[A], [-1]]}, "input_ids[1]", "input_ids[1][0] = -1"),
        ({"input_ids": [[A], A]}, "input_ids[1]", "a list"),
        ({"text": "x", "sampling_params": []}, "sampling_params", "an object"),
        ({"text": "x", "sampling_params": {"top_p": 2}}, "sampling_params.top_p", "from 0 to 1"),
        ({"text": "x", "sampling_params": {"max_new_tokens": -1}}, "sampling_params.max_new_tokens", "from 0"),
        ({"text": "x", "sampling_params": {"n": 0}}, "sampling_params.n", "from 1"),
        ({"text": "x", "return_logprob": 1}, "return_logprob", "true"),
        ({"text": "x", "rid": ["a"]}, "rid", "a string"), ({"text": ["x", "y"], "rid": ["a"]}, "rid", "a list of 2"),
        ({"text": ["x", "y"], "rid": ["a", 5]}, "rid", "a list of 2"),
        ({"text": "x", "return_ids": 1}, "return_ids", "true"),
    ],
)  # fmt: skip
def test_what_is_refused(http, body, field, text):
    error = error_of(http.post("/generate", body))
    assert error["param"] == field
    assert text in error["message"]
    assert not http.fake.received


def test_ids_twice_in_one_batch(http):
    assert error_of(http.generate(text=["x", "y"], rid=["a", "a"]), 409)["code"] == "duplicate_rid"


def test_unknown_fields_are_named_with_their_place(http):
    response = http.generate(text="x", sampling_params={"max_new_tokens": 1, "max_tokens": 5}, foo=1)
    assert response.headers["x-rtk-ignored-fields"] == "foo,sampling_params.max_tokens"


def test_a_verdict_names_the_clients_field():
    with InProcess(lambda new: iter([refusal(new, problem="too long")]), tokenizer=TOKENIZER) as http:
        for stream in (False, True):
            assert error_of(http.generate(text=["x"], stream=stream))["param"] == "text[0]"
