"""`rtk plugins`: what is installed, from where, and what could not be loaded."""

import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rtk.plugin.registry import Registry


def plugins(as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False) -> None:
    """List the installed plugins, and those that could not be loaded."""
    from rtk.plugin.host import installed

    registry = installed()
    if as_json:
        typer.echo(json.dumps(_as_data(registry), indent=2))
    else:
        _print_table(registry)


def _as_data(registry: "Registry") -> dict[str, list[dict[str, str]]]:
    found = [
        {
            "kind": entry.plugin.kind,
            "name": entry.plugin.name,
            "summary": entry.plugin.summary,
            "distribution": entry.origin.distribution,
            "version": entry.origin.version,
            "entry_point": entry.origin.entry_point,
        }
        for entry in registry.all()
    ]
    failed = [
        {
            "distribution": failure.origin.distribution,
            "version": failure.origin.version,
            "entry_point": failure.origin.entry_point,
            "reason": failure.reason,
        }
        for failure in registry.failures
    ]
    return {"plugins": found, "failures": failed}


def _print_table(registry: "Registry") -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("kind", "name", "distribution", "version", "what it does", box=None, pad_edge=False)
    for entry in registry.all():
        plugin, origin = entry.plugin, entry.origin
        table.add_row(plugin.kind, plugin.name, origin.distribution, origin.version, plugin.summary)
    # a pipe has no width to fit: one plugin, one line
    console = Console(markup=False, highlight=False, width=None if sys.stdout.isatty() else 1000)
    console.print(table)
    for failure in registry.failures:
        typer.echo(f"not available: {failure.origin}: {failure.reason}")
