"""A whole engine but for its weights, with all three backends: what clients get who ask for a form."""

import json
import re

import jsonschema
import pytest
from http_harness import error_of, events
from serving import FIRST, Serving, form, mumble, says

from rtk.errors import RequestError
from rtk.serve.http.fields import Ignored
from rtk.serve.http.forms import read_form

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 2},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
KG = {
    "type": "object",
    "properties": {"kg": {"type": "integer", "minimum": 0, "maximum": 9}},
    "required": ["kg"],
    "additionalProperties": False,
}
ENUM = {"enum": ["red", "green"]}
NODE = {"type": "object", "properties": {"next": {"$ref": "#"}}, "additionalProperties": False}
"""Recursive: outlines refuses it."""


@pytest.fixture(scope="module")
def serving():
    one = Serving(**{"grammar.compile_workers": 1})
    yield one
    one.engine.close()


@pytest.fixture(autouse=True)
def script(request):
    if "serving" in request.fixturenames:
        request.getfixturevalue("serving").script = mumble


@pytest.mark.parametrize("backend", ["xgrammar", "llguidance", "outlines"])
def test_every_backend_keeps_a_schema(backend, serving):
    params = {"json_schema": PERSON, "grammar_verify": True, "max_new_tokens": 300}
    if backend == "xgrammar":  # whose process takes long to start; it is what auto takes
        answer = serving.engine.generate("x|", params)
    else:
        with Serving(**{"grammar.backend": backend, "grammar.compile_workers": 1}).engine as engine:
            answer = engine.generate("x|", params)
    assert (answer.form.order.backend, answer.finish.reason, answer.verified) == (backend, "stop", True)
    jsonschema.validate(json.loads(answer.text), PERSON)
    assert answer.content == answer.text


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/generate"])
def test_the_answer_says_who_saw_to_it_and_how_far(serving, path):
    place = {"sampling_params": {"json_schema": ENUM}} if path == "/generate" else {"response_format": form(ENUM)}
    chat = {"chat_template_kwargs": {"enable_thinking": False}} if "chat" in path else {}
    response = serving.post(path, **place, **chat)
    assert response.headers["x-rtk-grammar"].split("; ")[0] == "xgrammar"
    body = response.json()
    if path == "/generate":
        assert body["text"] in ('"red"', '"green"')
        grammar = body["rtk"]["grammar"]
        assert (grammar["backend"], "verified" in grammar) == ("xgrammar", False)
        assert response.headers["x-rtk-grammar"] == f"xgrammar; {grammar['verdict']}"
        assert bool(grammar["reasons"]) == (grammar["verdict"] == "narrowed")
    else:
        (choice,) = body["choices"]
        assert choice.get("text", choice.get("message", {}).get("content")) in ('"red"', '"green"')
        assert choice["finish_reason"] == "stop"
        assert "rtk" not in choice


