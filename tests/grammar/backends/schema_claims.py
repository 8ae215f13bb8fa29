"""Schemas in normal form, one at least for each entry of the table, and texts to try on them."""

import itertools
import json
import random

INTEGER = {"type": "integer"}
STRING = {"type": "string"}
NULL = {"type": "null"}
BOOLEAN = {"type": "boolean"}


def _obj(properties, **more):
    return {"type": "object", "properties": properties, "additionalProperties": False, **more}


NODE = {
    "$ref": "#/$defs/n",
    "$defs": {"n": _obj({"v": INTEGER, "k": {"type": "array", "items": {"$ref": "#/$defs/n"}}})},
}
SHORT = {"type": "string", "maxLength": 1}
X_NAMES = {"^(?:x_[a-z]*)$": INTEGER}

CLAIMS = [
    ("exact", NULL),
    ("exact", BOOLEAN),
    ("exact", {"enum": [None, True, ""]}),
    ("exact", {"enum": [[], [None, [False]], {}]}),
    ("narrowed", {"enum": [1, 2.5, -3]}),
    ("narrowed", {"enum": ['a"b', "c\\d", "é", "😀", "tab\t"]}),
    ("narrowed", {"enum": [{"k": 1}, {"a": [1, "x"], "b": None}]}),
    ("narrowed", INTEGER),
    ("narrowed", {"type": "integer", "minimum": -12, "maximum": 105}),
    ("narrowed", {"type": "integer", "exclusiveMinimum": 7.5}),
    ("narrowed", {"type": "integer", "exclusiveMaximum": -9}),
    ("narrowed", {"type": "integer", "minimum": 0, "maximum": 2**55}),
    ("narrowed", {"type": "integer", "multipleOf": 5, "minimum": 0, "maximum": 20}),
    ("narrowed", {"type": "integer", "multipleOf": 25}),
    ("refused", {"type": "integer", "multipleOf": 7}),
    ("narrowed", {"type": "number"}),
    ("narrowed", {"type": "number", "minimum": -1.5, "maximum": 2.25}),
    ("narrowed", {"type": "number", "exclusiveMinimum": 0}),
    ("narrowed", {"type": "number", "exclusiveMaximum": 0.001}),
    ("narrowed", {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}),
    ("narrowed", {"type": "number", "minimum": 99.5}),
    ("narrowed", {"type": "number", "maximum": -0.25}),
    ("narrowed", {"type": "number", "multipleOf": 5, "minimum": 0}),
    ("refused", {"type": "number", "multipleOf": 0.01}),
    ("exact", STRING),
    ("exact", {"type": "string", "minLength": 1, "maxLength": 1}),
    ("exact", {"type": "string", "minLength": 2}),
    ("exact", {"type": "string", "maxLength": 4}),
    ("narrowed", {"type": "string", "pattern": '^(?:[a-c"]{2}|é+\\x09?)$'}),
    ("refused", {"type": "string", "pattern": "^(?:[a-c]+)$", "minLength": 2}),
    ("narrowed", {"type": "string", "not": {"enum": ["x", "xy", 1]}}),
    ("exact", {"type": "array", "items": BOOLEAN}),
    ("exact", {"type": "array", "items": NULL, "minItems": 2, "maxItems": 3}),
    ("exact", {"type": "array", "prefixItems": [BOOLEAN, NULL], "items": False}),
    (
        "exact",
        {"type": "array", "prefixItems": [NULL, STRING], "items": BOOLEAN, "minItems": 1},
    ),
    ("exact", {"type": "array", "items": BOOLEAN, "uniqueItems": True}),
    ("narrowed", {"type": "array", "items": {"enum": [1, "a", None]}, "uniqueItems": True, "minItems": 2}),
    ("refused", {"type": "array", "items": INTEGER, "uniqueItems": True}),
    ("narrowed", {"type": "array", "items": INTEGER, "contains": {"enum": [7]}}),
    ("refused", {"type": "array", "items": INTEGER, "contains": {"type": "integer", "minimum": 3}}),
    ("refused", {"type": "array", "items": INTEGER, "contains": {"enum": [7]}, "minContains": 2}),
    ("narrowed", _obj({"a": INTEGER, "b": STRING}, required=["b"])),
    ("narrowed", _obj({"a": NULL, "b": NULL, "c": NULL})),
    ("narrowed", _obj({"a": NULL})),
    (
        "narrowed",
        _obj({"a": NULL, "b": NULL, "c": NULL}, minProperties=1, maxProperties=2),
    ),
    ("narrowed", {"type": "object", "required": ["a", "z"], "additionalProperties": NULL}),
    ("exact", {"type": "object", "additionalProperties": BOOLEAN}),
    ("exact", {"type": "object", "additionalProperties": NULL, "minProperties": 1, "maxProperties": 2}),
    ("refused", {"type": "object", "additionalProperties": NULL, "minProperties": 3}),
    ("refused", _obj({f"p{i}": NULL for i in range(150)}, minProperties=50, maxProperties=100)),
    (
        "narrowed",
        {"type": "object", "properties": {"a": NULL}, "additionalProperties": BOOLEAN},
    ),
    ("narrowed", {"type": "object", "patternProperties": X_NAMES, "additionalProperties": False}),
    (
        "narrowed",
        {"type": "object", "properties": {"x_a": INTEGER}, "patternProperties": X_NAMES, "additionalProperties": False},
    ),
    (
        "refused",
        {"type": "object", "properties": {"x_a": STRING}, "patternProperties": X_NAMES, "additionalProperties": False},
    ),
    ("narrowed", {"type": "object", "patternProperties": X_NAMES, "additionalProperties": NULL}),
    ("narrowed", {"type": "object", "patternProperties": {**X_NAMES, "^(?:[a-c])$": NULL}, "properties": {"b": NULL}}),
    ("refused", {"type": "object", "patternProperties": {"^(?:[ab]*a[ab]{5})$": INTEGER}}),
    (
        "refused",
        {"type": "object", "patternProperties": X_NAMES | {"^(?:x_a)$": STRING}, "additionalProperties": False},
    ),
    (
        "exact",
        {
            "type": "object",
            "propertyNames": {"type": "string", "maxLength": 1},
            "additionalProperties": NULL,
        },
    ),
    ("refused", _obj({"a": INTEGER}, propertyNames={"type": "string", "maxLength": 1})),
    ("narrowed", {"anyOf": [INTEGER, STRING, NULL]}),
    ("narrowed", {"anyOf": [_obj({"t": {"enum": ["a"]}, "n": INTEGER}), _obj({"t": {"enum": ["b"]}, "s": STRING})]}),
    ("narrowed", NODE),
    ("narrowed", True),
    ("refused", {"type": "string", "format": "date"}),
    ("refused", {"type": "object", "dependentRequired": {"a": ["b"]}}),
    ("refused", {"oneOf": [INTEGER, STRING]}),
    ("refused", {"type": "integer", "not": {"enum": [3]}}),
    ("refused", {"if": True}),
    ("refused", {}),
]
"""What becomes of it, by any backend that can take it at all, and a schema."""

