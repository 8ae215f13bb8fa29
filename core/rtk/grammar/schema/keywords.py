"""The keywords of JSON Schema: since which draft there is one, until which, and what form its value has."""

from typing import NamedTuple

DRAFTS = {
    "json-schema.org/draft-04/schema": 4,
    "json-schema.org/draft-06/schema": 6,
    "json-schema.org/draft-07/schema": 7,
    "json-schema.org/draft/2019-09/schema": 2019,
    "json-schema.org/draft/2020-12/schema": 2020,
}
LATEST = 2020
DRAFT_NAMES = {4: "draft-04", 6: "draft-06", 7: "draft-07", 2019: "draft 2019-09", 2020: "draft 2020-12"}


class Keyword(NamedTuple):
    """What a keyword's value must be, and in which drafts it means something."""

    form: str
    """A key of `FORMS`."""
    since: int = 4
    until: int = LATEST
    hint: str = ""
    """What to write instead in other drafts."""


FORMS = {
    "schema": "a schema",
    "schemas": "an array of schemas, one at least",
    "schema map": "an object of schemas",
    "pattern map": "an object of schemas, named by patterns",
    "items": "a schema, or before draft 2020-12 an array of schemas",
    "dependencies": "an object of schemas and arrays of names",
    "name map": "an object of arrays of names",
    "names": "an array of distinct names",
    "values": "an array",
    "type": "one of null, boolean, integer, number, string, array, object, or an array of distinct ones",
    "count": "a whole number, not below 0",
    "number": "a number",
    "bound": "a number, or true or false in draft-04",
    "positive": "a number above 0",
    "boolean": "true or false",
    "string": "a string",
    "pattern": "a regular expression",
    "format": "the name of a format",
    "anchor": "a plain name",
    "value": "any value",
    "refused": "nothing that rtk can keep",
}

KEYWORDS: dict[str, Keyword] = {
    "$ref": Keyword("string"),
    "$anchor": Keyword("anchor", 2019),
    "$defs": Keyword("schema map"),
    "definitions": Keyword("schema map"),
    "type": Keyword("type"),
    "enum": Keyword("values"),
    "const": Keyword("value", 6, hint="use an enum of one value"),
    "minimum": Keyword("number"),
    "maximum": Keyword("number"),
    "exclusiveMinimum": Keyword("bound"),
    "exclusiveMaximum": Keyword("bound"),
    "multipleOf": Keyword("positive"),
    "minLength": Keyword("count"),
    "maxLength": Keyword("count"),
    "pattern": Keyword("pattern"),
    "format": Keyword("format"),
    "prefixItems": Keyword("schemas", 2020, hint="use an array in items"),
    "items": Keyword("items"),
    "additionalItems": Keyword("schema", 4, 2019, "use items, beside prefixItems"),
    "minItems": Keyword("count"),
    "maxItems": Keyword("count"),
    "uniqueItems": Keyword("boolean"),
    "contains": Keyword("schema", 6),
    "minContains": Keyword("count", 2019),
    "maxContains": Keyword("count", 2019),
    "properties": Keyword("schema map"),
    "patternProperties": Keyword("pattern map"),
    "additionalProperties": Keyword("schema"),
    "propertyNames": Keyword("schema", 6),
    "required": Keyword("names"),
    "minProperties": Keyword("count"),
    "maxProperties": Keyword("count"),
    "dependencies": Keyword("dependencies", 4, 7, "use dependentRequired or dependentSchemas"),
    "dependentRequired": Keyword("name map", 2019, hint="use dependencies"),
    "dependentSchemas": Keyword("schema map", 2019, hint="use dependencies"),
    "allOf": Keyword("schemas"),
    "anyOf": Keyword("schemas"),
    "oneOf": Keyword("schemas"),
    "not": Keyword("schema"),
    "if": Keyword("schema", 7),
    "then": Keyword("schema", 7),
    "else": Keyword("schema", 7),
    "unevaluatedItems": Keyword("schema", 2019, hint="use additionalItems"),
    "unevaluatedProperties": Keyword("schema", 2019, hint="use additionalProperties"),
    "$dynamicRef": Keyword("refused", hint="use $ref"),
    "$dynamicAnchor": Keyword("refused", hint="use $anchor and $ref"),
    "$recursiveRef": Keyword("refused", hint="use $ref"),
    "$recursiveAnchor": Keyword("refused", hint="use $ref"),
    "$vocabulary": Keyword("refused", hint="it is for schemas of schemas"),
    "nullable": Keyword("refused", hint='it is OpenAPI\'s; give type an array, such as ["string", "null"]'),
}

ANNOTATIONS = frozenset(
    {
        *("title", "description", "default", "examples", "$comment", "deprecated", "readOnly", "writeOnly"),
        *("contentMediaType", "contentEncoding", "contentSchema"),
        *("discriminator", "example", "externalDocs", "xml"),  # OpenAPI's
    }
)
"""Keywords that forbid nothing, and are left out."""

ROOT_ONLY = frozenset({"$schema", "$id", "id"})

CONSTRAINTS = frozenset(KEYWORDS) - {"$ref", "$defs", "definitions", "$anchor"}
"""What means something beside `$ref`; ignored there before draft 2019-09."""
