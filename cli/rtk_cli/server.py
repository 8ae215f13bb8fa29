"""A running server, as commands talk to it over HTTP."""

import json
import re
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from rtk.errors import ConfigError, RequestError
from rtk_cli.options import variable

LIMIT_S = 90.0
"""How long a server may take to answer: longer than it gives its own engine. A pin may take as long as it takes."""
KEY_VARIABLE = variable("serve.admin_api_key")
HERE = "http://127.0.0.1:8000"

Url = Annotated[str, typer.Option(help="where the server is", show_default=True)]
AdminKey = Annotated[
    str | None,
    typer.Option(help="the server's serve.admin_api_key", envvar=KEY_VARIABLE, show_envvar=True),
]

Tenant = Annotated[str | None, typer.Option(help="whose it is, of the tenants of serve.api_keys")]


class Server:
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
            refused = refusal(answer)
        except (ValueError, LookupError, TypeError):
            refused = RequestError(
                f"{self._url} answers {status} in a form that rtk does not know; name another server with --url"
            )
        raise refused


def refusal(body: Mapping[str, Any]) -> RequestError:
    """What a server's error says."""
    message, code = body["error"]["message"], body["error"]["code"]
    wants_key = code in ("admin_unauthorized", "invalid_api_key")
    here = f"; rtk takes it from --admin-key or {KEY_VARIABLE}" if wants_key else ""
    return RequestError(f"{message} ({code}){here}")
