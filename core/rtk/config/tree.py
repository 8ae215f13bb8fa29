"""The configuration tree of this installation: the static sections plus one sub-section for every installed plugin."""

import functools
from typing import Annotated, Any

from pydantic import Field, ValidationError, ValidatorFunctionWrapHandler, WrapValidator, create_model

from rtk.config.keys import walk
from rtk.config.models import PLUGIN_SECTIONS, Config
from rtk.config.sections import PluginSection, options_field, plugin_name
from rtk.errors import one_line
from rtk.plugin.foreign import contained
from rtk.plugin.registry import INSTEAD, Registered, Registry


@functools.lru_cache(maxsize=8)
def config_model(registry: Registry) -> type[Config]:
    """`Config` with options of every plugin in `registry`, at `<section>.<name>.<option>`. One class per registry."""
    sections: dict[str, Any] = {}
    for name, plain in PLUGIN_SECTIONS.items():
        section = _with_options(plain, registry)
        sections[name] = (section, Field(default_factory=section, description=Config.model_fields[name].description))
    return create_model("Config", __base__=Config, __doc__=Config.__doc__, **sections)


def _with_options(section: type[PluginSection], registry: Registry) -> type[PluginSection]:
    """A plugin named like one of the section's own keys gets no options, and so cannot be chosen."""
    options: dict[str, Any] = {}
    for entry in registry.of_kind(section.kind):
        plugin = entry.plugin
        key = plugin_name(plugin.name).replace("-", "_")
        if key not in section.model_fields:
            field = Field(default_factory=plugin.options, alias=key, description=plugin.summary)
            options[options_field(plugin.name)] = (Annotated[plugin.options, _containing(entry)], field)
    return create_model(section.__name__, __base__=section, __doc__=section.__doc__, **options)


def _containing(entry: Registered) -> WrapValidator:
    """A plugin's own validators may raise anything: its options are refused then, and it is named."""

    def validate(values: Any, handler: ValidatorFunctionWrapHandler) -> Any:
        try:
            return handler(values)
        except ValidationError:
            raise
        except BaseException as error:
            if not contained(error):
                raise
            secret = any(key.is_secret for key in walk(entry.plugin.options))  # which the message may quote
            reason = type(error).__name__ if secret else one_line(error)
            raise ValueError(f"{entry.label} fails at these: {reason}; change them, or {INSTEAD}") from error

    return WrapValidator(validate)
