"""Older drafts mean what they say; formats are what their standards say."""

import datetime
import ipaddress
import itertools
import json
import random

import pytest
from oracle import left_over, validator

from rtk.grammar.schema import normalise
from rtk.grammar.schema.formats import FORMATS, NARROWED
from rtk.grammar.schema.patterns import canonical, matches

URLS = {
    4: "http://json-schema.org/draft-04/schema#",
    6: "http://json-schema.org/draft-06/schema#",
    7: "https://json-schema.org/draft-07/schema",
    2019: "https://json-schema.org/draft/2019-09/schema",
    2020: "https://json-schema.org/draft/2020-12/schema#",
}
ITEMS = [[], [1], ["a"], [1, None], ["a", None], [1, 2], ["a", None, None], ["a", None, 3]]
OBJECTS = [{}, {"a": 1}, {"b": 1}, {"a": 1, "b": 1}, {"a": 1, "c": 1}, {"c": 1}, {"c": 1, "d": 1}]
NUMBERS = [0, 1, 2, 3, 1.5, 0.5]
OLD = (4, 6, 7)


@pytest.mark.parametrize(
    ("drafts", "schema", "documents"),
    [
        ((4, 6, 7, 2019), {"type": "array", "items": [{"type": "string"}], "additionalItems": {"type": "null"}}, ITEMS),
        ((4, 6, 7, 2019), {"type": "array", "items": [{"type": "string"}], "additionalItems": False}, ITEMS),
        ((4, 6, 7, 2019), {"type": "array", "items": [{"type": "string"}]}, ITEMS),
        ((4, 6, 7, 2019), {"type": "array", "items": {"type": "string"}, "additionalItems": False}, ITEMS),
        ((4, 6, 7, 2019), {"type": "array", "additionalItems": False}, ITEMS),
        ((2020,), {"type": "array", "prefixItems": [{"type": "string"}], "items": {"type": "null"}}, ITEMS),
        (OLD, {"type": "object", "dependencies": {"a": ["b"], "c": {"required": ["d"]}}}, OBJECTS),
        ((2019, 2020), {"dependentRequired": {"a": ["b"]}, "dependentSchemas": {"c": {"required": ["d"]}}}, OBJECTS),
        ((4,), {"minimum": 1, "exclusiveMinimum": True, "maximum": 2, "exclusiveMaximum": False}, NUMBERS),
        ((6, 7, 2019, 2020), {"exclusiveMinimum": 1, "maximum": 2}, NUMBERS),
        (
            (*OLD, 2019, 2020),
            {"$ref": "#/definitions/a", "definitions": {"a": {"enum": [1, "a"]}}},
            [1, "a", 1.0, True],
        ),
        ((2019, 2020), {"$ref": "#/$defs/a", "maximum": 1, "$defs": {"a": {"type": "integer"}}}, NUMBERS),
        ((2019, 2020), {"$ref": "#a", "$defs": {"x": {"$anchor": "a", "type": "integer"}}}, NUMBERS),
        ((7, 2019, 2020), {"if": {"minimum": 2}, "then": {"const": 3}, "else": {"type": "integer"}}, NUMBERS),
        ((7, 2019, 2020), {"then": False}, NUMBERS),
    ],
)
def test_each_draft_is_read_as_it_says(drafts, schema, documents):
    for draft in drafts:
        dated = {"$schema": URLS[draft], **schema}
        form = json.loads(normalise(dated).text)
        assert not left_over(form)
        before, after = validator(dated, draft), validator(form)
        before.check_schema(dated)
        judged = [before.is_valid(document) for document in documents]
        assert judged == [after.is_valid(document) for document in documents]
        assert any(judged) and (not all(judged) or schema == {"then": False} or "additionalItems" in schema)


def matching(name, texts):
    pattern = canonical(FORMATS[name])
    return [text for text in texts if matches(pattern, text)]


