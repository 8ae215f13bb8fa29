"""Exact normal forms, and where each part of them comes from."""

import json

import pytest

from rtk.grammar.schema import normalise

CASES = [
    (
        {"type": "integer", "exclusiveMinimum": 0.5, "exclusiveMaximum": 10, "multipleOf": 3},
        {"type": "integer", "minimum": 3, "maximum": 9, "multipleOf": 3},
    ),
    ({"type": "number", "multipleOf": 2}, {"type": "integer", "multipleOf": 2}),
    ({"type": "integer", "multipleOf": 2.5}, {"type": "integer", "multipleOf": 5}),
    (
        {"type": "number", "exclusiveMinimum": 0, "minimum": 0, "maximum": 1.5},
        {"type": "number", "exclusiveMinimum": 0, "maximum": 1.5},
    ),
    ({"allOf": [{"multipleOf": 0.01}, {"type": "number", "multipleOf": 0.25}]}, {"type": "number", "multipleOf": 0.25}),
    ({"minimum": 3, "maximum": 3.0, "type": "number"}, {"enum": [3]}),
    ({"enum": [1, 1.0, True, "1"]}, {"enum": [1, True, "1"]}),
    ({"enum": [1, True, "a", None, [1], 2.5], "type": ["integer", "null", "array"]}, {"enum": [1, None, [1]]}),
    ({"const": 1.0, "type": "integer"}, {"enum": [1]}),
    (
        {"type": "string", "minLength": 2, "pattern": "^[a-z]*$", "maxLength": 3},
        {"type": "string", "pattern": "^(?:[a-z]{2,3})$"},
    ),
    ({"type": "string", "pattern": "^yes$"}, {"enum": ["yes"]}),
    ({"type": "string", "maxLength": 0}, {"enum": [""]}),
    (
        {"type": "array", "prefixItems": [{"type": "null"}, False], "items": {"type": "string"}},
        {"type": "array", "prefixItems": [{"type": "null"}], "items": False},
    ),
    (
        {"type": "array", "items": {"type": "null"}, "maxItems": 1, "uniqueItems": True},
        {"type": "array", "items": {"type": "null"}, "maxItems": 1},
    ),
    (
        {"type": "array", "items": {"type": "null"}, "contains": {"type": "null"}, "minContains": 0},
        {"type": "array", "items": {"type": "null"}},
    ),
    (
        {
            "type": "array",
            "contains": {"type": "string"},
            "maxContains": 0,
            "minContains": 0,
            "items": {"enum": ["a", 1]},
        },
        {"type": "array", "items": {"enum": [1]}},
    ),
    (
        {
            "type": "object",
            "minProperties": 1,
            "properties": {"a": {}, "b": {}},
            "additionalProperties": False,
            "required": ["a"],
        },
        {"type": "object", "properties": {"a": True, "b": True}, "required": ["a"], "additionalProperties": False},
    ),
    (
        {"type": "object", "minProperties": 2, "properties": {"a": {}, "b": {}}, "additionalProperties": False},
        {"type": "object", "properties": {"a": True, "b": True}, "required": ["a", "b"], "additionalProperties": False},
    ),
    (
        {"type": "object", "maxProperties": 1, "required": ["a"], "properties": {"b": {}}},
        {"type": "object", "properties": {"a": True}, "required": ["a"], "additionalProperties": False},
    ),
    (
        {"type": "object", "propertyNames": {"enum": ["a", "b"]}, "additionalProperties": {"type": "null"}},
        {"type": "object", "properties": {"a": {"type": "null"}, "b": {"type": "null"}}, "additionalProperties": False},
    ),
    (
        {"type": "object", "propertyNames": {"minLength": 1}},
        {
            "type": "object",
            "patternProperties": {"^(?:[\\u0000-\\uD7FF\\uE000-\\U0010FFFF]+)$": True},
            "additionalProperties": False,
        },
    ),
    (
        {"type": "object", "properties": {"a": {"type": "string"}}, "patternProperties": {"^x$": {"type": "null"}}},
        {"type": "object", "properties": {"a": {"type": "string"}, "x": {"type": "null"}}},
    ),
    (
        {
            "allOf": [
                {"properties": {"a": {"minimum": 1}}, "additionalProperties": {"type": "integer"}},
                {"properties": {"b": {"maximum": 2}}, "type": "object"},
            ]
        },
        {
            "type": "object",
            "properties": {
                "a": {
                    "anyOf": [
                        {"type": "null"},
                        {"type": "boolean"},
                        {"type": "number", "minimum": 1},
                        {"type": "string"},
                        {"type": "array"},
                        {"type": "object"},
                    ]
                },
                "b": {"type": "integer", "maximum": 2},
            },
            "additionalProperties": {"type": "integer"},
        },
    ),
    (
        {"oneOf": [{"type": "integer", "minimum": 0}, {"type": "integer", "maximum": 10}]},
        {"anyOf": [{"type": "integer", "minimum": 11}, {"type": "integer", "maximum": -1}]},
    ),
    ({"oneOf": [{"enum": [1, 2]}, {"enum": [2, 3]}]}, {"enum": [1, 3]}),
    (
        {"oneOf": [{"required": ["a"]}, {"required": ["b"]}], "type": "object"},
        {
            "anyOf": [
                {"type": "object", "properties": {"a": True, "b": False}, "required": ["a"]},
                {"type": "object", "properties": {"b": True, "a": False}, "required": ["b"]},
            ]
        },
    ),
    (
        {"type": "integer", "not": {"enum": [1, 2]}},
        {"anyOf": [{"type": "integer", "maximum": 0}, {"type": "integer", "minimum": 3}]},
    ),
    (
        {
            "type": "object",
            "properties": {"k": {"enum": ["a", "b"]}},
            "required": ["k"],
            "if": {"properties": {"k": {"const": "a"}}},
            "then": {"required": ["x"]},
        },
        {
            "anyOf": [
                {"type": "object", "properties": {"k": {"enum": ["a"]}, "x": True}, "required": ["k", "x"]},
                {"type": "object", "properties": {"k": {"enum": ["b"]}}, "required": ["k"]},
            ]
        },
    ),
    (
        {"type": "object", "dependentRequired": {"a": ["b"]}},
        {
            "anyOf": [
                {"type": "object", "properties": {"a": False}},
                {"type": "object", "properties": {"a": True, "b": True}, "required": ["a", "b"]},
            ]
        },
    ),
    (
        {"type": "object", "dependentSchemas": {"a": {"required": ["b"]}}},
        {
            "anyOf": [
                {"type": "object", "properties": {"a": False}},
                {"type": "object", "properties": {"a": True, "b": True}, "required": ["a", "b"]},
            ]
        },
    ),
    (
        {
            "$schema": "http://json-schema.org/draft-04/schema#",
            "type": "integer",
            "minimum": 1,
            "exclusiveMinimum": True,
        },
        {"type": "integer", "minimum": 2},
    ),
    (
        {
            "$schema": "http://json-schema.org/draft-07/schema",
            "items": [True, {"type": "null"}],
            "additionalItems": False,
            "type": "array",
        },
        {"type": "array", "prefixItems": [True, {"type": "null"}], "items": False},
    ),
    (
        {
            "$schema": "https://json-schema.org/draft/2019-09/schema",
            "items": {"type": "null"},
            "additionalItems": False,
            "type": "array",
        },
        {"type": "array", "items": {"type": "null"}},
    ),
    (
        {
            "$id": "https://x.org/s",
            "$ref": "https://x.org/s#/$defs/a",
            "$defs": {"a": {"$anchor": "q", "type": "object", "properties": {"n": {"$ref": "#q"}}}},
        },
        {"$ref": "#/$defs/d1", "$defs": {"d1": {"type": "object", "properties": {"n": {"$ref": "#/$defs/d1"}}}}},
    ),
    (
        {
            "$defs": {"t": {"type": "object", "properties": {"v": {"$ref": "#/$defs/t"}}, "required": ["v"]}},
            "anyOf": [{"$ref": "#/$defs/t"}, {"type": "null"}],
        },
        {"type": "null"},
    ),
    (
        {
            "type": "object",
            "allOf": [{"properties": {"a": {}}}, {"$ref": "#/$defs/b"}],
            "unevaluatedProperties": False,
            "$defs": {"b": {"properties": {"b": {}}, "patternProperties": {"^x": {}}}},
        },
        {
            "type": "object",
            "properties": {"a": True, "b": True},
            "patternProperties": {"^(?:x[\\u0000-\\uD7FF\\uE000-\\U0010FFFF]*)$": True},
            "additionalProperties": False,
        },
    ),
    (
        {"type": "array", "prefixItems": [{}], "unevaluatedItems": {"type": "null"}},
        {"type": "array", "prefixItems": [True], "items": {"type": "null"}},
    ),
    (
        {
            "type": "object",
            "properties": {"a": {"$ref": "#/$defs/big"}, "b": {"$ref": "#/$defs/big"}},
            "$defs": {"big": {"type": "object", "properties": {"x": {"type": "null"}}}},
        },
        {
            "type": "object",
            "properties": {"a": {"$ref": "#/$defs/d1"}, "b": {"$ref": "#/$defs/d1"}},
            "$defs": {"d1": {"type": "object", "properties": {"x": {"type": "null"}}}},
        },
    ),
    (
        {"type": "array", "items": {"enum": [1, 2, 3]}, "contains": {"const": 2}, "maxItems": 2},
        {"enum": [[2], [1, 2], [2, 1], [2, 2], [2, 3], [3, 2]]},
    ),
]


