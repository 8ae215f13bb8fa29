"""Patterns: the regular expressions of a schema, by their canonical text."""

import re
from collections.abc import Iterable
from functools import lru_cache

from rtk.grammar import regex
from rtk.grammar.regex.chars import ANY
from rtk.grammar.regex.nodes import Chars, Seq

_KEPT = 512
"""Patterns of which what was found out is kept."""


@lru_cache(_KEPT)
def canonical(pattern: str) -> str:
    """What a whole string must match for a part of it to match `pattern`. Raises `RegexError`."""
    return regex.anchored(regex.parse(pattern, "search"))


@lru_cache(_KEPT)
def _node(pattern: str) -> regex.Node:
    return regex.parse(pattern, "search")


@lru_cache(_KEPT)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern.removesuffix("$") + r"\Z")


def matches(pattern: str, text: str) -> bool:
    """Whether `text` matches a canonical pattern."""
    return _compiled(pattern).match(text) is not None


def of_length(low: int, high: int | None) -> str:
    """The canonical pattern of all texts of so many characters."""
    return regex.anchored(regex.repeat(Chars(ANY), low, high))


def lengths(pattern: str) -> tuple[int, int | None]:
    """The least and the most characters of a text that matches a canonical pattern."""
    return regex.lengths(_node(pattern))


def literal_of(pattern: str) -> str | None:
    """The one text that matches a canonical pattern; None where there may be others."""
    node = _node(pattern)
    text = ""
    for item in node.items if isinstance(node, Seq) else (node,):
        if not (isinstance(item, Chars) and len(item.ranges) == 1 and item.ranges[0][0] == item.ranges[0][1]):
            return None
        text += chr(item.ranges[0][0])
    return text


def overlap(a: str, b: str) -> bool:
    """Whether some text matches both canonical patterns. Raises `TooLargeError`."""
    return regex.overlap(_node(a), _node(b))


def combined(
    wanted: Iterable[str], unwanted: Iterable[str], excluded: Iterable[str], low: int, high: int | None
) -> str | None:
    """The pattern of the texts that match all of the one and none of the others, and are so long; None for no text.

    Raises `TooLargeError`.
    """
    others = [*map(_node, sorted(unwanted)), *map(regex.literal, sorted(excluded))]
    node = regex.combined(map(_node, sorted(wanted)), unwanted=others, shortest=low, longest=high)
    if node == regex.NOTHING:
        return None
    pattern = regex.anchored(node)
    try:
        _node(pattern)
    except regex.RegexError:
        raise regex.TooLargeError("patterns whose combination is larger than a pattern may be") from None
    return pattern
