"""Reads a grammar, in what the dialects of xgrammar and llama.cpp have in common, and refuses the rest with the place.

- A rule is `name ::= alternatives`, on a line of its own, and may go on over further lines; `root` is the first one's
  name, wherever it stands. Comments go from `#` to the end of the line.
- `"literals"` with `\\n \\r \\t \\b \\f \\v \\0 \\" \\' \\\\ \\/ \\xHH \\uHHHH \\u{H...} \\UHHHHHHHH`; classes `[a-z]`
  and `[^"\\\\]`, in which `\\] \\[ \\- \\^` are characters too; `( )`, `|`, and `? * + {m} {m,} {m,n}` after what they
  repeat. An empty alternative is the empty text.
"""

import re
from dataclasses import dataclass, field

from rtk.grammar.ebnf.errors import EbnfError, quoted
from rtk.grammar.ebnf.nodes import EMPTY, Expr, Ref, choice, row, size, times
from rtk.grammar.regex.chars import SURROGATES, Ranges, complement, union
from rtk.grammar.regex.escapes import code_point
from rtk.grammar.regex.nodes import Chars

MAX_LENGTH = 65_536
"""Characters of a grammar."""
MAX_DEPTH = 50
"""Groups in groups."""
MAX_SIZE = 50_000
"""Places of a character or a rule in all rules together, once repetitions are written out."""

_SPACE = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_INLINE_SPACE = re.compile(r"[ \t]*")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_HEAD = re.compile(r"([A-Za-z_][A-Za-z0-9_.-]*)[ \t]*::=")
_COUNT = re.compile(r"\{[ \t]*([0-9]{1,20})[ \t]*(?:(,)[ \t]*(?:([0-9]{1,20})[ \t]*)?)?\}")
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "b": "\b", "f": "\f", "v": "\v", "0": "\0"}
_HEX = frozenset("0123456789abcdefABCDEF")


@dataclass(slots=True)
class Parsed:
    """Rules as they were written, and where their names stand."""

    text: str
    rules: dict[str, Expr] = field(default_factory=dict)
    defined: dict[str, int] = field(default_factory=dict)
    used: dict[str, int] = field(default_factory=dict)
    """Where each name is used first."""

    def error(self, problem: str, position: int) -> EbnfError:
        """A refusal at a place of the text."""
        line = self.text.count("\n", 0, position) + 1
        return EbnfError(problem, line, position - self.text.rfind("\n", 0, position))


def parsed(text: str) -> Parsed:
    """The rules of a grammar. Raises `EbnfError`."""
    return _Parser(text).parse()


