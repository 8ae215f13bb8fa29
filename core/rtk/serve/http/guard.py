"""What every request passes before its endpoint: how many there are, by which name and from whose page they come, keys.

All of it in ASGI's own terms, so that streams pass untouched.
"""

import ipaddress
from collections.abc import Callable, Collection
from typing import Any

from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from rtk.errors import RequestError
from rtk.schedule.params import shown
from rtk.serve.http.access import AccessLog
from rtk.serve.http.endpoints import HttpSettings
from rtk.serve.http.errors import error_response
from rtk.serve.http.fields import IGNORED_HEADER
from rtk.serve.http.rights import OPEN_PATHS
from rtk.serve.http.watch import NAME_HEADER

Check = Callable[[dict[str, Any]], None]
"""Looks at the scope of a request; raises `RequestError` to refuse it."""

LOCAL_NAMES = ("localhost", "*.localhost")
"""No page can have one of these point elsewhere."""

ANY = "*"


def guards(settings: HttpSettings) -> list[Middleware]:
    """The way to the endpoints, from the outside in."""
    cors = Middleware(
        CORSMiddleware,
        allow_origins=settings.cors_origins,
        allow_methods=["GET", "POST"],
        allow_headers=[ANY],
        expose_headers=[IGNORED_HEADER, "x-rtk-grammar", NAME_HEADER, "Retry-After"],
    )
    return [
        Middleware(AccessLog, enabled=settings.access_log),
        Middleware(Crowd, limit=settings.max_requests),
        Middleware(Checked, checks=(Hosts(settings.allowed_hosts).check, Origins(settings.cors_origins).check)),
        *([cors] if settings.cors_origins else []),
        Middleware(Checked, checks=(settings.keys.check,)),
    ]


class Checked:
    """Answers what one of its checks refuses."""

    def __init__(self, app: ASGIApp, checks: Collection[Check]) -> None:
        self._app = app
        self._checks = checks

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            try:
                for check in self._checks:
                    check(scope)  # type: ignore[arg-type]
            except RequestError as error:
                await error_response(error)(scope, receive, send)
                return
        await self._app(scope, receive, send)


class Crowd:
    """Refuses requests that are too many at a time."""

    def __init__(self, app: ASGIApp, limit: int) -> None:
        self._app = app
        self._limit = limit
        self._inside = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS:
            await self._app(scope, receive, send)
            return
        if self._inside >= self._limit:
            await error_response(busy(f"{self._limit:,} requests are in work"))(scope, receive, send)
            return
        self._inside += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._inside -= 1


def busy(what: str) -> RequestError:
    """The refusal of one too many."""
    return RequestError(f"{what}, and no more may be; try again", code="server_busy", status=503)


class Hosts:
    """Lets in who calls the server by one of its names. A page whose name points here from elsewhere does not."""

    def __init__(self, allowed: Collection[str] | None) -> None:
        """None: any name."""
        self._allowed = None if allowed is None or ANY in allowed else frozenset(allowed)
        self._above = tuple(name[1:] for name in allowed or () if name.startswith("*."))
        self._local = not {*LOCAL_NAMES}.isdisjoint(allowed or ())

    def check(self, scope: dict[str, Any]) -> None:
        """Raises `RequestError` for a request to another host, or to none or several."""
        if self._allowed is None or scope["path"] in OPEN_PATHS:
            return
        values = Headers(scope=scope).getlist("host")
        name = _host_name(values[0]) if len(values) == 1 else ""
        if name in self._allowed or name.endswith(self._above or ("\0",)) or (self._local and _is_loopback(name)):
            return
        called = shown(values[0]) if len(values) == 1 else f"{len(values)} hosts"
        raise RequestError(
            f"the server is called by {called}, which is none of its names; add the name to serve.allowed_hosts",
            code="host_not_allowed",
            status=403,
        )


class Origins:
    """Keeps out pages of other origins: a browser sends what any page tells it to."""

    def __init__(self, allowed: Collection[str]) -> None:
        self._allowed = frozenset(allowed)

    def check(self, scope: dict[str, Any]) -> None:
        """Raises `RequestError` for what a page of another origin sends."""
        if ANY in self._allowed or scope["path"] in OPEN_PATHS:
            return
        headers = Headers(scope=scope)
        for origin in map(str.lower, headers.getlist("origin")):
            if origin not in self._allowed and origin.partition("://")[2] != headers.get("host", "").lower():
                raise _foreign(origin)
        acts, site = scope["method"] not in ("GET", "HEAD"), headers.get("sec-fetch-site", "none")
        if acts and site not in ("none", "same-origin") and "origin" not in headers:
            raise _foreign(site)


def _foreign(origin: str) -> RequestError:
    return RequestError(
        f"sent by a page of another origin ({shown(origin)}); where it may, add its origin to serve.cors_origins",
        code="origin_not_allowed",
        status=403,
    )


def _host_name(host: str) -> str:
    """A `Host` without its port, in one spelling; IPv6 addresses without brackets, in which nothing else stands."""
    if host.startswith("["):
        address, bracket, _ = host[1:].lower().partition("]")
        return address if bracket and ":" in address else ""
    return host.lower().partition(":")[0].removesuffix(".")


def _is_loopback(name: str) -> bool:
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
