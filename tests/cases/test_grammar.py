"""Cases C01 to C47, X09, X12 and X35, by what clients get. C12's tools, C38's fields and C39 are in `test_tools.py`.

Elsewhere too: C29 to C31 in `tests/grammar/test_grammars_served.py` and `test_manager.py`, where compilers hang on
command; C34 and C37 in `tests/schedule/test_constraints.py`, under every loop.
"""

import json
from pathlib import Path

import jsonschema
import pytest
from http_harness import error_of, events
from serving import FIRST, TOKENIZER, Serving, form
from tiny_tokenizer import BOS, IM_END, ids_of

CASES = {
    case["id"]: case
    for case in json.loads((Path(__file__).parents[1] / "data/schema_cases.json").read_text(encoding="utf-8"))
}
REFUSED = {identity for identity, case in CASES.items() if case["must_refuse"]}
MARK = b"\x01"
(AFTER,) = ids_of(TOKENIZER, MARK)


def echo(history):
    """A model that wants to say what its prompt has before the mark."""
    start = history.index(AFTER)
    said = len(history) - 1 - start
    return history[said] if said < start else IM_END


def prefers(*pieces):
    """A model that always wants this."""
    (token,) = pieces
    return lambda history: token if isinstance(token, int) else ids_of(TOKENIZER, token)[0]


@pytest.fixture(scope="module")
def engine():
    one = Serving(**{"grammar.compile_workers": 1, "grammar.compile_timeout_s": 60})  # a busy machine takes its time
    yield one
    one.engine.close()


@pytest.fixture
def serving(engine):
    engine.script = echo
    return engine


def asked(text, **fields):
    return "/v1/completions", {"prompt": text + MARK.decode(), "max_tokens": len(text.encode()) + 40, **fields}


def said(serving, texts, **fields):
    """What comes out where a model wants to say each of these."""
    responses = serving.run(*(asked(text, **fields) for text in texts))
    assert [response.status_code for response in responses] == [200] * len(texts), responses[0].text
    return [response.json()["choices"][0]["text"] for response in responses]


def says(serving, good, bad, **fields):
    """A model that wants to say one of the good ones does, and no other gets to."""
    assert said(serving, good, **fields) == [*good]
    assert not [text for text, out in zip(bad, said(serving, bad, **fields), strict=True) if text == out]


def refuses(serving, problem="", **fields):
    (response,) = serving.run(asked("x", **fields))
    error = error_of(response, 400)
    assert problem in error["message"], error
    return error


def written(serving, script, **fields):
    """What a model says that wants the same everywhere, and how it ends."""
    serving.script = script
    (response,) = serving.run(asked("x", **{"max_tokens": 200, **fields}))
    (choice,) = response.json()["choices"]
    return choice["text"], choice["finish_reason"]


# --- the set of schemas, as clients send it --------------------------------------------------------------------------


@pytest.mark.parametrize("identity", sorted(CASES.keys() - REFUSED))
def test_c01_to_c25_texts_of_the_set(serving, identity):
    """Every one of the 43 is served: what must come out does, what must not does not."""
    case = CASES[identity]
    says(serving, case["must_accept"], case["must_reject"], response_format=form(case["schema"]))


def test_c02_c18_c23_c26_what_nothing_satisfies_and_what_is_no_schema(serving):
    assert len(REFUSED) == 15
    for identity in sorted(REFUSED):
        error = refuses(serving, "#", response_format=form(CASES[identity]["schema"]))
        assert error["param"] == "response_format.json_schema.schema", identity
    refuses(serving, response_format=form({"$ref": ""}))
    for body in (form(""), form(None), {"type": "json_object", "schema": False}, {"type": "json_schema"}):
        refuses(serving, response_format=body)
    says(serving, ["true"], [], response_format=form({"type": "boolean"}))


