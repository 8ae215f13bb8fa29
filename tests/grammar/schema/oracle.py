"""What `jsonschema` says, with formats as rtk documents them."""

import json
import re

import jsonschema

from rtk.grammar.schema.formats import FORMATS

VALIDATORS = {
    4: jsonschema.Draft4Validator,
    6: jsonschema.Draft6Validator,
    7: jsonschema.Draft7Validator,
    2019: jsonschema.Draft201909Validator,
    2020: jsonschema.Draft202012Validator,
}

_FORMATS = jsonschema.FormatChecker(formats=())
for _name, _pattern in FORMATS.items():
    _FORMATS.checks(_name)(lambda value, p=_pattern: not isinstance(value, str) or re.search(p, value) is not None)


def validator(schema, draft=2020):
    """Judges documents by a schema."""
    return VALIDATORS[draft](schema, format_checker=_FORMATS)


def left_over(normal):
    """Keywords of a normal form that are not of its shapes, and shapes that are not allowed where they are."""
    found = []
    work = [(normal, True)]
    while work:
        schema, root = work.pop()
        if isinstance(schema, bool):
            continue
        keys = set(schema) - ({"$defs"} if root else set())
        work += [(part, False) for part in schema.get("$defs", {}).values()] if root else []
        if "$ref" in keys or "anyOf" in keys or "enum" in keys:
            if len(keys) != 1:
                found.append(sorted(keys))
            work += [(part, False) for part in schema.get("anyOf", ())]
            continue
        shape = {
            "null": set(),
            "boolean": set(),
            "integer": {"minimum", "maximum", "multipleOf"},
            "number": {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"},
            "string": {"minLength", "maxLength", "pattern"},
            "array": {"prefixItems", "items", "minItems", "maxItems"},
            "object": {
                *("properties", "required", "patternProperties", "additionalProperties"),
                *("minProperties", "maxProperties"),
            },
        }[schema["type"]]
        found += sorted(keys - shape - {"type"})
        work += [(part, False) for part in schema.get("prefixItems", ())]
        for keyword in ("properties", "patternProperties"):
            work += [(part, False) for part in schema.get(keyword, {}).values()]
        work += [(schema[keyword], False) for keyword in ("items", "additionalProperties") if keyword in schema]
    return found


def at(document, pointer):
    """What a JSON pointer leads to."""
    for step in pointer.split("/")[1:]:
        step = step.replace("~1", "/").replace("~0", "~")
        document = document[int(step)] if isinstance(document, list) else document[step]
    return document


def pointers(document, pointer="#"):
    """All pointers into a document."""
    yield pointer
    if isinstance(document, dict):
        for name, item in document.items():
            yield from pointers(item, f"{pointer}/{name.replace('~', '~0').replace('/', '~1')}")
    elif isinstance(document, list):
        for index, item in enumerate(document):
            yield from pointers(item, f"{pointer}/{index}")


def strict(text):
    """A JSON document; None where it is none, or has a key twice."""

    def once(pairs):
        assert len({key for key, _ in pairs}) == len(pairs)
        return dict(pairs)

    def no(_):
        raise AssertionError

    try:
        document = json.loads(text, object_pairs_hook=once, parse_constant=no)
        json.dumps(document, ensure_ascii=False).encode()
    except (ValueError, AssertionError):
        return None
    return [document]
