"""What may come in: bodies that are none, fields that do not work yet, fields that nobody knows."""

import json

import pytest
from fake_scheduler import saying
from http_harness import InProcess, error_of
from tiny_tokenizer import byte_level, ids_of

from rtk.serve.http.fields import FIELDS, IGNORED_HEADER, Kind, Scope

TOKENIZER = byte_level()
(A,) = ids_of(TOKENIZER, "a")
PATHS = ("/v1/completions", "/v1/chat/completions", "/generate", "/abort")


@pytest.fixture(scope="module")
def http():
    with InProcess(saying(A), tokenizer=TOKENIZER, settings={"max_body_bytes": 200_000}) as http:
        yield http


def body_for(path, **more):
    prompt = {
        "/v1/completions": {"prompt": "x"},
        "/v1/chat/completions": {"messages": [{"role": "user", "content": "x"}]},
        "/generate": {"text": "x"},
    }
    return {**prompt[path], **more}


# --- bodies -----------------------------------------------------------------------------------------------------

DEEP = 100_000


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("content", "status", "text"),
    [
        (b"", 400, "no JSON"), (b"prompt=x", 400, "no JSON"), (b'{"prompt": "x"', 400, "no JSON"),
        (b'{"prompt": "x"} {}', 400, "no JSON"), (b"[]", 400, "must be a JSON object"), (b'"x"', 400, "JSON object"),
        (b"null", 400, "JSON object"), (b'{"prompt": "\xff"}', 400, "no UTF-8: byte 0xff at 12"),
        (b"\xef\xbb\xbf{}", 400, "no JSON"), ('{"prompt": "x"}'.encode("utf-16"), 400, "no UTF-8"),
        (b'{"temperature": NaN}', 400, "NaN is no JSON number"),
        (b'{"temperature": -Infinity}', 400, "-Infinity is no JSON number"),
        (b'{"seed": ' + b"9" * 5000 + b"}", 400, "too many digits"), (b'{"a":' * DEEP, 413, "exceeds 200000 bytes"),
        (b"[" * DEEP, 400, "nested too deeply"),
        (b'{"a":' + b"[" * DEEP + b"]" * (DEEP - 10), 400, "nested too deeply"),
        (b" " * 200_001, 413, "exceeds 200000 bytes"),
    ],
    ids=lambda value: repr(value[:16]) if isinstance(value, bytes) else "",
)  # fmt: skip
def test_bodies_that_are_none(http, path, content, status, text):
    error = error_of(http.post(path, content=content), status)
    assert text in error["message"]
    assert error["code"] in ("invalid_body", "body_too_large")


@pytest.mark.parametrize("path", PATHS)
def test_numbers_that_overflow_to_infinity(http, path):
    if path != "/abort":
        where = b'"sampling_params": {"temperature": 1e999}' if path == "/generate" else b'"temperature": 1e999'
        content = json.dumps(body_for(path)).encode()[:-1] + b", " + where + b"}"
        assert "temperature = inf" in error_of(http.post(path, content=content))["message"]


@pytest.mark.parametrize("field", ["temperature", "stop", "seed", "stream", "rid", "foo"])
def test_values_nested_deeply_but_not_too_deeply(http, field):
    nested = "[" * 600 + "]" * 600
    content = json.dumps(body_for("/v1/completions"))[:-1] + f', "{field}": {nested}}}'
    response = http.post("/v1/completions", content=content.encode())
    assert response.status_code == (200 if field == "foo" else 400)
    assert len(response.text) < 400 or field == "foo"


def test_messages_and_variables_nested_deeply(http):
    nested = "[" * 600 + "]" * 600
    for part in (f'"content": {nested}', f'"content": "x", "name": {nested}'):
        content = f'{{"messages": [{{"role": "user", {part}}}]}}'
        assert error_of(http.post("/v1/chat/completions", content=content.encode()))["param"].startswith("messages[0].")
    content = json.dumps(body_for("/v1/chat/completions"))[:-1] + f', "chat_template_kwargs": {{"x": {nested}}}}}'
    assert http.post("/v1/chat/completions", content=content.encode()).status_code == 200


def test_long_values_make_short_messages(http):
    error = error_of(http.complete(prompt="x", temperature="y" * 100_000))
    assert len(error["message"]) < 200


@pytest.mark.parametrize(("method", "path"), [("GET", "/generate"), ("PUT", "/v1/completions"), ("POST", "/health")])
def test_methods_that_are_not_there(http, method, path):
    response = http.run(http.request(method, path))
    error = error_of(response, 405)
    assert error["code"] == "method_not_allowed"
    assert error["message"] == f"method not allowed: {method} {path}; it takes {response.headers['allow']}"
    assert response.headers["allow"]


def test_paths_that_are_not_there(http):
    error = error_of(http.get("/v2/completions"), 404)
    message = "unknown path: GET /v2/completions; /openapi.json lists those that there are"
    assert (error["code"], error["message"]) == ("unknown_path", message)


