"""Reads regular expressions of the host's normal form: literals, classes, groups, `|`, and greedy quantifiers.

Strict: what is not known here is refused, with its place.
"""

from rtk_grammar.expr import LAST, Expr, Range, RefusedError, Text, all_but, alt, chars, rep, seq

MOST = 100_000
"""Repetitions that a quantifier may count."""
ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v"}
HEX = {"x": 2, "u": 4, "U": 8}


def parse(text: str) -> Expr:
    """What a whole text must look like. Raises `RefusedError`."""
    reader = Reader(text)
    found = reader.alternatives()
    if reader.at < len(text):
        raise reader.error("unbalanced `)`")
    return found


class Reader:
    """Goes through a text of characters, escapes, classes and counts; the words that EBNF and patterns share."""

    def __init__(self, text: str):
        self.text = text
        self.at = 0

    def error(self, what: str) -> RefusedError:
        """A refusal at this place."""
        return RefusedError(f"{what} at character {self.at + 1}")

    def peek(self) -> str:
        """The next character; empty at the end."""
        return self.text[self.at : self.at + 1]

    def take(self, wanted: str) -> bool:
        """Go on past `wanted` if it is next."""
        found = self.text.startswith(wanted, self.at)
        self.at += len(wanted) if found else 0
        return found

    def alternatives(self) -> Expr:
        """Sequences with `|` between them."""
        found = [self.sequence()]
        while self.take("|"):
            found.append(self.sequence())
        return alt(*found)

    def sequence(self) -> Expr:
        """Pieces until a `|`, a `)` or the end."""
        found: list[Expr] = []
        while (char := self.peek()) and char not in "|)":
            found.append(self.quantified(self.piece()))
        return seq(*found)

    def piece(self) -> Expr:
        """A group, a class or a character of a pattern."""
        char = self.peek()
        if char == "(":
            return self.group()
        if char == "[":
            return self.char_class()
        if char in "*+?{":
            raise self.error(f"`{char}` has nothing to repeat")
        if char in "^$.]}":
            raise self.error(f"`{char}` is not in the supported subset")
        return Text(self.character())

    def group(self) -> Expr:
        """An expression in parentheses, captured or not: nobody asks for captures."""
        start = self.at
        self.at += 1
        if self.take("?") and not self.take(":"):
            raise self.error("`(?` that is no `(?:`")
        found = self.alternatives()
        if not self.take(")"):
            self.at = start
            raise self.error("unbalanced `(`")
        return found

    def quantified(self, part: Expr) -> Expr:
        """A piece with what follows it of `?`, `*`, `+` and a count in braces."""
        char = self.peek()
        if char and char in "?*+":
            self.at += 1
            least, most = {"?": (0, 1), "*": (0, None), "+": (1, None)}[char]
        elif char == "{":
            least, most = self.count()
        else:
            return part
        if self.peek() and self.peek() in "?*+{":
            raise self.error(f"`{self.peek()}` after a quantifier")
        return rep(part, least, most)

    def count(self) -> tuple[int, int | None]:
        """A count in braces."""
        self.at += 1
        end = self.text.find("}", self.at)
        low, comma, high = self.text[self.at : max(end, self.at)].partition(",")
        if end < 0 or not low.isdecimal() or not low.isascii() or (high and not (high.isdecimal() and high.isascii())):
            raise self.error("`{` that begins no count")
        least = int(low[:9])
        most = int(high[:9]) if high else None if comma else least
        if max(least, most or 0) > MOST:
            raise self.error(f"a count of more than {MOST}")
        if most is not None and most < least:
            raise self.error(f"a count of at least {least} and at most {most}")
        self.at = end + 1
        return least, most

    def character(self) -> str:
        """One character, or what an escape stands for."""
        char = self.peek()
        if not char:
            raise self.error("the end of the text")
        self.at += 1
        if char != "\\":
            if "\ud800" <= char <= "\udfff":
                self.at -= 1
                raise self.error("a surrogate")
            return char
        kind = self.peek()
        self.at += 1
        if kind in HEX and kind:
            digits = self.text[self.at : self.at + HEX[kind]]
            if kind in "xu" and self.peek() == "{":
                digits, self.at = self._braced()
            elif len(digits) == HEX[kind]:
                self.at += len(digits)
            else:
                raise self.error(f"`\\{kind}` without its {HEX[kind]} digits")
            try:
                code = int(digits, 16)
            except ValueError:
                raise self.error(f"`\\{kind}` without hexadecimal digits") from None
            if code > LAST or 0xD800 <= code <= 0xDFFF:
                raise self.error(f"`\\{kind}` of no character")
            return chr(code)
        if kind in ESCAPES and kind:
            return ESCAPES[kind]
        if not kind or kind.isalnum():
            raise self.error(f"the escape `\\{kind}`")
        return kind

    def _braced(self) -> tuple[str, int]:
        end = self.text.find("}", self.at)
        if end < 0:
            raise self.error("unbalanced `{`")
        return self.text[self.at + 1 : end], end + 1

    def char_class(self) -> Expr:
        """Characters and ranges in brackets."""
        start = self.at
        self.at += 1
        negated = self.take("^")
        ranges: list[Range] = []
        while self.peek() != "]":
            if not self.peek():
                self.at = start
                raise self.error("unbalanced `[`")
            low = high = ord(self.character())
            if self.peek() == "-" and self.text[self.at + 1 : self.at + 2] not in ("]", ""):
                self.at += 1
                high = ord(self.character())
                if high < low:
                    raise self.error(f"a range from `{chr(low)}` down to `{chr(high)}`")
            ranges.append((low, high))
        if not ranges:
            raise self.error("an empty class")
        self.at += 1
        return all_but(ranges) if negated else chars(ranges)


def whole(text: str) -> Expr:
    """What the whole of a string matches, by a pattern of a schema in normal form: `^(?:...)$`."""
    if not (text.startswith("^(?:") and text.endswith(")$")):
        raise RefusedError("a pattern that is not anchored as a whole")
    return parse(text[4:-2])
