"""Where values come from: the command line, the environment, files, Python. Each says what it gave, and where."""

import re
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from rtk.config.document import MAX_BITS, TOO_LARGE, Document, FileError, KeyPath, leaves
from rtk.config.keys import PREFIX, Key, KeyTable, as_written, nearest, readable, spelling, variable
from rtk.config.models import PLUGIN_SECTIONS
from rtk.config.moved import MARKER, VERSION, moved
from rtk.config.sections import MIB
from rtk.errors import PluginError
from rtk.plugin.registry import Registry

DEFAULT = "default"
"""The source of what nobody set."""
SUFFIXES = ".toml", ".yaml", ".yml"
"""What a configuration file's name ends in."""
MAX_BYTES = MIB
"""Of a file. More than anybody writes; what never ends is noticed here."""


@dataclass(frozen=True, slots=True)
class Given:
    """A value that somebody gave, before validation."""

    value: Any
    shown: str
    """As messages show it: the way it was written."""
    source: str
    in_file: bool = False
    """Whether `source` is a file and line; such values have types of their own, which are held to the letter."""
    inside: Mapping[KeyPath, str] = field(default_factory=dict)
    """The sources of the entries of a mapping."""

    def told(self, path: str, problem: str) -> str:
        """A problem with this value of `path`. File and line come first, where editors and CI look for them."""
        if self.in_file:
            return f"{self.source}: {path} = {self.shown}: {problem}"
        return f"{path} = {self.shown} ({self.source}): {problem}"


class Layer:
    """What one source gave, and what was wrong with it."""

    def __init__(self, keys: KeyTable, registry: Registry) -> None:
        self.keys = keys
        self.given: dict[str, Given] = {}
        self.problems: list[str] = []
        self.unknown: list[str] = []
        """Problems that may be passed over: somebody asks for what this rtk does not have."""
        self.notices: list[str] = []
        self._registry = registry

    def add(self, key: Key, one: Given) -> None:
        """Record a value; giving one key twice in one layer is a problem, since neither is meant to win."""
        if key.path in self.given:
            place = f"{one.source}: {key.path}:" if one.in_file else key.path
            self.problems.append(f"{place} is given twice: {self.given[key.path].source} and {one.source}; drop one")
        if problem := _unfit(one.value):
            self.problems.append(one.told(key.path, problem))
        else:
            self.given[key.path] = one

    def add_text(self, key: Key, text: str, source: str) -> None:
        """Record a value that is written as text."""
        try:
            value = key.parse(text)
        except ValueError:
            self.problems.append(f"{key.path} = {key.shown(text)} ({source}): must be {key.allowed}")
        else:
            self.add(key, Given(value, key.shown(text), source))

    def named(self, path: str, source: str, *, version: int | None = None, is_table: bool = False) -> Key | None:
        """The key that goes by `path`, or went before `version` of files; None, and a problem, where there is none."""
        spelled = spelling(path)
        if key := self.keys.by_path.get(spelled) or self._moved(spelled, source, version):
            return key
        shown = readable(path)
        self.unknown.append(f"{source}: unknown key {shown!r}; {self._hint(spelling(shown), is_table)}")
        return None

    def is_section(self, path: str) -> bool:
        """Whether there are keys below `path`, or were once."""
        once = (one.old for one in moved() if one.new in self.keys.by_path)
        return path in self.keys.sections or any(old.startswith(f"{path}.") for old in once)

    def section(self, path: str, source: str, value: Any) -> None:
        """Somebody gave a value to a section."""
        self.problems.append(f"{source}: {path}: {self._section_hint(path)}{self._plugin_hint(path, value)}")

    def _moved(self, path: str, source: str, version: int | None) -> Key | None:
        for one in moved(version):
            if one.old == path and (key := self.keys.by_path.get(one.new)):
                self.renamed(one.old, one.new, source)
                return key
        return None

    def renamed(self, old: str, new: str, source: str) -> None:
        """Somebody used an old name."""
        self.notices.append(f"{source}: {old} is deprecated; write {new}")

    def _section_hint(self, path: str) -> str:
        return f"it is a section with the keys {', '.join(self.keys.below(path)) or '(none)'}"

    def _plugin_hint(self, path: str, value: Any) -> str:
        """Whoever writes a name for a section that chooses a plugin means that plugin."""
        if path not in PLUGIN_SECTIONS or not isinstance(value, str):
            return ""
        section = PLUGIN_SECTIONS[path]
        try:
            self._registry.get(section.kind, value)
        except PluginError as error:
            return f"; {error}"
        return f"; write {path}.{section.choice}"

    def _hint(self, path: str, is_table: bool) -> str:
        if path in self.keys.sections:
            return self._section_hint(path)
        for one in moved():
            if one.old == path:
                return f"it is {one.new} since version {one.version} of files"
        match path.split("."):
            case [section, name, *option] if section in PLUGIN_SECTIONS and (option or is_table):
                try:
                    self._registry.get(PLUGIN_SECTIONS[section].kind, name)
                except PluginError as error:
                    return str(error)
        return nearest(path, [*self.keys.by_path, *(self.keys.sections if is_table else ())])


