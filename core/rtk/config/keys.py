"""One walk over the configuration tree: every key with its type, default, description, flag and environment name.

Flags, environment variables, `--set`, help and messages all come from here; there is no second list.
"""

import difflib
import functools
import json
import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, Secret, SecretBytes, SecretStr, TypeAdapter
from pydantic.errors import PydanticUserError
from pydantic.fields import FieldInfo

from rtk.config.models import Config, Section

PREFIX = "RTK_"
"""What every environment variable of rtk begins with; `__` stands between the parts of a key."""

MASK = "**********"
"""What is shown in the place of a secret; pydantic's own."""


def variable(path: str) -> str:
    """The environment variable of a key."""
    return PREFIX + path.replace(".", "__").upper()


@dataclass(frozen=True, slots=True)
class Key:
    """One value that can be set."""

    path: str
    """Section, perhaps plugin, and name: `eviction.slru.protect_after_hits`."""
    field: FieldInfo
    attributes: tuple[str, ...]
    """The way to the value from a `Config`."""
    flag: str | None
    """None for the options of plugins: those are set by `--set` and the environment only."""

    @property
    def section(self) -> str:
        """The first part of the path."""
        return self.path.partition(".")[0]

    @property
    def variable(self) -> str:
        """The environment variable that sets it."""
        return variable(self.path)

    @property
    def default(self) -> Any:
        """The value that it has when nobody sets it."""
        return self.field.get_default(call_default_factory=True)

    @property
    def description(self) -> str:
        """What it means, for help and documentation."""
        return self.field.description or ""

    @property
    def types(self) -> tuple[Any, ...]:
        """The alternatives of its type; `NoneType` among them when null is allowed."""
        annotation = self.field.annotation
        return get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)

    @property
    def is_switch(self) -> bool:
        """Whether it is plainly on or off."""
        return self.types == (bool,)

    @property
    def nullable(self) -> bool:
        """Whether null is a value of it."""
        return types.NoneType in self.types

    @property
    def is_secret(self) -> bool:
        """Whether its values are shown to nobody."""
        return _is_secret(self.field.annotation)

    @property
    def metavar(self) -> str:
        """What stands for the value in a usage line."""
        kind = self.types[0]
        if get_origin(kind) is Literal:
            return "|".join(map(str, get_args(kind)))
        return {bool: "true|false", int: "INTEGER", float: "NUMBER", Path: "PATH"}.get(kind, "TEXT")

    @property
    def allowed(self) -> str:
        """What it takes, in words: `an integer from 1 up, or null`."""
        constrained: Any = Annotated[self.field.annotation, self.field]
        try:
            schema = TypeAdapter(constrained).json_schema()
        except PydanticUserError:
            return "valid"
        return _words(schema)

    def shown(self, value: Any) -> str:
        """What somebody gave, as messages show it."""
        return repr(MASK if self.is_secret else value)

    def value(self, config: Config) -> Any:
        """The value in `config`."""
        return functools.reduce(getattr, self.attributes, config)

    def parse(self, text: str) -> Any:
        """What a flag or variable means, before validation: `null` where that is allowed, JSON for lists and mappings.

        Raises `ValueError` for text that should be JSON and is not.
        """
        if text == "null" and self.nullable:
            return None
        if any(_is_collection(kind) for kind in self.types):
            return json.loads(text)
        return text


def _is_secret(kind: Any) -> bool:
    """Whether there is a secret anywhere in a type."""
    origin = get_origin(kind) or kind
    if isinstance(origin, type) and issubclass(origin, Secret | SecretStr | SecretBytes):
        return True
    if isinstance(origin, type) and issubclass(origin, BaseModel):
        return any(_is_secret(field.annotation) for field in origin.model_fields.values())
    return any(map(_is_secret, get_args(kind)))


def _is_collection(kind: Any) -> bool:
    origin = get_origin(kind) or kind
    return isinstance(origin, type) and issubclass(origin, list | tuple | set | frozenset | dict)


