"""Reads a regular expression, and refuses what it does not know with the place.

The subset is what ECMA-262 and Python's `re` have in common and read alike, if `\\d` and `\\w` are ASCII:

- literals; `\\` before punctuation; `\\t \\n \\v \\f \\r \\0 \\cA \\xHH \\uHHHH \\u{H...} \\UHHHHHHHH`;
- `[...]`, `[^...]`, ranges, `\\b` in a class for the backspace; `\\d` is 0-9, `\\w` is A-Z, a-z, 0-9 and `_`, `\\s`
  what ECMA-262 calls white space and line ends; `.` is everything but `\\n`, `\\r`, U+2028 and U+2029;
- `(...)`, `(?:...)`, named groups; `|`; `? * + {m} {m,} {m,n}`, and their lazy forms, which match the same texts;
- `^` and `$`: the beginning and the end of the text, never of a line; for whole matches `\\A`, `\\Z`, `\\z` too;
- `(?=...)` and `(?!...)` where the text begins, if the outcome is not too large.
"""

import re
from typing import Literal, NamedTuple

from rtk.grammar.regex import chars as sets
from rtk.grammar.regex.anchors import Anchored, alternatives, at_end, at_start, in_order, plain, repeated
from rtk.grammar.regex.chars import Ranges
from rtk.grammar.regex.combine import combined
from rtk.grammar.regex.errors import RegexError, TooLargeError
from rtk.grammar.regex.escapes import code_point
from rtk.grammar.regex.nodes import NOTHING, Chars, Node, size
from rtk.grammar.regex.text import fits

MAX_LENGTH = 20_100
"""Characters of an expression."""
MAX_DEPTH = 64
"""Groups in groups."""
MAX_ANCHORED = 20
"""Parts with an anchor in one sequence."""
MAX_SIZE = 10_000
"""Places of a character, once all repetitions are written out."""

Use = Literal["match", "search"]

_CLASSES: dict[str, Ranges] = {
    "d": sets.DIGIT,
    "D": sets.complement(sets.DIGIT),
    "w": sets.WORD,
    "W": sets.complement(sets.WORD),
    "s": sets.SPACE,
    "S": sets.complement(sets.SPACE),
}
_CONTROLS = {"t": "\t", "n": "\n", "v": "\v", "f": "\f", "r": "\r"}
_COUNT = re.compile(r"\{([0-9]{1,20})(?:(,)([0-9]{1,20})?)?\}")
_NAME = re.compile(r"\(\?P?<([A-Za-z_$][A-Za-z0-9_$]*)>")
_REFUSED_GROUPS = {
    "(?=": "look-ahead '(?='",
    "(?!": "look-ahead '(?!'",
    "(?<=": "look-behind '(?<='",
    "(?<!": "look-behind '(?<!'",
    "(?P=": "a back-reference '(?P='",
    "(?P>": "a call of a group '(?P>'",
    "(?>": "an atomic group '(?>'",
    "(?(": "a condition '(?('",
    "(?#": "a comment '(?#'",
    "(?|": "a branch reset '(?|'",
}
_FLAGS = re.compile(r"\(\?[A-Za-z^-]*[:)]")


def parse(pattern: str, use: Use = "match") -> Node:
    """What `pattern` means, as an expression for the whole text.

    `match`: the whole text is matched. `search`: a part of it is, as with JSON Schema's `pattern`: where an alternative
    is not anchored by `^` and `$`, any text may come before and after it. Raises `RegexError`.
    """
    if len(pattern) > MAX_LENGTH:
        raise RegexError(f"it has {len(pattern)} characters, {MAX_LENGTH} are allowed", pattern, MAX_LENGTH)
    parser = _Parser(pattern, use)
    found = parser.parse()
    node = found.matched() if use == "match" else found.searched()
    if parser.looks:
        node = _with_looks(node, parser)
    if node == NOTHING:
        why = "its look-aheads rule out all texts" if parser.looks else "its anchors stand where no text begins or ends"
        raise RegexError(f"nothing can match: {why}", pattern, 0)
    if not fits(node):
        raise RegexError("more characters and groups than are worked with, once all is written out", pattern, 0)
    return node


def _with_looks(node: Node, parser: "_Parser") -> Node:
    wanted = [look.node for look in parser.looks if not look.negative]
    unwanted = [look.node for look in parser.looks if look.negative]
    try:
        return combined([node, *wanted], unwanted=unwanted)
    except TooLargeError:
        problem = "a look-ahead that is too large to be worked out exactly"
        raise RegexError(problem, parser.pattern, parser.looks[0].position) from None


class _Look(NamedTuple):
    """A look-ahead from the beginning of the text: what the whole text must match, or must not."""

    node: Node
    negative: bool
    position: int


