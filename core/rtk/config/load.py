"""Layered loading: flags over environment over defaults, every value with its source, every problem in one message.

A layer is a `Source`: it reads what somebody gave and says from where. Layers are merged key by key, the first one that
has a key wins, and the result is validated once.
"""

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from rtk.config.keys import PREFIX, Key, KeyTable, nearest, spelling
from rtk.config.models import Config, PluginSection, options_field
from rtk.config.tree import config_model
from rtk.errors import ConfigError, PluginError
from rtk.plugin.host import installed
from rtk.plugin.info import CAPABILITIES, KINDS, NEED_CACHE
from rtk.plugin.registry import Registry

log = logging.getLogger(__name__)

DEFAULT = "default"
"""The source of what nobody set."""


@dataclass(frozen=True, slots=True)
class LoadedConfig:
    """A configuration and where each of its values came from."""

    config: Config
    sources: Mapping[str, str]
    """For every key path: `flag --page-size`, `--set cache.page_size`, `variable RTK_CACHE__PAGE_SIZE`, `default`."""

    def rows(self) -> Iterator[tuple[Key, Any, str]]:
        """Every key with its value and source, in the order of the tree."""
        for key in KeyTable(type(self.config)):
            yield key, key.value(self.config), self.sources[key.path]


def load_config(
    registry: Registry, flags: Mapping[str, str], environ: Mapping[str, str], sets: Sequence[str] = ()
) -> LoadedConfig:
    """What a command runs with. `flags` are keyed as typed (`--page-size`), `sets` are `key=value` as given to --set.

    Raises `ConfigError` that lists every problem.
    """
    return resolve(registry, [CommandLine(flags, sets), Environment(environ)])


def config_from(values: Mapping[str, Any], registry: Registry | None = None) -> Config:
    """A configuration from nested (`{"cache": {"page_size": 16}}`) or dotted (`{"cache.page_size": 16}`) values.

    Looks at no flags and no environment. Raises `ConfigError` that lists every problem.
    """
    return resolve(registry or installed(), [Values(values)]).config


@dataclass(frozen=True, slots=True)
class Given:
    """A value that somebody gave, before validation."""

    value: Any
    shown: str
    """As messages show it: the way it was written."""
    source: str


class Layer:
    """What one source gave, and what was wrong with it."""

    def __init__(self, keys: KeyTable, registry: Registry) -> None:
        self.keys = keys
        self.given: dict[str, Given] = {}
        self.problems: list[str] = []
        self._registry = registry

    def add(self, key: Key, one: Given) -> None:
        """Record a value; giving one key twice in one layer is a problem, since neither is meant to win."""
        if key.path in self.given:
            self.problems.append(f"{key.path} is given twice: {self.given[key.path].source} and {one.source}; drop one")
        self.given[key.path] = one

    def add_text(self, key: Key, text: str, source: str) -> None:
        """Record a value that is written as text."""
        try:
            value = key.parse(text)
        except ValueError:
            self.problems.append(f"{key.path} = {key.shown(text)} ({source}): must be {key.allowed}")
        else:
            self.add(key, Given(value, key.shown(text), source))

    def named(self, path: str, source: str) -> Key | None:
        """The key that goes by `path`; None, and a problem, where there is none."""
        key = self.keys.by_path.get(spelling(path))
        if key is None:
            self.problems.append(f"{source}: unknown key {path!r}; {self._hint(spelling(path))}")
        return key

    def _hint(self, path: str) -> str:
        if path in self.keys.sections:
            return f"it is a section with the keys {', '.join(self.keys.below(path)) or '(none)'}"
        match path.split("."):
            case [kind, name, _, *_] if kind in KINDS:
                try:
                    self._registry.get(kind, name)
                except PluginError as error:
                    return str(error)
        return nearest(path, list(self.keys.by_path))


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
        for flag, text in self.flags.items():
            if key := layer.keys.by_flag.get(flag):
                layer.add_text(key, text, f"flag {flag}")
            else:
                layer.problems.append(f"unknown flag {flag}; {nearest(flag, list(layer.keys.by_flag))}")
        for item in self.sets:
            path, equals, text = item.partition("=")
            if not equals:
                named = re.split(r"[^\w.-]", item, maxsplit=1)[0]  # what follows may be a secret
                layer.problems.append(f"--set {named}: has no value; write --set key=value")
            elif key := layer.named(path, f"--set {path}"):
                layer.add_text(key, text, f"--set {key.path}")


@dataclass(frozen=True)
class Environment:
    """Variables that begin with the prefix. An empty one counts as absent."""

    environ: Mapping[str, str]

    def read(self, layer: Layer) -> None:
        """Every variable that is rtk's, or looks as if it was meant to be."""
        for name in sorted(filter(_looks_like_ours, self.environ)):
            if not (text := self.environ[name]):
                continue
            if key := layer.keys.by_variable.get(name):
                layer.add_text(key, text, f"variable {name}")
            else:
                layer.problems.append(f"unknown variable {name}; {nearest(name.upper(), list(layer.keys.by_variable))}")


