"""Tokens as rules that go on by themselves.

xgrammar works masks out ahead as far as one rule reaches; where a rule ends, it tries tokens one by one, for each mask
anew. So a repetition of alternatives, such as the characters of a string, must not be rules inside of another: it is
written as rules that have in them what follows.
"""

from rtk_grammar.expr import EMPTY, Alt, Chars, Expr, Ref, Rep, Rules, Seq, Text, Token, alt, inside, rep, seq

MOST_RULES = 80
"""Each takes some 25 ms to be compiled for 50000 tokens."""


class TooManyError(Exception):
    """More rules than `MOST_RULES`."""


def linear(rules: Rules) -> Rules:
    """The same language. Raises `TooManyError`."""
    return _Linear(rules).rules


class _Linear:
    def __init__(self, rules: Rules):
        self._made: dict[tuple[Expr, int, int | None, Expr], Ref] = {}
        self._more: Rules = {}
        self.rules = {name: self._outside(rule) for name, rule in rules.items()} | self._more

    def _outside(self, expr: Expr) -> Expr:
        """With the tokens in it written anew."""
        match expr:
            case Token(part):
                return self._then(part, EMPTY) if _repeats(part) else part
            case Seq(parts):
                return seq(*map(self._outside, parts))
            case Alt(parts):
                return alt(*map(self._outside, parts))
            case Rep(part, least, most):
                return rep(self._outside(part), least, most)
        return expr

    def _then(self, expr: Expr, after: Expr) -> Expr:
        """The expression, and what follows it."""
        if not _repeats(expr):
            return alt(*(seq(part, after) for part in (expr.parts if isinstance(expr, Alt) else (expr,))))
        match expr:
            case Seq(parts):
                for part in reversed(parts):
                    after = self._then(part, after)
                return after
            case Alt(parts):
                after = self._rule(after)
                return alt(*(self._then(part, after) for part in parts))
            case Rep(part, least, most):
                return self._several(part, least, most, self._rule(after))
        raise AssertionError(expr)

    def _several(self, part: Expr, least: int, most: int | None, after: Expr) -> Expr:
        """So many of a part, and what follows."""
        if most == 0:
            return after
        key = part, least, most, after
        if key not in self._made:
            name = self._name()
            self._made[key] = Ref(name)
            left = self._several(part, max(0, least - 1), None if most is None else most - 1, after)
            again = self._then(part, left)
            self._more[name] = again if least else alt(again, after)
        return self._made[key]

    def _rule(self, expr: Expr) -> Expr:
        """What follows, short enough to be written several times."""
        if isinstance(expr, Ref | Text | Chars):
            return expr
        key = expr, 1, 1, EMPTY
        if key not in self._made:
            name = self._name()
            self._made[key] = Ref(name)
            self._more[name] = expr
        return self._made[key]

    def _name(self) -> str:
        name = f"l{len(self._made)}"
        if len(self._made) >= MOST_RULES:
            raise TooManyError
        return name


def _repeats(expr: Expr) -> bool:
    """Whether something is repeated in it that is more than a character."""
    if isinstance(expr, Rep) and not isinstance(expr.part, Chars):
        return True
    return any(map(_repeats, inside(expr)))
