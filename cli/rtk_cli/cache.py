"""`rtk cache`: the prefix cache of a running server, over HTTP: what is in it, why a prompt misses, and pins."""

import sys
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import typer

from rtk.errors import printable
from rtk_cli.server import HERE, AdminKey, Server, Tenant, Url, refusal

SHOWN_CHARACTERS = 40
"""Of a salt and its like, in tables."""

app = typer.Typer(
    help="Look into the prefix cache of a running server, and keep or drop what is there.", no_args_is_help=True
)

Name = Annotated[str, typer.Argument(help="what the pin is called")]
Salt = Annotated[str | None, typer.Option(help="the cache_salt of the requests that this is about")]
ExtraKey = Annotated[str | None, typer.Option(help="their extra_key")]


@app.command()
def show(url: Url = HERE, admin_key: AdminKey = None) -> None:
    """Print what the KV pool holds, in tokens."""
    report = Server(url, admin_key).ask("GET", "/cache")
    names = ("free", "evictable", "protected", "held", "pool", "pinned", "pin_budget")
    _print_table(("what", "tokens"), [(name, f"{report[name]:,}") for name in names])
    typer.echo(f"namespaces with something cached: {report['namespaces']:,}")


@app.command()
def pins(url: Url = HERE, admin_key: AdminKey = None) -> None:
    """List the pins."""
    found = Server(url, admin_key).ask("GET", "/cache")["pins"]
    if isinstance(found, Mapping):
        raise refusal(found)
    rows = [
        (
            pin["name"],
            f"{pin['tokens']:,}",
            _short(pin.get("tenant")),
            _short(pin["cache_salt"]),
            _short(pin["extra_key"]),
            _adapter(pin),
            _time(pin["expires_in_s"]),
        )
        for pin in found
    ]
    _print_table(("name", "tokens", "tenant", "salt", "extra key", "adapter", "expires in"), rows)


@app.command()
def explain(
    text: Annotated[str, typer.Argument(help="the prompt")],
    salt: Salt = None,
    extra_key: ExtraKey = None,
    tenant: Tenant = None,
    url: Url = HERE,
    admin_key: AdminKey = None,
) -> None:
    """Say how much of a prompt would come from the cache, and why not more."""
    body = {"text": text, "cache_salt": salt, "extra_key": extra_key, "tenant": tenant}
    found = Server(url, admin_key).ask("POST", "/cache/explain", body)
    typer.echo(printable(found["reason"]))


@app.command()
def pin(
    name: Name,
    text: Annotated[str, typer.Argument(help="the prompt to keep")],
    ttl: Annotated[float | None, typer.Option(help="seconds to keep it; default: until it is unpinned")] = None,
    salt: Salt = None,
    extra_key: ExtraKey = None,
    tenant: Tenant = None,
    url: Url = HERE,
    admin_key: AdminKey = None,
) -> None:
    """Keep a prompt in the cache, computing it where it is not there."""
    body = {"name": name, "text": text, "ttl_s": ttl, "cache_salt": salt, "extra_key": extra_key, "tenant": tenant}
    kept = Server(url, admin_key, limit_s=None).ask("POST", "/cache/pin", body)
    lasts = "until it is unpinned" if kept["expires_in_s"] is None else f"for {_time(kept['expires_in_s'])}"
    typer.echo(f"{printable(kept['name'])}: {kept['tokens']:,} tokens are kept {lasts}")


@app.command()
def unpin(name: Name, url: Url = HERE, admin_key: AdminKey = None) -> None:
    """Take a pin off."""
    was = Server(url, admin_key).ask("POST", "/cache/unpin", {"name": name})
    typer.echo(f"{printable(was['name'])}: {was['tokens']:,} tokens may be evicted")


@app.command()
def flush(url: Url = HERE, admin_key: AdminKey = None) -> None:
    """Empty the cache, but for pins. Refused while requests run."""
    freed = Server(url, admin_key).ask("POST", "/flush_cache")["freed_tokens"]
    typer.echo(f"{freed:,} tokens freed")


# --- printing ---------------------------------------------------------------------------------------------------


def _print_table(names: Iterable[str], rows: Iterable[tuple[str, ...]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(*names, box=None, pad_edge=False)
    for row in rows:
        table.add_row(*map(printable, row))
    # a pipe has no width to fit: one row, one line
    console = Console(markup=False, highlight=False, width=None if sys.stdout.isatty() else 1000)
    console.print(table)


def _short(text: str | None) -> str:
    if text is None:
        return "-"
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…"


def _adapter(pin: Mapping[str, Any]) -> str:
    adapter = pin["adapter"]
    return "-" if adapter is None else f"{adapter['name']} (generation {adapter['generation']})"


def _time(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:,.0f} s"
