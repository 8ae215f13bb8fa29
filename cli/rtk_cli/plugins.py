"""`rtk plugins`: what is installed, from where, what could not be loaded; whether it works; and how to begin one."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rtk.errors import printable
from rtk_cli.tables import print_table, table_of

if TYPE_CHECKING:
    from rtk.config.keys import Key
    from rtk.plugin.registry import Registered, Registry

app = typer.Typer(help="Look at the installed plugins, and begin a new one.")

AsJson = Annotated[bool, typer.Option("--json", help="print JSON")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="name of a plugin, or KIND:NAME where kinds share it")]


@app.callback(invoke_without_command=True)
def group(context: typer.Context, as_json: AsJson = False) -> None:
    """List the installed plugins, and those that could not be loaded."""
    if context.invoked_subcommand is None:
        list_plugins(as_json)


@app.command("list")
def list_plugins(as_json: AsJson = False) -> None:
    """List the installed plugins, and those that could not be loaded."""
    from rtk.plugin.host import installed

    registry = installed()
    if as_json:
        typer.echo(json.dumps(_as_data(registry), indent=2))
    else:
        _print_table(registry)


def _as_data(registry: "Registry") -> dict[str, list[dict[str, str]]]:
    found = [
        {"kind": entry.plugin.kind, "name": entry.plugin.name, "summary": entry.plugin.summary, **_origin(entry)}
        for entry in registry.all()
    ]
    failed = [{**_origin(failure), "reason": failure.reason} for failure in registry.failures]
    return {"plugins": found, "failures": failed}


def _origin(entry: Any) -> dict[str, str]:
    origin = entry.origin
    return {"distribution": origin.distribution, "version": origin.version, "entry_point": origin.entry_point}


def _print_table(registry: "Registry") -> None:
    table = table_of("kind", "name", "distribution", "version", "what it does")
    for entry in registry.all():
        plugin, origin = entry.plugin, entry.origin
        table.add_row(plugin.kind, plugin.name, origin.distribution, origin.version, plugin.summary)
    print_table(table)
    _print_failures(registry)


def _print_failures(registry: "Registry") -> None:
    for failure in registry.failures:
        typer.echo(f"not available: {failure.origin}: {failure.reason}")


@app.command()
def show(name: Name, as_json: AsJson = False) -> None:
    """Tell all about one plugin: origin, what it requires, and its options. It is not imported for that."""
    from rtk.plugin.host import installed

    facts = _facts(installed().find(name))
    if as_json:
        typer.echo(json.dumps(facts, indent=2))
        return
    options, requires = facts.pop("options"), facts.pop("requires")
    for fact, value in facts.items():
        typer.echo(f"{fact}: {printable(str(value))}")
    for capability, what in requires.items():
        typer.echo(f"requires {capability}: {what}")
    for option in options:
        typer.echo(printable(f"{option['key']} = {option['default']}  # {option['allowed']}: {option['description']}"))


def _facts(entry: "Registered") -> dict[str, Any]:
    from rtk.config.keys import as_text, walk
    from rtk.config.models import PLUGIN_SECTIONS
    from rtk.plugin.info import CAPABILITIES, canonical

    plugin = entry.plugin
    section = next((name for name, one in PLUGIN_SECTIONS.items() if one.kind == plugin.kind), None)
    above = f"{section or plugin.kind}.{canonical(plugin.name).replace('-', '_')}"
    defaults = plugin.options()

    def option(key: "Key") -> dict[str, str]:
        return {
            "key": f"{above}.{key.path}",
            "default": as_text(key.value(defaults)),
            "allowed": key.allowed,
            "description": key.description,
        }

    return {
        "kind": plugin.kind,
        "name": plugin.name,
        "summary": plugin.summary,
        **_origin(entry),
        "chosen by": f"{section}.{PLUGIN_SECTIONS[section].choice}" if section else "nothing yet; nor are options keys",
        "target": plugin.target,
        "api": plugin.api,
        "requires": {name: CAPABILITIES[name] for name in sorted(plugin.requires)},
        "options": [option(key) for key in walk(plugin.options)],
    }


@contextmanager
def _silent() -> Iterator[None]:
    """Nothing of rtk is logged meanwhile."""
    import logging

    logger = logging.getLogger("rtk")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)


@app.command()
def doctor(names: Annotated[list[str] | None, typer.Argument(metavar="[NAME]...", help="default: all")] = None) -> None:
    """Load every plugin and run the quick part of its contract suite. Ends with code 1 where one fails."""
    from rtk.plugin.host import installed
    from rtk.plugin.testing.doctor import examine

    registry = installed()
    with _silent():  # what the guard says of a fault is in the finding
        findings = [examine(entry) for entry in (map(registry.find, names) if names else registry.all())]
    table = table_of("kind", "name", "distribution", "version", "passed", "skipped", "result")
    for found in findings:
        plugin, origin = found.entry.plugin, found.entry.origin
        counts = str(found.passed), str(found.skipped)
        result = "absent" if found.absent else "FAILED" if found.problems else "ok"
        table.add_row(plugin.kind, plugin.name, origin.distribution, origin.version, *counts, result)
    print_table(table)
    for found in findings:
        for problem in found.problems:
            word = "absent" if found.absent else "failed"
            typer.echo(printable(f"{word}: {found.entry.label}: {problem}"))
    _print_failures(registry)
    if any(found.problems and (names or not found.absent) for found in findings) or (registry.failures and not names):
        raise typer.Exit(1)


@app.command()
def new(
    kind: Annotated[
        str, typer.Argument(metavar="KIND", help="eviction, schedule, attention, grammar, storage or observer")
    ],
    name: Annotated[str, typer.Argument(metavar="NAME", help="name that configuration chooses it by")],
    into: Annotated[Path, typer.Option("--into", help="folder to write the package's folder in")] = Path(),
) -> None:
    """Write a complete package with a plugin of that kind: it installs and passes its tests as it is."""
    from rtk.plugin.new import write_package

    folder = write_package(kind, name, into)
    typer.echo(f"wrote {folder}; next:\n  pip install --editable '{folder}[testing]'\n  pytest {folder}")
