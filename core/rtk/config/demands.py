"""What a configuration demands of this installation: plugins that it chooses, and distributions that it requires."""

import difflib
from collections.abc import Iterator, Mapping

from rtk.config.keys import as_text
from rtk.config.models import PLUGIN_SECTIONS, Config
from rtk.config.sections import PluginSection, options_field, plugin_name
from rtk.config.sources import DEFAULT, Given
from rtk.errors import PluginError
from rtk.plugin.info import CAPABILITIES, NEED_CACHE
from rtk.plugin.registry import Registered, Registry


def plugin_problems(config: Config, given: Mapping[str, Given], registry: Registry) -> Iterator[str]:
    """Every chosen plugin must be installed, be configurable, and find what it requires switched on."""
    off = _switched_off(config, given)
    for name in PLUGIN_SECTIONS:
        section: PluginSection = getattr(config, name)
        path = f"{name}.{section.choice}"
        one = _given(given, path, getattr(section, section.choice))
        for chosen in section.all_chosen:
            for problem in _choice_problems(name, section, chosen, off, registry):
                yield one.told(path, problem)


def unusable(config: Config, registry: Registry) -> Iterator[str]:
    """Every installed plugin that cannot be used, whoever asks for it, and why."""
    for failure in registry.failures:
        yield f"plugin {failure.origin} is not available: {failure.reason}"
    for name, section in PLUGIN_SECTIONS.items():
        for entry in registry.of_kind(section.kind):
            if problem := _name_problem(name, getattr(config, name), entry):
                yield f"{entry.label} is not available: {problem}"


def _name_problem(name: str, section: PluginSection, entry: Registered) -> str:
    if hasattr(section, options_field(entry.plugin.name)):
        return ""
    key = plugin_name(entry.plugin.name).replace("-", "_")
    return f"{name}.{key} is a key of rtk's own; its authors must rename it"


def requirement_problems(config: Config, given: Mapping[str, Given], registry: Registry) -> Iterator[str]:
    """Every required distribution must be installed, in a version that will do."""
    from importlib.metadata import PackageNotFoundError, version

    for name, wanted in config.plugins.require.items():
        from packaging.specifiers import SpecifierSet

        one = _given(given, "plugins.require", config.plugins.require)
        entry = Given(wanted, repr(wanted), one.inside.get((name,), one.source), one.in_file)
        install = f"pip install '{name}{wanted}'"
        try:
            found = version(name)
        except (PackageNotFoundError, ValueError):
            yield entry.told(f"plugins.require.{name}", f"it is not installed; {_meant(name, registry) or install}")
        else:
            if not SpecifierSet(wanted).contains(found, prereleases=True):
                yield entry.told(f"plugins.require.{name}", f"{found} is installed; {install}")


def _meant(name: str, registry: Registry) -> str:
    """The installed package that is probably meant: nobody should install another one that sounds like it."""
    origins = [*(entry.origin for entry in registry.all()), *(failure.origin for failure in registry.failures)]
    found = {plugin_name(origin.distribution): origin for origin in origins}
    near = difflib.get_close_matches(plugin_name(name), found, n=1, cutoff=0.8)
    return f"did you mean {found[near[0]].distribution!r} ({found[near[0]].version})?" if near else ""


def _given(given: Mapping[str, Given], path: str, value: object) -> Given:
    return given.get(path) or Given(value, repr(value), DEFAULT)


def _switched_off(config: Config, given: Mapping[str, Given]) -> dict[str, str]:
    """The capabilities that this configuration takes away from plugins, and what does it."""
    if config.cache.disable:
        source = _given(given, "cache.disable", True).source
        return dict.fromkeys(NEED_CACHE, f"cache.disable = {as_text(config.cache.disable)} ({source})")
    return {}


def _choice_problems(
    name: str, section: PluginSection, chosen: str, off: Mapping[str, str], registry: Registry
) -> Iterator[str]:
    try:
        entry = registry.get(section.kind, chosen)
    except PluginError as error:
        yield str(error)
        return
    if problem := _name_problem(name, section, entry):
        yield f"{entry.label} cannot be used: {problem}"
    if lacking := sorted(entry.plugin.requires & off.keys()):
        what = " and ".join(f"{capability} ({CAPABILITIES[capability]})" for capability in lacking)
        yield (
            f"requires {what}, which {off[lacking[0]]} switches off; drop that, or choose another {section.kind} plugin"
        )
