"""JSON strings: how characters and names are spelled between the quotes."""

import json
from collections.abc import Collection, Iterable, Iterator
from itertools import pairwise
from typing import TypeVar

from rtk_grammar.expr import (
    ANY,
    EMPTY,
    LAST,
    NEVER,
    Alt,
    Chars,
    Expr,
    Range,
    Rep,
    Seq,
    Text,
    all_but,
    alt,
    can_be_empty,
    chars,
    inside,
    one_of,
    optional,
    paths,
    rep,
    seq,
    size,
    token,
)

K = TypeVar("K")
MOST_STATES = 24
MOST_PAIRS = 200
MOST_PARTS = 4000
"""Of automata and expressions that are worked out here."""
QUOTE = Text('"')
SPECIAL: tuple[Range, ...] = ((0, 0x1F), (ord('"'), ord('"')), (ord("\\"), ord("\\")))
"""Characters that must be escaped."""

_HEX = one_of("0123456789abcdefABCDEF")
_TWO = rep(_HEX, 2, 2)
_PLAIN = all_but(SPECIAL)
_UNIT = alt(
    seq(one_of("0123456789abcABCefEF"), rep(_HEX, 3, 3)),
    seq(one_of("dD"), one_of("01234567"), _TWO),
    seq(
        one_of("dD"), one_of("89abAB"), rep(_HEX, 2, 2), Text("\\u"), one_of("dD"), one_of("cdefCDEF"), rep(_HEX, 2, 2)
    ),
)
CHARACTER = alt(_PLAIN, seq(Text("\\"), alt(one_of('"\\/bfnrt'), seq(Text("u"), _UNIT))))
"""One character, in any spelling; an escaped pair of surrogates is one, and half of a pair is none."""


def string(least: int = 0, most: int | None = None) -> Expr:
    """Strings of so many characters, in any spelling."""
    return token(seq(QUOTE, rep(CHARACTER, least, most), QUOTE))


def writable(text: str) -> bool:
    """Whether there is UTF-8 for a text."""
    return not any("\ud800" <= char <= "\udfff" for char in text)


def literal(text: str) -> str:
    """The one spelling of a text that is generated where it is known."""
    return json.dumps(text, ensure_ascii=False)


def spelled(expr: Expr) -> Expr:
    """What matches the texts that `expr` matches as they are spelled: escaped only where they must be."""
    match expr:
        case Text(text):
            return Text(literal(text)[1:-1])
        case Chars(ranges):
            escaped = [Text(literal(chr(code))[1:-1]) for code in _special(ranges)]
            return alt(_without(ranges), *escaped) if escaped else expr
        case Seq(parts):
            return seq(*map(spelled, parts))
        case Alt(parts):
            return alt(*map(spelled, parts))
        case Rep(part, least, most):
            return rep(spelled(part), least, most)
    raise AssertionError(expr)


def _special(ranges: Iterable[Range]) -> list[int]:
    codes = (code for low, high in SPECIAL for code in range(low, high + 1))
    return [code for code in codes if any(low <= code <= high for low, high in ranges)]


def _without(ranges: tuple[Range, ...]) -> Expr:
    """The characters of `ranges` that need no escape."""
    assert isinstance(_PLAIN, Chars)
    pairs = ((max(low, a), min(high, b)) for low, high in ranges for a, b in _PLAIN.ranges)
    return chars((low, high) for low, high in pairs if low <= high)


def matching(expr: Expr) -> Expr:
    """Strings that `expr` matches as a whole."""
    inner = spelled(expr)
    return NEVER if inner == NEVER else token(seq(QUOTE, inner, QUOTE))


def other_than(texts: Iterable[str]) -> Expr:
    """Strings that are none of these."""
    return matching(_outside(sorted(set(texts)), 0))


def _outside(texts: list[str], at: int) -> Expr:
    """What may follow the `at` characters that all these texts begin with, so that none of them comes out."""
    following: dict[str, list[str]] = {}
    for text in texts:
        if len(text) > at:
            following.setdefault(text[at], []).append(text)
    ends = all(len(text) > at for text in texts)
    other = seq(all_but((ord(char), ord(char)) for char in following), rep(ANY))
    options = [seq(Text(char), _outside(group, at + 1)) for char, group in following.items()]
    rest = alt(other, *options)
    return optional(rest) if ends else rest