def walk(model: type[BaseModel]) -> Iterator[Key]:
    """Every key below `model`, in the order of declaration."""
    return (entry for entry in _entries(model, (), ()) if isinstance(entry, Key))


def _entries(model: type[BaseModel], above: tuple[str, ...], attributes: tuple[str, ...]) -> Iterator[Key | str]:
    """The keys below `model`, and before the keys of each section the section's path."""
    for name, field in model.model_fields.items():
        parts = (*above, field.alias or name)
        path = ".".join(parts)
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield path
            yield from _entries(field.annotation, parts, (*attributes, name))
        else:
            yield Key(path, field, (*attributes, name), _flag(name, field) if issubclass(model, Section) else None)


def _flag(name: str, field: FieldInfo) -> str:
    extra = field.json_schema_extra
    own = extra.get("flag") if isinstance(extra, dict) else None
    return str(own or f"--{name.replace('_', '-')}")


class KeyTable:
    """The keys of a tree by path, flag and variable, and the paths of its sections."""

    def __init__(self, model: type[Config]) -> None:
        entries = list(_entries(model, (), ()))
        keys = [entry for entry in entries if isinstance(entry, Key)]
        self.sections = [entry for entry in entries if isinstance(entry, str)]
        self.by_path = {key.path: key for key in keys}
        self.by_flag = {key.flag: key for key in keys if key.flag is not None}
        self.by_variable = {key.variable: key for key in keys}

    def __iter__(self) -> Iterator[Key]:
        return iter(self.by_path.values())

    def below(self, section: str) -> list[str]:
        """The keys inside a section, by path."""
        return [path for path in self.by_path if path.startswith(f"{section}.")]

    def key_at(self, location: Sequence[int | str]) -> Key | None:
        """The key that a location in the tree lies at or inside of."""
        paths = (".".join(map(str, location[:end])) for end in range(1, len(location) + 1))
        return next((self.by_path[path] for path in paths if path in self.by_path), None)


def as_text(value: Any) -> str:
    """A value as a flag or variable would set it: the inverse of `Key.parse`."""
    if value is None or isinstance(value, bool | list | tuple | set | frozenset | dict):
        return json.dumps(sorted(value, key=repr) if isinstance(value, set | frozenset) else value, default=str)
    return str(value)


def spelling(path: str) -> str:
    """The one spelling of a key path: dashes and underscores are the same, as are capitals and small letters."""
    return path.strip().lower().replace("-", "_")


def nearest(name: str, known: Sequence[str]) -> str:
    """A hint for a message: the known name that `name` is probably meant to be, or where to look."""
    near = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {near[0]}?" if near else "see 'rtk config show'"


def _words(schema: dict[str, Any]) -> str:
    """A JSON Schema of one value as a phrase that follows "must be"."""
    match schema:
        case {"anyOf": [*options]}:
            return ", or ".join(_words(option) for option in options)
        case {"enum": [*values]}:
            return "one of " + ", ".join(map(str, values))
        case {"type": "integer" | "number" as kind}:
            return ("an integer" if kind == "integer" else "a number") + _range(schema)
        case {"type": "boolean"}:
            return "true or false"
        case {"type": "null"}:
            return "null"
        case {"type": "string", "format": "path"}:
            return "a path"
        case {"type": "string", "minLength": 1}:
            return "text that is not empty"
        case {"type": "string"}:
            return "text"
        case {"type": "array"}:
            return "a JSON array"
    return "a JSON object"


def _range(schema: dict[str, Any]) -> str:
    bounds = (schema.get(name) for name in ("exclusiveMinimum", "minimum", "maximum"))
    above, low, high = (None if bound is None else str(bound).removesuffix(".0") for bound in bounds)
    if low is not None:
        return f" from {low} up" if high is None else f" from {low} to {high}"
    limits = [] if above is None else [f" above {above}"]
    return " and".join(limits if high is None else [*limits, f" up to {high}"])
