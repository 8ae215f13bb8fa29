"""Gives a command the configuration options: one flag for every key of the tree, and --set for the rest.

This is the one place that reads the environment, and that names its variables for options of other kinds.
"""

import functools
import inspect
import os
from collections.abc import Callable
from typing import Annotated, Any

import typer

from rtk.config.keys import Key, as_text, walk
from rtk.config.models import Config

LOADED = "loaded"
"""The parameter through which a command gets its `LoadedConfig`."""
SET = "set_keys"

Command = Callable[..., None]


def every_key(key: Key) -> bool:
    """The choice of a command that has a flag for everything."""
    return True


def variable(path: str) -> str:
    """The environment variable of a key."""
    return next(key.variable for key in walk(Config) if key.path == path)


def with_config(keep: Callable[[Key], bool] = every_key) -> Callable[[Command], Command]:
    """Add flags for the keys that `keep` accepts, and --set; the command gets the result as its parameter `loaded`.

    All values but switches arrive as text, so that there is one place and one form of message for what is refused.
    """
    keys = {_parameter_name(key): key for key in walk(Config) if keep(key)}

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def run(**given: Any) -> None:
            from rtk.config.load import load_config
            from rtk.plugin.host import installed

            texts = {key.flag: given.pop(name) for name, key in keys.items()}
            flags = {flag: as_text(text) for flag, text in texts.items() if flag and text is not None}
            loaded = load_config(installed(), flags, os.environ, given.pop(SET) or ())
            command(**given, **{LOADED: loaded})

        own = [p for p in inspect.signature(command).parameters.values() if p.name != LOADED]
        parameters = [*own, *map(_parameter, keys.values()), _set_parameter()]
        run.__signature__ = inspect.Signature(parameters, return_annotation=None)  # type: ignore[attr-defined]
        run.__annotations__ = {p.name: p.annotation for p in parameters}
        return run

    return decorate


def _parameter_name(key: Key) -> str:
    return key.path.replace(".", "__")


def _parameter(key: Key) -> inspect.Parameter:
    help_text = f"{key.description} ({key.path} = {as_text(key.default)})"
    if key.is_switch:
        flags = f"{key.flag}/--no-{key.flag.removeprefix('--')}" if key.flag else ""
        annotation: Any = Annotated[bool | None, typer.Option(flags, help=help_text)]
    else:
        option = typer.Option(key.flag, help=help_text, metavar=key.metavar)
        annotation = Annotated[str | None, option]
    return inspect.Parameter(_parameter_name(key), inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _set_parameter() -> inspect.Parameter:
    help_text = (
        "set any key, options of plugins included; repeatable. RTK_SECTION__KEY in the environment does the same"
    )
    option = typer.Option("--set", help=help_text, metavar="KEY=VALUE")
    annotation = Annotated[list[str] | None, option]
    return inspect.Parameter(SET, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
