"""One walk over the configuration tree: every key with its type, default, description, flag and environment name.

Flags, environment variables, `--set`, help and messages all come from here; there is no second list.
"""

import dataclasses
import difflib
import enum
import functools
import itertools
import json
import re
import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel, Secret, SecretBytes, SecretStr, TypeAdapter
from pydantic.errors import PydanticUserError
from pydantic.fields import FieldInfo

from rtk.config.models import Config
from rtk.config.sections import Section
from rtk.config.words import resolved, words

PREFIX = "RTK_"
"""What every environment variable of rtk begins with; `__` stands between the parts of a key."""

MASK = "**********"
"""What is shown in the place of a secret; pydantic's own."""
MAX_SHOWN = 200
"""Characters that a message quotes of a value."""


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
        alternatives = get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)
        return tuple(get_args(kind)[0] if get_origin(kind) is Annotated else kind for kind in alternatives)

    @property
    def is_switch(self) -> bool:
        """Whether it is plainly on or off."""
        return self.types == (bool,)

    @property
    def is_repeatable(self) -> bool:
        """Whether its flag may be given several times, for a list."""
        extra = self.field.json_schema_extra
        return isinstance(extra, dict) and bool(extra.get("repeatable"))

    @property
    def nullable(self) -> bool:
        """Whether null is a value of it."""
        return not {types.NoneType, Any, object}.isdisjoint(self.types)

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
        return ", or ".join(dict.fromkeys(map(words, self._schemas))) or "valid"

    @property
    def _schemas(self) -> list[dict[str, Any]]:
        """JSON Schemas of the alternatives of its type; none where JSON has no word for it."""
        annotation: Any = self.field.annotation
        limited: Any = functools.reduce(lambda kind, limit: Annotated[kind, limit], self.field.metadata, annotation)
        try:
            schema = TypeAdapter(limited).json_schema()
        except PydanticUserError:
            return []
        alternatives = schema.get("anyOf") or schema.get("oneOf") or [schema]
        return [resolved(schema, one) for one in alternatives]

    def shown(self, value: Any) -> str:
        """What somebody gave, as messages show it."""
        return _short(repr(MASK if self.is_secret else value))

    def value(self, config: BaseModel) -> Any:
        """The value in `config`, or in what else was walked."""
        return functools.reduce(getattr, self.attributes, config)

    def parse(self, text: str) -> Any:
        """What a flag or variable means, before validation: `null` where that is allowed, JSON for lists and mappings.

        Raises `ValueError` for text that should be JSON and is not.
        """
        if text == "null" and self.nullable:
            return None
        kinds = {schema.get("type") for schema in self._schemas}
        if kinds & {"array", "object"}:
            try:
                found = _read_json(text)
            except ValueError:
                if "string" not in kinds:
                    raise
            else:
                if isinstance(found, list | dict) or "string" not in kinds:
                    return found
        choices = (get_args(kind) for kind in self.types if get_origin(kind) is Literal)
        return next((choice for choice in itertools.chain(*choices) if as_text(choice) == text), text)


def _is_secret(kind: Any, above: tuple[Any, ...] = ()) -> bool:
    """Whether there is a secret anywhere in a type, which may have itself inside."""
    origin = get_origin(kind) or kind
    inner = get_args(kind)
    if origin in above:
        return False
    if isinstance(origin, type) and issubclass(origin, Secret | SecretStr | SecretBytes):
        return True
    if isinstance(origin, type) and issubclass(origin, BaseModel):
        inner, above = tuple(field.annotation for field in origin.model_fields.values()), (*above, origin)
    elif isinstance(origin, type) and dataclasses.is_dataclass(origin):
        inner, above = tuple(get_type_hints(origin).values()), (*above, origin)
    return any(_is_secret(one, above) for one in inner)


def _read_json(text: str) -> Any:
    """Raises `ValueError` for what is no JSON, gives a name twice, or is nested too deeply."""
    try:
        return json.loads(text, object_pairs_hook=_without_twins)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name is given twice")
    return found


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
    if isinstance(value, enum.Enum):
        value = value.value
    if value is None or isinstance(value, bool | list | tuple | set | frozenset | dict | BaseModel):
        return json.dumps(value, default=_plain)
    return str(value)


def as_written(value: Any) -> str:
    """A value of a file, as messages show it: texts in quotes."""
    return _short(repr(value) if isinstance(value, str) else as_text(value))


def _short(text: str) -> str:
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"


def _plain(value: Any) -> Any:
    match value:
        case set() | frozenset():
            return sorted(value, key=repr)
        case enum.Enum():
            return value.value
        case BaseModel():
            return value.model_dump(mode="json", by_alias=True)
    return str(value)


def readable(path: str) -> str:
    """The path of a key that there may be, as messages show it: what follows it may be a secret (`api_key:s3cret`)."""
    found = re.match(r"[\w.-]*", path.strip())
    named = found[0] if found else ""
    return named if named == path.strip() else f"{named}…"


def spelling(path: str) -> str:
    """The one spelling of a key path: dashes and underscores are the same, as are capitals and small letters."""
    return path.strip().lower().replace("-", "_")


def nearest(name: str, known: Sequence[str]) -> str:
    """A hint for a message: the known name that `name` is probably meant to be, or where to look."""
    near = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {near[0]}?" if near else "see 'rtk config show'"
