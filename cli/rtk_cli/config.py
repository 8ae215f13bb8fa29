"""`rtk config`: the configuration that a command would run with."""

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rtk.config.keys import as_text
from rtk_cli.options import with_config

if TYPE_CHECKING:
    from rtk.config.load import LoadedConfig

app = typer.Typer(no_args_is_help=True, help="Look at the configuration.")


@app.callback()
def group() -> None:
    """Keeps `show` a command of its own while it is the only one."""


@app.command()
@with_config()
def show(
    loaded: "LoadedConfig",
    sources: Annotated[bool, typer.Option("--sources", help="say where each value comes from")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Print every key with its value, given the same options and variables as another command."""
    if not as_json:
        _print_lines(loaded, sources)
    elif sources:
        values = loaded.config.model_dump(mode="json", by_alias=True)
        rows = {key.path: {"value": _at(values, key.path), "source": source} for key, _, source in loaded.rows()}
        typer.echo(json.dumps(rows, indent=2))
    else:
        typer.echo(loaded.config.model_dump_json(indent=2, by_alias=True))


def _print_lines(loaded: "LoadedConfig", sources: bool) -> None:
    for key, value, source in loaded.rows():
        typer.echo(f"{key.path} = {as_text(value)}" + (f"  # {source}" if sources else ""))


def _at(values: dict[str, Any], path: str) -> Any:
    for part in path.split("."):
        values = values[part]
    return values
