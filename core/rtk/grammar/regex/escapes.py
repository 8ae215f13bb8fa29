"""Code points in hexadecimal digits, as regular expressions and grammars write them after a backslash."""

import re

from rtk.grammar.regex.chars import LAST, SURROGATES

_FORMS = (
    re.compile(r"x([0-9A-Fa-f]{2})"),
    re.compile(r"u([0-9A-Fa-f]{4})"),
    re.compile(r"u\{([0-9A-Fa-f]{1,6})\}"),
    re.compile(r"U([0-9A-Fa-f]{8})"),
)
_LOW_HALF = re.compile(r"\\u([Dd][C-Fc-f][0-9A-Fa-f]{2})")


def code_point(text: str, at: int) -> tuple[int, int]:
    """What `xHH`, `uHHHH`, `u{H...}` or `UHHHHHHHH` at `at` stands for, and where it ends; a pair of halves is one.

    Raises `ValueError` with the problem.
    """
    found = next((found for form in _FORMS if (found := form.match(text, at))), None)
    if found is None:
        raise ValueError(f"an escape '\\{text[at]}' without its hexadecimal digits")
    end, value = found.end(), int(found[1], 16)
    if 0xD800 <= value < 0xDC00 and (low := _LOW_HALF.match(text, end)):
        end = low.end()
        value = 0x10000 + ((value - 0xD800) << 10) + int(low[1], 16) - 0xDC00
    if SURROGATES[0] <= value <= SURROGATES[1]:
        raise ValueError("half of a surrogate pair")
    if value > LAST:
        raise ValueError("an escape above U+10FFFF")
    return value, end
