"""Reads EBNF of the host's normal form: `name ::= alternatives`, of literals, classes, references and groups."""

import re

from rtk_grammar.expr import Expr, Ref, RefusedError, Rules, Text, names, seq
from rtk_grammar.regex import Reader

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
DEFINES = re.compile(r"[ \t\r\n]*([A-Za-z_][A-Za-z0-9_.-]*)[ \t]*::=")
SPACE = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")


def parse(text: str) -> Rules:
    """The rules of a grammar; the start is `root`. Raises `RefusedError`."""
    reader = _Reader(text)
    rules: Rules = {}
    reader.space()
    while reader.peek():
        name = reader.name("a rule")
        if name in rules:
            raise reader.error(f"a second rule `{name}`")
        reader.space()
        if not reader.take("::="):
            raise reader.error("no `::=`")
        rules[name] = reader.alternatives()
        reader.space()
        if reader.peek() == ")":
            raise reader.error("unbalanced `)`")
    if "root" not in rules:
        raise RefusedError("there is no rule `root`")
    for name, rule in rules.items():
        for used in names(rule):
            if used not in rules:
                raise RefusedError(f"rule `{name}` refers to `{used}`, which is not defined")
    return rules


class _Reader(Reader):
    def space(self) -> None:
        self.at = found.end() if (found := SPACE.match(self.text, self.at)) else self.at

    def name(self, what: str) -> str:
        found = NAME.match(self.text, self.at)
        if not found:
            raise self.error(f"not the name of {what}")
        self.at = found.end()
        return found[0]

    def alternatives(self) -> Expr:
        found = super().alternatives()
        self.space()
        return found

    def sequence(self) -> Expr:
        found: list[Expr] = []
        self.space()
        while (char := self.peek()) and char not in "|)" and not DEFINES.match(self.text, self.at):
            found.append(self.quantified(self.piece()))
            self.space()
        return seq(*found)

    def piece(self) -> Expr:
        char = self.peek()
        if char == '"':
            return self.literal()
        if char == "(":
            return self.group()
        if char == "[":
            return self.char_class()
        return Ref(self.name("a rule"))

    def literal(self) -> Expr:
        start = self.at
        self.at += 1
        found = ""
        while not self.take('"'):
            if self.peek() in ("", "\n"):
                self.at = start
                raise self.error('a literal without its closing `"`')
            found += self.character()
        return Text(found)
