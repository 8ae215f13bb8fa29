"""YAML, as far as configuration needs it: one document of mappings, lists and scalars.

Scalars are those of YAML 1.2's core schema: `true`, `false`, `null` and numbers. `yes`, `on` and `12:30` are texts, so
that none of them turns into something that its author did not mean; what a key takes is told apart afterwards. Anchors,
aliases and tags are refused: they say in two places what a reader looks for in one.
"""

import re
from typing import Any

import yaml

from rtk.config.document import MAX_DEPTH, TOO_LARGE, Document, FileError, KeyPath, Place, without_quotes

_CONSTANTS = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_INTEGER = re.compile(r"[-+]?[0-9]+")
_OTHER_BASE = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"([-+]?)\.(inf|Inf|INF)|\.(nan|NaN|NAN)")


def read_yaml(text: str) -> Document:
    """Linear in the text. Raises `FileError`."""
    try:
        return _Reading(text).document
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        reason = without_quotes(error.problem or "it breaks off")
        raise FileError(f"is not valid YAML: {reason}", mark.line + 1 if mark else None) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise FileError("is not valid YAML: it holds characters that YAML does not allow", line) from None


class _Reading:
    """Builds values from the parser's events."""

    def __init__(self, text: str) -> None:
        self._events = yaml.parse(text, Loader=yaml.SafeLoader)
        self._places: dict[KeyPath, Place] = {}
        values: Any = None
        for documents, event in enumerate(e for e in self._events if isinstance(e, yaml.DocumentStartEvent)):
            if documents:
                raise FileError("holds more than one document; write one file for each", event.start_mark.line + 1)
            values, _ = self._value(next(self._events), ())
        if values is None:
            values = {}
        if not isinstance(values, dict):
            raise FileError("must be a mapping of sections", 1)
        self.document = Document(text, values, self._places)

    def _value(self, event: Any, path: KeyPath) -> tuple[Any, int]:
        """What begins with `event`, and the offset of its end."""
        if isinstance(event, yaml.AliasEvent) or event.anchor is not None:
            raise FileError("has an anchor or an alias; write the value itself", event.start_mark.line + 1)
        if event.tag is not None:
            raise FileError("has a tag; what a value is follows from its key", event.start_mark.line + 1)
        if len(path) > MAX_DEPTH:
            raise FileError("is nested too deeply", event.start_mark.line + 1)
        if isinstance(event, yaml.MappingStartEvent):
            return self._mapping(path)
        if isinstance(event, yaml.SequenceStartEvent):
            return self._sequence(path)
        return _scalar(event), event.end_mark.index

    def _mapping(self, path: KeyPath) -> tuple[dict[str, Any], int]:
        values: dict[str, Any] = {}
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            line = event.start_mark.line + 1
            if not isinstance(event, yaml.ScalarEvent) or event.anchor is not None or event.tag is not None:
                raise FileError("has a key that is no plain text", line)
            name, span = event.value, (event.start_mark.index, event.end_mark.index)
            if name in values:
                first = self._places[*path, name].line
                raise FileError(f"gives a key twice: in line {first} too", line)
            values[name], end = self._value(next(self._events), (*path, name))
            self._places[*path, name] = Place(line, span, (span[0], max(end, span[1])))
        return values, event.end_mark.index

    def _sequence(self, path: KeyPath) -> tuple[list[Any], int]:
        values: list[Any] = []
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            values.append(self._value(event, (*path, str(len(values))))[0])
        return values, event.end_mark.index


def _scalar(event: yaml.ScalarEvent) -> Any:
    text: str = event.value
    if event.style is not None:  # quoted
        return text
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    try:
        if _INTEGER.fullmatch(text):
            return int(text)
        if _OTHER_BASE.fullmatch(text):
            return int(text, 0)
    except ValueError:
        raise FileError(TOO_LARGE, event.start_mark.line + 1) from None
    if _FLOAT.fullmatch(text):
        return float(text)
    if _NOT_FINITE.fullmatch(text):
        return float(text.replace(".", ""))
    return text
