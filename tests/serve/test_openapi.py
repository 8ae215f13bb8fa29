"""The OpenAPI document against the server and docs/http.md: routes, fields, ranges, defaults."""

import json
import re

import jsonschema
import pytest
import schemathesis
from fake_scheduler import saying
from http_harness import InProcess, error_of
from test_docs_http import WHERE, code, of_kind, routes, rows_of
from tiny_tokenizer import byte_level, ids_of

from rtk.serve.http import field_schemas
from rtk.serve.http.answer_schemas import ANSWERS
from rtk.serve.http.field_schemas import SCHEMAS, schema_of
from rtk.serve.http.fields import FIELDS, Kind, Scope, field_of
from rtk.serve.http.openapi import _BODIES, OPERATIONS, document

TOKENIZER = byte_level()
DOCUMENT = document("1.2.3")
PLACES = [(name, scope) for name, field in of_kind(Kind.READ).items() for scope in field.scope]


@pytest.fixture
def http():
    with InProcess(saying(*ids_of(TOKENIZER, "a", "b")), tokenizer=TOKENIZER) as http:
        yield http


def body_schema(scope):
    return DOCUMENT["components"]["schemas"][_BODIES[scope]]


def walk(value):
    """Every object inside."""
    if isinstance(value, dict):
        yield value
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from walk(item)


# --- the document -----------------------------------------------------------------------------------------------


def test_it_is_served_as_it_is(http):
    assert http.get("/openapi.json").json() == DOCUMENT


def test_it_is_valid():
    schemathesis.openapi.from_dict(json.loads(json.dumps(DOCUMENT))).validate()
    for schema in DOCUMENT["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)


def test_references_lead_somewhere_and_everything_is_referred_to():
    used = {node["$ref"] for node in walk(DOCUMENT) if "$ref" in node}
    there = {f"#/components/{kind}/{name}" for kind in ("schemas", "headers", "responses")
             for name in DOCUMENT["components"][kind]}  # fmt: skip
    assert used <= there
    assert there == used


def test_every_route_is_there(http):
    described = {(method.upper(), path) for path, methods in DOCUMENT["paths"].items() for method in methods}
    missing, gone = routes(http.app) - described, described - routes(http.app)
    assert not missing, f"add an Operation to OPERATIONS in rtk/serve/http/openapi.py for {sorted(missing)}"
    assert not gone, f"take out of OPERATIONS in rtk/serve/http/openapi.py: {sorted(gone)}"
    assert len({operation.name for operation in OPERATIONS}) == len(OPERATIONS)


def test_every_answer_is_described():
    named = {name for operation in OPERATIONS for name in (operation.answer, operation.event) if name}
    assert named <= set(ANSWERS), "add them to ANSWERS in rtk/serve/http/answer_schemas.py"


def test_errors_are_described_as_they_are():
    for operation in OPERATIONS:
        answers = DOCUMENT["paths"][operation.path][operation.method.lower()]["responses"]
        for status in operation.statuses:
            assert answers[str(status)] == {"$ref": f"#/components/responses/{status}"}
    described = DOCUMENT["components"]["responses"]
    assert "Retry-After" in described["503"]["headers"]
    assert "WWW-Authenticate" in described["401"]["headers"]


# --- fields -----------------------------------------------------------------------------------------------------


def test_every_field_has_a_schema():
    missing = sorted({name for name, field in of_kind(Kind.READ).items() if name not in SCHEMAS})
    assert not missing, (
        f"{', '.join(missing)}: read by HTTP, not described. Add each to SCHEMAS in rtk/serve/http/field_schemas.py "
        "with type, range and default (where it means something else in one place, also to _HERE)"
    )
    unknown = {name for name, _ in field_schemas._HERE} | set(SCHEMAS)
    unknown -= {field.name for field in FIELDS}
    assert not unknown, f"described in rtk/serve/http/field_schemas.py, but none of FIELDS: {sorted(unknown)}"


def test_every_field_is_in_the_document_where_it_may_stand():
    for field in FIELDS:
        for scope in field.scope:
            shown = body_schema(scope)["properties"][field.name]
            assert shown == schema_of(field_of(field.name, scope), scope)
            assert shown["description"].endswith("."), field.name
    assert set(Scope) == set(_BODIES)


def test_fields_that_must_be_there_are_read_there():
    for table in (field_schemas.REQUIRED, field_schemas.ONE_OF):
        for scope, names in table.items():
            assert {field_of(name, scope).kind for name in names} == {Kind.READ}


def test_defaults_are_allowed():
    for name, scope in PLACES:
        schema = body_schema(scope)["properties"][name]
        if "default" in schema and "$ref" not in json.dumps(schema):
            jsonschema.validate(schema["default"], schema)


def numeric():
    """Every field that is a number, with its place."""
    for name, scope in PLACES:
        schema = body_schema(scope)["properties"][name]
        if "maximum" in schema:
            yield name, scope, schema


CALLS = {
    Scope.COMPLETIONS: ("/v1/completions", {"prompt": "x"}),
    Scope.CHAT: ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}),
    Scope.RESPONSES: ("/v1/responses", {"input": "x"}),
    Scope.GENERATE: ("/generate", {"text": "x"}),
    Scope.SAMPLING: ("/generate", {"text": "x"}),
    Scope.PIN: ("/cache/pin", {"text": "x", "name": "x"}),
}
BESIDE = {
    "max_tokens": {"echo": True, "continue_final_message": True},
    "max_completion_tokens": {"echo": True, "continue_final_message": True},
    "top_logprobs": {"logprobs": True},
    "top_logprobs_num": {"return_logprob": True},
}
"""What a field needs to be allowed at all."""


