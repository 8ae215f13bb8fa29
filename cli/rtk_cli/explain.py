"""`rtk explain`: what became of a request on a running server, and why."""

import json
from typing import Annotated
from urllib.parse import quote

import typer

from rtk.errors import printable
from rtk_cli.server import HERE, AdminKey, Server, Tenant, Url


def explain(
    rid: Annotated[str, typer.Argument(help="the id that the request was sent with, or that its answer has")],
    as_json: Annotated[bool, typer.Option("--json", help="print all that is known of it")] = False,
    tenant: Tenant = None,
    url: Url = HERE,
    admin_key: AdminKey = None,
) -> None:
    """Say why a request waited, what it hit in the cache, and what its time went into."""
    whose = "" if tenant is None else f"?tenant={quote(tenant, safe='')}"
    found = Server(url, admin_key).ask("GET", f"/requests/{quote(rid, safe='')}/explain{whose}")
    if as_json:
        typer.echo(json.dumps(found, indent=2))
    else:
        typer.echo("\n".join(map(printable, found["sentences"])))