def test_dates_are_those_of_the_calendar():
    days = [f"{m:02}-{d:02}" for m, d in itertools.product(range(14), range(33))]
    for year in ("0001", "0004", "0100", "0400", "1900", "2000", "2023", "2024", "9999"):
        real = [f"{year}-{day}" for day in days if is_date(f"{year}-{day}")]
        assert matching("date", [f"{year}-{day}" for day in days]) == real
    assert matching("date", ["0000-01-01", "2024-1-1", "20240101", "2024-01-01T", " 2024-01-01"]) == []


def is_date(text):
    try:
        return bool(datetime.date.fromisoformat(text))
    except ValueError:
        return False


def test_addresses_are_those_of_a_library():
    rng = random.Random(5)
    parts = ["0", "1", "9", "10", "99", "100", "199", "249", "255", "256", "300", "01", ""]
    texts = [".".join(rng.choices(parts, k=rng.choice((3, 4, 4, 4, 5)))) for _ in range(400)]
    texts += [".".join(rng.choices(parts[:9], k=4)) for _ in range(50)]
    assert matching("ipv4", texts) == [text for text in texts if is_address(ipaddress.IPv4Address, text)]
    groups = ["0", "1", "ab", "FFFF", "12345", "g", "", "", "1.2.3.4", "1.2.3.256"]
    texts = [":".join(rng.choices(groups[: rng.choice((4, 8, 10))], k=rng.randint(2, 9))) for _ in range(1500)]
    texts += ["::", "::1", "1::", "1:2:3:4:5:6:7:8", "1:2:3:4:5:6:1.2.3.4", "::1.2.3.4", "1::2::3", ":::", "1:::2"]
    expected = [text for text in texts if is_address(ipaddress.IPv6Address, text)]
    assert matching("ipv6", texts) == expected and len(expected) > 50


def is_address(kind, text):
    try:
        return bool(kind(text) is not None)
    except ValueError:
        return False


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        (
            "time",
            ["00:00:00Z", "23:59:59.123+14:30", "12:00:00-00:00"],
            ["24:00:00Z", "12:60:00Z", "12:00:00", "12:00Z"],
        ),
        (
            "date-time",
            ["2024-02-29T00:00:00Z"],
            ["2023-02-29T00:00:00Z", "2024-02-29 00:00:00Z", "2024-02-29T00:00:00"],
        ),
        (
            "duration",
            ["P1D", "PT1H", "P1Y2M3DT4H5M6S", "P2W", "PT36H", "P1M"],
            ["P", "PT", "P1DT", "1D", "P1W2D", "P1Y3D"],
        ),
        ("email", ["a.b+c@example.org", "x@y"], ["@x", "a@", "a..b@x.y", ".a@x.y", "a@-x.y", "a b@x.y"]),
        ("hostname", ["a", "a-b.example", "x" * 63], ["-a", "a-", "a..b", "a_b", "", "x" * 64, "a."]),
        (
            "uuid",
            ["2EB8AA08-aa98-11ea-b4aa-73b441d16380"],
            ["2eb8aa08aa9811eab4aa73b441d16380", "2eb8aa08-aa98-11ea-b4aa"],
        ),
        (
            "uri",
            ["https://a.b/c?d#e", "urn:x:y", "mailto:a@b", "x:"],
            ["//a.b", "/a", "a b:c", "http://a b", "1x:y", "x:%zz"],
        ),
        ("uri-reference", ["", "/a", "a/b", "//h/p", "#f", "?q", "https://x"], ["a b", "%z", "1:a", "\\"]),
        ("json-pointer", ["", "/a", "/a~0~1/0", "/"], ["a", "/~", "/~2", "#/a"]),
        ("relative-json-pointer", ["0", "1/a", "10#"], ["01", "-1", "/a", "1#/a"]),
    ],
)
def test_formats(name, good, bad):
    assert matching(name, [*good, *bad]) == good


def test_every_format_is_one_pattern():
    for name in FORMATS:
        normal = normalise({"type": "string", "format": name})
        assert set(json.loads(normal.text)) == {"type", "pattern"}
        assert dict(normal.narrowed) == ({"#/format": f"{name}: {NARROWED[name]}"} if name in NARROWED else {})
        assert normal.origin("#/pattern") == "#/format"