def matches(expr: Expr, text: str) -> bool:
    """Whether an expression without references matches a whole text."""
    for char in text:
        expr = after(expr, ord(char))
    return can_be_empty(expr, {})


def after(expr: Expr, code: int) -> Expr:
    """What may follow a character that a text began with."""
    match expr:
        case Text(text):
            return Text(text[1:]) if text and ord(text[0]) == code else NEVER
        case Chars(ranges):
            return EMPTY if any(low <= code <= high for low, high in ranges) else NEVER
        case Alt(parts):
            return alt(*(found for part in parts if (found := after(part, code)) != NEVER))
        case Rep(part, least, most):
            left = rep(part, max(0, least - 1), None if most is None else most - 1)
            return seq(after(part, code), left)
        case Seq(parts):
            options = []
            for i, part in enumerate(parts):
                options.append(seq(after(part, code), *parts[i + 1 :]))
                if not can_be_empty(part, {}):
                    break
            return alt(*(option for option in options if option != NEVER))
    raise AssertionError(expr)


def without(expr: Expr, texts: Collection[str]) -> Expr:
    """What `expr` matches, but for these texts."""
    if not any(matches(expr, text) for text in texts):
        return expr
    following: dict[str, list[str]] = {}
    for text in texts:
        if text:
            following.setdefault(text[0], []).append(text[1:])
    options: list[Expr] = [EMPTY] if can_be_empty(expr, {}) and "" not in texts else []
    options += [seq(Text(char), without(after(expr, ord(char)), rest)) for char, rest in following.items()]
    for low, high in _pieces(expr, following):
        options.append(seq(chars([(low, high)]), after(expr, low)))
    return alt(*(option for option in options if option != NEVER))


def outside(expr: Expr) -> Expr | None:
    """All texts that `expr` does not match; None where that takes too much."""
    known: dict[Expr, int] = {expr: 0}
    edges: dict[int, dict[int, Expr]] = {}
    for one, state in _growing(known):
        pieces: dict[Expr, list[Range]] = {}
        for low, high in _pieces(one, ()):
            pieces.setdefault(after(one, low), []).append((low, high))
        edges[state] = {known.setdefault(next_one, len(known)): chars(found) for next_one, found in pieces.items()}
        if len(known) > MOST_STATES:
            return None
    to = paths(edges)
    found = alt(*(to[state] for one, state in known.items() if not can_be_empty(one, {})))
    return found if size(found, {}) <= MOST_PARTS else None


def overlap(first: Expr, second: Expr) -> bool:
    """Whether some text matches both; also where it takes too much to find out."""
    known: dict[tuple[Expr, Expr], int] = {(first, second): 0}
    for (a, b), _ in _growing(known):
        if can_be_empty(a, {}) and can_be_empty(b, {}):
            return True
        for low, _ in _pieces(Alt((a, b)), ()):
            pair = after(a, low), after(b, low)
            if NEVER not in pair:
                known.setdefault(pair, len(known))
        if len(known) > MOST_PAIRS:
            return True
    return False


def _growing(known: dict[K, int]) -> Iterator[tuple[K, int]]:
    """What is in a dictionary, and what is put there meanwhile."""
    done = 0
    while done < len(known):
        for item in list(known.items())[done:]:
            done += 1
            yield item


def _pieces(expr: Expr, but_for: Iterable[str]) -> Iterator[Range]:
    """All characters but these, in ranges of which `expr` does not tell the characters apart."""
    known = {code for char in but_for for code in (ord(char), ord(char) + 1)}
    known |= {code for low, high in _ranges(expr) for code in (low, high + 1)}
    cuts = sorted(known | {0, LAST + 1})
    for low, after_it in pairwise(cuts):
        if chr(low) not in but_for:
            yield low, after_it - 1


def _ranges(expr: Expr) -> Iterator[Range]:
    if isinstance(expr, Chars):
        yield from expr.ranges
    if isinstance(expr, Text):
        yield from ((ord(char), ord(char)) for char in expr.text)
    for part in inside(expr):
        yield from _ranges(part)
