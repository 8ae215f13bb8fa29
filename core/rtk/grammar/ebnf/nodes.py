"""What the rules of a grammar are made of."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from rtk.grammar.regex.nodes import Chars


@dataclass(frozen=True, slots=True)
class Ref:
    """What another rule says."""

    name: str


@dataclass(frozen=True, slots=True)
class Row:
    """One after the other; none: the empty text."""

    items: tuple["Expr", ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """One of several."""

    options: tuple["Expr", ...]


@dataclass(frozen=True, slots=True)
class Times:
    """From `low` to `high` times; None: any number."""

    item: "Expr"
    low: int
    high: int | None


Expr = Chars | Ref | Row | Choice | Times

EMPTY = Row(())


@dataclass(frozen=True, slots=True)
class Grammar:
    """Rules by name. All are defined, are needed by the first one, `root`, and can end."""

    rules: Mapping[str, Expr]


def row(items: Iterable[Expr]) -> Expr:
    """One after the other."""
    flat = [part for item in items for part in (item.items if isinstance(item, Row) else (item,))]
    return flat[0] if len(flat) == 1 else Row(tuple(flat))


def choice(options: Iterable[Expr]) -> Expr:
    """One of them, each of which is there once."""
    flat = [part for option in options for part in (option.options if isinstance(option, Choice) else (option,))]
    rest = tuple(dict.fromkeys(flat))
    return rest[0] if len(rest) == 1 else Choice(rest)


def times(item: Expr, low: int, high: int | None) -> Expr:
    """Several times."""
    if high == 0 or item == EMPTY:
        return EMPTY
    return item if (low, high) == (1, 1) else Times(item, low, high)


def refs(expr: Expr) -> Iterator[str]:
    """The rules that `expr` names, in order."""
    if isinstance(expr, Ref):
        yield expr.name
    elif isinstance(expr, Times):
        yield from refs(expr.item)
    elif not isinstance(expr, Chars):
        for part in expr.items if isinstance(expr, Row) else expr.options:
            yield from refs(part)


def size(expr: Expr) -> int:
    """Places of a character or a rule, once repetitions are written out."""
    if isinstance(expr, Times):
        return size(expr.item) * max(expr.low, 1 if expr.high is None else expr.high)
    if isinstance(expr, Chars | Ref):
        return 1
    return sum(map(size, expr.items if isinstance(expr, Row) else expr.options))
