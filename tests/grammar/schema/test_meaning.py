"""Schemas in which keywords depend on each other: all small documents are judged alike before and after."""

import itertools
import json

import pytest
from oracle import left_over, validator

from rtk.grammar.schema import normalise

SCALARS = (None, True, 0, 1, 2, 1.5, -1, "", "a", "b", "ab", "xa")
ITEMS = (None, 1, "a")
ARRAYS = [list(items) for count in range(4) for items in itertools.product(ITEMS, repeat=count)]
NAMES = ("a", "b", "ab", "xa", "c")
OBJECTS = [
    dict(zip(names, values, strict=True))
    for count in range(4)
    for names in itertools.combinations(NAMES, count)
    for values in (list(itertools.product((1, "a"), repeat=count)) if count < 3 else [(1,) * 3, ("a", 1, None)])
]
DOCUMENTS = (*SCALARS, *ARRAYS, *OBJECTS)
INT, TEXT, NULL = {"type": "integer"}, {"type": "string"}, {"type": "null"}

OPPOSITES = [
    *({"items": False}, {"prefixItems": [INT], "items": False}, {"prefixItems": [NULL, INT]}, {"minItems": 2}),
    *({"maxItems": 1}, {"items": INT}, {"prefixItems": [NULL], "items": INT}, {"contains": INT}, {"uniqueItems": True}),
    *({"contains": INT, "minContains": 2}, {"contains": INT, "maxContains": 1}),
    *(
        {"required": ["a", "b"]},
        {"properties": {"a": INT}},
        {"properties": {"a": INT, "b": False}},
        {"minProperties": 2},
    ),
    *({"maxProperties": 1}, {"additionalProperties": False}, {"patternProperties": {"^a": INT}}),
    *({"properties": {"a": {}}, "additionalProperties": INT}, {"propertyNames": {"maxLength": 1}}),
    *({"properties": {"a": TEXT}, "patternProperties": {"^a": INT}, "additionalProperties": False},),
    *({"minimum": 1}, {"exclusiveMaximum": 1}, {"multipleOf": 2}, {"minLength": 1}, {"maxLength": 1}, {"pattern": "a"}),
    *({"type": ["integer", "null"]}, {"enum": [1, "a", None, [1], {"a": 1}]}, {"const": True}, {"type": "integer"}),
    *({"dependentRequired": {"a": ["b", "c"]}}, {"dependentSchemas": {"a": {"properties": {"b": INT}}}}),
    *({"if": {"required": ["a"]}, "then": {"required": ["b"]}}, {"if": INT, "then": {"minimum": 1}, "else": TEXT}),
    *({"anyOf": [INT, TEXT]}, {"allOf": [INT, {"minimum": 1}]}, {"not": TEXT}),
    {"oneOf": [{"required": ["a"]}, {"required": ["b"]}, {"minItems": 1}, INT]},
]
MERGED = [
    [{"patternProperties": {"^a": INT}}, {"properties": {"b": {}}, "additionalProperties": False}],
    [{"patternProperties": {"^a": INT}}, {"properties": {"a": TEXT}, "additionalProperties": NULL}],
    [{"patternProperties": {"^a": INT}, "additionalProperties": TEXT}, {"patternProperties": {"a$": {"minimum": 2}}}],
    [{"patternProperties": {"^a": {}}, "additionalProperties": False}, {"patternProperties": {"b$": INT}}],
    [{"patternProperties": {"^a": INT}}, {"propertyNames": {"pattern": "b$"}}],
    [{"patternProperties": {"^a": INT}}, {"propertyNames": {"enum": ["a", "c"]}, "additionalProperties": TEXT}],
    [{"propertyNames": {"pattern": "^.$"}}, {"properties": {"a": INT, "ab": INT}, "additionalProperties": TEXT}],
    [{"properties": {"a": INT}, "additionalProperties": False}, {"properties": {"b": INT}, "required": ["a"]}],
    [{"prefixItems": [INT], "items": TEXT}, {"prefixItems": [{}, {"type": ["string", "null"]}]}],
    [{"prefixItems": [INT, INT], "minItems": 1}, {"items": {"type": ["integer", "null"]}, "maxItems": 2}],
    [{"contains": INT}, {"contains": NULL}, {"maxItems": 2}],
    [{"uniqueItems": True}, {"items": {"enum": [None, 1]}}],
    [{"properties": {"a": {}}}, {"additionalProperties": INT, "minProperties": 1}, {"maxProperties": 2}],
]
UNEVALUATED = [
    {"properties": {"a": INT}, "unevaluatedProperties": False},
    {"allOf": [{"properties": {"a": INT}}, {"patternProperties": {"^x": {}}}], "unevaluatedProperties": TEXT},
    {"allOf": [{"properties": {"a": INT}, "unevaluatedProperties": TEXT}], "unevaluatedProperties": False},
    {"allOf": [{"additionalProperties": INT}], "unevaluatedProperties": False},
    {
        "anyOf": [{"required": ["a"]}, {"required": ["b"]}],
        "properties": {"a": {}, "b": {}},
        "unevaluatedProperties": False,
    },
    {"not": {"properties": {"a": INT}, "unevaluatedProperties": False}},
    {"allOf": [{"prefixItems": [INT, {}]}], "prefixItems": [{}], "unevaluatedItems": False},
    {"allOf": [{"items": INT}], "unevaluatedItems": False},
]


def assert_same(schema):
    form = json.loads(normalise(schema).text)
    before, after = validator(schema), validator(form)
    judged = [before.is_valid(document) for document in DOCUMENTS]
    assert judged == [after.is_valid(document) for document in DOCUMENTS], form
    assert True in judged and False in judged
    return form


@pytest.mark.parametrize("schema", OPPOSITES, ids=json.dumps)
def test_opposites(schema):
    assert_same(schema)
    assert_same({"not": schema})


@pytest.mark.parametrize("schemas", MERGED, ids=json.dumps)
def test_merged(schemas):
    form = assert_same({"allOf": schemas})
    assert set(left_over(form)) <= {"contains", "uniqueItems", "allOf"}
    assert_same({"oneOf": schemas[:2]})


@pytest.mark.parametrize("schema", UNEVALUATED, ids=json.dumps)
def test_unevaluated(schema):
    assert_same(schema)


@pytest.mark.parametrize(
    "schema", [*OPPOSITES, *UNEVALUATED, *({"allOf": merged} for merged in MERGED)], ids=json.dumps
)
def test_constants_are_judged_exactly(schema):
    form = json.loads(normalise({"enum": [[document] for document in DOCUMENTS], "items": schema}).text)
    judge = validator(schema)
    assert [value for (value,) in form["enum"]] == unequal(value for value in DOCUMENTS if judge.is_valid(value))


def unequal(values):
    """JSON Schema has 1 and true apart, which Python has not."""
    return list({json.dumps(value): value for value in values}.values())


def test_alternatives_that_differ_in_more_than_one_property_stay_apart():
    lacks = {"type": "object", "properties": {"a": False}, "additionalProperties": {"$ref": "#/$defs/i"}}
    has = {"type": "object", "required": ["a"], "additionalProperties": {"$ref": "#/$defs/t"}}
    defs = {"i": INT, "t": TEXT}
    assert len(assert_same({"anyOf": [lacks, has], "$defs": defs})["anyOf"]) == 2
    has["additionalProperties"] = lacks["additionalProperties"]
    assert "anyOf" not in assert_same({"anyOf": [lacks, has], "$defs": defs})
