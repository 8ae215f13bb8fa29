"""Layered loading: flags over environment over files over defaults, every value with its source, every problem at once.

A layer is a `Source`: it reads what somebody gave and says from where. Layers are merged key by key, the first one that
has a key wins, and the result is validated once.
"""

import contextlib
import json
import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from rtk.config.demands import plugin_problems, requirement_problems, unusable
from rtk.config.keys import MASK, Key, KeyTable, as_written
from rtk.config.models import PLUGIN_SECTIONS, Config
from rtk.config.sources import DEFAULT, CommandLine, Environment, File, Given, Layer, Source, Values
from rtk.config.tree import config_model
from rtk.errors import ConfigError, PluginError
from rtk.plugin.host import installed
from rtk.plugin.registry import OURS, Registry

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LoadedConfig:
    """A configuration and where each of its values came from."""

    config: Config
    sources: Mapping[str, str]
    """For every key path: `flag --page-size`, `--set cache.page_size`, `variable RTK_CACHE__PAGE_SIZE`, `rtk.toml:3`,
    `default`."""
    files: tuple[Path, ...] = ()
    """The configuration files that were read; of several, later ones won."""

    def rows(self) -> Iterator[tuple[Key, Any, str]]:
        """Every key with its value and source, in the order of the tree."""
        for key in KeyTable(type(self.config)):
            yield key, key.value(self.config), self.sources[key.path]


def load_config(
    registry: Registry,
    flags: Mapping[str, str],
    environ: Mapping[str, str],
    sets: Sequence[str] = (),
    files: Sequence[Path] = (),
    *,
    allow_unknown: bool = False,
) -> LoadedConfig:
    """What a command runs with. `flags` are keyed as typed (`--page-size`), `sets` are `key=value` as given to --set.

    Of `files`, later ones win. With `allow_unknown`, keys that this rtk does not have are a warning each. Raises
    `ConfigError` that lists every problem.
    """
    sources: list[Source] = [CommandLine(flags, sets), Environment(environ), *map(File, reversed(files))]
    return resolve(registry, sources, allow_unknown=allow_unknown)


def load_files(registry: Registry, files: Sequence[Path], *, allow_unknown: bool = False) -> LoadedConfig:
    """What files alone say, whatever is in the environment. Raises `ConfigError` that lists every problem."""
    return resolve(registry, [*map(File, reversed(files))], allow_unknown=allow_unknown)


def config_from(values: Mapping[str, Any], registry: Registry | None = None) -> Config:
    """A configuration from nested (`{"cache": {"page_size": 16}}`) or dotted (`{"cache.page_size": 16}`) values.

    Looks at no flags and no environment. Raises `ConfigError` that lists every problem.
    """
    return resolve(registry or installed(), [Values(values)]).config


def resolve(registry: Registry, sources: Sequence[Source], *, allow_unknown: bool = False) -> LoadedConfig:
    """Merge `sources`, the strongest first, and validate. Raises `ConfigError` that lists every problem."""
    model = config_model(registry)
    keys = KeyTable(model)
    given: dict[str, Given] = {}
    problems: list[str] = []
    warnings: list[str] = []
    for source in sources:
        layer = Layer(keys, registry)
        source.read(layer)
        given = layer.given | given
        (warnings if allow_unknown else problems).extend(layer.unknown)
        problems += layer.problems
        warnings += layer.notices
    config, refused = _validated(model, keys, given)
    problems += (_with_origin(one, registry) for one in refused)
    problems += plugin_problems(config, given, registry)
    problems += requirement_problems(config, given, registry)
    if config.plugins.strict:
        problems += (given["plugins.strict"].told("plugins.strict", one) for one in unusable(config, registry))
    if problems:
        raise ConfigError(*problems)
    warnings += unusable(config, registry)
    for warning in warnings:
        log.warning("%s", warning)
    origin = {key.path: given[key.path].source if key.path in given else DEFAULT for key in keys}
    files = tuple(source.path for source in reversed(sources) if isinstance(source, File))
    return LoadedConfig(config, origin, files)


def _validated(model: type[Config], keys: KeyTable, given: Mapping[str, Given]) -> "tuple[Config, list[Refusal]]":
    """Validate; what is refused is left out, so that the rest can still be looked at."""
    all_refused = _misfits(model, keys, given)
    left = _without(given, all_refused)
    while True:
        try:
            return model.model_validate(_nested({path: one.value for path, one in left.items()})), all_refused
        except ValidationError as error:
            refused = _refusals(error.errors(), keys, left)
            all_refused += refused
            remaining = _without(left, refused)
            if remaining == left:
                raise  # what nobody gave is wrong: a bug in a model
            left = remaining


@dataclass(frozen=True, slots=True)
class Refusal:
    """A value, or an entry of a mapping in a file, that validation does not take."""

    path: str
    """The key, or the section where it is several keys together."""
    entry: str | None
    problem: str


def _refusals(errors: Iterable[ErrorDetails], keys: KeyTable, given: Mapping[str, Given]) -> list[Refusal]:
    """The first thing that is wrong with each value."""
    first: dict[tuple[str, str | None], Refusal] = {}
    for details in errors:
        one = _explained(details, keys, given)
        first.setdefault((one.path, one.entry), one)
    return [*first.values()]


def _with_origin(one: Refusal, registry: Registry) -> str:
    """The problem; with an option of a stranger's plugin, whose it is."""
    match one.path.split("."):
        case [section, name, *_] if section in PLUGIN_SECTIONS:
            with contextlib.suppress(PluginError):  # a key of rtk's own
                origin = registry.get(PLUGIN_SECTIONS[section].kind, name).origin
                if origin.distribution != OURS and str(origin) not in one.problem:
                    return f"{one.problem}; options of {origin.distribution} {origin.version}"
    return one.problem


