"""Rewrites a configuration file that uses old names of keys. What it says otherwise, comments included, stays as it is.

A key whose name changes inside its section is renamed where it stands, any other is moved with its line. The result is
read again and must say the same, key by key; where it does not, nothing is written.
"""

import contextlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rtk.config.document import Document, FileError, KeyPath
from rtk.config.keys import MASK, KeyTable, as_written, spelling
from rtk.config.moved import MARKER, VERSION, Moved, moved
from rtk.config.sources import parse, read_document
from rtk.errors import ConfigError

_YAML_START = re.compile(r"(?:(?:[ \t]*(?:#.*)?|%.*)\n)*---[^\n]*\n")


def migrate(path: Path, keys: KeyTable) -> tuple[Document, Document]:
    """A file as it is, and as it would be now. Raises `ConfigError` where it has to be done by hand, or not at all."""
    try:
        before = read_document(path)
        version = _version(before)
        crlf = 0 < before.text.count("\n") == before.text.count("\r\n")
        plain = after = parse(path, before.text.replace("\r\n", "\n")) if crlf else before
        for one in moved(version):
            if one.new in keys.by_path:
                after = _without_old_name(path, after, one)
        if after is not plain or (version or VERSION) < VERSION:
            with contextlib.suppress(FileError):  # a YAML file in one pair of braces has no place for it
                after = parse(path, _with_marker(after, path.suffix == ".toml"))
        if crlf:
            after = parse(path, after.text.replace("\n", "\r\n"))
    except FileError as error:
        raise ConfigError(error.told(path)) from None
    return before, after


def masked(document: Document, keys: KeyTable) -> str:
    """The text of a file without its secrets."""
    new_names = {one.old: one.new for one in moved()}
    text = document.text
    for path, place in sorted(document.places.items(), key=lambda item: item[1].name, reverse=True):
        dotted = spelling(".".join(path))
        key = keys.by_path.get(new_names.get(dotted, dotted))
        if key and key.is_secret:
            text = f"{text[: place.name[1]]} {MASK}{text[place.whole[1] :]}"
    return text


def _version(document: Document) -> int | None:
    version = document.values.get(MARKER)
    if version is not None and (type(version) is not int or not 1 <= version <= VERSION):
        wrong = f"{MARKER} = {as_written(version)}: this rtk reads files of the versions 1 to {VERSION}"
        raise FileError(wrong, document.places[MARKER,].line)
    return version


def _without_old_name(path: Path, document: Document, one: Moved) -> Document:
    found = [key for key in document.places if spelling(".".join(key)) == one.old]
    if not found:
        return document
    (key,) = found[:1]
    toml = path.suffix == ".toml"
    section = ".".join(map(spelling, key[:-1]))
    if one.new.startswith(f"{section}.") or not section:
        start, end = document.places[key].name
        text = f"{document.text[:start]}{one.new.removeprefix(f'{section}.')}{document.text[end:]}"
    else:
        text = _moved_line(document, key, one.new, toml)
    try:
        after = parse(path, text)
    except FileError:
        after = document
    if _flat(after.values) != {_renamed(name, one): value for name, value in _flat(document.values).items()}:
        raise FileError(f"write {one.new} for {one.old} by hand, then try again", document.places[key].line)
    return after


def _renamed(name: str, one: Moved) -> str:
    """A key by its new name; one that takes a mapping has the names of that below its own."""
    old, new = f"{one.old}.", f"{one.new}."
    return f"{name}.".replace(old, new, 1)[:-1] if f"{name}.".startswith(old) else name


def _moved_line(document: Document, key: KeyPath, new: str, toml: bool) -> str:
    """The text with a pair taken out of its section and put at the head of another, which may have to be made."""
    text, place = document.text, document.places[key]
    start = text.rfind("\n", 0, place.whole[0]) + 1
    end = text.find("\n", place.whole[1]) + 1 or len(text)
    pair = text[place.name[1] : end].rstrip()
    section, _, name = new.rpartition(".")
    head = _head(document, section, toml)
    if head is None:
        header = f"[{section}]\n" if toml else f"{section}:\n  "
        rest = f"{text[:start]}{text[end:]}".rstrip("\n")
        above = f"{rest}\n\n" if rest else ""
        return f"{above}{header}{name}{pair}\n"
    indent, at = head
    line = f"{indent}{name}{pair}\n"
    if at >= end:
        return f"{text[:start]}{text[end:at]}{line}{text[at:]}"
    return f"{text[:at]}{line}{text[at:start]}{text[end:]}"


def _head(document: Document, section: str, toml: bool) -> tuple[str, int] | None:
    """Where the first line of a section's own would begin, and how far it is indented."""
    text = document.text
    for path, place in document.places.items():
        if spelling(".".join(path)) != section:
            continue
        if toml:
            return ("", text.find("\n", place.whole[1]) + 1) if text[place.whole[0]] == "[" else None
        inside = [inner for name, inner in document.places.items() if name[:-1] == path]
        if inside and inside[0].line > place.line:
            at = text.rfind("\n", 0, inside[0].name[0]) + 1
            return text[at : inside[0].name[0]], at
    return None


def _with_marker(document: Document, toml: bool) -> str:
    text = document.text
    marker = f"{MARKER} = {VERSION}" if toml else f"{MARKER}: {VERSION}"
    if place := document.places.get((MARKER,)):
        return f"{text[: place.whole[0]]}{marker}{text[place.whole[1] :]}"
    start = None if toml else _YAML_START.match(text)
    at = start.end() if start else 0
    return f"{text[:at]}{marker}\n{text[at:]}"


def _flat(values: Mapping[str, Any]) -> dict[str, Any]:
    return dict(_leaves(values, ""))


def _leaves(values: Mapping[str, Any], above: str) -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{above}{spelling(name)}.")
        elif value is not None or above:  # YAML's empty sections are null
            yield f"{above}{spelling(name)}", value
