"""Grammars as the backends here share them: rules of expressions over characters.

Every kind of spec is turned into these by code of this package, so that three libraries see one meaning, and none of
them reads a schema, a pattern or a tag by itself.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter

Range = tuple[int, int]
"""Code points, the last one included."""

LAST = 0x10FFFF
SURROGATES = (0xD800, 0xDFFF)


class RefusedError(Exception):
    """A text is malformed, or more than can be promised. Its message is one line, for clients."""


@dataclass(frozen=True, slots=True)
class Chars:
    """One character of these: ranges that are sorted, apart from each other, and without surrogates."""

    ranges: tuple[Range, ...]


@dataclass(frozen=True, slots=True)
class Text:
    """These characters."""

    text: str


@dataclass(frozen=True, slots=True)
class Seq:
    """One after the other."""

    parts: tuple["Expr", ...]


@dataclass(frozen=True, slots=True)
class Alt:
    """One of these; never anything where there are none."""

    parts: tuple["Expr", ...]


@dataclass(frozen=True, slots=True)
class Rep:
    """So many times; `most` is None for any number."""

    part: "Expr"
    least: int
    most: int | None


@dataclass(frozen=True, slots=True)
class Ref:
    """What the rule of this name says."""

    name: str


@dataclass(frozen=True, slots=True)
class Token:
    """A part without references after which nothing can follow that it could go on with.

    Lexers that take as much as they can may take it in one piece.
    """

    part: "Expr"


Expr = Chars | Text | Seq | Alt | Rep | Ref | Token
Rules = dict[str, Expr]
"""The start is `root`."""

EMPTY = Text("")
NEVER = Alt(())


def chars(ranges: Iterable[Range]) -> Expr:
    """One character of `ranges`, in any order, overlapping or not, surrogates left out."""
    found: list[Range] = []
    for low, high in sorted(_without_surrogates(ranges)):
        if found and low <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(high, found[-1][1]))
        else:
            found.append((low, high))
    return Chars(tuple(found)) if found else NEVER


def _without_surrogates(ranges: Iterable[Range]) -> Iterator[Range]:
    first, last = SURROGATES
    for low, high in ranges:
        for one in ((low, min(high, first - 1)), (max(low, last + 1), high)):
            if one[0] <= one[1]:
                yield one


def one_of(characters: str) -> Expr:
    """One of these characters."""
    return chars((ord(c), ord(c)) for c in characters)


def all_but(ranges: Iterable[Range]) -> Expr:
    """One character that is not in `ranges`."""
    found, next_one = [], 0
    for low, high in sorted(ranges):
        found.append((next_one, low - 1))
        next_one = max(next_one, high + 1)
    return chars((low, high) for low, high in [*found, (next_one, LAST)] if low <= high)


ANY = all_but([])


def seq(*parts: Expr) -> Expr:
    """One after the other, as short as it can be said."""
    flat: list[Expr] = []
    for part in parts:
        for one in part.parts if isinstance(part, Seq) else (part,):
            if one == NEVER:
                return NEVER
            if isinstance(one, Text) and flat and isinstance(flat[-1], Text):
                flat[-1] = Text(flat[-1].text + one.text)
            elif one != EMPTY:
                flat.append(one)
    return flat[0] if len(flat) == 1 else Seq(tuple(flat)) if flat else EMPTY


def alt(*parts: Expr) -> Expr:
    """One of these, as short as it can be said."""
    flat: dict[Expr, None] = {}
    for part in parts:
        flat.update(dict.fromkeys(part.parts if isinstance(part, Alt) else (part,)))
    classes = [ranges for one in flat if (ranges := _ranges(one))]
    if len(classes) > 1:
        flat = dict.fromkeys([chars(r for ranges in classes for r in ranges), *(x for x in flat if not _ranges(x))])
    found = tuple(flat)
    return found[0] if len(found) == 1 else Alt(found)


def _ranges(one: Expr) -> tuple[Range, ...]:
    """The characters of an expression that is one character."""
    if isinstance(one, Text) and len(one.text) == 1:
        return ((ord(one.text), ord(one.text)),)
    return one.ranges if isinstance(one, Chars) else ()


def rep(part: Expr, least: int = 0, most: int | None = None) -> Expr:
    """So many times, as short as it can be said."""
    if most == 0 or part == EMPTY:
        return EMPTY
    if part == NEVER:
        return NEVER if least else EMPTY
    return part if least == most == 1 else Rep(part, least, most)


def optional(part: Expr) -> Expr:
    """Once or not at all."""
    return rep(part, 0, 1)


def token(part: Expr) -> Expr:
    """See `Token`."""
    return part if part in (NEVER, EMPTY) else Token(part)


def word(text: str) -> Expr:
    """A text as a token."""
    return Token(Text(text))


def inside(expr: Expr) -> tuple[Expr, ...]:
    """The parts that an expression is made of."""
    match expr:
        case Seq(parts) | Alt(parts):
            return parts
        case Rep(part) | Token(part):
            return (part,)
    return ()


def names(expr: Expr) -> Iterator[str]:
    """The rules that an expression refers to."""
    left = [expr]
    while left:
        one = left.pop()
        if isinstance(one, Ref):
            yield one.name
        left += inside(one)


def has_tokens(expr: Expr) -> bool:
    """Whether any of it is a token."""
    return isinstance(expr, Token) or any(map(has_tokens, inside(expr)))


def in_order(rules: Rules) -> list[str] | None:
    """The rules that `root` needs, each after those that it refers to; None where one refers to itself in the end."""
    order: dict[str, None] = {}
    open_: set[str] = set()
    left = [("root", False)]
    while left:
        name, done = left.pop()
        if done:
            open_.discard(name)
            order[name] = None
        elif name in open_:
            return None
        elif name not in order:
            open_.add(name)
            left.append((name, True))
            left += [(other, False) for other in dict.fromkeys(names(rules[name])) if other not in order]
    return list(order)


def plain(expr: Expr, known: Rules) -> Expr:
    """An expression with what is `known` in place of references, and without tokens."""
    match expr:
        case Ref(name):
            return known[name]
        case Seq(parts):
            return seq(*(plain(part, known) for part in parts))
        case Alt(parts):
            return alt(*(plain(part, known) for part in parts))
        case Rep(part, least, most):
            return rep(plain(part, known), least, most)
        case Token(part):
            return plain(part, known)
    return expr


def size(expr: Expr, known: dict[str, int]) -> int:
    """Characters and operators that an expression has once references are written out; `known` are those of rules."""
    match expr:
        case Ref(name):
            return known[name]
        case Text(text):
            return max(1, len(text))
        case Chars(ranges):
            return len(ranges)
    return 1 + sum(size(part, known) for part in inside(expr))


def flat(rules: Rules, limit: int) -> Expr | None:
    """All rules as one expression without references; None where they are recursive, or it has more parts than that."""
    order = in_order(rules)
    if order is None:
        return None
    sizes: dict[str, int] = {}
    for name in order:
        sizes[name] = size(rules[name], sizes)
    if sizes["root"] > limit:
        return None
    known: Rules = {}
    for name in order:
        known[name] = plain(rules[name], known)
    return known["root"]


def can_be_empty(expr: Expr, known: dict[str, bool]) -> bool:
    """Whether an expression matches no characters; `known` tells of rules."""
    match expr:
        case Ref(name):
            return known[name]
        case Text(text):
            return not text
        case Chars():
            return False
        case Seq(parts):
            return all(can_be_empty(part, known) for part in parts)
        case Alt(parts):
            return any(can_be_empty(part, known) for part in parts)
        case Rep(part, least, _):
            return least == 0 or can_be_empty(part, known)
        case Token(part):
            return can_be_empty(part, known)


def endless_readings(rules: Rules) -> bool:
    """Whether some rule may be nothing but itself in the end: one text then has any number of readings."""
    users: dict[str, list[str]] = {name: [] for name in rules}
    for name, rule in rules.items():
        for used in set(names(rule)):
            users[used].append(name)
    empty = dict.fromkeys(rules, False)
    left = list(rules)
    while left:
        name = left.pop()
        if not empty[name] and can_be_empty(rules[name], empty):
            empty[name] = True
            left += users[name]
    try:
        TopologicalSorter({name: set(_alone(rule, empty)) for name, rule in rules.items()}).prepare()
    except CycleError:
        return True
    return False


def _alone(expr: Expr, empty: dict[str, bool]) -> Iterator[str]:
    """The rules that an expression may be, with nothing beside them."""
    if isinstance(expr, Ref):
        yield expr.name
    filled = [part for part in inside(expr) if not can_be_empty(part, empty)] if isinstance(expr, Seq) else []
    if isinstance(expr, Rep) and expr.least > 1 and not can_be_empty(expr.part, empty):
        return
    for part in inside(expr) if not filled else filled if len(filled) == 1 else ():
        yield from _alone(part, empty)


def unused(expr: Expr) -> str | None:
    """A character that nothing has which an expression matches; None where there may be any."""
    found = all_but(_used(expr))
    return chr(found.ranges[0][0]) if isinstance(found, Chars) else None


def _used(expr: Expr) -> Iterator[Range]:
    match expr:
        case Text(text):
            yield from ((ord(char), ord(char)) for char in set(text))
        case Chars(ranges):
            yield from ranges
    for part in inside(expr):
        yield from _used(part)


def pruned(rules: Rules) -> Rules:
    """The same without what can never come to an end, and without rules that nobody needs."""
    users: dict[str, list[str]] = {name: [] for name in rules}
    for name, rule in rules.items():
        for used in set(names(rule)):
            users[used].append(name)
    ending: set[str] = set()
    left = list(rules)
    while left:
        name = left.pop()
        if name not in ending and _ends(rules[name], ending):
            ending.add(name)
            left += users[name]
    known: Rules = {name: Ref(name) if name in ending else NEVER for name in rules}
    made = {name: _filled(rule, known) for name, rule in rules.items() if name in ending}
    needed: dict[str, None] = {}
    left = ["root"] if "root" in made else []
    while left:
        name = left.pop()
        if name not in needed:
            needed[name] = None
            left += names(made[name])
    return {name: made[name] for name in made if name in needed}


def _ends(expr: Expr, ending: set[str]) -> bool:
    match expr:
        case Ref(name):
            return name in ending
        case Seq(parts):
            return all(_ends(part, ending) for part in parts)
        case Alt(parts):
            return any(_ends(part, ending) for part in parts)
        case Rep(part, least, _):
            return least == 0 or _ends(part, ending)
    return True


def _filled(expr: Expr, known: Rules) -> Expr:
    match expr:
        case Ref(name):
            return known[name]
        case Seq(parts):
            return seq(*(_filled(part, known) for part in parts))
        case Alt(parts):
            return alt(*(found for part in parts if (found := _filled(part, known)) != NEVER))
        case Rep(part, least, most):
            return rep(_filled(part, known), least, most)
    return expr


def paths(edges: dict[int, dict[int, Expr]]) -> dict[int, Expr]:
    """What leads from the first state, 0, to each, by what leads from one to another."""
    found: dict[int, Expr] = {}
    for goal in edges:
        left = {state: dict(row) for state, row in edges.items()}
        for state in sorted(edges, reverse=True):
            if state in (0, goal):
                continue
            again = rep(left[state].pop(state, NEVER))
            for row in left.values():
                if row is not left[state] and (first := row.pop(state, None)) is not None:
                    for target, last in left[state].items():
                        path = seq(first, again, last)
                        row[target] = alt(row[target], path) if target in row else path
            del left[state]
        found[goal] = _from_first(left, goal)
    return found


def _from_first(left: dict[int, dict[int, Expr]], goal: int) -> Expr:
    here = left[0].get(0, NEVER)
    if goal == 0:
        return rep(here)
    there, back, stays = left[0].get(goal, NEVER), left[goal].get(0, NEVER), left[goal].get(goal, NEVER)
    # Go round at the first state as often as one likes, by way of the goal too; then to the goal, and stay there.
    round_trip = seq(there, rep(stays), back) if back != NEVER else NEVER
    loops = [one for one in (here, round_trip) if one != NEVER]
    return seq(rep(alt(*loops)) if loops else EMPTY, there, rep(stays))
