"""What becomes of each shape and keyword of the normal form: data, which a backend may change for itself.

The grammars of all backends are written by `schema.py`, so one table holds for all of them; a backend whose library
cannot take a construct says so in a table of its own, laid over this one.
"""

from collections.abc import Mapping
from typing import Literal, NamedTuple


class Entry(NamedTuple):
    """What becomes of a keyword."""

    verdict: Literal["exact", "narrowed", "refused"]
    reason: str = ""


Table = Mapping[tuple[str, str], Entry]
"""By shape and keyword. What is not in it is refused."""

EXACT = Entry("exact")
SPELLING = Entry(
    "narrowed", "names, constants and texts with a pattern are spelled in one way, with no needless escapes"
)
ORDER = Entry("narrowed", "properties come in the order of the schema, then the others")
INTEGER = Entry("narrowed", "integers have no fraction and no exponent, and at most 40 digits where they have no bound")
NUMBER = Entry("narrowed", "numbers have at most 40 digits before the point and after it, and 2 in the exponent")
BOUNDED = Entry("narrowed", "numbers with a bound have no exponent, and at most 15 digits where they have a fraction")

TABLE: dict[tuple[str, str], Entry] = {
    ("any", "true"): NUMBER,
    ("enum", "null"): EXACT,
    ("enum", "boolean"): EXACT,
    ("enum", "number"): Entry("narrowed", "numbers of an enum are spelled in one way"),
    ("enum", "string"): SPELLING,
    ("enum", "array"): EXACT,
    ("enum", "object"): EXACT,
    ("enum", "order"): Entry("narrowed", "properties of constants come in the order of the schema"),
    ("null", "type"): EXACT,
    ("boolean", "type"): EXACT,
    ("integer", "type"): INTEGER,
    ("integer", "minimum"): EXACT,
    ("integer", "maximum"): EXACT,
    ("integer", "exclusiveMinimum"): EXACT,
    ("integer", "exclusiveMaximum"): EXACT,
    ("integer", "multipleOf"): EXACT,
    ("integer", "multipleOf of many"): Entry(
        "refused", "multipleOf with no end of multiples, where the last digits do not tell them"
    ),
    ("number", "type"): NUMBER,
    ("number", "minimum"): BOUNDED,
    ("number", "maximum"): BOUNDED,
    ("number", "exclusiveMinimum"): BOUNDED,
    ("number", "exclusiveMaximum"): BOUNDED,
    ("number", "multipleOf"): INTEGER,
    ("number", "multipleOf of a fraction"): Entry("refused", "multipleOf that is no integer"),
    ("string", "type"): EXACT,
    ("string", "minLength"): EXACT,
    ("string", "maxLength"): EXACT,
    ("string", "pattern"): SPELLING,
    ("string", "pattern with lengths"): Entry("refused", "pattern or format together with minLength or maxLength"),
    ("string", "not"): SPELLING,
    ("array", "type"): EXACT,
    ("array", "prefixItems"): EXACT,
    ("array", "items"): EXACT,
    ("array", "minItems"): EXACT,
    ("array", "maxItems"): EXACT,
    ("array", "uniqueItems"): EXACT,
    ("array", "uniqueItems of many"): Entry("refused", "uniqueItems, but for a few items of an enum"),
    ("array", "contains"): EXACT,
    ("array", "contains beside others"): Entry(
        "refused", "contains, but for a constant, and beside other keywords than items of a plain type"
    ),
    ("object", "type"): EXACT,
    ("object", "properties"): SPELLING,
    ("object", "required"): SPELLING,
    ("object", "additionalProperties"): EXACT,
    ("object", "patternProperties"): SPELLING,
    ("object", "patternProperties and additionalProperties"): Entry(
        "refused", "patternProperties that are too large to say which other names are additionalProperties"
    ),
    ("object", "patternProperties that overlap"): Entry(
        "refused", "several patternProperties, of different schemas, that may match the same name"
    ),
    ("object", "patternProperties over properties"): Entry(
        "refused", "patternProperties that a property matches which has another schema"
    ),
    ("object", "propertyNames"): EXACT,
    ("object", "propertyNames beside others"): Entry(
        "refused", "propertyNames together with properties, required or patternProperties"
    ),
    ("object", "minProperties"): EXACT,
    ("object", "maxProperties"): EXACT,
    ("object", "minProperties and maxProperties of many"): Entry(
        "refused", "minProperties or maxProperties of an object with many properties"
    ),
    ("object", "minProperties of any names"): Entry("refused", "minProperties above 1 of an object with any names"),
    ("object", "order"): ORDER,
    ("anyOf", "anyOf"): EXACT,
    ("$ref", "$ref"): EXACT,
}
