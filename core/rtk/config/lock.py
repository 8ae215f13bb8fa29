"""The lock: values and package versions that `rtk config lock` wrote down, and `rtk serve --locked` holds a start to.

It covers the runtime's own keys and the options of the plugins that are chosen; others change nothing. Secrets are not
in it, nor is whether it is asked for. A default that follows from the machine (a home folder) is locked as a default.
"""

import json
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rtk.config.document import Document, FileError
from rtk.config.keys import Key, KeyTable
from rtk.config.load import LoadedConfig
from rtk.config.models import PLUGIN_SECTIONS, Config
from rtk.config.moved import MARKER, VERSION
from rtk.config.sections import options_field
from rtk.config.sources import DEFAULT, read_document
from rtk.config.written import as_toml, json_values
from rtk.errors import ConfigError
from rtk.plugin.registry import Registry

NAME = "rtk.lock.toml"
"""The file's name; it lies beside the configuration."""
HOST = "rtk-inference"
UNLOCKED = "serve.locked"
"""The key that asks for the lock."""


def lock_path(loaded: LoadedConfig) -> Path:
    """Where the lock of a configuration is: beside the last of its files, or in the current folder."""
    return loaded.files[-1].parent / NAME if loaded.files else Path(NAME)


def lock_text(loaded: LoadedConfig, registry: Registry) -> str:
    """The lock of a configuration."""
    lines = [
        "# Written by 'rtk config lock'; 'rtk serve --locked' starts with this and nothing else. It holds no secrets.",
        f"{MARKER} = {VERSION}",
        "",
        "[packages]",
        *(f"{as_toml(name)} = {as_toml(found)}" for name, found in _packages(loaded.config, registry).items()),
        "",
        "[values]",
        *(f"{as_toml(path)} = {as_toml(value)}" for path, value in _values(loaded).items()),
    ]
    return "".join(f"{line}\n" for line in lines)


def check_lock(loaded: LoadedConfig, registry: Registry) -> None:
    """Raises `ConfigError` that lists everything in which a configuration or installation differs from its lock."""
    path = lock_path(loaded)
    try:
        document = read_document(path)
    except FileError as error:
        raise ConfigError(f"{error.told(path)}; write it with 'rtk config lock'") from None
    if problems := [*_problems(loaded, registry, document, path)]:
        raise ConfigError(*problems)


def _problems(loaded: LoadedConfig, registry: Registry, document: Document, path: Path) -> Iterator[str]:
    packages, values = (document.values.get(name) for name in ("packages", "values"))
    if document.values.get(MARKER) != VERSION or not isinstance(packages, dict) or not isinstance(values, dict):
        yield f"{path}: is no lock that this rtk reads; write it anew with 'rtk config lock'"
        return

    def place(*key: str) -> str:
        return f"{path}:{document.line(key)}"

    installed = _packages(loaded.config, registry)
    for name in sorted(packages.keys() | installed.keys()):
        if name not in packages:
            yield f"{path}: {name} {installed[name]} is not locked"
        elif packages[name] != installed.get(name):
            used = f"{installed[name]} is in use" if name in installed else "and is neither chosen nor required here"
            yield f"{place('packages', name)}: {name} {packages[name]} is locked, {used}"
    found, actual = _values(loaded), json_values(loaded.config)
    secrets = {key.path for key in KeyTable(type(loaded.config)) if key.is_secret}
    for name in {**values, **found}:
        source = loaded.sources.get(name, DEFAULT)
        if name not in values:
            yield f"{path}: {name} = {as_toml(found[name])} ({source}) is not locked"
        elif name in secrets:
            yield f"{place('values', name)}: {name} is locked, and a lock holds no secrets; take it out"
        elif name not in actual:
            yield f"{place('values', name)}: {name} is locked, and no key here"
        elif _comparable(values[name]) != _comparable(actual[name]):
            locked = f"{name} = {as_toml(values[name])} is locked"
            yield f"{place('values', name)}: {locked}, not {as_toml(actual[name])} ({source})"


def _comparable(value: Any) -> str:
    """Equal for what TOML does not tell apart, and for nothing else: neither `1.0` nor `true` is 1."""
    return json.dumps(value, sort_keys=True, default=str).replace('"null"', "null")


def _values(loaded: LoadedConfig) -> dict[str, Any]:
    values = json_values(loaded.config)
    idle = _idle(loaded.config)
    return {key.path: values[key.path] for key, _, source in loaded.rows() if _is_locked(key, source, idle)}


def _is_locked(key: Key, source: str, idle: set[str]) -> bool:
    follows_the_machine = source == DEFAULT and Path in key.types and key.field.default_factory is not None
    unlocked = key.is_secret or key.path == UNLOCKED or follows_the_machine
    return not unlocked and not any(key.path.startswith(section) for section in idle)


def _idle(config: Config) -> set[str]:
    """Where the options of plugins that are not chosen lie."""
    return {
        f"{name}.{field.alias}."
        for name in PLUGIN_SECTIONS
        for section in [getattr(config, name)]
        for attribute, field in type(section).model_fields.items()
        if field.alias and attribute not in map(options_field, section.all_chosen)
    }


def _packages(config: Config, registry: Registry) -> dict[str, str]:
    """rtk, the packages of the chosen plugins, and those that are required."""
    sections = [getattr(config, name) for name in PLUGIN_SECTIONS]
    chosen = [registry.get(one.kind, name).origin for one in sections for name in one.all_chosen]
    found = {HOST: version(HOST), **{origin.distribution: origin.version for origin in chosen}}
    found |= {name: version(name) for name in config.plugins.require}
    return dict(sorted(found.items()))
