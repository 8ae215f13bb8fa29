"""Finds the plugins of the `rtk` entry-point group and turns them into a registry. Runs once per process."""

import contextlib
import functools
import re
from collections.abc import Iterable
from importlib.metadata import EntryPoint, entry_points
from typing import cast

import pluggy

from rtk.errors import one_line
from rtk.plugin.foreign import contained
from rtk.plugin.info import API_VERSION, CAPABILITIES, KINDS, Options, Plugin, canonical
from rtk.plugin.registry import Failure, Origin, Registered, Registry
from rtk.plugin.spec import PROJECT, RtkSpec

NAME = r"[a-z][a-z0-9]*(-[a-z0-9]+)*"
"""What a plugin may be called, in the one spelling."""


@functools.cache
def installed() -> Registry:
    """The registry of this process's installed plugins; loaded on first use."""
    return load(entry_points(group=PROJECT))


def load(points: Iterable[EntryPoint]) -> Registry:
    """Load entry points one by one; a broken one becomes a `Failure` and stops nobody else."""
    found: list[Registered] = []
    failures: list[Failure] = []
    for point in points:
        origin = _origin(point)
        try:
            found += [Registered(plugin, origin) for plugin in _describe(point)]
        except BaseException as error:
            if not contained(error):
                raise
            failures.append(Failure(origin, one_line(error)))
    return Registry(found, failures)


def _origin(point: EntryPoint) -> Origin:
    name = version = ""
    if point.dist:
        with contextlib.suppress(Exception):  # broken metadata may lack both, or be no text
            metadata = point.dist.metadata
            name, version = (metadata.get_all(key, [""])[0] for key in ("Name", "Version"))
    return Origin(point.name, name or "unknown distribution", version or "?")


def _describe(point: EntryPoint) -> list[Plugin]:
    """Import one entry point and ask it what it brings.

    It gets a manager of its own: what pluggy holds against one module must not reach the next.
    """
    module = point.load()
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(RtkSpec)
    manager.register(module, name=point.name)
    manager.check_pending()
    implementations = manager.hook.rtk_plugins.get_hookimpls()
    if not implementations:
        raise TypeError(f"{point.value} implements no rtk_plugins() hook")
    answers = [cast("Iterable[object]", implementation.function()) for implementation in implementations]
    return [_checked(plugin) for answer in answers for plugin in answer]


def _checked(plugin: object) -> Plugin:
    """Refuse a description that the rest of the host could not work with."""
    if not isinstance(plugin, Plugin):
        raise TypeError(f"rtk_plugins() answered {plugin!r}, which is no rtk.plugin.Plugin")
    label = f"{plugin.kind} plugin {plugin.name!r}"
    if plugin.api != API_VERSION:
        raise ValueError(f"{label} is built for plugin API {plugin.api}, this rtk has {API_VERSION}")
    if plugin.kind not in KINDS:
        raise ValueError(f"{label} is of unknown kind {plugin.kind!r}; kinds: {', '.join(KINDS)}")
    if not re.fullmatch(NAME, canonical(plugin.name)):
        raise ValueError(f"{label} must be named in letters and digits, with single dashes between words")
    if not isinstance(plugin.summary, str) or not plugin.summary.isprintable():
        raise ValueError(f"{label} has summary {plugin.summary!r}; write one line of text")
    if not re.fullmatch(r"[\w.]+:\w+", plugin.target):
        raise ValueError(f"{label} has target {plugin.target!r}; write 'module:object'")
    if unknown := plugin.requires - CAPABILITIES.keys():
        raise ValueError(f"{label} requires {', '.join(sorted(unknown))}; this rtk offers {', '.join(CAPABILITIES)}")
    if not (isinstance(plugin.options, type) and issubclass(plugin.options, Options)):
        raise TypeError(f"{label} has options {plugin.options!r}, which are no subclass of rtk.plugin.Options")
    plugin.options()  # every option has a default: nobody who does not use the plugin is asked for any
    return plugin
