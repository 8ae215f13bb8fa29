"""What is refused: with what is wrong, the keyword, and its place in the client's schema. Hostile schemas too."""

import json

import pytest

from rtk.grammar.schema import SchemaError, normalise

D4, D7 = "http://json-schema.org/draft-04/schema#", "http://json-schema.org/draft-07/schema#"
D19 = "https://json-schema.org/draft/2019-09/schema"
NULL = {"type": "null"}


def refused(schema):
    with pytest.raises(SchemaError) as caught:
        normalise(schema)
    error = caught.value
    assert (error.status, error.code) == (400, "invalid_grammar")
    assert str(error) == f"JSON Schema, at {error.pointer}: {error.problem}" and "\n" not in str(error)
    return error.pointer, error.keyword, error.problem


@pytest.mark.parametrize(
    ("text", "pointer", "problem"),
    [
        ("", "#", "not JSON: Expecting value, line 1, column 1"),
        ('{"type": "null"} x', "#", "not JSON: Extra data, line 1, column 18"),
        ("{'a': 1}", "#", "not JSON: Expecting property name enclosed in double quotes, line 1, column 2"),
        ('{"minimum": NaN}', "#", "NaN is not JSON"),
        ('{"enum": [-Infinity]}', "#", "-Infinity is not JSON"),
        ('{"properties": {"a": {"type": "null", "type": "null"}}}', "#/properties/a", 'the key "type" is there twice'),
        (r'{"enum": ["\ud800"]}', "#/enum/0", r'half a character (a lone surrogate) in "\ud800"'),
        (r'{"properties": {"\udc00": {}}}', "#/properties", r'half a character (a lone surrogate) in "\udc00"'),
        ('{"minimum": 1e401}', "#/minimum", "a number of more than 400 digits"),
        ('{"minimum": 1' + "0" * 400 + "}", "#/minimum", "a number of more than 400 digits"),
        ("null", "#", "a schema is an object, true or false, and this is null"),
        ('"object"', "#", "a schema is an object, true or false, and this is 'object'"),
        ("[" * 100_000, "#", "nested too deeply; at most 512 levels are taken"),
        ('{"a":' * 600 + "1" + "}" * 600, "#", "nested too deeply; at most 512 levels are taken"),
    ],
)
def test_what_is_no_json_is_refused(text, pointer, problem):
    assert refused(text) == (pointer, None, problem)


