"""From texts to how JSON writes them: the string literals, quotes and all, whose value matches an expression."""

from typing import Literal

from rtk.grammar.regex.chars import LAST, Ranges, difference, intersection, of, union
from rtk.grammar.regex.nodes import Alt, Chars, Node, Repeat, alt, chars, literal, repeat, seq

Spelling = Literal["full", "plain"]
"""`full`: every spelling that JSON knows. `plain`: one for each character, itself wherever JSON lets it."""

_MUST = union((*of("\0\x1f"), *of('"', "\\")))
_SHORT = {'"': '"', "\\": "\\", "\b": "b", "\f": "f", "\n": "n", "\r": "r", "\t": "t"}
_HIGH, _LOW, _BEYOND = 0xD800, 0xDC00, 0x10000


def json_string(node: Node, spelling: Spelling) -> Node:
    """The string literals whose value matches `node`. Halves of surrogate pairs never stand alone."""
    return seq((literal('"'), _spelt(node, spelling), literal('"')))


def _spelt(node: Node, spelling: Spelling) -> Node:
    if isinstance(node, Chars):
        return _character(node.ranges, spelling)
    if isinstance(node, Repeat):
        return repeat(_spelt(node.item, spelling), node.low, node.high)
    if isinstance(node, Alt):
        return alt(_spelt(option, spelling) for option in node.options)
    return seq(_spelt(item, spelling) for item in node.items)


def _character(ranges: Ranges, spelling: Spelling) -> Node:
    return alt((chars(difference(ranges, _MUST)), seq((literal("\\"), _escape(ranges, spelling)))))


def _escape(ranges: Ranges, spelling: Spelling) -> Node:
    """What follows the backslash."""
    short = _SHORT | {"/": "/"} if spelling == "full" else _SHORT
    single = chars(r for c, letter in short.items() if intersection(ranges, of(c)) for r in of(letter))
    if spelling == "plain":
        coded = difference(intersection(ranges, _MUST), union(r for c in _SHORT for r in of(c)))
        return alt((single, seq((literal("u"), _digits(coded, 4, "lower")))))
    near, far = intersection(ranges, ((0, _BEYOND - 1),)), intersection(ranges, ((_BEYOND, LAST),))
    pairs = (seq((a, literal("\\u"), b)) for low, high in far for a, b in _halves(low - _BEYOND, high - _BEYOND))
    return alt((single, seq((literal("u"), alt((_digits(near, 4, "both"), *pairs))))))


def _halves(low: int, high: int) -> list[tuple[Node, Node]]:
    """The halves of surrogate pairs for a range of code points beyond the first plane, counted from there."""
    out = []
    first, last = low >> 10, high >> 10
    while first <= last:
        start = low & 0x3FF
        if start == 0 and (until := last if high & 0x3FF == 0x3FF else last - 1) >= first:
            end = 0x3FF
        else:
            until, end = first, high & 0x3FF if first == last else 0x3FF
        upper, lower = ((_HIGH + first, _HIGH + until),), ((_LOW + start, _LOW + end),)
        out.append((_digits(upper, 4, "both"), _digits(lower, 4, "both")))
        first, low = until + 1, 0
    return out


def _digits(ranges: Ranges, width: int, case: Literal["lower", "both"]) -> Node:
    """The numbers of these ranges in `width` hexadecimal digits."""
    return alt(_digits_of(low, high, width, case) for low, high in ranges)


def _digits_of(low: int, high: int, width: int, case: Literal["lower", "both"]) -> Node:
    if width == 1:
        return _digit(low, high, case)
    unit = 16 ** (width - 1)
    first, last = low // unit, high // unit
    if first == last:
        return seq((_digit(first, first, case), _digits_of(low % unit, high % unit, width - 1, case)))
    options: list[Node] = []
    if low % unit:
        options.append(seq((_digit(first, first, case), _digits_of(low % unit, unit - 1, width - 1, case))))
        first += 1
    if (high + 1) % unit:
        options.append(seq((_digit(last, last, case), _digits_of(0, high % unit, width - 1, case))))
        last -= 1
    if first <= last:
        options.append(seq((_digit(first, last, case), repeat(_digit(0, 15, case), width - 1, width - 1))))
    return alt(options)


def _digit(low: int, high: int, case: Literal["lower", "both"]) -> Node:
    digits = "0123456789abcdef"[low : high + 1]
    return chars(r for d in digits for c in {d, d.upper() if case == "both" else d} for r in of(c))
