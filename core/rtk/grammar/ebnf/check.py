"""Whether a grammar holds together: every rule is defined, and can end. What is not needed is left out."""

from collections.abc import Iterator, Mapping

from rtk.grammar.ebnf.errors import EbnfError, quoted
from rtk.grammar.ebnf.nodes import EMPTY, Expr, Grammar, Ref, Row, Times, refs
from rtk.grammar.ebnf.parse import Parsed, parsed
from rtk.grammar.ebnf.text import text as written
from rtk.grammar.regex.nodes import Chars

ROOT = "root"
MAX_TEXT = 131_072
"""Characters of a canonical text."""
MAX_NAMED = 6
"""Rules that an error names."""


def parse(text: str) -> Grammar:
    """The grammar that `text` describes. Raises `EbnfError`."""
    found = parsed(text)
    for name, where in found.used.items():
        if name not in found.rules:
            raise found.error(f"the rule {quoted(name)} is not defined", where)
    if ROOT not in found.rules:
        raise EbnfError(f"there is no rule '{ROOT}', with which a grammar starts", 1, 1)
    needed = list(_needed(found.rules))
    ending = _ending({name: found.rules[name] for name in needed})
    for name in needed:
        if name not in ending:
            raise _endless(found, ending, name)
    grammar = Grammar({name: found.rules[name] for name in needed})
    if len(written(grammar)) > MAX_TEXT:
        raise EbnfError(f"more than {MAX_TEXT} characters, once classes are written out", 1, 1)
    return grammar


def _needed(rules: Mapping[str, Expr]) -> Iterator[str]:
    """The rules that `root` needs, in the order in which they are named first, level by level."""
    seen, todo = {ROOT}, [ROOT]
    for name in todo:
        yield name
        for other in refs(rules[name]):
            if other not in seen:
                seen.add(other)
                todo.append(other)


class _Part:
    """A part of a rule, which ends once `missing` of its own parts do; then `outer` gets to know."""

    __slots__ = ("missing", "outer")

    def __init__(self, missing: int, outer: "_Part | str"):
        self.missing = missing
        self.outer = outer


def _ending(rules: Mapping[str, Expr]) -> set[str]:
    """The rules that some text matches. In linear time."""
    users: dict[str, list[_Part | str]] = {name: [] for name in rules}
    ready: list[_Part | str] = []
    for name, rule in rules.items():
        _watch(rule, name, users, ready)
    ending: set[str] = set()
    while ready:
        part = ready.pop()
        if isinstance(part, _Part):
            part.missing -= 1
            if part.missing == 0:
                ready.append(part.outer)
        elif part not in ending:
            ending.add(part)
            ready.extend(users[part])
    return ending


def _watch(expr: Expr, outer: _Part | str, users: dict[str, list[_Part | str]], ready: list[_Part | str]) -> None:
    if isinstance(expr, Ref):
        users[expr.name].append(outer)
    elif expr == EMPTY or isinstance(expr, Chars) or (isinstance(expr, Times) and expr.low == 0):
        ready.append(outer)
    elif isinstance(expr, Times):
        _watch(expr.item, outer, users, ready)
    else:
        parts, missing = (expr.items, len(expr.items)) if isinstance(expr, Row) else (expr.options, 1)
        part = _Part(missing, outer)
        for each in parts:
            _watch(each, part, users, ready)


def _stuck(expr: Expr, ending: set[str]) -> str | None:
    """A rule that does not end and that `expr` cannot do without; None where it can."""
    if isinstance(expr, Ref):
        return None if expr.name in ending else expr.name
    if isinstance(expr, Chars) or (isinstance(expr, Times) and expr.low == 0):
        return None
    if isinstance(expr, Times):
        return _stuck(expr.item, ending)
    if isinstance(expr, Row):
        return next((stuck for item in expr.items if (stuck := _stuck(item, ending))), None)
    each = [_stuck(option, ending) for option in expr.options]
    return each[0] if all(each) else None


def _endless(found: Parsed, ending: set[str], name: str) -> EbnfError:
    """The refusal of a rule that does not end, which names the rules that need each other."""
    way: dict[str, None] = {}
    while name not in way:
        way[name] = None
        stuck = _stuck(found.rules[name], ending)
        assert stuck is not None
        name = stuck
    names = list(way)
    circle = [quoted(each) for each in names[names.index(name) :]]
    if len(circle) > MAX_NAMED:
        circle[MAX_NAMED - 1 :] = ["…"]
    needs = " needs ".join([*circle, quoted(name)])
    return found.error(f"the rule {quoted(name)} can never match: {needs}, with no way out", found.defined[name])
