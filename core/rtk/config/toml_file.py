"""TOML: `tomllib` has the say on what a text means; a scan of the text that it accepted finds where the keys stand."""

import re
import tomllib

from rtk.config.document import Document, FileError, KeyPath, Place, without_quotes

_BLANK = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_SPACE = re.compile(r"[ \t]*")
_BARE_NAME = re.compile(r"[A-Za-z0-9_-]+")
_TEXT = re.compile(
    r'"""(?:\\.|[^\\])*?"{3,5}' r"|'''.*?'{3,5}" r'|"(?:\\.|[^"\\])*"' r"|'[^']*'",
    re.DOTALL,
)
_BARE_VALUE = re.compile(r"(?:\d{4}-\d\d-\d\d )?[^,\]}\s#]+")
"""A date may have a space before its time."""
_WHERE = re.compile(r" \(at (?:line (?P<line>\d+), column \d+|end of document)\)$")


def read_toml(text: str) -> Document:
    """Linear in the text. Raises `FileError`."""
    try:
        values = tomllib.loads(text)
        return Document(text, values, _Scan(text).places)
    except RecursionError:
        raise FileError("is nested too deeply") from None
    except ValueError as error:  # tomllib's own, and int's for a number without end
        reason = str(error)
        where = _WHERE.search(reason)
        line = int(where["line"] or text.count("\n") + 1) if where else None
        raise FileError(f"is not valid TOML: {without_quotes(_WHERE.sub('', reason))}", line) from None


class _Scan:
    """One walk over a valid text. Keys inside arrays go by the index of their element."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._line, self._counted = 1, 0
        self.places: dict[KeyPath, Place] = {}
        table: KeyPath = ()
        while self._skip(_BLANK):
            if self._next() == "[":
                table = self._header()
            else:
                self._pair(table)

    def _next(self) -> str:
        return self._text[self._at : self._at + 1]

    def _skip(self, pattern: re.Pattern[str]) -> bool:
        """Pass over what matches; False at the end of the text."""
        found = pattern.match(self._text, self._at)
        self._at = found.end() if found else self._at + 1  # a valid text leaves no other choice
        return self._at < len(self._text)

    def _header(self) -> KeyPath:
        start = self._at
        brackets = 2 if self._text.startswith("[[", start) else 1
        self._at += brackets
        names, span = self._names()
        self._at += brackets
        self._note(names, span, start)
        return names

    def _pair(self, above: KeyPath) -> None:
        start = self._at
        names, span = self._names()
        self._at += 1  # the equals sign
        self._skip(_SPACE)
        self._value((*above, *names))
        self._note((*above, *names), span, start)

    def _note(self, path: KeyPath, name: tuple[int, int], start: int) -> None:
        self.places[path] = Place(self._line_of(start), name, (start, self._at))

    def _line_of(self, offset: int) -> int:
        """A table is noted before what is in it and a pair after, so that offsets go back by one value at most."""
        if offset < self._counted:
            return self._line - self._text.count("\n", offset, self._counted)
        self._line += self._text.count("\n", self._counted, offset)
        self._counted = offset
        return self._line

    def _names(self) -> tuple[KeyPath, tuple[int, int]]:
        """A key, perhaps dotted, and where its last name stands."""
        names: list[str] = []
        while True:
            self._skip(_SPACE)
            start = self._at
            self._skip(_TEXT if self._next() in "\"'" else _BARE_NAME)
            raw = self._text[start : self._at]
            names.append(tomllib.loads(f"name = {raw}")["name"] if raw[0] in "\"'" else raw)
            span = start, self._at
            self._skip(_SPACE)
            if self._next() != ".":
                return tuple(names), span
            self._at += 1

    def _value(self, path: KeyPath) -> None:
        match self._next():
            case "{":
                self._inside("}", path)
            case "[":
                self._inside("]", path)
            case '"' | "'":
                self._skip(_TEXT)
            case _:
                self._skip(_BARE_VALUE)

    def _inside(self, end: str, path: KeyPath) -> None:
        self._at += 1
        index = 0
        while self._skip(_BLANK) and self._next() != end:
            if self._next() == ",":
                self._at += 1
                index += 1
            elif end == "}":
                self._pair(path)
            else:
                self._value((*path, str(index)))
        self._at += 1