def _without(given: Mapping[str, Given], refused: Iterable[Refusal]) -> dict[str, Given]:
    """What is left of values; of mappings in files, the entries that are left."""
    whole: set[str] = set()
    entries: dict[str, set[str]] = {}
    for one in refused:
        if one.entry is None:
            whole.add(one.path)
        else:
            entries.setdefault(one.path, set()).add(one.entry)
    left = {path: one for path, one in given.items() if not any(_inside(path, above) for above in whole)}
    for path in entries.keys() & left.keys():
        kept = {name: value for name, value in left[path].value.items() if name not in entries[path]}
        left[path] = replace(left[path], value=kept)
    return left


def _misfits(model: type[Config], keys: KeyTable, given: Mapping[str, Given]) -> list[Refusal]:
    """What is wrong with values of files that are of another type than their key takes: `"16"`, `1`, `16.0` for 16."""
    typed = {path: one for path, one in given.items() if one.in_file}
    if not typed:
        return []
    text = json.dumps(_nested({path: one.value for path, one in typed.items()}), default=str)
    try:
        model.model_validate_json(text, strict=True)
    except ValidationError as error:
        wrong = (one for one in error.errors() if WRONG_TYPE.fullmatch(one["type"]) and keys.key_at(one["loc"]))
        return _refusals(wrong, keys, typed)
    return []


def _nested(values: Mapping[str, Any]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for path, value in values.items():
        *above, name = path.split(".")
        branch = tree
        for part in above:
            branch = branch.setdefault(part, {})
        branch[name] = value
    return tree


def _inside(path: str, above: str) -> bool:
    return path == above or path.startswith(f"{above}.")


def _texts(value: Any) -> Iterator[str]:
    """The texts in a value that is secret."""
    if isinstance(value, Mapping):
        value = [*value, *value.values()]
    if isinstance(value, list | tuple):
        for inner in value:
            yield from _texts(inner)
    elif text := str(value):
        yield from (text, repr(text)[1:-1], json.dumps(text)[1:-1])


SHORT = 8
"""Characters of a secret that no other word has in it by chance."""
INDEX = re.compile(r"\d+")
A_KEY = "[key]"
"""Where pydantic found a fault with the key of a mapping."""
WRONG_TYPE = re.compile(r".*_(parsing|type)")
SPOKEN_FOR = re.compile(
    rf"{WRONG_TYPE.pattern}|literal_error|enum|(greater|less)_than(_equal)?|string_too_(short|long)"
)
"""The errors that `Key.allowed` explains better than pydantic does."""


def _explained(details: ErrorDetails, keys: KeyTable, given: Mapping[str, Given]) -> Refusal:
    reason = details["msg"].removeprefix("Value error, ").replace("Input should", "must")
    key = keys.key_at(details["loc"])
    at_fault = key.path if key else ".".join(map(str, details["loc"]))
    reason = _masked(reason, at_fault, keys, given)
    if key is None:  # a plugin's options do not go together
        return _together(at_fault, reason, given)
    one = given[key.path]
    rest = tuple(map(str, details["loc"][len(key.attributes) :]))
    if not (rest and isinstance(one.value, Mapping | list | tuple)) and SPOKEN_FOR.fullmatch(details["type"]):
        reason = f"must be {_in_a_file(key.allowed) if one.in_file else key.allowed}"
    value = details["input"]
    if rest and rest[-1] == A_KEY and not key.is_secret:
        reason, value = f"the key {value!r} {reason}", one.value.get(rest[0], value)
    if rest and rest[:1] in one.inside:
        shown = key.shown(value) if key.is_secret else as_written(value)
        entry = Given(value, shown, one.inside[rest[:1]], one.in_file)
        return Refusal(key.path, rest[0], entry.told(f"{key.path}.{rest[0]}", reason))
    if isinstance(one.value, list | tuple) and (index := next(filter(INDEX.fullmatch, rest), None)):
        reason = f"item {int(index) + 1}: {reason}"
    return Refusal(key.path, None, one.told(key.path, reason))


def _in_a_file(allowed: str) -> str:
    """What a key takes, where it is not written as JSON."""
    return allowed.replace("a JSON array", "a list").replace("a JSON object", "a mapping")


def _together(section: str, reason: str, given: Mapping[str, Given]) -> Refusal:
    """A problem with what is given of a section: with the keys that the reason names, or else with all."""
    inside = {path: one for path, one in given.items() if _inside(path, section)}
    named = set(re.findall(r"\w+", reason))
    found = [one for path, one in inside.items() if path.rpartition(".")[2] in named] or list(inside.values())
    place = next((f"{one.source}: " for one in found if one.in_file), "")
    return Refusal(section, None, f"{place}{section}: {reason} ({', '.join(one.source for one in found)})")


def _masked(reason: str, at_fault: str, keys: KeyTable, given: Mapping[str, Given]) -> str:
    """A message without the secrets at or below `at_fault`: a plugin's own validator may quote anything."""
    secret = [one.value for path, one in given.items() if _inside(path, at_fault) and keys.by_path[path].is_secret]
    texts = sorted({text for value in secret for text in _texts(value)}, key=len, reverse=True)
    return re.sub("|".join(map(_quoted, texts)), MASK, reason) if texts else reason


def _quoted(secret: str) -> str:
    """A pattern of a secret in a message: a short one is looked for as a word of its own, since it may be in any."""
    pattern = re.escape(secret)
    return pattern if len(secret) >= SHORT else rf"(?<!\w){pattern}(?!\w)"
