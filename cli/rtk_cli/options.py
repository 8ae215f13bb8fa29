"""Gives a command the configuration options: --config, one flag for every key of the tree, and --set for the rest.

This is the one place that reads the environment, and that names its variables for options of other kinds.
"""

import functools
import inspect
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from rtk.config.keys import Key, as_text, walk
from rtk.config.models import Config
from rtk.config.moved import moved

LOADED = "loaded"
"""The parameter through which a command gets its `LoadedConfig`."""
FILES, SET, ALLOW_UNKNOWN = "config_files", "set_keys", "allow_unknown"

Command = Callable[..., None]


def every_key(key: Key) -> bool:
    """The choice of a command that has a flag for everything."""
    return True


def variable(path: str) -> str:
    """The environment variable of a key."""
    return next(key.variable for key in walk(Config) if key.path == path)


def with_config(keep: Callable[[Key], bool] = every_key) -> Callable[[Command], Command]:
    """Add --config, --set and flags for the keys that `keep` accepts; the command gets the result as `loaded`.

    All values but switches arrive as text, so that there is one place and one form of message for what is refused.
    """
    kept = [key for key in walk(Config) if keep(key)]
    old = [
        replace(key, path=one.old, flag=one.flag) for one in moved() for key in kept if one.flag and one.new == key.path
    ]
    keys = {_parameter_name(key): key for key in (*kept, *old)}

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def run(**given: Any) -> None:
            from rtk.config.load import load_config
            from rtk.plugin.host import installed

            texts = {key.flag: given.pop(name) for name, key in keys.items()}
            flags = {flag: as_text(_given(text)) for flag, text in texts.items() if flag and text not in (None, [])}
            files, sets, allow_unknown = given.pop(FILES) or (), given.pop(SET) or (), given.pop(ALLOW_UNKNOWN)
            loaded = load_config(installed(), flags, os.environ, sets, files, allow_unknown=allow_unknown)
            command(**given, **{LOADED: loaded})

        own = [p for p in inspect.signature(command).parameters.values() if p.name != LOADED]
        parameters = [*own, _files_parameter(), *map(_parameter, kept), *(_parameter(key, hidden=True) for key in old)]
        parameters += [_set_parameter(), _unknown_parameter()]
        run.__signature__ = inspect.Signature(parameters, return_annotation=None)  # type: ignore[attr-defined]
        run.__annotations__ = {p.name: p.annotation for p in parameters}
        return run

    return decorate


def _given(value: Any) -> Any:
    """What was given to a flag; to a repeatable one, alone or several times."""
    return value[0] if isinstance(value, list) and len(value) == 1 else value


def _parameter_name(key: Key) -> str:
    return key.path.replace(".", "__")


def _parameter(key: Key, *, hidden: bool = False) -> inspect.Parameter:
    repeatable = "; repeatable" if key.is_repeatable else ""
    help_text = f"{key.description}{repeatable} ({key.path} = {as_text(key.default)})"
    if key.is_switch:
        flags = f"{key.flag}/--no-{key.flag.removeprefix('--')}" if key.flag else ""
        annotation: Any = Annotated[bool | None, typer.Option(flags, help=help_text, hidden=hidden)]
    else:
        option = typer.Option(key.flag, help=help_text, metavar=key.metavar, hidden=hidden)
        annotation = Annotated[list[str] | None if key.is_repeatable else str | None, option]
    return _keyword(_parameter_name(key), annotation)


def _files_parameter() -> inspect.Parameter:
    help_text = "read a TOML or YAML file; repeatable, later ones win. Variables and flags win over files"
    option = typer.Option("--config", help=help_text, metavar="FILE")
    return _keyword(FILES, Annotated[list[Path] | None, option])


def _set_parameter() -> inspect.Parameter:
    help_text = (
        "set any key, options of plugins included; repeatable. RTK_SECTION__KEY in the environment does the same"
    )
    return _keyword(SET, Annotated[list[str] | None, typer.Option("--set", help=help_text, metavar="KEY=VALUE")])


def _unknown_parameter() -> inspect.Parameter:
    return _keyword(ALLOW_UNKNOWN, Annotated[bool, AllowUnknown], default=False)


AllowUnknown: Any = typer.Option("--allow-unknown", help="warn of keys that this rtk does not have, and go on")


def _keyword(name: str, annotation: Any, default: Any = None) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
