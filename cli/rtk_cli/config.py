"""`rtk config`: what a command would run with, and files that say so."""

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rtk.config.keys import as_text
from rtk.errors import printable
from rtk_cli.options import AllowUnknown, with_config

if TYPE_CHECKING:
    from rtk.config.load import LoadedConfig

app = typer.Typer(no_args_is_help=True, help="Look at the configuration, and check and write its files.")


@app.command()
@with_config()
def show(
    loaded: "LoadedConfig",
    sources: Annotated[bool, typer.Option("--sources", help="say where each value comes from")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Print every key with its value, given the same options and variables as another command."""
    from rtk.config.written import json_values

    if not as_json:
        for key, value, source in loaded.rows():
            typer.echo(printable(f"{key.path} = {as_text(value)}" + (f"  # {source}" if sources else "")))
    elif sources:
        values = json_values(loaded.config)
        rows = {key.path: {"value": values[key.path], "source": source} for key, _, source in loaded.rows()}
        typer.echo(json.dumps(rows, indent=2))
    else:
        typer.echo(loaded.config.model_dump_json(indent=2, by_alias=True))


@app.command()
def check(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="configuration files, TOML or YAML")],
    together: Annotated[
        bool, typer.Option("--together", help="check them as one configuration, of which later files win")
    ] = False,
    allow_unknown: Annotated[bool, AllowUnknown] = False,
) -> None:
    """Check files, each for itself: keys, values, plugins and required packages. Needs no model and no GPU.

    Prints a line FILE:LINE: KEY: PROBLEM for each problem, and exits with 1 where there is one. Variables do not count.
    """
    from rtk.config.load import load_files
    from rtk.errors import ConfigError
    from rtk.plugin.host import installed

    failed = False
    for group in [files] if together else [[file] for file in files]:
        try:
            load_files(installed(), group, allow_unknown=allow_unknown)
        except ConfigError as error:
            failed = True
            for problem in sorted(error.problems, key=_place):
                typer.echo(problem)
        else:
            typer.echo(f"{' + '.join(map(str, group))}: ok")
    if failed:
        raise typer.Exit(1)


def _place(problem: str) -> tuple[str, int]:
    place = re.match(r"(.*?):(\d+): ", problem)
    return (place[1], int(place[2])) if place else ("", 0)


@app.command()
def init(
    file: Annotated[Path, typer.Argument(help="the file to write; .yaml and .yml make YAML")] = Path("rtk.toml"),
    force: Annotated[bool, typer.Option("--force", help="replace a file that is there")] = False,
) -> None:
    """Write a file with every key, what it means and its default, all commented out."""
    from rtk.config.sources import SUFFIXES
    from rtk.config.tree import config_model
    from rtk.config.written import toml_template, yaml_template
    from rtk.errors import ConfigError
    from rtk.plugin.host import installed

    if file.suffix not in SUFFIXES:
        raise ConfigError(f"{file}: a configuration file's name ends in {', '.join(SUFFIXES)}")
    template = toml_template if file.suffix == ".toml" else yaml_template
    write(file, template(config_model(installed())), replace=force)
    typer.echo(f"wrote {file}")


@app.command()
def schema() -> None:
    """Print the JSON Schema of configuration files, with the options of the plugins that are installed."""
    from rtk.config.schema import json_schema
    from rtk.plugin.host import installed

    typer.echo(json.dumps(json_schema(installed()), indent=2))


@app.command()
@with_config()
def lock(loaded: "LoadedConfig") -> None:
    """Write down the values and package versions that 'rtk serve' would use, for 'rtk serve --locked'.

    Secrets are left out. The lock is a file rtk.lock.toml beside the last configuration file, or in the current folder.
    """
    from rtk.config.lock import lock_path, lock_text
    from rtk.plugin.host import installed

    file = lock_path(loaded)
    write(file, lock_text(loaded, installed()), replace=True)
    typer.echo(f"wrote {file}")


@app.command()
def diff(
    a: Annotated[Path, typer.Argument(help="a configuration file")],
    b: Annotated[Path, typer.Argument(help="another one")],
) -> None:
    """Print the values in which two files differ, what neither of them says included; exits with 1 where some do."""
    from rtk.config.load import load_files
    from rtk.plugin.host import installed

    one, other = (load_files(installed(), [file]) for file in (a, b))
    differing = False
    for (key, before, source), (_, after, other_source) in zip(one.rows(), other.rows(), strict=True):
        if before != after and (key.is_secret or as_text(before) != as_text(after)):  # NaN is no other than NaN
            differing = True
            typer.echo(printable(f"{key.path}: {as_text(before)} ({source}) -> {as_text(after)} ({other_source})"))
    if differing:
        raise typer.Exit(1)


@app.command()
def migrate(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="configuration files, TOML or YAML")],
    only_check: Annotated[
        bool, typer.Option("--check", help="write nothing, and exit with 1 where something would change")
    ] = False,
) -> None:
    """Rewrite files in which keys go by old names, and print what changes. Comments stay."""
    import difflib

    from rtk.config.keys import KeyTable
    from rtk.config.migrate import masked
    from rtk.config.migrate import migrate as migrated
    from rtk.config.tree import config_model
    from rtk.plugin.host import installed

    keys = KeyTable(config_model(installed()))
    results = [(file, *migrated(file, keys)) for file in files]
    changed = [(file, before, after) for file, before, after in results if before.text != after.text]
    for file, before, after in changed:
        old, new = (masked(document, keys).splitlines(keepends=True) for document in (before, after))
        for line in difflib.unified_diff(old, new, str(file), str(file)):
            typer.echo(line.rstrip("\r\n"))
        if not only_check:
            write(file, after.text, replace=True)
    if changed and only_check:
        raise typer.Exit(1)
    if not changed:
        typer.echo("nothing to migrate")


def write(file: Path, text: str, *, replace: bool) -> None:
    """Write a file, replacing one only if that is meant. Raises `ConfigError`."""
    from rtk.errors import ConfigError

    try:
        with file.open("w" if replace else "x", encoding="utf-8") as stream:
            stream.write(text)
    except FileExistsError:
        raise ConfigError(f"{file} is there already; --force replaces it") from None
    except OSError as error:
        raise ConfigError(f"{file} cannot be written: {error.strerror}") from None