@pytest.mark.parametrize(("schema", "form"), CASES, ids=[json.dumps(schema) for schema, _ in CASES])
def test_normal_forms(schema, form):
    assert json.loads(normalise(json.dumps(schema)).text) == form
    assert normalise(schema).text == normalise(json.dumps(schema)).text


def test_patterns_do_not_overlap_in_normal_form():
    schema = {"patternProperties": {"^a": {"type": "integer"}, "^.b": {"minimum": 2}}, "type": "object"}
    schema |= {"properties": {"ac": {}}, "additionalProperties": False}
    form = json.loads(normalise(schema).text)
    assert form["properties"] == {"ac": {"type": "integer"}}
    any_, other = r"[\u0000-\uD7FF\uE000-\U0010FFFF]", form["patternProperties"]
    assert other[f"^(?:ab{any_}*)$"] == {"type": "integer", "minimum": 2}
    assert len(other) == 3 and other != schema["patternProperties"]


def test_numbers_are_exact():
    text = '{"type":"number","minimum":0.1,"maximum":123456789012345678901234567890.5,"multipleOf":0.1}'
    assert normalise(text).text == text
    assert normalise('{"minimum":1e-3,"type":"number","maximum":1E3}').text == (
        '{"type":"number","minimum":0.001,"maximum":1000}'
    )
    assert normalise('{"enum":[-0.5,1e2,36028797018963969]}').text == '{"enum":[-0.5,100,36028797018963969]}'