class _Parser:
    """One reading of one pattern, by recursive descent. `at` is where it stands."""

    def __init__(self, pattern: str, use: Use):
        self.pattern = pattern
        self.use = use
        self.at = 0
        self.depth = 0
        self.names: set[str] = set()
        self.looks: list[_Look] = []

    def parse(self) -> Anchored:
        found = self._alternatives()
        self._bounded(found, 0)
        if self.at < len(self.pattern):
            raise self._error("unbalanced ')'", self.at)
        return found

    def _error(self, problem: str, position: int) -> RegexError:
        return RegexError(problem, self.pattern, position)

    def _peek(self) -> str:
        return self.pattern[self.at : self.at + 1]

    def _alternatives(self) -> Anchored:
        options = [self._sequence()]
        while self._peek() == "|":
            self.at += 1
            options.append(self._sequence())
        if self.looks and not self.depth and len(options) > 1:
            raise self._error("a look-ahead beside other alternatives is not supported", self.looks[0].position)
        return alternatives(options)

    def _sequence(self) -> Anchored:
        items: list[Anchored] = []
        first, anchored = self.at, 0
        while (character := self._peek()) and character not in "|)":
            start = self.at
            if self.pattern.startswith(("(?=", "(?!"), start) and self._begins(items):
                self._look()
                continue
            item = self._atom(character)
            items.append(self._quantified(item, start))
            anchored += items[-1].anchored
            if anchored > MAX_ANCHORED:
                raise self._error(f"more than {MAX_ANCHORED} anchors in a row", first)
        found = in_order(items)
        if found.anchored:
            self._bounded(found, first)
        return found

    def _begins(self, items: list[Anchored]) -> bool:
        """Whether the text begins here, after `items`."""
        at_beginning = items or self.use == "match"
        return bool(at_beginning) and not self.depth and all(item == at_start() for item in items)

    def _look(self) -> None:
        start = self.at
        self.depth += 1
        self.at += 3
        found = self._alternatives()
        if self._peek() != ")":
            raise self._error("unbalanced '('", start)
        self.at += 1
        self.depth -= 1
        if self._times() is not None:
            raise self._error("nothing to repeat: a look-ahead matches no text", start)
        self.looks.append(_Look(found.begun(), self.pattern[start + 2] == "!", start))

    def _bounded(self, found: Anchored, where: int) -> None:
        if max(map(size, found)) > MAX_SIZE:
            raise self._error(f"more than {MAX_SIZE} characters, once repetitions are written out", where)

    def _quantified(self, item: Anchored, start: int) -> Anchored:
        """`item`, which began at `start`, with the quantifier that may follow it."""
        where = self.at
        times = self._times()
        if times is None:
            return item
        if self._peek() == "+":
            raise self._error(f"a possessive quantifier '{self.pattern[where : self.at + 1]}' is not supported", where)
        if self._peek() == "?":
            self.at += 1
        if self._peek() in ("?", "*", "+") or _COUNT.match(self.pattern, self.at):
            raise self._error(f"nothing to repeat for '{self._peek()}'", self.at)
        low, high = times
        if item.anchored:
            if self.pattern[start] != "(":
                raise self._error("nothing to repeat", where)
            if high is None or high > 1:
                raise self._error("a repeated anchor", start)
        found = repeated(item, low, high)
        self._bounded(found, where)
        return found

    def _times(self) -> tuple[int, int | None] | None:
        """The quantifier that stands here; None where there is none."""
        character = self._peek()
        if character in ("?", "*", "+"):
            self.at += 1
            return {"?": (0, 1), "*": (0, None), "+": (1, None)}[character]
        if character != "{":
            return None
        found = _COUNT.match(self.pattern, self.at)
        if found is None:
            raise self._error("a '{' that begins no quantifier; write '\\{' for the character", self.at)
        low = int(found[1])
        high = low if found[2] is None else None if found[3] is None else int(found[3])
        if high is not None and high < low:
            raise self._error(f"a bad repetition '{found[0]}': {low} is more than {high}", self.at)
        self.at = found.end()
        return low, high

    def _atom(self, character: str) -> Anchored:
        if character == "(":
            return self._group()
        if character == "[":
            return plain(Chars(self._class()))
        if character == "\\":
            return self._escape()
        if character in "?*+":
            raise self._error(f"nothing to repeat for '{character}'", self.at)
        if character == "{":
            raise self._error("a '{' with nothing to repeat; write '\\{' for the character", self.at)
        self.at += 1
        if character == "^":
            return at_start()
        if character == "$":
            return at_end()
        if character == ".":
            return plain(Chars(sets.NOT_LINE_END))
        return plain(Chars(self._single(character, self.at - 1)))

    def _single(self, character: str, position: int) -> Ranges:
        if "\ud800" <= character <= "\udfff":
            raise self._error("half of a surrogate pair", position)
        return ((ord(character), ord(character)),)

    def _group(self) -> Anchored:
        start = self.at
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise self._error(f"more than {MAX_DEPTH} groups in groups", start)
        self._open()
        found = self._alternatives()
        if self._peek() != ")":
            raise self._error("unbalanced '('", start)
        self.at += 1
        self.depth -= 1
        return found

    def _open(self) -> None:
        """Go past what opens a group."""
        if self.pattern.startswith("(?:", self.at):
            self.at += 3
        elif found := _NAME.match(self.pattern, self.at):
            if found[1] in self.names:
                raise self._error(f"a second group of the name '{found[1]}'", self.at)
            self.names.add(found[1])
            self.at = found.end()
        elif self.pattern.startswith("(?", self.at):
            for length in (4, 3):
                if what := _REFUSED_GROUPS.get(self.pattern[self.at : self.at + length]):
                    raise self._error(f"{what} is not supported", self.at)
            if flags := _FLAGS.match(self.pattern, self.at):
                raise self._error(f"an inline flag '{flags[0]}' is not supported", self.at)
            raise self._error("an unknown group '(?'", self.at)
        elif self.pattern.startswith("(*", self.at):
            raise self._error("nothing to repeat for '*'", self.at + 1)
        else:
            self.at += 1

    def _escape(self) -> Anchored:
        """A backslash outside a class."""
        start, letter = self.at, self.pattern[self.at + 1 : self.at + 2]
        if letter in ("b", "B"):
            raise self._error(f"a word boundary '\\{letter}' is not supported", start)
        if letter in "123456789k" and letter:
            raise self._error(f"a back-reference '\\{letter}' is not supported", start)
        if letter in ("A", "Z", "z"):
            if self.use == "search":
                other = "^" if letter == "A" else "$"
                raise self._error(f"'\\{letter}' is no anchor of ECMA-262; write '{other}'", start)
            self.at += 2
            return at_start() if letter == "A" else at_end()
        return plain(Chars(self._escaped()))

    def _escaped(self) -> Ranges:
        """A backslash, in a class or outside: a set, or a single character."""
        start, letter = self.at, self.pattern[self.at + 1 : self.at + 2]
        self.at += 2
        if not letter:
            raise self._error("a '\\' at the end", start)
        if letter in _CLASSES:
            return _CLASSES[letter]
        if letter in _CONTROLS:
            return sets.of(_CONTROLS[letter])
        if letter in "xuU":
            return self._code(start)
        if letter == "0":
            if self._peek().isdigit():
                raise self._error("an octal escape; write '\\xHH'", start)
            return sets.of("\0")
        if letter == "c" and self._peek().isascii() and self._peek().isalpha():
            self.at += 1
            return sets.of(chr(ord(self.pattern[self.at - 1]) % 32))
        if letter in "pP":
            raise self._error(f"a Unicode property '\\{letter}' is not supported", start)
        if letter.isascii() and letter.isprintable() and not letter.isalnum():
            return sets.of(letter)
        raise self._error(f"an unknown escape {letter!r} after '\\'", start)

    def _code(self, start: int) -> Ranges:
        try:
            value, self.at = code_point(self.pattern, start + 1)
        except ValueError as error:
            raise self._error(str(error), start) from None
        return ((value, value),)

    def _class(self) -> Ranges:
        start = self.at
        self.at += 1
        negated = self._peek() == "^"
        self.at += negated
        if self._peek() == "]":
            raise self._error("an empty class, or one that begins with ']'; write '\\]' for the character", start)
        ranges: list[tuple[int, int]] = []
        while self._peek() != "]":
            ranges += self._class_item(start)
        self.at += 1
        found = sets.union(ranges)
        if negated:
            found = sets.complement(found)
        if not found:
            raise self._error("a class without a character", start)
        return found

    def _class_item(self, start: int) -> Ranges:
        """What stands here in the class that began at `start`: a set, a character, or a range."""
        where = self.at
        low = self._class_single(start)
        if self._peek() != "-" or self.pattern[self.at + 1 : self.at + 2] in ("]", ""):
            return low
        self.at += 1
        high = self._class_single(start)
        text = self.pattern[where : self.at]
        if sets.count(low) > 1 or sets.count(high) > 1:
            raise self._error(f"a bad range {text!r}: a set is no end of one", where)
        if low > high:
            raise self._error(f"a bad range {text!r}: its ends are the wrong way round", where)
        return ((low[0][0], high[0][1]),)

    def _class_single(self, start: int) -> Ranges:
        character = self._peek()
        if not character:
            raise self._error("an unbalanced '['", start)
        if character == "\\":
            if self.pattern.startswith("\\b", self.at):
                self.at += 2
                return sets.of("\b")
            return self._escaped()
        kind = self.pattern[self.at + 1 : self.at + 2]
        if character == "[" and kind in (":", ".", "=") and self.pattern.find(kind + "]", self.at + 2) > 0:
            raise self._error("a named class of POSIX is not supported; write '\\[' for the character", self.at)
        if self.pattern.startswith("&&", self.at):
            raise self._error("an intersection '&&' of classes is not supported; write '&' for the character", self.at)
        self.at += 1
        return self._single(character, self.at - 1)
