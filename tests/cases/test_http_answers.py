"""Cases D02 (X16), D10, D11, D13, D14 (X33), D15, D17, D23, J01 and J10: choices, log-probabilities, scoring, usage."""

import json
import math

import pytest
from fake_scheduler import LENGTH, bundled, model, saying
from http_harness import InProcess, error_of, events
from tiny_tokenizer import IM_END, byte_level, ids_of

from rtk.schedule.draws import answer_seed
from rtk.schedule.messages import NewRequest, Output, TokenLogprobs, Verdict

TOKENIZER = byte_level()
A, B, C = ids_of(TOKENIZER, *"abc")
V = TOKENIZER.size
PATHS = ["/v1/completions", "/v1/chat/completions", "/generate"]


@pytest.fixture
def http():
    with InProcess(model(TOKENIZER, [A]), tokenizer=TOKENIZER) as http:
        yield http


def body_for(path, **more):
    prompts = {"prompt": "x"}, {"messages": [{"role": "user", "content": "hi"}]}, {"text": "x"}
    return {**prompts[PATHS.index(path)], **more}


# --- D02, X16 ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("echo", [False, True])
def test_x16_a_prompt_that_ends_inside_a_character(echo):
    x16 = byte_level(b"\xf0\x9f", b"\xa7", b"\x8a")
    prompt = ids_of(x16, "H", "i", " ", b"\xf0", b"\x9f")
    with InProcess(model(x16, [*ids_of(x16, b"\xa7", b"\x8a", "!"), IM_END]), tokenizer=x16) as http:
        whole = http.complete(prompt=prompt, echo=echo).json()["choices"][0]["text"]
        *chunks, _ = events(http.complete(prompt=prompt, echo=echo, stream=True))
        deltas = [chunk["choices"][0]["text"] for chunk in chunks]
        assert whole == "".join(deltas) == ("Hi 🧊!" if echo else "🧊!")
        assert deltas == (["Hi ", "🧊", "!", ""] if echo else ["🧊", "!", ""])


# --- D10, J01: ids outside the vocabulary -----------------------------------------------------------------------


@pytest.mark.parametrize("minimum", [{}, {"min_tokens": 5}])
@pytest.mark.parametrize(
    ("bias", "text"),
    [
        ({str(V): 1}, f"'{V}'"), ({str(V): 5}, f"'{V}'"), ({"-1": 5}, "'-1'"), ({"x": 5}, "'x'"),
        ({"3": 1e9}, "'3'"), ({"3": "1"}, "'3'"), ({"3": True}, "'3'"),
        ({str(i): 1 for i in range(301)}, "301 entries"), ([[3, 1]], "an object"),
    ],
)  # fmt: skip
def test_j01_d10_biases_that_are_refused(http, bias, text, minimum):
    for path, where in ((PATHS[0], minimum), (PATHS[1], minimum)):
        error = error_of(http.post(path, body_for(path, logit_bias=bias, **where)))
        assert error["param"] == "logit_bias"
        assert text in error["message"]
    error = error_of(http.generate(text="x", sampling_params={"logit_bias": bias}))
    assert error["param"] == "sampling_params.logit_bias"
    assert not http.fake.received


def test_j01_biases_at_the_limits(http):
    most = {str(i): (-100, 100)[i % 2] for i in range(257)} | {str(V - 1): 0.5}
    assert http.complete(prompt="x", logit_bias=most, max_tokens=1).status_code == 200
    biases = dict(http.fake.of(NewRequest)[0].params.logit_bias)
    assert (biases[0], biases[1], biases[V - 1]) == (-100.0, 100.0, 0.5)


@pytest.mark.parametrize("minimum", [{}, {"min_new_tokens": 5}])
def test_d10_ids_in_other_fields_are_refused_by_name(http, minimum):
    for field, value in (("token_ids_logprob", [-1]), ("bad_words", [[V]])):
        error = error_of(http.generate(text="x", sampling_params=minimum, **{field: value}))
        assert (error["param"], error["code"]) == (field, "not_supported")
    error = error_of(http.generate(text="x", sampling_params={"bad_words": [[V]], **minimum}))
    assert error["param"] == "sampling_params.bad_words"


# --- D11 --------------------------------------------------------------------------------------------------------


def improbable(new):
    """What a mask or a broken model may leave: no finite number but one."""
    none = (B, -math.inf), (C, math.nan)
    yield Verdict(rid=new.rid, accepted=True)
    yield Output(rid=new.rid, tokens=(A,), logprobs=(TokenLogprobs(A, -0.5, ((A, -0.5), *none)),))
    yield Output(rid=new.rid, tokens=(B,), logprobs=(TokenLogprobs(B, -math.inf, none),), finish=LENGTH)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", PATHS)