def test_origins_are_the_clients_pointers():
    schema = {
        "$ref": "#/$defs/a",
        "$defs": {
            "a": {
                "type": "object",
                "properties": {"x/y": {"allOf": [{"type": "string"}, {"pattern": "^a"}]}, "n": {"$ref": "#/$defs/n"}},
                "required": ["n"],
            },
            "n": {"type": "integer", "exclusiveMinimum": 3, "maximum": 9},
        },
    }
    normal = normalise(schema)
    assert normal.origins["#"] == "#/$defs/a"
    assert normal.origins["#/properties/x~1y/pattern"] == "#/$defs/a/properties/x~1y/allOf/1/pattern"
    assert normal.origins["#/properties/x~1y/type"] == "#/$defs/a/properties/x~1y/allOf/0/type"
    assert normal.origins["#/properties/n/minimum"] == "#/$defs/n/exclusiveMinimum"
    assert normal.origins["#/properties/n/maximum"] == "#/$defs/n/maximum"
    assert normal.origin("#/properties/n/maximum/whatever") == "#/$defs/n/maximum"
    assert normal.origin("#/nowhere") == "#/$defs/a"


def test_what_is_left_over_says_where_it_was_written():
    schema = {
        "type": "object",
        "properties": {"l": {"type": "array", "uniqueItems": True, "contains": {"type": "null"}}},
    }
    normal = normalise(schema)
    assert normal.origin("#/properties/l/uniqueItems") == "#/properties/l/uniqueItems"
    assert normal.origin("#/properties/l/contains/type") == "#/properties/l/contains/type"


@pytest.mark.parametrize(
    ("schema", "free"),
    [
        ({"type": "object"}, True),
        ({"type": "object", "properties": {"a": {}}, "additionalProperties": False}, True),  # `a` may be any object
        ({"type": "object", "properties": {"a": {"type": "null"}}, "additionalProperties": False}, False),
        ({"type": "object", "patternProperties": {"^a": {"type": "null"}}, "additionalProperties": False}, True),
        ({"type": "object", "patternProperties": {"^a$": {"type": "null"}}, "additionalProperties": False}, False),
        ({"type": "array", "items": {"type": "string"}}, False),
        (True, True),
        ({"type": "array"}, True),
        ({"type": "array", "maxItems": 0}, False),
    ],
)
def test_free_keys_are_told(schema, free):
    assert normalise(schema).open_keys is free


def test_a_shared_schema_is_written_once():
    leaf = {"type": "object", "properties": {"x": {"type": "null"}}}
    levels = {
        f"l{i}": {"type": "object", "properties": {name: {"$ref": f"#/$defs/l{i + 1}"} for name in "ab"}}
        for i in range(40)
    }
    text = normalise({"$ref": "#/$defs/l0", "$defs": {**levels, "l40": leaf}}).text
    assert len(json.loads(text)["$defs"]) == 40 and len(text) < 6000