@pytest.mark.parametrize(
    ("schema", "pointer", "problem"),
    [
        ({"type": "objekt"}, "#/type", "type must be one of null, boolean, integer, number, string, array, object, or"),
        ({"type": []}, "#/type", "type must be"),
        ({"type": ["null", "null"]}, "#/type", "type must be"),
        ({"required": "a"}, "#/required", "required must be an array of distinct names, not 'a'"),
        ({"properties": ["a"]}, "#/properties", "properties must be an object of schemas, not an array"),
        ({"properties": {"a": 1}}, "#/properties/a", "a schema is an object, true or false, and this is 1"),
        ({"items": {"items": []}}, "#/items/items", "items must be a schema in draft 2020-12; use prefixItems"),
        ({"minLength": -1}, "#/minLength", "minLength must be a whole number, not below 0, not -1"),
        ({"maxItems": True}, "#/maxItems", "maxItems must be a whole number, not below 0, not true"),
        ({"multipleOf": 0}, "#/multipleOf", "multipleOf must be a number above 0, not 0"),
        (
            {"exclusiveMinimum": True},
            "#/exclusiveMinimum",
            "exclusiveMinimum must be a number in draft 2020-12, not true",
        ),
        ({"anyOf": []}, "#/anyOf", "anyOf must be an array of schemas, one at least, not an array"),
        ({"enum": 1}, "#/enum", "enum must be an array, not 1"),
        ({"uniqueItems": 1}, "#/uniqueItems", "uniqueItems must be true or false, not 1"),
        ({"pattern": "(["}, "#/pattern", "pattern: the regex '(['"),
        ({"patternProperties": {"(": {}}}, "#/patternProperties/(", "patternProperties: the regex '('"),
        ({"format": "colour"}, "#/format", "unknown format 'colour'; known: date, time,"),
        ({"nullable": True}, "#/nullable", "nullable is not supported; it is OpenAPI's; give type an array"),
        ({"propertys": {}}, "#/propertys", "unknown keyword 'propertys'; did you mean properties?"),
        ({"foo": 1}, "#/foo", "unknown keyword 'foo'"),
        ({"$dynamicRef": "#a"}, "#/$dynamicRef", "$dynamicRef is not supported; use $ref"),
        ({"properties": {"a": {"$id": "x"}}}, "#/properties/a/$id", "$id is taken at the root only"),
        (
            {"$schema": "http://x.org/y"},
            "#/$schema",
            "unknown $schema 'http://x.org/y'; known: json-schema.org/draft-04",
        ),
        ({"additionalItems": False}, "#/additionalItems", "additionalItems is no keyword of draft 2020-12; use items"),
        ({"dependencies": {}}, "#/dependencies", "dependencies is no keyword of draft 2020-12; use dependentRequired"),
        ({"$schema": D7, "prefixItems": [{}]}, "#/prefixItems", "prefixItems is no keyword of draft-07; use an array"),
        ({"$schema": D4, "const": 1}, "#/const", "const is no keyword of draft-04; use an enum of one value"),
        (
            {"$schema": D4, "exclusiveMinimum": 1},
            "#/exclusiveMinimum",
            "exclusiveMinimum must be true or false in draft-04",
        ),
        ({"$schema": D4, "exclusiveMinimum": True}, "#/exclusiveMinimum", "exclusiveMinimum needs minimum beside it"),
        ({"$schema": D4, "not": False}, "#/not", "a schema is an object, true or false, and this is false"),
        (
            {"$schema": D7, "definitions": {"s": {}}, "$ref": "#/definitions/s", "maxLength": 3},
            "#/maxLength",
            "draft-07 ignores maxLength beside $ref; put the reference into an allOf, or name draft 2020-12 as",
        ),
        ({"$ref": "https://x.org/s"}, "#/$ref", "the reference 'https://x.org/s' leads out of the schema, and none is"),
        ({"$ref": "#/$defs/a"}, "#/$ref", "the reference '#/$defs/a' leads to no schema"),
        ({"$ref": "#/properties", "properties": {}}, "#/$ref", "the reference '#/properties' leads to no schema"),
        ({"$ref": "#"}, "#/$ref", "the schema refers to itself with nothing in between, so it says nothing"),
        ({"$ref": ""}, "#/$ref", "the schema refers to itself with nothing in between, so it says nothing"),
        ({"anyOf": [NULL, {"$ref": "#"}]}, "#/anyOf/1/$ref", "the schema refers to itself"),
        ({"not": {"format": "date"}}, "#/not/format", "the opposite of the format 'date' is not supported"),
        ({"const": [[]] * 1, "enum": [json.loads("[" * 65 + "]" * 65)]}, "#/enum", "a value nested in more than 64"),
        (
            {"anyOf": [{"properties": {"a": {}}}], "unevaluatedProperties": False},
            "#/unevaluatedProperties",
            "unevaluatedProperties is not supported where anyOf says of which",
        ),
        ({"contains": {}, "unevaluatedItems": False}, "#/unevaluatedItems", "unevaluatedItems is not supported beside"),
    ],
)
def test_what_is_no_schema_is_refused(schema, pointer, problem):
    found = refused(json.dumps(schema))
    assert found[0] == pointer and found[2].startswith(problem)


