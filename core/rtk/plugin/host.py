"""Finds the plugins of the `rtk` entry-point group and turns them into a registry. Runs once per process."""

import contextlib
import functools
import importlib.metadata
import inspect
import re
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, EntryPoint, distributions
from pathlib import Path
from types import ModuleType
from typing import cast

import pluggy

from rtk.errors import one_line
from rtk.plugin.foreign import TooLateError, contained, in_time
from rtk.plugin.info import API_VERSION, CAPABILITIES, KINDS, Options, Plugin, canonical
from rtk.plugin.option_models import options_problem
from rtk.plugin.registry import OURS, Failure, Origin, Registered, Registry
from rtk.plugin.spec import PROJECT, RtkSpec

NAME = r"[a-z][a-z0-9]*(-[a-z0-9]+)*"
"""What a plugin may be called, in the one spelling."""

LIMIT_S = 5.0
"""How long one entry point may take to be imported and to describe its plugins."""

HOOKS = tuple(name for name in vars(RtkSpec) if not name.startswith("_"))


class UnusableError(Exception):
    """Why the host cannot work with an entry point, and the next move: a line that stands for itself."""


@functools.cache
def installed() -> Registry:
    """The registry of this process's installed plugins; loaded on first use."""
    return load_from(distributions())


def load_from(present: Iterable[Distribution]) -> Registry:
    """The registry of the distributions `present`; of several folders with metadata of one, the first is used.

    What a later folder declares besides is a failure that names both: either may be left over from an older install.
    So is one that lies beside the first: no installation leaves two of them in one place.
    """
    points: list[EntryPoint] = []
    hidden: list[Failure] = []
    first: dict[str, Distribution] = {}
    for one in present:
        with contextlib.suppress(Exception):  # broken metadata cannot be read: what it declares cannot be known
            if not re.search(rf"^\s*\[\s*{PROJECT}\s*\]", one.read_text("entry_points.txt") or "", re.MULTILINE):
                continue
            own = [point for point in one.entry_points if point.group == PROJECT]
            used = first.setdefault(_name(one) or repr(own), one)
            if used is one:
                points += own
            elif _place(one) != _place(used):  # the path may name one folder twice
                known = {(point.name, point.value) for point in used.entry_points if point.group == PROJECT}
                more = [point for point in own if (point.name, point.value) not in known]
                beside = own[:1] if _place(one).parent == _place(used).parent else []
                hidden += [_hidden(point, used) for point in more or beside]
    return load(points, hidden)


def _name(one: Distribution) -> str:
    return canonical(_metadata(one)[0])


def _place(one: Distribution) -> Path:
    """The folder of metadata, or where it lies if it is no folder."""
    return Path(str(getattr(one, "_path", None) or one.locate_file(""))).resolve()


def _hidden(point: EntryPoint, used: Distribution) -> Failure:
    origin = _origin(point)
    here = _place(point.dist) if point.dist else "?"
    return Failure(
        origin,
        f"the metadata of {origin.distribution} in {here} is hidden by that of version {_metadata(used)[1]} "
        f"in {_place(used)}; remove the one that is stale",
    )


def load(points: Iterable[EntryPoint], failures: Iterable[Failure] = ()) -> Registry:
    """Load entry points one by one; a broken one becomes a `Failure` and stops nobody else."""
    found: list[Registered] = []
    failures = list(failures)
    for point in points:
        origin = _origin(point)
        plugins, problem = _described(point, origin) if origin.distribution == OURS else _in_time(point, origin)
        found += [Registered(plugin, origin) for plugin in plugins]
        failures += [Failure(origin, problem)] if problem else []
    return Registry(found, failures)


def _origin(point: EntryPoint) -> Origin:
    name, version = _metadata(point.dist) if point.dist else ("", "")
    return Origin(point.name, name or "unknown distribution", version or "?")


def _metadata(one: Distribution) -> tuple[str, str]:
    """Name and version; empty where metadata is broken: it may lack both, or be no text."""
    with contextlib.suppress(Exception):
        name, version = (one.metadata.get_all(key, [""])[0] for key in ("Name", "Version"))
        return name, version
    return "", ""


# --- one entry point --------------------------------------------------------------------------------------------------

Described = tuple[list[Plugin], str]
"""What an entry point brings, and what is wrong with it: one of them is empty."""


def _in_time(point: EntryPoint, origin: Origin) -> Described:
    """As `_described`, in a thread of its own, which is left behind where it does not end in time."""
    try:
        describe = functools.partial(_described, point, origin)
        return in_time(describe, LIMIT_S, name=f"rtk-load-{point.name}", module=point.module)
    except TooLateError:
        return [], (
            f"its import, or its rtk_plugins() hook, has not ended within {LIMIT_S:g} s; "
            f"move what takes long to the module that its target names, or uninstall {origin.distribution}"
        )