def test_c01_depth_is_limited_by_tokens_only(serving):
    nested = '{"v":1,"kids":[' * 8 + "]}" * 8
    says(serving, [nested], [], response_format=form(CASES["S01"]["schema"]))


def test_x09_c10_one_character_however_it_is_written(serving):
    schema = {"type": "string", "minLength": 1, "maxLength": 1}
    says(serving, ['"😀"', '"\\ud83d\\ude00"'], ['"\\ud83d"', '""', '"ab"'], response_format=form(schema))


def test_c17_a_greedy_model_that_wants_digits_comes_to_an_end(serving):
    text, reason = written(serving, prefers("7"), response_format=form({}))
    assert (text, reason) == ("7" * 40, "stop")


@pytest.mark.parametrize("space", [" ", "\n"])
def test_c33_white_space_is_bounded(serving, space):
    schema = {"type": "object", "properties": {"a": {"type": "null"}}, "required": ["a"], "additionalProperties": False}
    text, reason = written(serving, prefers(space), response_format=form(schema), grammar_whitespace=2)
    two = space * 2
    assert (text, reason) == (f'{{{two}"a"{two}:{two}null{two}}}', "stop")


def test_c34_c37_nothing_that_ends_a_text_comes_in_the_middle(serving):
    schema = {"type": "string", "minLength": 2, "maxLength": 3}
    for token in (IM_END, BOS):
        text, reason = written(serving, prefers(token), response_format=form(schema), stop_token_ids=[FIRST + 97])
        assert (len(json.loads(text)) in (2, 3), reason) == (True, "stop")
    text, _ = written(serving, prefers("a"), response_format=form(schema), stop_token_ids=[FIRST + 97])
    assert "a" not in text


def test_c36_the_text_ends_right_after_the_value(serving):
    text, reason = written(serving, prefers("}"), response_format={"type": "json_object"})
    assert (text, reason) == ("{}", "stop")


def test_c47_a_cut_is_told(serving):
    schema = {"type": "object", "properties": {"a": {"type": "string", "minLength": 40}}, "required": ["a"]}
    text, reason = written(serving, prefers("b"), response_format=form(schema), max_tokens=12)
    assert (len(text), reason) == (12, "length")


def test_keys_that_run_out(serving):
    schema = {"type": "object", "patternProperties": {"^[ab]$": {"type": "null"}}, "additionalProperties": False}
    twice = '{"a":null,"a":null}'
    (text,) = said(serving, [twice], response_format=form(schema))
    assert text.startswith('{"a":null,"b":null')
    jsonschema.validate(json.loads(text), schema)


# --- expressions and grammars ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "good", "bad"),
    [
        ("[\\u4e00-\\u9fff]{2}", ["漢字"], ["漢", "ab", "漢a"]),
        ("[\\U0001F600-\\U0001F64F]+", ["😀", "😀🙏"], ["🧊"]),
        ("(?=.*[0-9])[a-z0-9]+", ["a1"], ["ab"]),
        ("a.c", ["abc", "a漢c"], ["a\nc", "ac"]),
        ("(?P<n>ab)c", ["abc"], ["ab"]),
    ],
)
def test_c41_c43_expressions_that_are_served(serving, pattern, good, bad):
    says(serving, good, bad, regex=pattern)


@pytest.mark.parametrize("pattern", ["(a)\\1", "a\\b", "(?i)a", "\\p{L}", "(?<=a)b", "([a-z", "^*[0-9]$", "a{3,2}"])
def test_c26_c43_expressions_that_are_refused_with_the_place(serving, pattern):
    assert "at character" in refuses(serving, regex=pattern)["message"]
    refuses(serving, "#/properties/a/pattern", response_format=form({"properties": {"a": {"pattern": pattern}}}))


def test_c26_bad_ones_beside_eight_others(serving):
    good = [asked("abab", regex="(ab){2}") for _ in range(8)]
    bad = [asked("x", regex="([a-z"), asked("x", ebnf='root ::= "abc'), asked("x", ebnf='root := "a"')]
    responses = serving.run(*good, *bad, ("/health", None))
    assert [response.status_code for response in responses] == [200] * 8 + [400] * 3 + [200]


