"""The canonical text of a grammar, in the dialect of xgrammar.

`root` comes first; the others are numbered in the order in which they are needed, so that no name is one of a library's
own words. Characters are written as in regular expressions, see `rtk.grammar.regex.text`.
"""

from collections.abc import Iterable, Mapping

from rtk.grammar.ebnf.nodes import Expr, Grammar, Ref, Row, Times
from rtk.grammar.regex.nodes import Chars
from rtk.grammar.regex.text import chars, code, times


def text(grammar: Grammar) -> str:
    """`grammar`, a rule on each line."""
    names = {name: f"r{i}" if i else "root" for i, name in enumerate(grammar.rules)}
    return "".join(f"{names[name]} ::= {_text(rule, names, 0)}\n" for name, rule in grammar.rules.items())


def _text(expr: Expr, names: Mapping[str, str], binding: int) -> str:
    """`binding`: 0 where alternatives may stand, 1 in a row, 2 before a quantifier."""
    if isinstance(expr, Ref):
        return names[expr.name]
    if isinstance(expr, Chars):
        return _literal((expr,)) if _single(expr) else chars(expr.ranges)
    if isinstance(expr, Times):
        found, own = _text(expr.item, names, 2) + times(expr.low, expr.high), 1
    elif isinstance(expr, Row):
        found, own = " ".join(_parts(expr, names)) or '""', 1 if expr.items else 2
    else:
        found, own = " | ".join(_text(option, names, 1) for option in expr.options), 0
    return f"({found})" if own < binding else found


def _parts(expr: Row, names: Mapping[str, str]) -> list[str]:
    """The parts of a row; single characters beside each other are one literal."""
    found: list[str] = []
    run: list[Chars] = []
    for item in (*expr.items, None):
        if isinstance(item, Chars) and _single(item):
            run.append(item)
            continue
        if run:
            found.append(_literal(run))
            run = []
        if item is not None:
            found.append(_text(item, names, 1))
    return found


def _single(item: Chars) -> bool:
    low, high = item.ranges[0]
    return len(item.ranges) == 1 and low == high


def _literal(items: Iterable[Chars]) -> str:
    return f'"{"".join(_character(item.ranges[0][0]) for item in items)}"'


def _character(point: int) -> str:
    if chr(point) in '"\\':
        return "\\" + chr(point)
    return chr(point) if 0x20 <= point < 0x7F else code(point)