class Source(Protocol):
    """One place that values come from."""

    def read(self, layer: Layer) -> None:
        """Add everything that is given here to `layer`."""


@dataclass(frozen=True)
class CommandLine:
    """Flags, and the key=value texts of --set."""

    flags: Mapping[str, str]
    sets: Sequence[str] = ()

    def read(self, layer: Layer) -> None:
        """Every flag, then every --set."""
        old_flags = {one.flag: one for one in moved() if one.flag}
        for flag, text in self.flags.items():
            key = layer.keys.by_flag.get(flag)
            if (old := old_flags.get(flag)) and (key := layer.keys.by_path.get(old.new)):
                layer.renamed(flag, key.flag or f"--set {key.path}", "command line")
            if key:
                layer.add_text(key, text, f"flag {flag}")
            else:
                layer.unknown.append(f"unknown flag {flag}; {nearest(flag, list(layer.keys.by_flag))}")
        for item in self.sets:
            path, equals, text = item.partition("=")
            if not equals:
                layer.problems.append(f"--set {readable(path)}: has no value; write --set key=value")
            elif key := layer.named(path, f"--set {readable(path)}"):
                layer.add_text(key, text, f"--set {key.path}")


@dataclass(frozen=True)
class Environment:
    """Variables that begin with the prefix. An empty one counts as absent."""

    environ: Mapping[str, str]

    def read(self, layer: Layer) -> None:
        """Every variable that is rtk's, or looks as if it was meant to be."""
        old_names = {variable(one.old): one for one in moved()}
        for name in sorted(filter(_looks_like_ours, self.environ)):
            if not (text := self.environ[name]):
                continue
            key = layer.keys.by_variable.get(name)
            if (old := old_names.get(name)) and (key := layer.keys.by_path.get(old.new)):
                layer.renamed(name, key.variable, "environment")
            if key:
                layer.add_text(key, text, f"variable {name}")
            else:
                layer.unknown.append(f"unknown variable {name}; {nearest(name.upper(), list(layer.keys.by_variable))}")


def _looks_like_ours(name: str) -> bool:
    """The prefix in any case, or a prefix close to it before a name with our separator (`RTKI_CACHE__PAGE_SIZE`)."""
    return re.match(rf"{PREFIX}|RTK[A-Z]*_+[A-Z]+__", name, re.IGNORECASE) is not None


@dataclass(frozen=True)
class Values:
    """Python values by nested or dotted keys."""

    values: Mapping[str, Any]

    def read(self, layer: Layer) -> None:
        """Every value, down to the keys of the tree."""
        self._read(layer, self.values, "")

    def _read(self, layer: Layer, values: Mapping[str, Any], above: str) -> None:
        for name, value in values.items():
            path = f"{above}{name}"
            if isinstance(value, Mapping) and layer.is_section(spelling(path)):
                self._read(layer, value, f"{path}.")
            elif key := layer.named(path, "configuration"):
                layer.add(key, Given(value, key.shown(value), f"argument {key.path}"))