class _Parser:
    def __init__(self, text: str):
        self.text = text
        self.found = Parsed(text)
        self.at = 0
        self.depth = 0
        self.size = 0

    def parse(self) -> Parsed:
        if len(self.text) > MAX_LENGTH:
            raise self._error(f"it has {len(self.text)} characters, {MAX_LENGTH} are allowed", MAX_LENGTH)
        self._space()
        if self.at == len(self.text):
            raise self._error("there is no rule in it", 0)
        while self.at < len(self.text):
            self._rule()
        return self.found

    def _error(self, problem: str, position: int) -> EbnfError:
        return self.found.error(problem, position)

    def _peek(self) -> str:
        return self.text[self.at : self.at + 1]

    def _space(self) -> None:
        found = _SPACE.match(self.text, self.at)
        assert found is not None
        self.at = found.end()

    def _rule(self) -> None:
        start, head = self.at, _HEAD.match(self.text, self.at)
        if head is None:
            name = _NAME.match(self.text, start)
            if name is None:
                raise self._error(f"{self._here()} where a rule should begin: NAME ::= ...", start)
            self.at = name.end()
            self._space()
            raise self._error(f"{self._here()} where '::=' should follow the name {quoted(name[0])}", self.at)
        defined = head[1]
        if defined in self.found.rules:
            raise self._error(f"a second rule {quoted(defined)}", start)
        self.found.defined[defined] = start
        self.at = head.end()
        self._space()
        if self.at == len(self.text) or _HEAD.match(self.text, self.at):
            raise self._error(f'the rule {quoted(defined)} is empty; write "" for the empty text', start)
        rule = self._alternatives()
        if self._peek() == ")":
            raise self._error("an unbalanced ')'", self.at)
        self._bounded(rule, start)
        self.size += size(rule)
        self.found.rules[defined] = rule
        if self.size > MAX_SIZE:
            raise self._error(f"more than {MAX_SIZE} characters and names, once repetitions are written out", start)

    def _here(self) -> str:
        """What stands here, for an error."""
        return f"unexpected {self._peek()!r}" if self._peek() else "the end"

    def _alternatives(self) -> Expr:
        options = [self._sequence()]
        while self._peek() == "|":
            self.at += 1
            options.append(self._sequence())
        return choice(options)

    def _sequence(self) -> Expr:
        items: list[Expr] = []
        self._space()
        while (character := self._peek()) and character not in "|)":
            if _HEAD.match(self.text, self.at):
                line = self.text[self.text.rfind("\n", 0, self.at) + 1 : self.at]
                if line.strip():
                    raise self._error("a rule that does not begin on a line of its own", self.at)
                if self.depth:
                    raise self._error("a rule inside a group that is not closed", self.at)
                break
            start = self.at
            items.append(self._quantified(self._item(character), start))
            self._space()
        return row(items)

    def _quantified(self, item: Expr, start: int) -> Expr:
        end = self.at
        found = _INLINE_SPACE.match(self.text, self.at)
        assert found is not None
        self.at = where = found.end()
        character = self._peek()
        if character in ("?", "*", "+"):
            self.at += 1
            low, high = {"?": (0, 1), "*": (0, None), "+": (1, None)}[character]
        elif character == "{":
            low, high = self._count()
        else:
            self.at = end
            return item
        if self._peek() and self._peek() in "?*+{":
            raise self._error(f"nothing to repeat for '{self._peek()}'", self.at)
        repeated = times(item, low, high)
        self._bounded(repeated, where)
        return repeated

    def _bounded(self, expr: Expr, where: int) -> None:
        if size(expr) > MAX_SIZE:
            raise self._error(f"more than {MAX_SIZE} characters and names, once repetitions are written out", where)

    def _count(self) -> tuple[int, int | None]:
        found = _COUNT.match(self.text, self.at)
        if found is None:
            raise self._error("a repetition that is none of {m}, {m,} and {m,n}", self.at)
        low = int(found[1])
        high = low if found[2] is None else None if found[3] is None else int(found[3])
        if high is not None and high < low:
            raise self._error(f"a bad repetition '{found[0]}': {low} is more than {high}", self.at)
        self.at = found.end()
        return low, high

    def _item(self, character: str) -> Expr:
        start = self.at
        if character == '"':
            return self._literal()
        if character == "[":
            return Chars(self._class())
        if character == "(":
            return self._group()
        if character in "?*+{":
            raise self._error(f"nothing to repeat for '{character}'", start)
        found = _NAME.match(self.text, start)
        if found is None:
            raise self._error(self._here(), start)
        self.at = found.end()
        self.found.used.setdefault(found[0], start)
        return Ref(found[0])

    def _group(self) -> Expr:
        start = self.at
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise self._error(f"more than {MAX_DEPTH} groups in groups", start)
        self.at += 1
        if self._peek() == "=":
            raise self._error("look-ahead '(=' is not supported", start)
        found = self._alternatives()
        if self._peek() != ")":
            raise self._error("an unbalanced '('", start)
        self.at += 1
        self.depth -= 1
        return found

    def _literal(self) -> Expr:
        start = self.at
        self.at += 1
        items: list[Expr] = []
        while self._peek() != '"':
            if self._peek() in ("", "\n"):
                raise self._error("a literal without its closing '\"'", start)
            code = self._character("\"'/")
            items.append(Chars(((code, code),)))
        self.at += 1
        return row(items) if items else EMPTY

    def _class(self) -> Ranges:
        start = self.at
        self.at += 1
        negated = self._peek() == "^"
        self.at += negated
        if self._peek() == "]":
            raise self._error("an empty class, or one that begins with ']'; write '\\]' for the character", start)
        ranges: list[tuple[int, int]] = []
        while self._peek() != "]":
            ranges.append(self._range(start))
        self.at += 1
        found = complement(union(ranges)) if negated else union(ranges)
        if not found:
            raise self._error("a class without a character", start)
        return found

    def _range(self, start: int) -> tuple[int, int]:
        """A character or a range of the class that began at `start`."""
        where = self.at
        low = high = self._class_character(start)
        if self._peek() == "-" and self.text[self.at + 1 : self.at + 2] not in ("]", ""):
            self.at += 1
            high = self._class_character(start)
            if high < low:
                text = self.text[where : self.at]
                raise self._error(f"a bad range {text!r}: its ends are the wrong way round", where)
        return low, high

    def _class_character(self, start: int) -> int:
        if self._peek() in ("", "\n"):
            raise self._error("a class without its closing ']'", start)
        return self._character("\"'/-^[]")

    def _character(self, punctuation: str) -> int:
        """The character that stands here; of `punctuation` a backslash may stand before it."""
        start, character = self.at, self._peek()
        self.at += 1
        if SURROGATES[0] <= ord(character) <= SURROGATES[1]:
            raise self._error("half of a surrogate pair", start)
        if character != "\\":
            return ord(character)
        letter = self._peek()
        self.at += 1
        if letter and letter in punctuation + "\\":
            return ord(letter)
        if letter in ("x", "u", "U"):
            return self._code(start)
        if letter not in _ESCAPES:
            raise self._error(f"an unknown escape {letter!r} after '\\'", start)
        if letter == "0" and self._peek().isdigit():
            raise self._error("an octal escape; write '\\xHH'", start)
        return ord(_ESCAPES[letter])

    def _code(self, start: int) -> int:
        try:
            value, self.at = code_point(self.text, start + 1)
        except ValueError as error:
            raise self._error(str(error), start) from None
        if self.text[start + 1] == "x" and self._peek() in _HEX:
            escape, other = self.text[start : self.at], self._peek()
            raise self._error(f"'{escape}' before '{other}' is read in two ways; write '\\u{value:04x}'", start)
        return value
