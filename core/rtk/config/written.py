"""Values as files write them, and the file that `rtk config init` begins with."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from rtk.config.keys import Key, KeyTable
from rtk.config.models import Config
from rtk.config.moved import MARKER, VERSION

INTRODUCTION = """\
# Configuration of rtk: every key, with its default. A line counts when its leading # is taken away.
# 'rtk config check' says what is wrong with this file, 'rtk config show --sources --config' what it comes to.
"""


def as_toml(value: Any) -> str:
    """A value of JSON as TOML writes it. TOML has no null: configuration takes the text instead."""
    match value:
        case None:
            return '"null"'
        case str():
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case Mapping():
            pairs = (f"{as_toml(str(name))} = {as_toml(inner)}" for name, inner in value.items())
            return f"{{ {', '.join(pairs)} }}" if value else "{}"
        case list():
            return f"[{', '.join(map(as_toml, value))}]"
        case float() if value != value or value in (float("inf"), float("-inf")):
            return repr(value)
    return json.dumps(value, default=str)


def as_yaml(value: Any) -> str:
    """A value of JSON as YAML writes it, on one line."""
    return json.dumps(value, ensure_ascii=False)


def json_values(config: Config) -> dict[str, Any]:
    """The value of every key, as JSON has it; secrets are masked."""
    tree = config.model_dump(mode="json", by_alias=True)
    return {key.path: _in_order(key.value(config), _at(tree, key.path)) for key in KeyTable(type(config))}


def _in_order(value: Any, written: Any) -> Any:
    """What is written of a value, the sets in it in an order that does not change from one process to the next."""
    match value:
        case set() | frozenset():
            return sorted(written, key=json.dumps)
        case Mapping() if isinstance(written, dict):
            return dict(zip(written, map(_in_order, value.values(), written.values()), strict=False))
        case list() | tuple() if isinstance(written, list):
            return [*map(_in_order, value, written)]
    return written


def _at(tree: Any, path: str) -> Any:
    for part in path.split("."):
        tree = tree[part]
    return tree


def toml_template(model: type[Config]) -> str:
    """A TOML file with every key of `model`, commented out."""
    return "".join(_toml_lines(model))


def yaml_template(model: type[Config]) -> str:
    """A YAML file with every key of `model`, commented out."""
    return "".join(_yaml_lines(model))


def _toml_lines(model: type[Config]) -> Iterator[str]:
    defaults = _defaults(model)
    yield f"{INTRODUCTION}{MARKER} = {VERSION}\n"
    for section, keys in _by_section(model):
        if keys:
            yield f"\n[{section}]\n"
        for key in keys:
            yield f"# {_about(key)}\n#{_name(key)} = {as_toml(defaults[key.path])}\n"


def _yaml_lines(model: type[Config]) -> Iterator[str]:
    defaults = _defaults(model)
    yield f"{INTRODUCTION}{MARKER}: {VERSION}\n"
    for section, keys in _by_section(model):
        depth = section.count(".")
        yield f"{'' if depth else chr(10)}{'  ' * depth}{section.rpartition('.')[2]}:\n"
        indent = "  " * (depth + 1)
        for key in keys:
            yield f"{indent}# {_about(key)}\n{indent}#{_name(key)}: {as_yaml(defaults[key.path])}\n"


def _defaults(model: type[Config]) -> dict[str, Any]:
    """What every key is where nobody sets it. Of a secret, no more than whether there is one."""
    values = json_values(model())
    secrets = {key.path for key in KeyTable(model) if key.is_secret}
    return {path: "" if value and path in secrets else value for path, value in values.items()}


def _by_section(model: type[Config]) -> Iterator[tuple[str, list[Key]]]:
    """The sections with something in them, each before those inside of it, with the keys that are theirs alone."""
    table = KeyTable(model)
    for section in table.sections:
        if table.below(section):
            yield section, [key for key in table if key.path.rpartition(".")[0] == section]


def _name(key: Key) -> str:
    return key.path.rpartition(".")[2]


def _about(key: Key) -> str:
    allowed = f"({key.allowed})"
    return f"{' '.join(key.description.split())} {allowed}" if key.description else allowed