def _looks_like_ours(variable: str) -> bool:
    """The prefix in any case, or a prefix close to it before a name with our separator (`RTKI_CACHE__PAGE_SIZE`)."""
    return re.match(rf"{PREFIX}|RTK[A-Z]*_+[A-Z]+__", variable, re.IGNORECASE) is not None


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
            if isinstance(value, Mapping) and spelling(path) in layer.keys.sections:
                self._read(layer, value, f"{path}.")
            elif key := layer.named(path, "configuration"):
                layer.add(key, Given(value, key.shown(value), f"argument {key.path}"))


def resolve(registry: Registry, sources: Sequence[Source]) -> LoadedConfig:
    """Merge `sources`, the strongest first, and validate. Raises `ConfigError` that lists every problem."""
    model = config_model(registry)
    keys = KeyTable(model)
    given: dict[str, Given] = {}
    problems: list[str] = []
    for source in sources:
        layer = Layer(keys, registry)
        source.read(layer)
        given = layer.given | given
        problems += layer.problems
    config = _validated(model, keys, given, problems)
    origin = {key.path: given[key.path].source if key.path in given else DEFAULT for key in keys}
    loaded = LoadedConfig(config, origin)
    problems += _plugin_problems(loaded, registry)
    if problems:
        raise ConfigError("; ".join(problems))
    for failure in registry.failures:
        log.warning("plugin %s is not available: %s", failure.origin, failure.reason)
    return loaded


def _validated(model: type[Config], keys: KeyTable, given: Mapping[str, Given], problems: list[str]) -> Config:
    """Validate, adding to `problems`; what is refused is left out, so that the rest can still be looked at."""
    left = dict(given)
    while True:
        try:
            return model.model_validate(_nested({path: one.value for path, one in left.items()}))
        except ValidationError as error:
            refused: dict[str, str] = {}
            for details in error.errors():
                path, problem = _explained(details, keys, left)
                refused.setdefault(path, problem)
            problems += refused.values()
            remaining = {path: one for path, one in left.items() if not _inside(path, refused)}
            if len(remaining) == len(left):
                raise  # what nobody gave is wrong: a bug in a model
            left = remaining


def _nested(values: Mapping[str, Any]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for path, value in values.items():
        *above, name = path.split(".")
        branch = tree
        for part in above:
            branch = branch.setdefault(part, {})
        branch[name] = value
    return tree


def _inside(path: str, refused: Mapping[str, str]) -> bool:
    return any(path == one or path.startswith(f"{one}.") for one in refused)


SPOKEN_FOR = re.compile(r".*_(parsing|type)|literal_error|greater_than(_equal)?|less_than_equal|string_too_short")
"""The errors that `Key.allowed` explains better than pydantic does."""


def _explained(details: ErrorDetails, keys: KeyTable, given: Mapping[str, Given]) -> tuple[str, str]:
    """The path at fault, and what to tell about it."""
    reason = details["msg"].removeprefix("Value error, ").replace("Input should", "must")
    key = keys.key_at(details["loc"])
    if key is None:  # a plugin's options do not go together
        section = ".".join(map(str, details["loc"]))
        return section, f"{section}: {reason}"
    if SPOKEN_FOR.fullmatch(details["type"]) and len(details["loc"]) == len(key.attributes):
        reason = f"must be {key.allowed}"
    one = given[key.path]
    return key.path, f"{key.path} = {one.shown} ({one.source}): {reason}"


def _plugin_problems(loaded: LoadedConfig, registry: Registry) -> Iterator[str]:
    """Every chosen plugin must be installed, be configurable, and find what it requires switched on."""
    off = _switched_off(loaded)
    for name in type(loaded.config).model_fields:
        section = getattr(loaded.config, name)
        if isinstance(section, PluginSection):
            path = f"{name}.{section.choice}"
            for chosen in section.all_chosen:
                for problem in _choice_problems(section, chosen, off, registry):
                    yield f"{path} = {chosen!r} ({loaded.sources[path]}): {problem}"


def _switched_off(loaded: LoadedConfig) -> dict[str, str]:
    """The capabilities that this configuration takes away from plugins, and what does it."""
    if loaded.config.cache.disable:
        return dict.fromkeys(NEED_CACHE, f"cache.disable = true ({loaded.sources['cache.disable']})")
    return {}


def _choice_problems(section: PluginSection, chosen: str, off: Mapping[str, str], registry: Registry) -> Iterator[str]:
    try:
        entry = registry.get(section.kind, chosen)
    except PluginError as error:
        yield str(error)
        return
    if not hasattr(section, options_field(chosen)):
        yield f"{section.kind}.{chosen} is a key of rtk's own; {entry.origin} must rename its plugin"
    if lacking := sorted(entry.plugin.requires & off.keys()):
        what = " and ".join(f"{capability} ({CAPABILITIES[capability]})" for capability in lacking)
        yield (
            f"requires {what}, which {off[lacking[0]]} switches off; drop that, or choose another {section.kind} plugin"
        )