@pytest.mark.parametrize(
    ("schema", "pointer", "keyword", "problem"),
    [
        (False, "#", None, "false allows no value"),
        (
            {"type": "integer", "minimum": 5, "maximum": 4},
            "#/minimum",
            "minimum",
            "no whole number is at least 5 and at most 4",
        ),
        (
            {"type": "integer", "exclusiveMinimum": 1, "exclusiveMaximum": 2},
            "#/exclusiveMinimum",
            "minimum",
            "no whole number is above 1 and below 2",
        ),
        ({"enum": []}, "#/enum", "enum", "an enum of no values"),
        ({"enum": [1, 2], "type": "string"}, "#/enum", "enum", "1 is a number, and only string would do"),
        ({"const": "ab", "maxLength": 1}, "#/const", "const", '"ab" is not as the schema says besides'),
        (
            {"type": "string", "minLength": 5, "maxLength": 2},
            "#/minLength",
            "minLength",
            "at least 5 characters and at most 2",
        ),
        (
            {"type": "string", "pattern": "^a{3}$", "maxLength": 2},
            "#/pattern",
            "pattern",
            "no text matches the pattern and",
        ),
        ({"type": "array", "items": False, "minItems": 1}, "#/minItems", "minItems", "at least 1 items and at most 0"),
        (
            {"type": "array", "items": {"enum": [1, 2]}, "uniqueItems": True, "minItems": 3},
            "#/uniqueItems",
            "uniqueItems",
            "at least 3 items, all different, of 2 values",
        ),
        (
            {"type": "object", "required": ["b"], "properties": {"a": {}}, "additionalProperties": False},
            "#/required",
            "required",
            "the property 'b' is required, and forbidden",
        ),
        (
            {"type": "object", "properties": {"a": {"type": "integer", "minimum": 2, "maximum": 1}}, "required": ["a"]},
            "#/properties/a/minimum",
            "minimum",
            "no whole number is at least 2 and at most 1",
        ),
        (
            {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
            "#",
            "required",
            "the property 'a' has to have one like itself in it, without end",
        ),
        (
            {"allOf": [{"type": "string"}, {"type": "integer"}]},
            "#/allOf/1/type",
            "type",
            "one part asks for string, another for number",
        ),
        (
            {"type": "array", "items": {"$ref": "#"}, "minItems": 1},
            "#",
            "minItems",
            "it has to have one like itself in it, without end",
        ),
        ({"contains": {}, "maxItems": 0, "type": "array"}, "#/maxItems", "maxItems", "at least 1 items and at most 0"),
        ({"type": "null", "not": {"type": "null"}}, "#/not", "not", "one part asks for null, another for"),
    ],
)
def test_what_nothing_satisfies_is_refused(schema, pointer, keyword, problem):
    found = refused(json.dumps(schema))
    assert found[:2] == (pointer, keyword)
    assert found[2].startswith(f"nothing satisfies the schema: {problem}")


LARGE = "too large once its parts are put together; say less, or fewer alternatives"


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        ({"allOf": [{"anyOf": [{"required": [f"a{i}"]}, {"required": [f"b{i}"]}]} for i in range(20)]}, LARGE),
        ({"type": "object", "dependentRequired": {f"a{i}": [f"b{i}"] for i in range(40)}}, LARGE),
        (
            {
                "$defs": {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(500)} | {"d500": {}},
                "$ref": "#/$defs/d0",
            },
            "more than 64 schemas in each other speak of the same value",
        ),
        (
            {
                "const": json.loads("[" * 60 + "]" * 60),
                "items": {"$ref": "#/$defs/d0"},
                "$defs": {f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}]} for i in range(9)}
                | {"d9": {"$ref": "#/$defs/a"}}
                | {"a": {"type": "array", "items": {"$ref": "#/$defs/d0"}}},
            },
            "a constant needs more than 100 schemas in each other to be judged",
        ),
        ({"enum": list(range(50_001))}, "more than 50000 values"),
        ({"description": "x" * (1 << 20)}, f"a text of {(1 << 20) + 19} characters; at most {1 << 20} are taken"),
        ({"a" * 40_000: {}, "x-": 1}, "unknown keyword"),
    ],
)
def test_what_is_too_large_is_refused(schema, problem):
    assert refused(json.dumps(schema))[2].startswith(problem)


def test_what_is_large_but_harmless_is_not():
    deep = {"type": "integer"}
    for _ in range(200):
        deep = {"type": "object", "properties": {"a": deep}, "required": ["a"]}
    assert normalise(deep).text.count('"properties"') == 200
    assert normalise({"enum": list(range(5000))}).text.count(",") == 4999
    many = {f"q{i}": {"type": "integer"} for i in range(150)}
    text = normalise({"type": "object", "properties": many, "additionalProperties": False, "minProperties": 50}).text
    assert json.loads(text)["minProperties"] == 50


def test_annotations_are_left_out_and_nothing_else():
    schema = {"title": "t", "description": "d", "default": 1, "examples": [1], "$comment": "c", "deprecated": True}
    schema |= {
        "readOnly": True,
        "contentMediaType": "text/plain",
        "x-mine": {"type": 3},
        "$id": "urn:x",
        "type": "null",
    }
    assert normalise(schema).text == '{"type":"null"}'
