"""What a configuration file holds: nested values, and where in the text each key stands."""

from collections.abc import Mapping
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class Document:
    """A file that could be read."""

    text: str
    values: Mapping[str, Any]
    places: Mapping[KeyPath, Place]


class FileError(Exception):
    """A file that is not what its suffix says. Never quotes the file: what stands there may be a secret."""

    def __init__(self, reason: str, line: int | None = None) -> None:
        super().__init__(reason)
        self.line = line
