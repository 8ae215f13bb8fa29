"""What a client sent as a schema, read as JSON and nothing looser."""

import json
from typing import Any

from rtk.grammar.schema.errors import SchemaError
from rtk.grammar.schema.values import MAX_DIGITS, escaped, exact_number

MAX_TEXT = 1 << 20
MAX_VALUES = 50_000
MAX_DEPTH = 512
"""Levels of arrays and objects; a schema for 200 objects in each other has 400."""


class _Twice(dict[str, Any]):
    """An object that has a key twice."""

    def __init__(self, key: str):
        super().__init__()
        self.key = key


class _Long:
    """A number that is too long."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) == len(pairs):
        return found
    seen: set[str] = set()
    return next(_Twice(key) for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]


def _number(text: str) -> Any:
    try:
        return exact_number(text)
    except ValueError:
        return _Long()


def _constant(name: str) -> Any:
    raise SchemaError(f"{name} is not JSON")


def read(source: object) -> Any:
    """A JSON text, or what such a text was parsed to, with exact numbers."""
    try:
        text = source if isinstance(source, str) else json.dumps(source, allow_nan=False)
        if len(text) > MAX_TEXT:
            raise SchemaError(f"a text of {len(text)} characters; at most {MAX_TEXT} are taken")
        value = json.loads(
            text, object_pairs_hook=_object, parse_int=_number, parse_float=_number, parse_constant=_constant
        )
    except json.JSONDecodeError as error:
        problem = f"not JSON: {error.msg}, line {error.lineno}, column {error.colno}"
        raise SchemaError(problem) from None
    except (TypeError, ValueError):
        raise SchemaError("not JSON: it has values that no JSON text has") from None
    except RecursionError:
        raise SchemaError(f"nested too deeply; at most {MAX_DEPTH} levels are taken") from None
    _check(value)
    return value


def _check(root: Any) -> None:
    """No key twice, no half characters, no number too long; neither too deep nor too large."""
    left = MAX_VALUES
    work: list[tuple[Any, _Path]] = [(root, _Path())]
    while work:
        value, path = work.pop()
        left -= 1
        if left < 0:
            raise SchemaError(f"more than {MAX_VALUES} values")
        if isinstance(value, str):
            _whole(value, path)
        elif isinstance(value, _Long):
            raise SchemaError(f"a number of more than {MAX_DIGITS} digits", path.text())
        elif isinstance(value, _Twice):
            raise SchemaError(f"the key {json.dumps(value.key)} is there twice", path.text())
        elif isinstance(value, list | dict):
            if path.depth == MAX_DEPTH:
                raise SchemaError(f"nested too deeply; at most {MAX_DEPTH} levels are taken")
            if isinstance(value, dict):
                for name in value:
                    _whole(name, path)
            items = value.items() if isinstance(value, dict) else enumerate(value)
            work.extend((item, _Path(path, str(step))) for step, item in items)


class _Path:
    """Where a value is: its parent's place and a step. Written out only where something is wrong."""

    __slots__ = ("depth", "parent", "step")

    def __init__(self, parent: "_Path | None" = None, step: str = "#"):
        self.parent = parent
        self.step = step
        self.depth: int = parent.depth + 1 if parent else 0

    def text(self) -> str:
        steps = []
        path: _Path | None = self
        while path:
            steps.append(escaped(path.step))
            path = path.parent
        return "/".join(reversed(steps))


def _whole(text: str, path: _Path) -> None:
    if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
        raise SchemaError(f"half a character (a lone surrogate) in {json.dumps(text)}", path.text())