def test_d11_bodies_hold_no_value_that_is_not_finite(path, stream):
    asked = {
        PATHS[0]: {"logprobs": 5, "top_p": 0.1}, PATHS[1]: {"logprobs": True, "top_logprobs": 5, "top_p": 0.1},
        PATHS[2]: {"return_logprob": True, "top_logprobs_num": 5, "sampling_params": {"top_p": 0.1}},
    }[path]  # fmt: skip
    with InProcess(improbable, tokenizer=TOKENIZER) as http:
        answer = http.post(path, body_for(path, stream=stream, **asked))
        assert answer.status_code == 200
        assert "-9999.0" in answer.text
        assert not any(odd in answer.text for odd in ("NaN", "Infinity", "inf,"))
        for part in events(answer)[:-1] if stream else [answer.json()]:
            json.dumps(part, allow_nan=False)


# --- D13 --------------------------------------------------------------------------------------------------------


def test_d13_max_tokens_0_with_echo_and_logprobs_scores_a_prompt(http):
    answer = http.complete(prompt="abc", max_tokens=0, echo=True, logprobs=1).json()
    choice = answer["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("abc", "length")
    assert choice["logprobs"]["tokens"] == ["a", "b", "c"]
    assert choice["logprobs"]["token_logprobs"] == [None, -9.25, -0.5]
    assert choice["logprobs"]["text_offset"] == [0, 1, 2]
    assert (answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"]) == (3, 0)
    *chunks, done = events(http.complete(prompt="abc", max_tokens=0, echo=True, logprobs=1, stream=True))
    assert done == "[DONE]"
    assert [chunk["choices"][0] for chunk in chunks] == [choice]
    (params, _) = (new.params for new in http.fake.of(NewRequest))
    assert (params.max_new_tokens, params.prompt_logprobs, params.prompt_logprobs_start) == (0, 1, 0)


@pytest.mark.parametrize(
    ("value", "status"), [(0, 400), (-1, 400), (None, 200), (10**9, 200), ("5", 400), (1.0, 400), (True, 400)]
)
@pytest.mark.parametrize("path", PATHS[:2])
def test_d13_other_values_of_max_tokens(http, path, value, status):
    http.fake.script = saying(A)  # what fills the context is the scheduler's to say
    answer = http.post(path, body_for(path, max_tokens=value))
    assert answer.status_code == status
    if status == 400:
        assert error_of(answer)["param"] == "max_tokens"
    else:
        assert http.fake.of(NewRequest)[0].params.max_new_tokens == value


@pytest.mark.parametrize("value", [-1, "5", 1.5])
def test_d13_echo_allows_0_and_nothing_else(http, value):
    assert error_of(http.complete(prompt="x", echo=True, max_tokens=value))["param"] == "max_tokens"
    assert "0 only with echo = true" in error_of(http.complete(prompt="x", max_tokens=0))["message"]
    assert http.complete(prompt="x", echo=True, max_tokens=0).json()["choices"][0]["text"] == "x"


# --- D14, X33 ---------------------------------------------------------------------------------------------------

X33 = {
    "model": "tiny", "messages": [{"role": "user", "content": "hi"}], "n": 2, "seed": 3, "max_tokens": 5,
}  # fmt: skip


@pytest.mark.parametrize("size", [1, 2, 5])
def test_x33_usage_of_a_stream_comes_once_and_is_that_of_the_whole(size):
    def script(new):
        return bundled(model(TOKENIZER, [A] * 5 if new.leader else [A, IM_END]), size)(new)

    with InProcess(script, tokenizer=TOKENIZER) as http:
        whole = http.post(PATHS[1], X33).json()
        asked = {"stream": True, "stream_options": {"include_usage": True}}
        *chunks, last, done = events(http.post(PATHS[1], {**X33, **asked}))
        assert done == "[DONE]"
        assert last["choices"] == []
        assert last["usage"] == whole["usage"]
        assert last["usage"]["completion_tokens"] == 7
        prompt = len(http.fake.of(NewRequest)[0].tokens) // 4
        assert (last["usage"]["prompt_tokens"], last["usage"]["total_tokens"]) == (prompt, prompt + 7)
        assert all(chunk["usage"] is None and chunk["choices"] for chunk in chunks)
        assert [choice["finish_reason"] for choice in whole["choices"]] == ["stop", "length"]


def test_x33_stream_options_without_stream(http):
    for more in ({}, {"stream": False}):
        error = error_of(http.post(PATHS[1], {**X33, **more, "stream_options": {"include_usage": True}}))
        assert error["param"] == "stream_options"


def test_d14_prompts_of_a_batch_count_once_each(http):
    usage = http.complete(prompt=["ab", "abc"], n=3, max_tokens=2).json()["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (5, 12, 17)
    assert usage["prompt_tokens_details"] == {"cached_tokens": 3}  # of the first answer to each: 1 and 2


# --- D15 --------------------------------------------------------------------------------------------------------


def seeded(new):
    """Letters that follow from the seed; answers of different lengths."""
    turn = new.params.seed % 1000
    return model(TOKENIZER, [*[A + turn % 20, B + turn % 23] * (1 + turn % 3), IM_END])(new)


def test_d15_answers_differ_and_come_again():
    assert len({answer_seed(5, number) for number in range(3)}) == 3
    with InProcess(seeded, tokenizer=TOKENIZER) as http:
        for body in ({"prompt": "x"}, {"prompt": "x", "logprobs": 0}):
            asked = {**body, "n": 3, "seed": 5, "temperature": 1}
            choices = http.complete(**asked).json()["choices"]
            texts = [choice["text"] for choice in choices]
            assert len(set(texts)) == 3
            assert [choice["text"] for choice in http.complete(**asked).json()["choices"]] == texts
            assert http.complete(**{**asked, "n": 1}).json()["choices"][0]["text"] == texts[0]
            *chunks, done = events(http.complete(**asked, stream=True))
            assert done == "[DONE]"
            for index, text in enumerate(texts):
                own = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == index]
                assert "".join(choice["text"] for choice in own) == text
                assert [choice["finish_reason"] for choice in own if choice["finish_reason"]] == ["stop"]


# --- D16, D17, D23 ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", PATHS)
def test_d16_no_answers_are_refused(http, path, stream):
    where = {"sampling_params": {"n": 0}} if path == "/generate" else {"n": 0}
    error = error_of(http.post(path, body_for(path, stream=stream, **where)))
    assert error["param"] == ("sampling_params.n" if path == "/generate" else "n")


@pytest.mark.parametrize("size", [1, 3, 4, 10])
@pytest.mark.parametrize("path", PATHS[:2])
def test_d23_several_tokens_in_one_message(path, size):
    ids = ids_of(TOKENIZER, *"0123456789")
    with InProcess(bundled(saying(*ids), size), tokenizer=TOKENIZER) as http:
        asked = {"logprobs": 0} if path == PATHS[0] else {"logprobs": True}
        options = {"include_usage": True, "continuous_usage_stats": True}
        *chunks, usage, _ = events(http.post(path, body_for(path, stream=True, stream_options=options, **asked)))
        choices = [chunk["choices"][0] for chunk in chunks]
        told = [choice["logprobs"] or {} for choice in choices]
        names = [name for one in told for name in one.get("tokens", [e["token"] for e in one.get("content", [])])]
        assert "".join(c.get("text", c.get("delta", {}).get("content") or "") for c in choices) == "0123456789"
        assert names == [*"0123456789"]
        assert chunks[-1]["usage"] == usage["usage"]
        assert usage["usage"]["completion_tokens"] == 10


# --- J10 --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "low", "high", "beyond"),
    [
        ("min_p", 0, 1, (-0.01, 1.01)), ("top_p", 0, 1, (-0.01, 1.0000001)), ("presence_penalty", -2, 2, (-2.1, 2.1)),
        ("frequency_penalty", -2, 2, (-2.1, 2.1)), ("repetition_penalty", 1e-3, 2, (0, -1, 2.1)),
        ("top_k", -1, V + 5, (-2, 1.5)), ("n", 1, 128, (0, 129)), ("temperature", 0, 1000, (-1, 1001)),
    ],
)  # fmt: skip
def test_j10_over_both_kinds_of_endpoints(http, field, low, high, beyond):
    for value in (low, high):
        assert http.complete(prompt="x", max_tokens=1, **{field: value}).status_code == 200
        sampling = {"max_new_tokens": 1, field: value}
        assert http.generate(text="x", sampling_params=sampling).status_code == 200
    for value in beyond:
        assert error_of(http.complete(prompt="x", **{field: value}))["param"] == field
        error = error_of(http.generate(text="x", sampling_params={field: value}))
        assert error["param"] == f"sampling_params.{field}"
