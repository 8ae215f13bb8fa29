"""A running server, as commands talk to it over HTTP."""

import json
import re
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rtk.errors import ConfigError, RequestError
from rtk_cli.options import variable

if TYPE_CHECKING:
    from http.client import HTTPResponse

LIMIT_S = 90.0
"""How long a server may take to answer: longer than it gives its own engine. A pin may take as long as it takes."""
KEY_VARIABLE = variable("serve.admin_api_key")
ADMIN_KEY_SOURCE = f"--admin-key or {KEY_VARIABLE}"
HERE = "http://127.0.0.1:8000"

Url = Annotated[str, typer.Option(help="where the server is", show_default=True)]
AdminKey = Annotated[
    str | None,
    typer.Option(help="the server's serve.admin_api_key", envvar=KEY_VARIABLE, show_envvar=True),
]

Tenant = Annotated[str | None, typer.Option(help="whose it is, of the tenants of serve.api_keys")]


class NoAnswerError(RequestError):
    """Nobody is there, or says nothing."""


class Server:
    """A running server. Talks to it directly, whatever proxies the environment names: it is given a key."""

    def __init__(
        self, url: str, key: str | None, limit_s: float | None = LIMIT_S, *, source: str = ADMIN_KEY_SOURCE
    ) -> None:
        """`source` is where the key was taken from, for messages."""
        if not url.startswith(("http://", "https://")):
            raise ConfigError(f"--url {url}: must begin with http:// or https://")
        if key is not None and not re.fullmatch(r"[!-~]+", key):
            raise ConfigError(f"{source}: must be printable ASCII characters without spaces, as a server's keys are")
        self._url = url.rstrip("/")
        self._key = key
        self._limit_s = limit_s
        self._source = source

    def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """The server's answer. Raises `RequestError` with what the server refuses, or that there is none."""
        return self._parsed(self._content(method, path, body))

    def text(self, path: str) -> str:
        """The answer to a GET as text. Raises like `ask`."""
        return self._content("GET", path).decode(errors="replace")

    def _content(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> bytes:
        with self._answer(method, path, body, self._limit_s) as answer:
            return answer.read()

    def stream(self, path: str, body: Mapping[str, Any]) -> Generator[Any, None, None]:
        """The events of a stream, as they come, however long they take; closing the iterator hangs up.

        Raises `RequestError` with what the server refuses, or that it did not say that it was done.
        """
        with self._answer("POST", path, body, None) as answer:
            for line in answer:
                name, _, content = line.strip().partition(b": ")
                if content == b"[DONE]":
                    return
                if name == b"data":
                    event = self._parsed(content)
                    if "error" in event:
                        raise refusal(event)
                    yield event
        raise RequestError(f"{self._url} broke off its answer")

    @contextmanager
    def _answer(
        self, method: str, path: str, body: Mapping[str, Any] | None, limit_s: float | None
    ) -> "Iterator[HTTPResponse]":
        """What the server answers with 200. Raises `RequestError` where it answers otherwise, or not to the end."""
        import http.client
        import urllib.error
        import urllib.request

        data = json.dumps(body or {}).encode() if method == "POST" else None
        begun = False
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            request = urllib.request.Request(self._url + path, data, method=method)
            if self._key is not None:
                request.add_unredirected_header("Authorization", f"Bearer {self._key}")
            with opener.open(request, timeout=limit_s) as answer:
                if answer.status != 200:
                    raise self.strange(answer.status)
                begun = True
                yield answer
        except urllib.error.HTTPError as error:
            with error:
                refused = self._refused(error.code, error.read())
            raise refused from None
        except (OSError, ValueError, http.client.HTTPException) as error:
            why = getattr(error, "reason", None) or error
            why = getattr(why, "strerror", None) or why
            if begun:
                raise RequestError(f"{self._url} broke off its answer: {why}") from None
            raise NoAnswerError(
                f"no answer from {self._url}: {why}; start a server with 'rtk serve', or name another one with --url"
            ) from None

    def _parsed(self, content: bytes) -> Any:
        try:
            return json.loads(content)
        except ValueError:
            raise self.strange(200) from None

    def _refused(self, status: int, content: bytes) -> RequestError:
        try:
            return refusal(json.loads(content), self._source, unauthorized=status == 401)
        except (ValueError, LookupError, TypeError):
            return self.strange(status)

    def strange(self, status: int = 200) -> RequestError:
        """What to raise where an answer is not what a server of rtk answers."""
        return RequestError(
            f"{self._url} answers {status} in a form that rtk does not know; name another server with --url"
        )


def refusal(body: Mapping[str, Any], source: str = ADMIN_KEY_SOURCE, *, unauthorized: bool = False) -> RequestError:
    """What a server's error says, and where rtk takes the key from if one is what it asks for."""
    message, code = body["error"]["message"], body["error"]["code"]
    wants_key = unauthorized or code in ("admin_unauthorized", "invalid_api_key")
    return RequestError(f"{message} ({code})" + (f"; rtk takes it from {source}" if wants_key else ""))