def test_a_bug_is_a_500_with_a_traceback_in_the_log_and_nothing_of_it_in_the_body(http, monkeypatch, caplog):
    def broken(*args):
        raise KeyError("secret_name")

    monkeypatch.setattr(http.manager, "_reserve", broken)
    for stream in (False, True):
        error = error_of(http.complete(prompt="x", stream=stream), 500)
        assert error == {
            "message": "the server failed on this request",
            "type": "server_error",
            "param": None,
            "code": "internal_error",
        }
    assert caplog.text.count("Traceback") == 2
    assert "secret_name" in caplog.text


# --- fields that do not work yet --------------------------------------------------------------------------------

ASKS = {
    "bad_words": ["x"], "allowed_token_ids": [1], "token_ids_logprob": [1], "suffix": "x", "typical_p": 0.5,
    "functions": [{}], "function_call": {"name": "f"}, "guided_whitespace_pattern": "x", "guided_decoding_backend": "x",
    "lora": "a", "lora_path": "a", "adapter": "a", "stop_regex": "x", "num_beams": 2, "no_repeat_ngram_size": 2,
    "session_params": {}, "input_embeds": [[0.5]], "prompt_embeds": "x", "image_data": "x", "logits_processors": ["x"],
    "use_beam_search": True, "length_penalty": 0.5, "modalities": ["text", "audio"], "audio": {},
    "chat_template": "x", "reasoning_effort": "low", "truncate_prompt_tokens": 5,
}  # fmt: skip

ASKS_NOTHING = {
    "bad_words": [], "token_ids_logprob": [], "functions": [], "function_call": "none", "typical_p": 1.0,
    "use_beam_search": False, "num_beams": 1, "length_penalty": 1, "modalities": ["text"],
    "spaces_between_special_tokens": True,
}  # fmt: skip


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/generate"])
@pytest.mark.parametrize("name", ASKS)
def test_what_does_not_work_yet_is_refused(http, path, name):
    error = error_of(http.post(path, body_for(path, **{name: ASKS[name]})))
    assert error["message"].startswith(f'"{name}" is not supported yet; ')
    assert (error["param"], error["code"]) == (name, "not_supported")


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("adapter", "adapters do not exist yet"), ("lora_path", "adapters do not exist yet"),
        ("use_beam_search", "there is no beam search; n samples several answers"),
        ("num_beams", "there is no beam search; n samples several answers"),
        ("input_embeds", "prompts are texts, token ids or messages"),
        ("prompt_embeds", "prompts are texts, token ids or messages"), ("image_data", "prompts and answers are texts"),
        ("bad_words", "logit_bias keeps single tokens out"), ("reasoning_effort", "leave it out"),
    ],
)  # fmt: skip
def test_a_refusal_says_what_is_possible(http, name, instead):
    asked = {"prompt": "x", name: ASKS.get(name, "x")}
    assert error_of(http.complete(**asked))["message"] == f'"{name}" is not supported yet; {instead}'


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/generate"])
def test_what_asks_for_nothing_passes(http, path):
    later = [field.name for field in FIELDS if field.kind is Kind.LATER and field.scope & Scope.CHAT]
    for fields in (ASKS_NOTHING, dict.fromkeys(later)):
        response = http.post(path, body_for(path, **fields))
        assert response.status_code == 200
        assert IGNORED_HEADER not in response.headers


def test_true_is_not_one_and_zero_is_not_false(http):
    for name, value in (("n", True), ("logprobs", True), ("echo", 0), ("priority", False), ("n", "1"), ("n", 0)):
        assert error_of(http.complete(prompt="x", **{name: value}))["param"] == name
    assert error_of(http.complete(prompt="x", num_beams=True))["code"] == "not_supported"


def test_inside_sampling_params_too(http):
    error = error_of(http.generate(text="x", sampling_params={"typical_p": 0.5}))
    assert (error["param"], error["message"][:44]) == (
        "sampling_params.typical_p",
        '"sampling_params.typical_p" is not supported',
    )


# --- fields that nobody knows -----------------------------------------------------------------------------------


def test_names_are_encoded_and_their_number_is_bounded(http):
    odd = {"a,b": 1, "ü\n": 2, "\ud800": 3, "x" * 5000: 4}
    header = http.complete(prompt="x", **odd).headers[IGNORED_HEADER]
    assert header == "a%2Cb,%C3%BC%0A,%3F," + "x" * 64
    many = {f"field{i}": i for i in range(10_000)}
    header = http.complete(prompt="x", **many).headers[IGNORED_HEADER]
    assert header.endswith("field15,...")


def test_streams_and_chats_name_them_too(http):
    assert http.complete(prompt="x", stream=True, foo=1).headers[IGNORED_HEADER] == "foo"
    assert http.chat(foo=None).headers[IGNORED_HEADER] == "foo"
    assert http.chat(store=True, metadata={}).headers[IGNORED_HEADER] == "store,metadata"


def test_fields_of_another_endpoint_are_unknown_here(http):
    assert http.chat(prompt="x", text="y").headers[IGNORED_HEADER] == "prompt,text"


def test_the_table_names_a_field_once_for_each_place():
    places = [(field.name, scope) for field in FIELDS for scope in Scope if field.scope & scope]
    assert len(set(places)) == len(places)