_NUMBERS = (
    "0 -0 1 -1 7 9 10 -9 -10 -12 -13 104 105 106 25 75 100 125 2.25 2.26 2.250 -1.5 -1.51 0.5 1.0 1e5 "
    "1E+2 15e-1 0.001 0.0009 99.5 99.4999 100.25 -0.25 -0.2 -0.0 36028797018963968 36028797018963969 "
    "123456789012345678901234567890 -12.5E-3 0.9999999999999999999 0.00000000000000000001 01 +1 .5 1. "
    "--1 NaN - 1e 5.0 20 15 3 8 7.5 1e400"
)
_STRINGS = (
    '"" "a" "b" "x" "xy" "xyz" "ab" "a\\"" "\\u0061" "\\u00E9" "é" "éé\\t" "😀" '
    '"\\ud83d\\ude00" "\\ud83d" "\\ude00\\ud83d" "abcde" "abcd" "a\\n\\"b" "\\/" "/" "\\x41" "a\nb" '
    '"\x01" "c\\\\d" "tab\\t" "a\\"b" "\x7f" "\\u12" "\U0010ffff" "\\uD83D\\uDE00"'
)
NUMBERS, STRINGS = _NUMBERS.split(" "), _STRINGS.split(" ")
CONSTANTS = ["null", "true", "false", "nul", "True"]
KEYS = [
    '"a"',
    '"b"',
    '"c"',
    '"z"',
    '"x_a"',
    '"x_"',
    '"y"',
    '"t"',
    '"v"',
    '"k"',
    '"\\u0061"',
    '""',
    '"p1"',
    '"é"',
    '"ab"',
]


def texts() -> list[str]:
    """JSON texts of many kinds, and some that are none. The same each time."""
    rng = random.Random(7)
    scalars = [*CONSTANTS, *NUMBERS, *STRINGS]
    found = [
        *scalars,
        "",
        "[]",
        "{}",
        "[ ]",
        "{ }",
        "[,]",
        "{,}",
        "[1,]",
        " 1",
        "1 ",
        "[[]]",
        "[null,[false]]",
        "{\t\r\n}",
    ]
    for size in (1, 2, 2, 3, 3, 4):
        for _ in range(24):
            some = [rng.choice(scalars[:3] * 8 + scalars) for _ in range(size)]
            keys = rng.sample(KEYS, size)
            space = rng.choice(["", "", " ", "\n  ", " " * 8, " " * 9, "\x0b"])
            found.append("[" + space + f"{space},".join(some) + "]")
            members = [f"{key}{space}:{value}" for key, value in zip(keys, some, strict=True)]
            found.append("{" + f",{space}".join(members) + "}")
    for a, b in itertools.product(["1", '"x"', "null"], repeat=2):
        found += [f'{{"a":{a},"b":{b}}}', f'{{"b":{b},"a":{a}}}', f'{{"t":"a","n":{a}}}', f'{{"a":{a},"z":{b}}}']
        found += [
            f'{{"x_a":{a},"x_b":{b}}}',
            f'{{"k":[{{"v":{a},"k":[]}}],"v":{b}}}',
            f'{{"v":{a},"k":[{{}},{{"v":{b}}}]}}',
        ]
        found += [f"[{a},{b}]", f"[{a},7,{b}]", f"[{a},{b},null,true]", f'{{"k":{a}}}', f'{{"a":[{a},"x"],"b":null}}']
    return sorted({text for text in found if not has_a_key_twice(text)})


def has_a_key_twice(text):
    """Where names are not known, the host sees to it that none comes twice."""
    try:
        parsed(text)
    except ValueError as error:
        return str(error) == TWICE
    return False


TWICE = "a key comes twice"


def parsed(text):
    """A JSON text, strictly; `ValueError` for what is none, keys that come twice and halves of surrogate pairs too."""

    def once(pairs):
        if len(dict(pairs)) < len(pairs):
            raise ValueError(TWICE)
        return dict(pairs)

    def wrong(name):
        raise ValueError(name)

    value = json.loads(text, object_pairs_hook=once, parse_constant=wrong)
    json.dumps(value, ensure_ascii=False).encode()
    return value
