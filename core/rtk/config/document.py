"""What a configuration file holds: nested values, and where in the text each key stands."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

KeyPath = tuple[str, ...]
"""The names that lead to a value, as the file writes them."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a key stands in a text. Offsets are half-open, in characters."""

    line: int
    """From 1."""
    name: tuple[int, int]
    """The last name of the key."""
    whole: tuple[int, int]
    """The key with its value, or the header of a table."""


MAX_DEPTH = 100
"""Of values inside of values: well below what JSON, TOML and validation can still follow."""
MAX_BITS = 63
"""Of integers: what TOML promises. Beyond, JSON readers differ, and Python prints no more than 4300 digits."""
TOO_LARGE = "has a number that is too large"


@dataclass(frozen=True, slots=True)
class Document:
    """A file that could be read."""

    text: str
    values: Mapping[str, Any]
    places: Mapping[KeyPath, Place]

    def line(self, path: KeyPath) -> int:
        """The line of a key, of the key around it; of a table that has no header, that of the first thing in it."""
        for end in range(len(path), 0, -1):
            inside = (place for key, place in self.places.items() if key[:end] == path[:end])
            if found := self.places.get(path[:end]) or next(inside, None):
                return found.line
        return 1


def leaves(values: Any) -> Iterator[tuple[KeyPath, Any]]:
    """What is in nested mappings and lists, the names of mappings included. Raises `ValueError` past `MAX_DEPTH`."""
    stack: list[tuple[KeyPath, Any]] = [((), values)]
    while stack:
        path, value = stack.pop()
        if len(path) > MAX_DEPTH:
            raise ValueError("is nested too deeply")
        if isinstance(value, Mapping):
            yield from ((path, name) for name in value)
            stack += (((*path, str(name)), inner) for name, inner in value.items())
        elif isinstance(value, list | tuple):
            stack += (((*path, str(index)), inner) for index, inner in enumerate(value))
        else:
            yield path, value


class FileError(Exception):
    """A file that is not what its suffix says. Never quotes the file: what stands there may be a secret."""

    def __init__(self, reason: str, line: int | None = None) -> None:
        super().__init__(reason)
        self.line = line

    def told(self, path: Path) -> str:
        """What is wrong with the file at `path`, and in which line of it."""
        return f"{path}: {self}" if self.line is None else f"{path}:{self.line}: {self}"


def without_quotes(reason: str) -> str:
    """A parser's message without what it quotes: that is the file's, if it is more than a character or a <token>."""

    def said(quoted: re.Match[str]) -> str:
        inside = quoted[0][1:-1]
        return quoted[0] if len(inside) == 1 or (quoted[0][0] == "'" and inside.startswith("<")) else "…"

    return re.sub(r"'(?:\\.|[^'\\])*'|\"(?:\\.|[^\"\\])*\"", said, reason)
