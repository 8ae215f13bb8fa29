"""JSON values: numbers kept exactly, JSON Schema's equality, and their text."""

import json
from collections.abc import Hashable
from fractions import Fraction
from typing import Any

Number = int | Fraction
"""Every number is exact; a whole one is an `int`. (`bool` is never meant.)"""

TYPES = ("null", "boolean", "number", "string", "array", "object")
"""The types a value can be of; `integer` is a kind of number."""

MAX_DIGITS = 400
"""Of a number, written out in full before or after its point."""


def exact_number(text: str) -> Number:
    """The number that a JSON text of one stands for. `ValueError` where it is out of all proportion."""
    if len(text) <= MAX_DIGITS and text.lstrip("-").isdigit():
        return int(text)
    digits, _, exponent = text.lower().partition("e")
    if len(digits) > MAX_DIGITS or len(exponent) > 4 or abs(int(exponent or 0)) > MAX_DIGITS:
        raise ValueError("number too long")
    return tidy_number(Fraction(text))


def tidy_number(number: Number) -> Number:
    """A whole number as an `int`."""
    return number.numerator if number.denominator == 1 else number


_TYPE_OF = {
    type(None): "null",
    bool: "boolean",
    int: "number",
    Fraction: "number",
    str: "string",
    list: "array",
    dict: "object",
}


def type_of(value: Any) -> str:
    """Of `TYPES`."""
    return _TYPE_OF[type(value)]


def identity(value: Any) -> Hashable:
    """The same for two values iff JSON Schema has them equal: 1 and 1.0 are, 1 and true are not."""
    if isinstance(value, list):
        return ("array", *map(identity, value))
    if isinstance(value, dict):
        return ("object", frozenset((name, identity(item)) for name, item in value.items()))
    return type_of(value), value


def distinct(values: list[Any]) -> bool:
    """No two of the values are equal."""
    return len(set(map(identity, values))) == len(values)


def number_text(number: Number) -> str:
    """A JSON text of a number, in full."""
    if number.denominator == 1:
        return str(number.numerator)
    places = 0
    while 10**places % number.denominator:
        places += 1
    digits = str(abs(number.numerator) * 10**places // number.denominator).rjust(places + 1, "0")
    return f"{'-' if number < 0 else ''}{digits[:-places]}.{digits[-places:]}"


def value_text(value: Any) -> str:
    """A JSON text of a value, without white space."""
    if isinstance(value, list):
        return f"[{','.join(map(value_text, value))}]"
    if isinstance(value, dict):
        return f"{{{','.join(f'{string_text(name)}:{value_text(item)}' for name, item in value.items())}}}"
    return number_text(value) if type_of(value) == "number" else json.dumps(value, ensure_ascii=False)


def string_text(text: str) -> str:
    """A JSON text of a string."""
    return json.dumps(text, ensure_ascii=False)


def last_step(pointer: str) -> str:
    """The keyword, or whatever a pointer ends with; nothing for the root."""
    return pointer.rpartition("/")[2] if "/" in pointer else ""


def escaped(name: str) -> str:
    """A step of a JSON pointer."""
    return name.replace("~", "~0").replace("/", "~1")
