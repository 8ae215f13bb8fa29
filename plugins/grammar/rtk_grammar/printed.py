"""Grammars in the words of each library: EBNF for xgrammar, Lark for llguidance, one regular expression for outlines.

Nothing is left to a library's idea of what a text means: all but plain ASCII is written as code points.
"""

from collections.abc import Callable

from rtk_grammar.expr import (
    Alt,
    Chars,
    Expr,
    Range,
    Ref,
    Rep,
    Rules,
    Seq,
    Text,
    Token,
)


def _times(least: int, most: int | None) -> str:
    if most is None:
        return {0: "*", 1: "+"}.get(least, f"{{{least},}}")
    if (least, most) == (0, 1):
        return "?"
    return f"{{{least}}}" if least == most else f"{{{least},{most}}}"


def _class(ranges: tuple[Range, ...], code: Callable[[int], str]) -> str:
    return "[" + "".join(code(low) if low == high else f"{code(low)}-{code(high)}" for low, high in ranges) + "]"


def _plain_ascii(code: int) -> bool:
    return chr(code).isascii() and chr(code).isalnum()


# --- EBNF -------------------------------------------------------------------------------------------------------------


def ebnf(rules: Rules) -> str:
    """For xgrammar; the start is `root`."""
    return "\n".join(f"{name} ::= {_ebnf(rule, 0)}" for name, rule in rules.items())


def _ebnf_code(code: int) -> str:
    if _plain_ascii(code):
        return chr(code)
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"  # after `\\x` it would take all digits


def _ebnf(expr: Expr, binding: int) -> str:
    """`binding`: 0 where alternatives may stand, 1 in a sequence, 2 before a quantifier."""
    match expr:
        case Text(text):
            return '"' + "".join(_ebnf_code(ord(char)) for char in text) + '"'
        case Chars(ranges):
            return _class(ranges, _ebnf_code)
        case Ref(name):
            return name
        case Token(part):
            return _ebnf(part, binding)
        case Rep(part, least, most):
            found, own = _ebnf(part, 2) + _times(least, most), 1
        case Seq(parts):
            found, own = " ".join(_ebnf(part, 1) for part in parts), 1
        case Alt(parts):
            assert parts, "nothing at all"
            found, own = " | ".join(_ebnf(part, 1) for part in parts), 0
    return f"({found})" if own < binding else found


# --- regular expressions ----------------------------------------------------------------------------------------------


def regex(expr: Expr) -> str:
    """Of an expression without references; for llguidance and outlines."""
    return _regex(expr, 0)


def _regex_code(code: int) -> str:
    return chr(code) if _plain_ascii(code) else f"\\x{code:02x}" if code < 0x80 else f"\\x{{{code:x}}}"


def _regex(expr: Expr, binding: int) -> str:
    match expr:
        case Text(text):
            found, own = "".join(_regex_code(ord(char)) for char in text), 1 if len(text) != 1 else 2
        case Chars(ranges):
            return _class(ranges, _regex_code)
        case Token(part):
            return _regex(part, binding)
        case Rep(part, least, most):
            found, own = _regex(part, 2) + _times(least, most), 1
        case Seq(parts):
            found, own = "".join(_regex(part, 1) for part in parts), 1
        case Alt(parts):
            assert parts, "nothing at all"
            found, own = "|".join(_regex(part, 1) for part in parts), 0
        case Ref(name):
            raise AssertionError(name)
    return f"(?:{found})" if own < binding else found


# --- Lark -------------------------------------------------------------------------------------------------------------


def lark(rules: Rules, whole: Expr | None = None) -> str:
    """For llguidance. `whole` is the grammar as one expression, where it is one.

    Its lexer takes as much as it can. So a `Token` is one of its terminals, and all else is cut into single characters,
    after which nothing is left to choose.
    """
    printer = _Lark()
    if whole is not None:
        lines = [f"start: {printer.terminal(whole)}"]
    else:
        lines = ["start: r_root"]
        lines += [f"r_{name}: {printer.expr(rule, 0)}" for name, rule in rules.items()]
    return "\n".join([*lines, *(f"{name}: /{pattern}/" for pattern, name in printer.terminals.items())])


class _Lark:
    def __init__(self) -> None:
        self.terminals: dict[str, str] = {}

    def terminal(self, expr: Expr) -> str:
        pattern = regex(expr)
        return self.terminals.setdefault(pattern, f"T{len(self.terminals)}")

    def expr(self, expr: Expr, binding: int) -> str:
        match expr:
            case Text(""):
                return '""'
            case Chars():
                return self.terminal(expr)
            case Text(text):
                found, own = " ".join(self.terminal(Text(char)) for char in text), 1 if len(text) > 1 else 2
            case Token(part):
                return self.terminal(part)
            case Ref(name):
                return f"r_{name}"
            case Rep(part, least, most):
                found, own = self.expr(part, 2) + _times(least, most), 1
            case Seq(parts):
                found, own = " ".join(self.expr(part, 1) for part in parts), 1
            case Alt(parts):
                found, own = " | ".join(self.expr(part, 1) for part in parts), 0
        return f"({found})" if own < binding else found
