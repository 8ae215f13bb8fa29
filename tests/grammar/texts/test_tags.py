"""Structural tags: the ways to write them, and what cannot be."""

import json

import pytest

from rtk.errors import RequestError
from rtk.grammar.tags import TagError, normalise

GET = {"begin": "<f=get>", "schema": {"type": "object"}, "end": "</f>"}
PUT = {"begin": "<f=put>", "schema": True, "end": ""}


def schema(value):
    if value == "bad":
        raise RequestError("JSON Schema, at #: it is a text")
    return json.dumps(value)


def written(value):
    return json.loads(normalise(value, schema))


def test_three_ways_say_the_same():
    normal = {"triggers": ["<f="], "tags": [GET, PUT]}
    contents = [
        {
            "type": "tag",
            "begin": tag["begin"],
            "content": {"type": "json_schema", "json_schema": tag["schema"]},
            "end": tag["end"],
        }
        for tag in (GET, PUT)
    ]
    assert written({"type": "structural_tag", "structures": [GET, PUT], "triggers": ["<f="]}) == normal
    assert written({"triggers": ["<f="], "tags": [GET, PUT]}) == normal
    tagged = {"type": "triggered_tags", "triggers": ["<f="], "tags": contents, "at_least_one": False}
    assert written({"type": "structural_tag", "format": tagged}) == normal
    assert normalise(normal, schema) == (
        '{"triggers":["<f="],"tags":[{"begin":"<f=get>","schema":{"type": "object"},"end":"</f>"},'
        '{"begin":"<f=put>","schema":true,"end":""}]}'
    )


def test_schemas_are_normalised_one_after_the_other():
    seen = []
    normalise({"triggers": ["<"], "tags": [GET, PUT]}, lambda value: seen.append(value) or "true")
    assert seen == [{"type": "object"}, True]


def test_a_trigger_that_begins_with_another_is_that_one():
    triggers = ["<f=get", "<f", "<f=", "<f"]
    assert written({"triggers": triggers, "tags": [GET, PUT]})["triggers"] == ["<f"]


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ([], "it must be an object"),
        ({"type": "json_schema"}, "the type of it must be 'structural_tag', not 'json_schema'"),
        ({"triggers": ["<"]}, "it has no tags"),
        ({"structures": [GET]}, "it has no triggers"),
        (
            {"triggers": ["<"], "structures": [GET], "x": 1},
            "an unknown key 'x' of it; known are type, triggers, structures",
        ),
        ({"triggers": [], "tags": [GET]}, "triggers must be an array of one at least"),
        ({"triggers": ["<"], "tags": {}}, "tags must be an array of one at least"),
        ({"triggers": ["<", 1], "tags": [GET]}, "trigger 1 must be a text"),
        ({"triggers": ["<", ""], "tags": [GET]}, "trigger 1 is empty"),
        ({"triggers": ["<"], "tags": [GET, "<b>"]}, "tag 1 must be an object"),
        ({"triggers": ["<"], "tags": [{"begin": "<a>", "end": ""}]}, "tag 0 has no schema"),
        ({"triggers": ["<"], "tags": [GET | {"x": 1}]}, "an unknown key 'x' of tag 0; known are begin, schema, end"),
        ({"triggers": ["<"], "tags": [GET | {"begin": ""}]}, "begin of tag 0 is empty"),
        ({"triggers": ["<"], "tags": [GET, PUT | {"end": None}]}, "end of tag 1 must be a text"),
        (
            {"triggers": ["<"], "tags": [GET | {"end": "\ud83d"}]},
            "end of tag 0 has half of a surrogate pair in it, which no text can have",
        ),
        (
            {"triggers": ["<"], "tags": [GET | {"end": "x" * 1025}]},
            "end of tag 0 has 1025 characters, 1024 are allowed",
        ),
        ({"triggers": ["<"], "tags": [GET] * 257}, "tags has 257 items, 256 are allowed"),
        ({"triggers": ["<f="], "tags": [GET, PUT | {"begin": "[x]"}]}, "tag 1 begins with no trigger: '[x]'"),
        ({"triggers": ["<"], "tags": [GET, PUT, GET]}, "tag 2 begins as tag 0 does: '<f=get>'"),
        ({"triggers": ["<", "["], "tags": [GET]}, "no tag begins with trigger 1: '['; leave it out"),
        (
            {"triggers": ["f=", "<f="], "tags": [GET, PUT | {"begin": "f=1"}]},
            "trigger 1 has trigger 0 in it: '<f='",
        ),
        ({"triggers": ["<"], "tags": [GET, PUT | {"schema": "bad"}]}, "tag 1: JSON Schema, at #: it is a text"),
        (
            {"format": {"type": "sequence"}},
            "the type of format must be 'triggered_tags', not 'sequence'",
        ),
        (
            {"format": {"triggers": ["<"], "tags": [GET], "at_least_one": True}},
            "at_least_one of format is not supported; leave it out",
        ),
        (
            {"format": {"triggers": ["<"], "tags": [{"begin": "<", "end": "", "content": {"type": "regex"}}]}},
            "the type of the content of tag 0 must be 'json_schema', not 'regex'",
        ),
    ],
)
def test_refused_with_the_index(value, problem):
    with pytest.raises(TagError) as refused:
        normalise(value, schema)
    assert str(refused.value) == f"structural tags: {problem}"
    assert isinstance(refused.value, RequestError) and refused.value.status == 400