def test_ranges_are_those_of_the_validators(http):
    def refused(name, scope, value):
        path, body = CALLS[scope]
        fields = {name: value, **BESIDE.get(name, {})}
        body = {**body, **({"sampling_params": fields} if scope is Scope.SAMPLING else fields)}
        answer = http.post(path, body)
        if answer.status_code == 200:
            return False
        error = error_of(answer)
        return error["code"] == "invalid_request" and error["param"].rsplit(".")[-1] == name

    looked_at = 0
    for name, scope, schema in numeric():
        step = 1 if "integer" in schema["type"] else 0.5
        low, high = schema.get("minimum"), schema["maximum"]
        assert not refused(name, scope, high), (name, scope, high)
        assert refused(name, scope, high + step), (name, scope, high + step)
        if low is None:
            assert schema["exclusiveMinimum"] == 0
            assert not refused(name, scope, 0.01), (name, scope)
            assert refused(name, scope, 0), (name, scope)
        else:
            assert not refused(name, scope, low), (name, scope, low)
            assert refused(name, scope, low - step), (name, scope, low - step)
        looked_at += 1
    assert looked_at > 20


# --- docs/http.md -----------------------------------------------------------------------------------------------

WORDS = {"string": "string", "boolean": "boolean", "object": "object", "array": "list", "integer": "integer"}


def written(number):
    """A bound as the tables write it."""
    return {2**63 - 1: "2^63 - 1", -(2**63 - 1): "-(2^63 - 1)"}.get(
        number, f"{number:g}" if number % 1 else str(int(number))
    )


def kinds(schema):
    """The words for the types that a schema allows."""
    if "const" in schema or "enum" in schema:
        return set()
    if "anyOf" in schema:
        return set().union(*map(kinds, schema["anyOf"]))
    given = schema.get("type", ())
    return {WORDS[kind] for kind in ([given] if isinstance(given, str) else given) if kind in WORDS}


def field_rows():
    for row in rows_of("field", "in"):
        for name in code(row[0]):
            for word in row[1].split(", "):
                yield name, WHERE[word], row[2], row[3]


def test_the_tables_of_fields_have_the_same_types_and_ranges():
    for name, scope, types, _ in field_rows():
        schema = body_schema(scope)["properties"][name]
        if "maximum" in schema:
            kind = "integer" if "integer" in schema["type"] else "number"
            low, high = schema.get("minimum"), written(schema["maximum"])
            expected = f"{kind} above 0, to {high}" if low is None else f"{kind}, {written(low)} to {high}"
            assert types.split(";")[0] == expected, f"{name}: docs/http.md says {types!r}, the document {expected!r}"
        else:
            types = types.replace("JSON Schema", "object").replace("text of one", "string")
            assert all(word in types for word in kinds(schema)), (name, scope, types)


def test_the_tables_of_fields_have_the_same_defaults():
    for name, scope, _, told in field_rows():
        schema = body_schema(scope)["properties"][name]
        bare = told.strip("`")
        is_value = bool(re.fullmatch(r"-?\d+|true|false|\{\}|\[\]|\".*\"", bare))
        default = json.loads(bare) if is_value else None
        assert default == schema.get("default"), f"{name} at {scope.name}: docs/http.md says {told}"
