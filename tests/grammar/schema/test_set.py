"""The public set of schemas: each is brought into normal form, which judges its texts alike, or refused as it says."""

import json
from pathlib import Path

import pytest
from oracle import left_over, strict, validator

from rtk.grammar.schema import SchemaError, normalise

CASES = {
    case["id"]: case
    for case in json.loads((Path(__file__).parents[2] / "data/schema_cases.json").read_text(encoding="utf-8"))
}
REFUSED = {identity for identity, case in CASES.items() if case["must_refuse"]}
LEFT_OVER = {"S49": ["contains"]}


@pytest.mark.parametrize("identity", sorted(CASES.keys() - REFUSED))
def test_what_can_be_served_is_normalised(identity):
    case = CASES[identity]
    draft = 7 if "draft-07" in json.dumps(case["schema"]) else 2020
    normal = json.loads(normalise(json.dumps(case["schema"])).text)
    before, after = validator(case["schema"], draft), validator(normal)
    after.check_schema(normal)
    assert left_over(normal) == LEFT_OVER.get(identity, [])
    for text in case["must_accept"]:
        (document,) = strict(text)
        assert before.is_valid(document) and after.is_valid(document), text
    for text in case["must_reject"]:
        document = strict(text)
        assert document is None or not (before.is_valid(document[0]) or after.is_valid(document[0])), text


@pytest.mark.parametrize("identity", sorted(REFUSED))
def test_what_must_be_refused_is(identity):
    with pytest.raises(SchemaError) as caught:
        normalise(json.dumps(CASES[identity]["schema"]))
    assert str(caught.value).startswith(f"JSON Schema, at {caught.value.pointer}: ")
    assert caught.value.status == 400


def test_the_figures_of_the_set():
    assert (len(CASES), len(REFUSED)) == (58, 15)
    assert len(CASES.keys() - REFUSED - LEFT_OVER.keys()) == 42
