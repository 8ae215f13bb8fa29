"""The canonical text of an expression: one that xgrammar, llguidance, outlines_core and Python's `re` read alike.

Characters are themselves where ASCII can print them, with a backslash where they mean something; all others are
`\\uHHHH` or `\\UHHHHHHHH`. Groups are `(?:...)`, repetitions greedy. Nothing else is used. What xgrammar reads in a way
of its own is left out: `\\xHH`, a class that begins with `\\^`, and in a class a control character before a digit.
"""

from functools import lru_cache
from string import hexdigits

from rtk.grammar.regex.chars import LAST, SURROGATES, Ranges
from rtk.grammar.regex.nodes import Chars, Node, Repeat, Seq

MAX_LENGTH = 20_000
"""Characters of a canonical text that can be read again."""
MAX_GROUPS = 60
"""Groups in groups of it."""

_KEPT = 1024
"""Classes whose text is kept: most expressions have a few, again and again."""
_SPECIAL = frozenset("\\.^$*+?()[]{}|")
_SPECIAL_IN_CLASS = frozenset("\\^-[]")
_CODED_IN_CLASS = frozenset("&~|")
"""Where they are doubled, some libraries see an operation on sets."""
_CARET = (ord("^"), ord("^"))


def text(node: Node) -> str:
    """`node` as an expression that whole texts match."""
    return _written(node, 0)[0]


def anchored(node: Node) -> str:
    """`node` as an expression for where a part of a text would do, such as JSON Schema's `pattern`."""
    return f"^(?:{text(node)})$"


def fits(node: Node) -> bool:
    """Whether the canonical text is small enough to be read again."""
    found, groups = _written(node, 0)
    return len(found) <= MAX_LENGTH and groups <= MAX_GROUPS


def _written(node: Node, binding: int) -> tuple[str, int]:
    """The text, and how many groups there are in each other at most.

    `binding`: 0 where alternatives may stand, 1 in a sequence, 2 before a quantifier.
    """
    if isinstance(node, Chars):
        return chars(node.ranges), 0
    if isinstance(node, Repeat):
        item, groups = _written(node.item, 2)
        found, own = item + times(node.low, node.high), 1
    else:
        sequence = isinstance(node, Seq)
        parts = [_written(part, 1) for part in (node.items if isinstance(node, Seq) else node.options)]
        found, own = ("" if sequence else "|").join(part for part, _ in parts), int(sequence)
        groups = max((inside for _, inside in parts), default=0)
    return (f"(?:{found})", groups + 1) if own < binding or not found else (found, groups)


def times(low: int, high: int | None) -> str:
    """A quantifier."""
    if high is None:
        return "*" if low == 0 else "+" if low == 1 else f"{{{low},}}"
    if (low, high) == (0, 1):
        return "?"
    return f"{{{low}}}" if low == high else f"{{{low},{high}}}"


@lru_cache(_KEPT)
def chars(ranges: Ranges) -> str:
    """One character of a set that is not empty, as a regular expression."""
    if len(ranges) == 1 and ranges[0][0] == ranges[0][1]:
        return _character(ranges[0][0])
    pairs = [pair for low, high in ranges for pair in _without_caret_first(low, high)]
    pairs.sort(key=lambda pair: chr(pair[0]) not in hexdigits)
    if pairs[0] == _CARET:
        pairs = [*pairs[1:], _CARET]
    return f"[{''.join(_range(*pair) for pair in pairs)}]"


def _without_caret_first(low: int, high: int) -> tuple[tuple[int, int], ...]:
    return ((low, low), (low + 1, high)) if chr(low) == "^" and low < high else ((low, high),)


def _range(low: int, high: int) -> str:
    if low == high:
        return _in_class(low)
    return _in_class(low) + ("-" if high > low + 1 else "") + _in_class(high)


def _character(point: int) -> str:
    if chr(point) in _SPECIAL:
        return "\\" + chr(point)
    return chr(point) if 0x20 <= point < 0x7F else code(point)


def _in_class(point: int) -> str:
    if chr(point) in _SPECIAL_IN_CLASS:
        return "\\" + chr(point)
    if chr(point) in _CODED_IN_CLASS:
        return code(point)
    return _character(point) if chr(point) not in _SPECIAL else chr(point)


def code(point: int) -> str:
    """A character by its code point."""
    assert point <= LAST and not SURROGATES[0] <= point <= SURROGATES[1]
    return f"\\u{point:04X}" if point < 0x10000 else f"\\U{point:08X}"
