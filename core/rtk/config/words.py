"""What a value may be, in words: a JSON Schema as messages, new files and the reference of keys say it."""

from typing import Any

FORMATS = {
    "path": "a path",
    "date": "a date, such as 2026-01-31",
    "date-time": "a date and time, such as 2026-01-31T12:00:00Z",
    "duration": "a duration, such as PT30S",
    "uri": "a URL",
}


def resolved(schema: dict[str, Any], node: dict[str, Any]) -> dict[str, Any]:
    """A part of `schema`, which may be written elsewhere in it."""
    found: dict[str, Any] = schema["$defs"][node["$ref"].rpartition("/")[2]] if "$ref" in node else node
    return found


def words(schema: dict[str, Any]) -> str:
    """A JSON Schema of one value as a phrase that follows "must be"."""
    match schema:
        case {"enum": [*values]}:
            return "one of " + ", ".join(map(str, values))
        case {"const": value}:
            return str(value)
        case {"type": "integer" | "number" as kind}:
            return ("an integer" if kind == "integer" else "a number") + _range(schema)
        case {"type": "boolean"}:
            return "true or false"
        case {"type": "null"}:
            return "null"
        case {"type": "string", "format": form} if form in FORMATS:
            return FORMATS[form]
        case {"type": "string"}:
            return _text(schema.get("minLength", 0), schema.get("maxLength"))
        case {"type": "array"}:
            return "a JSON array"
        case {"type": "object"}:
            return "a JSON object"
    return "any value"


def _text(shortest: int, longest: int | None) -> str:
    if longest is not None:
        return f"text of {shortest} to {longest} characters"
    return {0: "text", 1: "text that is not empty"}.get(shortest, f"text of {shortest} characters or more")


def _range(schema: dict[str, Any]) -> str:
    bounds = (schema.get(name) for name in ("exclusiveMinimum", "minimum", "exclusiveMaximum", "maximum"))
    above, low, below, high = (None if bound is None else str(bound).removesuffix(".0") for bound in bounds)
    if low is not None and below is None:
        return f" from {low} up" if high is None else f" from {low} to {high}"
    said = {" above {}": above, " from {}": low, " below {}": below, " up to {}": high}
    return " and".join(limit.format(bound) for limit, bound in said.items() if bound is not None)
