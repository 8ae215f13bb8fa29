"""`rtk cache`: the prefix cache of a running server, over HTTP: what is in it, why a prompt misses, and pins."""

import json
import re
import sys
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import typer

from rtk.errors import ConfigError, RequestError, printable
from rtk_cli.options import variable

LIMIT_S = 90.0
"""How long a server may take to answer: longer than it gives its own engine. A pin may take as long as it takes."""
SHOWN_CHARACTERS = 40
"""Of a salt, in tables."""
KEY_VARIABLE = variable("serve.admin_api_key")

app = typer.Typer(
    help="Look into the prefix cache of a running server, and keep or drop what is there.", no_args_is_help=True
)

Url = Annotated[str, typer.Option(help="where the server is", show_default=True)]
AdminKey = Annotated[
    str | None,
    typer.Option(help="the server's serve.admin_api_key", envvar=KEY_VARIABLE, show_envvar=True),
]
Name = Annotated[str, typer.Argument(help="what the pin is called")]
Salt = Annotated[str | None, typer.Option(help="the cache_salt of the requests that this is about")]
HERE = "http://127.0.0.1:8000"


@app.command()
def show(url: Url = HERE, admin_key: AdminKey = None) -> None:
    """Print what the KV pool holds, in tokens."""
    report = _Server(url, admin_key).ask("GET", "/cache")
    names = ("free", "evictable", "protected", "held", "pool", "pinned", "pin_budget")
    _print_table(("what", "tokens"), [(name, f"{report[name]:,}") for name in names])
    typer.echo(f"namespaces with something cached: {report['namespaces']:,}")


@app.command()
def pins(url: Url = HERE, admin_key: AdminKey = None) -> None:
    """List the pins."""
    found = _Server(url, admin_key).ask("GET", "/cache")["pins"]
    if isinstance(found, Mapping):
        raise _refusal(found)
    rows = [(pin["name"], f"{pin['tokens']:,}", _salt(pin), _adapter(pin), _time(pin["expires_in_s"])) for pin in found]
    _print_table(("name", "tokens", "salt", "adapter", "expires in"), rows)


@app.command()
def explain(
    text: Annotated[str, typer.Argument(help="the prompt")],
    salt: Salt = None,
    url: Url = HERE,
    admin_key: AdminKey = None,
) -> None:
    """Say how much of a prompt would come from the cache, and why not more."""
    found = _Server(url, admin_key).ask("POST", "/cache/explain", {"text": text, "cache_salt": salt})
    typer.echo(printable(found["reason"]))


@app.command()
def pin(
    name: Name,
    text: Annotated[str, typer.Argument(help="the prompt to keep")],
    ttl: Annotated[float | None, typer.Option(help="seconds to keep it; default: until it is unpinned")] = None,
    salt: Salt = None,
    url: Url = HERE,
    admin_key: AdminKey = None,
) -> None:
    """Keep a prompt in the cache, computing it where it is not there."""
    body = {"name": name, "text": text, "ttl_s": ttl, "cache_salt": salt}
    kept = _Server(url, admin_key, limit_s=None).ask("POST", "/cache/pin", body)
    lasts = "until it is unpinned" if kept["expires_in_s"] is None else f"for {_time(kept['expires_in_s'])}"
    typer.echo(f"{printable(kept['name'])}: {kept['tokens']:,} tokens are kept {lasts}")


@app.command()
def unpin(name: Name, url: Url = HERE, admin_key: AdminKey = None) -> None:
    """Take a pin off."""
    was = _Server(url, admin_key).ask("POST", "/cache/unpin", {"name": name})
    typer.echo(f"{printable(was['name'])}: {was['tokens']:,} tokens may be evicted")


@app.command()
def flush(url: Url = HERE, admin_key: AdminKey = None) -> None:
    """Empty the cache, but for pins. Refused while requests run."""
    freed = _Server(url, admin_key).ask("POST", "/flush_cache")["freed_tokens"]
    typer.echo(f"{freed:,} tokens freed")


# --- the server -------------------------------------------------------------------------------------------------


class _Server:
    """A running server. Talks to it directly, whatever proxies the environment names: it is given a key."""

    def __init__(self, url: str, key: str | None, limit_s: float | None = LIMIT_S) -> None:
        if not url.startswith(("http://", "https://")):
            raise ConfigError(f"--url {url}: must begin with http:// or https://")
        if key is not None and not re.fullmatch(r"[!-~]+", key):
            raise ConfigError(
                f"--admin-key (or {KEY_VARIABLE}): must be printable ASCII characters without spaces, "
                "as serve.admin_api_key is"
            )
        self._url = url.rstrip("/")
        self._key = key
        self._limit_s = limit_s

    def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """The server's answer. Raises `RequestError` with what the server refuses, or that there is none."""
        import http.client
        import urllib.error
        import urllib.request

        data = json.dumps(body or {}).encode() if method == "POST" else None
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            request = urllib.request.Request(self._url + path, data, method=method)
            if self._key is not None:
                request.add_unredirected_header("Authorization", f"Bearer {self._key}")
            with opener.open(request, timeout=self._limit_s) as answer:
                status, content = answer.status, answer.read()
        except urllib.error.HTTPError as error:
            with error:
                status, content = error.code, error.read()
        except (OSError, ValueError, http.client.HTTPException) as error:
            why = getattr(error, "reason", None) or error
            why = getattr(why, "strerror", None) or why
            raise RequestError(
                f"no answer from {self._url}: {why}; start a server with 'rtk serve', or name another one with --url"
            ) from None
        return self._parsed(status, content)

    def _parsed(self, status: int, content: bytes) -> Any:
        try:
            answer = json.loads(content)
            if status == 200:
                return answer
            refusal = _refusal(answer)
        except (ValueError, LookupError, TypeError):
            refusal = RequestError(
                f"{self._url} answers {status} in a form that rtk does not know; name another server with --url"
            )
        raise refusal


def _refusal(body: Mapping[str, Any]) -> RequestError:
    message, code = body["error"]["message"], body["error"]["code"]
    here = f"; rtk cache takes it from --admin-key or {KEY_VARIABLE}" if code == "admin_unauthorized" else ""
    return RequestError(f"{message} ({code}){here}")


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


def _salt(pin: Mapping[str, Any]) -> str:
    salt = pin["cache_salt"]
    if salt is None:
        return "-"
    return salt if len(salt) <= SHOWN_CHARACTERS else f"{salt[:SHOWN_CHARACTERS]}…"


def _adapter(pin: Mapping[str, Any]) -> str:
    adapter = pin["adapter"]
    return "-" if adapter is None else f"{adapter['name']} (generation {adapter['generation']})"


def _time(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:,.0f} s"