@dataclass(frozen=True)
class File:
    """A TOML or YAML file. The sources of its values are `path:line`."""

    path: Path

    def read(self, layer: Layer) -> None:
        """Every value, down to the keys of the tree."""
        try:
            document = read_document(self.path)
        except FileError as error:
            layer.problems.append(error.told(self.path))
        else:
            _FileReading(self.path, document, layer).read(document.values, ())


class _FileReading:
    def __init__(self, path: Path, document: Document, layer: Layer) -> None:
        self._path = path
        self._document = document
        self._layer = layer
        self._version = self._version_of(document)

    def _source(self, path: KeyPath) -> str:
        return f"{self._path}:{self._document.line(path)}"

    def _version_of(self, document: Document) -> int | None:
        version = document.values.get(MARKER)
        if version is None:
            return None
        if type(version) is not int or not 1 <= version <= VERSION:
            self._layer.problems.append(
                f"{self._source((MARKER,))}: {MARKER} = {as_written(version)}: this rtk reads files of the versions 1 "
                f"to {VERSION}; a file of a later one needs a later rtk"
            )
        return version if type(version) is int else None

    def read(self, values: Mapping[str, Any], above: KeyPath) -> None:
        for name, value in values.items():
            path = (*above, name)
            if path == (MARKER,):
                continue
            dotted, source = ".".join(path), self._source(path)
            if self._layer.is_section(spelling(dotted)):
                if isinstance(value, Mapping):
                    self.read(value, path)
                elif value is not None:  # YAML's empty section
                    self._layer.section(spelling(dotted), source, value)
            elif key := self._layer.named(dotted, source, version=self._version, is_table=isinstance(value, Mapping)):
                self._layer.add(key, self._given(key, path, value, source))

    def _given(self, key: Key, path: KeyPath, value: Any, source: str) -> Given:
        if value == "null" and key.nullable:  # TOML has no null of its own
            value = None
        entries = self._document.places if isinstance(value, Mapping) else ()
        inside = {entry[len(path) :]: self._source(entry) for entry in entries if entry[: len(path)] == path}
        shown = key.shown(value) if key.is_secret else as_written(value)
        return Given(value, shown, source, in_file=True, inside=inside)


def read_document(path: Path) -> Document:
    """A file's values and where they stand. Raises `FileError`."""
    if path.suffix not in SUFFIXES:
        raise FileError(f"a configuration file's name ends in {', '.join(SUFFIXES)}")
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # a pipe, say, from which nothing may ever come
            raise FileError("cannot be read: it is no regular file")
        with path.open("rb") as stream:
            content = stream.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise FileError(f"is larger than {MAX_BYTES // MIB} MiB")
        text = content.decode("utf-8-sig")
    except OSError as error:
        raise FileError(f"cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise FileError(f"is not UTF-8: byte {error.start}", line) from None
    return parse(path, text)


def parse(path: Path, text: str) -> Document:
    """A text as the file of this name would hold it. Raises `FileError`."""
    if path.suffix == ".toml":
        from rtk.config.toml_file import read_toml as read
    else:
        from rtk.config.yaml_file import read_yaml as read
    document = read(text)
    try:
        for key, value in leaves(document.values):
            if isinstance(value, int) and value.bit_length() > MAX_BITS:
                raise FileError(TOO_LARGE, document.line(key))
    except ValueError as error:
        raise FileError(str(error)) from None
    return document


def _unfit(value: Any) -> str:
    """Why neither JSON, nor a lock, nor a file system could hold a value; empty if they can."""
    try:
        texts = [inner for _, inner in leaves(value) if isinstance(inner, str)]
        if not any("\0" in text.encode().decode() for text in texts):
            return ""
    except UnicodeEncodeError:
        pass
    except ValueError as error:
        return str(error)
    return "must be text without NUL, of characters that UTF-8 has"