def _described(point: EntryPoint, origin: Origin) -> Described:
    try:
        _check_needs(point)
        return _describe(point), ""
    except UnusableError as error:
        return [], str(error)
    except ImportError as error:
        return [], f"{one_line(error)}; install what it imports, or uninstall {origin.distribution}"
    except BaseException as error:
        if not contained(error):
            raise
        return [], f"{one_line(error)}; tell its authors, or uninstall {origin.distribution}"


def _check_needs(point: EntryPoint) -> None:
    """Refuse a distribution that says it needs another rtk than this one, before any of it is imported."""
    all_demands = (point.dist.requires if point.dist else None) or ()
    demands = [one for one in all_demands if re.match(r"rtk[-_.]+inference\b.*[<>=!~]", one, re.IGNORECASE)]
    if not demands:
        return
    from packaging.requirements import Requirement  # takes a while, and most have no such demand

    here = importlib.metadata.version(OURS)
    for needed in map(Requirement, demands):
        applies = needed.marker is None or needed.marker.evaluate({"extra": ""})
        if applies and not needed.specifier.contains(here, prereleases=True):
            raise UnusableError(
                f"it needs {OURS} {needed.specifier}, this is {here}; install another version of it, or of {OURS}"
            )


def _describe(point: EntryPoint) -> list[Plugin]:
    """Import one entry point and ask it what it brings.

    It gets a manager of its own: what pluggy holds against one module must not reach the next.
    """
    module = point.load()
    _check_hooks(module, point)
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(RtkSpec)
    manager.register(module, name=point.name)
    implementations = manager.hook.rtk_plugins.get_hookimpls()
    if not implementations:
        raise UnusableError(
            f"{point.value} implements no rtk_plugins() hook; mark a function of that name with @rtk.plugin.hookimpl"
        )
    answers = [cast("Iterable[object]", implementation.function()) for implementation in implementations]
    return [_checked(plugin) for answer in answers for plugin in _listed(answer)]


def _check_hooks(module: ModuleType, point: EntryPoint) -> None:
    """Refuse functions that are marked as hooks and are none, or take what the hook does not give."""
    manager = pluggy.PluginManager(PROJECT)
    for name in dir(module):
        if manager.parse_hookimpl_opts(module, name) is None:
            continue
        if name not in HOOKS:
            raise UnusableError(f"{point.value} marks an unknown hook {name!r}; rename it: there is {', '.join(HOOKS)}")
        try:
            inspect.signature(getattr(module, name)).bind()
        except TypeError as error:
            raise UnusableError(
                f"{point.value}: {name}() is called without arguments: {error}; "
                f"write it as def {name}() -> list[Plugin]"
            ) from error


def _listed(answer: object) -> Iterator[object]:
    if not isinstance(answer, Iterable):
        raise UnusableError(f"rtk_plugins() answered a {type(answer).__name__}; return a list of rtk.plugin.Plugin")
    return iter(answer)


def _checked(plugin: object) -> Plugin:
    """Refuse a description that the rest of the host could not work with."""
    if not isinstance(plugin, Plugin):
        raise UnusableError(f"rtk_plugins() answered {plugin!r}, which is no rtk.plugin.Plugin; return a list of those")
    label = f"{plugin.kind} plugin {plugin.name!r}"
    if plugin.api != API_VERSION:
        raise UnusableError(
            f"{label} is built for plugin API {plugin.api}, this rtk has {API_VERSION}; "
            f"install another version of it, or of {OURS}"
        )
    if plugin.kind not in KINDS:
        raise UnusableError(f"{label} is of unknown kind {plugin.kind!r}; kinds: {', '.join(KINDS)}")
    if not re.fullmatch(NAME, canonical(plugin.name)):
        raise UnusableError(
            f"{label} must be named in letters from a to z and digits, a letter first, with single dashes between words"
        )
    if not isinstance(plugin.summary, str) or not plugin.summary.isprintable():
        raise UnusableError(f"{label} has summary {plugin.summary!r}; write one line of text")
    if not re.fullmatch(r"[\w.]+:\w+", plugin.target):
        raise UnusableError(f"{label} has target {plugin.target!r}; write 'module:object'")
    if unknown := plugin.requires - CAPABILITIES.keys():
        raise UnusableError(f"{label} requires {', '.join(sorted(unknown))}; this rtk offers {', '.join(CAPABILITIES)}")
    if not (isinstance(plugin.options, type) and issubclass(plugin.options, Options)):
        raise UnusableError(f"{label} has options {plugin.options!r}; derive them from rtk.plugin.Options")
    if problem := options_problem(plugin.options):
        raise UnusableError(f"{label} has options that {problem}")
    return plugin