@pytest.mark.parametrize(
    ("fields", "allowed"),
    [
        ({"guided_json": ENUM}, {'"red"', '"green"'}),
        ({"guided_json": json.dumps(ENUM)}, {'"red"', '"green"'}),
        ({"guided_choice": ["yes", "no"]}, {"yes", "no"}),
        ({"guided_regex": "(ab){2}"}, {"abab"}),
        ({"guided_grammar": 'root ::= "x" y\ny ::= "z" | "zz"'}, {"xz", "xzz"}),
        ({"structured_outputs": {"choice": ["yes", "no"], "json": None}}, {"yes", "no"}),
        ({"structured_outputs": {"regex": "ab", "disable_any_whitespace": False}}, {"ab"}),
        ({"regex": "a|b"}, {"a", "b"}),
        ({"ebnf": 'root ::= "a"'}, {"a"}),
        ({"choice": ["a"]}, {"a"}),
        ({"response_format": {"type": "regex", "pattern": "a"}}, {"a"}),
        ({"response_format": {"type": "grammar", "grammar": 'root ::= "a"'}}, {"a"}),
        ({"response_format": {"type": "choice", "choices": ["a"]}}, {"a"}),
        ({"response_format": {"type": "json_object", "schema": ENUM}}, {'"red"', '"green"'}),
        ({"response_format": {"type": "text"}, "regex": "a"}, {"a"}),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_every_field_that_asks_for_a_form(serving, fields, allowed):
    (choice,) = serving.post("/v1/completions", max_tokens=30, **fields).json()["choices"]
    assert choice["text"] in allowed
    assert serving.post("/generate", sampling_params=fields).json()["text"] in allowed
    assert serving.post("/generate", **fields).json()["text"] in allowed


@pytest.mark.parametrize(
    ("asked", "problem", "named"),
    [
        (
            {"type": "json_object", "shema": ENUM, "json_schema": {}},
            'unknown field "response_format.shema"; did you mean "schema"?',
            "response_format.shema,response_format.json_schema",
        ),
        (
            form(ENUM, strct=True),
            'unknown field "response_format.json_schema.strct"; did you mean "strict"?',
            "response_format.json_schema.strct",
        ),
    ],
)
def test_unknown_keys_of_a_form_are_named_or_refused(asked, problem, named):
    with pytest.raises(RequestError) as caught:
        read_form({"response_format": asked}, Ignored(strict=True))
    assert (str(caught.value), caught.value.code) == (problem, "unknown_field")
    read_form({"response_format": asked}, ignored := Ignored(strict=False))
    assert ignored.headers == {"x-rtk-ignored-fields": named}


@pytest.mark.parametrize("fields", [{"response_format": None}, {"response_format": {"type": "text"}}, {"regex": None}])
def test_what_asks_for_no_form(serving, fields):
    response = serving.post("/v1/completions", max_tokens=3, **fields)
    assert "x-rtk-grammar" not in response.headers
    assert response.json()["choices"][0]["finish_reason"] == "length"


BAD = [
    (
        {"response_format": {"type": "yaml"}},
        "response_format.type",
        "response_format.type = 'yaml': must be one of text",
    ),
    ({"response_format": "json"}, "response_format", "response_format = 'json': must be an object such as"),
    (
        {"response_format": {"type": "json_schema", "json_schema": 5}},
        "response_format.json_schema",
        "json_schema = 5: must be an object with",
    ),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
        "response_format.json_schema.schema",
        "response_format.json_schema.schema is missing",
    ),
    (
        {"response_format": form({"type": "object", "properties": {"a": {"pattern": "([a-z"}}})},
        "response_format.json_schema.schema",
        "#/properties/a/pattern",
    ),
    ({"response_format": form(ENUM), "regex": "a"}, "regex", "an answer can have one form"),
    (
        {"structured_outputs": {"regex": "a", "choice": ["a"]}},
        "structured_outputs.choice",
        "an answer can have one form",
    ),
    ({"structured_outputs": {"whitespace_pattern": " "}}, "structured_outputs.whitespace_pattern", "not supported yet"),
    ({"grammar_whitespace": 257, "regex": "a"}, "grammar_whitespace", "must be an integer from 0 to 256"),
    ({"grammar_verify": "yes", "regex": "a"}, "grammar_verify", "must be true or false"),
    ({"regex": "([a-z"}, "regex", "at character 2"),
    ({"regex": "^*[0-9]$"}, "regex", "at character 2"),
    ({"regex": "a{3,2}"}, "regex", "at character 2"),
    ({"regex": "(?=a)b"}, "regex", "look-ahead"),
    ({"regex": 5}, "regex", "regex = 5: must be a text"),
    (
        {"response_format": {"type": "regex", "regex": "a"}},
        "response_format.pattern",
        "pattern is missing: send a text",
    ),
    ({"response_format": {"type": "choice"}}, "response_format.choices", "choices is missing: send a list of texts"),
    (
        {"response_format": {"type": "json_schema", "schema": ENUM}},
        "response_format.json_schema",
        'response_format.json_schema is missing: send an object with "name" and "schema"',
    ),
    ({"ebnf": 'root ::= "a" tail'}, "ebnf", "line 1, column 14: the rule 'tail' is not defined"),
    ({"ebnf": 'start ::= "a"'}, "ebnf", "there is no rule 'root'"),
    ({"ebnf": 'root ::= "abc'}, "ebnf", "line 1, column 10"),
    ({"ebnf": 'root := "a"'}, "ebnf", "line 1, column 6"),
    ({"ebnf": "root ::= root"}, "ebnf", "root"),
    ({"choice": []}, "choice", "there must be one text at least"),
    ({"json_schema": "{"}, "json_schema", "not JSON"),
    ({"json_schema": 5}, "json_schema", "must be a JSON Schema"),
    ({"structural_tag": "{"}, "structural_tag", "no JSON"),
]


@pytest.mark.parametrize(("fields", "field", "problem"), BAD, ids=[str(i) for i in range(len(BAD))])
def test_what_cannot_be_kept_is_refused(serving, fields, field, problem):
    error = error_of(serving.post("/v1/completions", max_tokens=5, **fields))
    assert error["param"] == field
    assert problem in error["message"]
    assert error_of(serving.post("/v1/completions", max_tokens=5, stream=True, **fields)) == error


@pytest.mark.parametrize("kind", ["json_schema", "regex", "ebnf", "structural_tag"])
def test_half_a_character_is_refused(serving, kind):
    for text in ("\ud83d", '{"pattern":"\ude00"}'):
        with pytest.raises(RequestError, match=f"^{kind} has half of a surrogate pair in it") as caught:
            serving.engine.generate("x", {kind: text})
        assert (caught.value.code, caught.value.status) == ("invalid_grammar", 400)


def test_bad_ones_do_not_touch_the_others(serving):
    good = [("/generate", {"text": f"{i}|", "regex": "[ab]{9}"}) for i in range(8)]
    bad = [("/v1/completions", {"prompt": "x", **fields}) for fields, _, _ in BAD]
    answers = serving.run(*good, *bad, ("/health", None))
    assert [answer.status_code for answer in answers] == [200] * 8 + [400] * len(bad) + [200]
    assert all(set(answer.json()["text"]) <= {"a", "b"} and len(answer.json()["text"]) == 9 for answer in answers[:8])


def test_what_no_backend_can_keep_names_keyword_and_place_and_what_each_says(serving):
    schema = {"allOf": [{"properties": {"a": {"type": "array", "uniqueItems": True}}}]}
    error = error_of(serving.post("/v1/completions", response_format=form(schema)))
    assert (error["param"], error["code"]) == ("response_format.json_schema.schema", "unsupported_grammar")
    assert "uniqueItems" in error["message"]
    assert "#/allOf/0/properties/a/uniqueItems" in error["message"]
    for name in ("xgrammar", "llguidance", "outlines"):
        assert name in error["message"]


@pytest.mark.parametrize("order", [(ENUM, NODE), (NODE, ENUM)], ids=["plain first", "recursive first"])
def test_each_request_gets_a_backend_that_can(order):
    serving = Serving(**{"grammar.backend": "outlines", "grammar.compile_workers": 1})
    with serving.engine:
        statuses = [serving.post("/v1/completions", json_schema=schema).status_code for schema in order]
        assert statuses == [200 if schema is ENUM else 400 for schema in order]
        assert serving.post("/v1/completions", max_tokens=2).status_code == 200


def test_a_server_without_grammars_says_so_and_serves_the_rest():
    serving = Serving(**{"grammar.backend": "none"})
    with serving.engine:
        error = error_of(serving.post("/v1/completions", response_format=form(ENUM)))
        assert (error["code"], error["param"]) == ("grammar_off", "response_format.json_schema.schema")
        assert "not enabled" in error["message"]
        assert serving.post("/v1/completions", max_tokens=2).status_code == 200
        with pytest.raises(RequestError, match="regex: structured output is not enabled"):
            serving.engine.generate("x", {"regex": "a"})


@pytest.mark.parametrize(
    ("limit", "problem"),
    [
        (
            {"grammar.max_spec_bytes": 4},
            r"as rtk writes it, it has 5 bytes, and may have 4 \(grammar.max_spec_bytes\)$",
        ),
        ({"grammar.cache_bytes": 1}, "grammar backend 'outlines' cannot compile this: compiled it has "),
    ],
)
def test_what_is_refused_later_names_the_clients_field_too(limit, problem):
    serving = Serving(**{"grammar.backend": "outlines", "grammar.compile_workers": 1, **limit})
    with serving.engine:
        for more in ({}, {"stream": True}):
            error = error_of(serving.post("/v1/completions", guided_regex="abcde", **more))
            assert (error["param"], error["code"]) == ("guided_regex", "grammar_too_large")
            assert re.match(f"guided_regex: {problem}", error["message"])
        with pytest.raises(RequestError, match=f"^regex: {problem}"):
            serving.engine.generate("x", {"regex": "abcde"})


def test_any_object_will_do(serving):
    serving.script = says(b"{", b'"', b"k", b'"', b":", b"1", b"}")
    response = serving.post("/v1/completions", response_format={"type": "json_object"}, max_tokens=40)
    assert json.loads(response.json()["choices"][0]["text"]) == {"k": 1}


@pytest.mark.parametrize("jumps", [True, False])
def test_no_key_comes_twice(serving, jumps, monkeypatch):
    wanted, instead = b'{"k":1,"k":2}', b'":2}'

    def script(history):
        said = bytes(token - FIRST for token in history[history.index(FIRST + ord("|")) + 1 :])
        return FIRST + (wanted[len(said)] if wanted.startswith(said) else instead[len(said) - wanted.rindex(b'"') - 1])

    serving.script = script
    monkeypatch.setattr(serving.runtime._thread._scheduler._constraints, "_jump_forward", jumps)
    answer = serving.engine.generate("x|", {"json_object": True, "grammar_verify": True, "max_new_tokens": 30})
    assert (answer.text, answer.verified) == ('{"k":1,"k ":2}', True)


def test_white_space_is_bounded_by_request_and_by_default(serving):
    serving.script = lambda history: FIRST + 32
    schema = {"type": "array", "items": {"type": "null"}, "minItems": 1, "maxItems": 1}
    text = {more: serving.engine.generate("x|", {"json_schema": schema, **dict(more)}).text for more in [
        (), (("grammar_whitespace", 0),), (("grammar_whitespace", 3),)
    ]}  # fmt: skip
    assert [*text.values()] == [f"[{' ' * n}null{' ' * n}]" for n in (8, 0, 3)]


@pytest.mark.parametrize("beside", [{"json_schema"}, {"grammar_whitespace", "grammar_verify"}, set()])
def test_a_form_and_its_options_may_stand_in_two_places(serving, beside):
    serving.script = lambda history: FIRST + 32
    schema = {"type": "array", "items": {"type": "null"}, "minItems": 1, "maxItems": 1}
    fields = {"json_schema": schema, "grammar_whitespace": 2, "grammar_verify": True}
    inside = {name: value for name, value in fields.items() if name not in beside}
    answer = serving.post("/generate", sampling_params=inside, **{name: fields[name] for name in beside}).json()
    assert (answer["text"], answer["rtk"]["grammar"]["verified"]) == ("[  null  ]", True)


def test_a_text_that_is_cut_is_not_claimed_to_be_valid(serving):
    body = {"json_schema": PERSON, "grammar_verify": True}
    response = serving.post("/v1/completions", max_tokens=5, **body)
    (choice,) = response.json()["choices"]
    assert (choice["finish_reason"], choice["rtk"]["grammar"]["verified"]) == ("length", False)
    answer = serving.post("/generate", sampling_params={**body, "max_new_tokens": 5}).json()
    assert (answer["text"], answer["rtk"]["grammar"]["verified"]) == (choice["text"], False)


def test_a_stream_ends_with_the_result_of_the_check(serving):
    response = serving.post("/v1/completions", choice=["abc"], grammar_verify=True, stream=True)
    assert response.headers["x-rtk-grammar"] == "xgrammar; exact"
    *chunks, last, done = events(response)
    assert "".join(chunk["choices"][0]["text"] for chunk in (*chunks, last)) == "abc"
    assert not any("rtk" in chunk["choices"][0] for chunk in chunks)
    grammar = {"backend": "xgrammar", "verdict": "exact", "reasons": [], "verified": True}
    assert (last["choices"][0]["rtk"], done) == ({"grammar": grammar}, "[DONE]")


# --- models that think ------------------------------------------------------------------------------------------

THOUGHT = (b"h", b"m", b"m", b" ", b"{", b"x", b"}", b"</th", b"ink>", b"{", b'"', b"k", b"g", b'"', b":", b"1", b"}")


def chat(serving, **body):
    return serving.post("/v1/chat/completions", **{"temperature": 0, "response_format": form(KG), **body})


def test_thinking_is_free_and_the_answer_is_not(serving):
    serving.script = says(*THOUGHT)
    (choice,) = chat(serving, max_tokens=60).json()["choices"]
    message = choice["message"]
    assert (message["reasoning_content"], message["content"]) == ("hmm {x}", '{"kg":1}')
    assert choice["finish_reason"] == "stop"


def test_a_stream_tells_thoughts_from_the_answer(serving):
    serving.script = says(*THOUGHT)
    *chunks, _ = events(chat(serving, max_tokens=60, stream=True, grammar_verify=True))
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "hmm {x}"
    assert "".join(delta.get("content", "") for delta in deltas) == '{"kg":1}'
    assert chunks[-1]["choices"][0]["rtk"]["grammar"]["verified"] is True


def test_a_model_that_does_not_think_is_held_to_its_form_at_once(serving):
    serving.script = says(*THOUGHT)
    (choice,) = chat(serving, max_tokens=60, chat_template_kwargs={"enable_thinking": False}).json()["choices"]
    assert "reasoning_content" not in choice["message"]
    jsonschema.validate(json.loads(choice["message"]["content"]), KG)


def test_thinking_that_is_cut_leaves_no_answer(serving):
    serving.script = says(*THOUGHT)
    (choice,) = chat(serving, max_tokens=3, grammar_verify=True).json()["choices"]
    assert (choice["message"]["content"], choice["message"]["reasoning_content"]) == (None, "hmm")
    assert (choice["finish_reason"], choice["rtk"]["grammar"]["verified"]) == ("length", False)


# --- /v1/responses ----------------------------------------------------------------------------------------------


def test_responses_have_their_form_in_the_text(serving):
    asked = {"type": "json_schema", "name": "kg", "schema": KG, "strict": True}
    body = {"input": "x", "temperature": 0, "max_output_tokens": 60, "grammar_verify": True, "text": {"format": asked}}
    answer = serving.post("/v1/responses", **body, chat_template_kwargs={"enable_thinking": False})
    assert answer.headers["x-rtk-grammar"] == "xgrammar; narrowed"
    (message,) = answer.json()["output"]
    jsonschema.validate(json.loads(message["content"][0]["text"]), KG)
    assert answer.json()["rtk"]["grammar"]["verified"] is True
    assert answer.json()["text"] == {"format": asked}


def test_responses_name_the_place_of_what_cannot_be_kept(serving):
    asked = {"type": "json_schema", "name": "x", "schema": {"type": "nothing"}}
    error = error_of(serving.post("/v1/responses", input="x", text={"format": asked}))
    assert (error["param"], error["code"]) == ("text.format.schema", "invalid_grammar")
