"""Random schemas: the normal form means what the schema means, or the refusal is right; never anything else."""

import contextlib
import json
import random

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from oracle import at, left_over, pointers, validator
from random_schemas import Random

from rtk.grammar.schema import SchemaError, normalise

LEFT_OVER = {"not", "contains", "minContains", "maxContains", "uniqueItems", "allOf", "propertyNames"}
DOCUMENTS = 12


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.randoms(use_true_random=False))
def test_normal_forms_mean_the_same(rng):
    judge(Random(rng))


def test_more_normal_forms_mean_the_same():
    """Without a way to make them smaller, but faster."""
    for seed in range(200):
        judge(Random(random.Random(seed), depth=seed % 3 + 1, applied=(0.5, 0.9)[seed % 2]))


def judge(source):
    schema = source.root()
    before = validator(schema)
    try:
        normal = normalise(json.dumps(schema))
    except SchemaError as error:
        at(schema, error.pointer)
        if "nothing satisfies" in error.problem:
            assert not any(before.is_valid(source.document(schema, schema)) for _ in range(DOCUMENTS))
        else:
            assert "refers to itself" in error.problem
        return
    form = json.loads(normal.text)
    after = validator(form)
    after.check_schema(form)
    assert set(left_over(form)) <= LEFT_OVER
    again = json.loads(normalise(normal.text).text)
    assert left_over(form) or not left_over(again)
    for pointer in pointers(form):
        at(schema, normal.origin(pointer))
    for index in range(DOCUMENTS):
        document = source.document(schema, schema) if index % 3 else source.document(form, form)
        assert before.is_valid(document) == after.is_valid(document), (schema, form, document)


KEYS = (
    *("type", "enum", "const", "properties", "items", "required", "minimum", "maxLength", "pattern", "$ref", "$defs"),
    *("allOf", "not", "if", "then", "additionalProperties", "x-", "uniqueItems", "format", "prefixItems", "a", "b"),
)
SCALARS = st.none() | st.booleans() | st.integers(-3, 3) | st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(
    SCALARS | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=8,
)


@settings(max_examples=100, deadline=None)
@given(JSON)
def test_no_value_makes_it_crash(value):
    try:
        normal = normalise(json.dumps(value))
    except SchemaError as error:
        assert error.pointer.startswith("#")
    else:
        validator(json.loads(normal.text)).check_schema(json.loads(normal.text))


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=40) | st.text(alphabet='{}[]":,01eE-+.truefalsn\\ud8', max_size=30))
def test_no_text_makes_it_crash(text):
    with contextlib.suppress(SchemaError):
        normalise(text)