@pytest.mark.parametrize(
    ("grammar", "good", "bad"),
    [
        ('root ::= root "-" d | d\nd ::= [0-9]', ["7", "1-2-3"], ["-1", "1-"]),
        ("root ::= [\\u4e00-\\u9fff]+", ["漢", "漢字"], ["a"]),
        ('root ::= "\\x41\\u00e9\\n"', ["Aé\n"], ["A"]),
        ('root ::= (item ";"?)*\nitem ::= "a"?', ["a;a", ";;", "aa"], ["b"]),
    ],
)
def test_x35_c42_grammars_that_are_served(serving, grammar, good, bad):
    says(serving, good, bad, ebnf=grammar)


@pytest.mark.parametrize(
    "grammar",
    [
        "",
        'start ::= "a"',
        'root ::= "a" tail',
        'root ::= "abc',
        'root := "a"',
        "root ::= [z-a]",
        'root ::= "a"{3,2}',
        'root ::= "a"\nroot ::= "b"',
        "root ::= root",
        'root ::= x\nx ::= x "a"',
        "root ::= a\na ::= b\nb ::= a",
    ],
)
def test_x35_c42_grammars_that_are_refused(serving, grammar):
    assert refuses(serving, ebnf=grammar)["param"] == "ebnf"


# --- what is hard to compile -----------------------------------------------------------------------------------------


def nested(level):
    return {"type": "null"} if not level else {"oneOf": [{"type": "array", "items": nested(level - 1)}] * 2}


def objects(level):
    inner = objects(level - 1) if level else {"type": "null"}
    return {"type": "object", "properties": {"a": inner}, "required": ["a"], "additionalProperties": False}


def test_x12_c29_hard_ones_twenty_at_once_beside_a_stream(serving):
    counted = {
        "type": "object",
        "properties": {f"q{i}": {"type": "integer"} for i in range(150)},
        "additionalProperties": False,
        "minProperties": 50,
        "maxProperties": 100,
    }
    plain = asked("abcabcabc", stream=True)
    *slow, stream = serving.run(*[asked("x", response_format=form(counted))] * 20, plain)
    assert [response.status_code for response in slow] == [400] * 20
    assert "".join(chunk["choices"][0]["text"] for chunk in events(stream)[:-1]) == "abcabcabc"
    refuses(serving, "#/oneOf/0/items", response_format=form(nested(9)))
    deep = objects(30)
    says(serving, ['{"a":' * 31 + "null" + "}" * 31], [], response_format=form(deep))


def test_c27_what_cannot_be_built_is_never_served_without(serving):
    error = refuses(serving, response_format=form({"type": "string", "pattern": "(?:[a-z]{1,200}x){1,200}"}))
    assert "#/pattern" in error["message"]


@pytest.mark.parametrize("order", [1, -1])
def test_c28_each_request_has_the_backend_that_serves_it(serving, order):
    plain, recursive = ({"enum": ["red"]}, '"red"'), (CASES["S01"]["schema"], '{"v":1,"kids":[]}')
    for schema, text in [plain, recursive][::order]:
        says(serving, [text], [], response_format=form(schema))


def test_c45_c46_types_and_separators(serving):
    assert written(serving, echo, response_format={"type": "text"})[0] == "x"
    refuses(serving, "yaml", response_format={"type": "yaml"})
    schema = {"type": "object", "properties": {"a": True, "b": True}, "additionalProperties": False}
    bad = ["{\"a':1}", "{'a\":1}", '{"a":1;"b":2}', '{"a"=1}']
    for spaces in (0, 8, 256):
        says(serving, ['{"a":1,"b":2}'], bad, response_format=form(schema), grammar_whitespace=spaces)
