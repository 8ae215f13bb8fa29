"""Who may call the server, as whom, and who may run it: the one place that decides."""

import hashlib
import hmac
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from starlette.datastructures import Headers
from starlette.requests import Request

from rtk.errors import RequestError

OPEN_PATHS = frozenset({"/health", "/ready"})
"""For whoever looks whether the server works: they need no key, name no host and do not count."""

_TENANT = "rtk.tenant"
"""Where the tenant of a request stands in its scope, which no client can reach."""


def tenant_of(request: Request) -> str:
    """Whose request it is; empty where keys name nobody."""
    tenant: str = request.scope.get(_TENANT, "")
    return tenant


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminRights:
    """With a key, whoever brings it; without one, whoever reaches the server, if that is who runs it."""

    key: str | None = field(default=None, repr=False)
    local: bool = True
    """Whether only this machine reaches the server, and nobody on it is a tenant beside others."""

    def refusal(self, request: Request) -> RequestError | None:
        """Why the sender of `request` may not run the server; None if it may."""
        if self.key is not None:
            return None if self.opens(request.headers) else _unauthorized()
        return None if self.local else _closed()

    def check(self, request: Request) -> None:
        """Raises `RequestError` unless the sender of `request` may run the server."""
        if (refusal := self.refusal(request)) is not None:
            raise refusal

    def opens(self, headers: Headers) -> bool:
        """Whether a request brings the key."""
        return self.key is not None and _same(_brought(headers), _digest(self.key))


class ApiKeys:
    """Lets in who brings a key, and notes whose it is. Without keys everybody comes in, as nobody in particular."""

    def __init__(self, keys: Iterable[tuple[str, str]] = (), admin: AdminRights | None = None) -> None:
        """`keys`: each after the name of its tenant. Those who run the server come in by their own key too."""
        self._tenants = [(_digest(key), tenant) for tenant, key in keys]
        self._admin = admin or AdminRights()

    def __bool__(self) -> bool:
        return bool(self._tenants)

    def check(self, scope: dict[str, Any]) -> None:
        """Note the tenant of a request. Raises `RequestError` where it brings no key that is known."""
        headers = Headers(scope=scope)
        brought, found = _brought(headers), ""
        known = not self._tenants or self._admin.opens(headers)
        for key, tenant in self._tenants:  # all of them, however soon one fits: time tells nothing
            if _same(brought, key):
                known, found = True, tenant
        if not known and scope["path"] not in OPEN_PATHS:
            raise _no_key(given="authorization" in headers)
        scope[_TENANT] = found


def _brought(headers: Mapping[str, str]) -> bytes:
    """The digest of the key that a request brings; of no key where there is none, or where there are several."""
    values = headers.getlist("authorization") if isinstance(headers, Headers) else []
    scheme, _, key = (values[0] if len(values) == 1 else "").partition(" ")
    return _digest(key.strip()) if scheme.lower() == "bearer" else b""


def _digest(key: str) -> bytes:
    """Keys are compared by these, all of one length."""
    return hashlib.sha256(key.encode("latin-1", "replace")).digest()


def _same(one: bytes, other: bytes) -> bool:
    return hmac.compare_digest(one, other)


def _no_key(*, given: bool) -> RequestError:
    what = "the API key is none of this server's" if given else "an API key is missing"
    return RequestError(
        f"{what}: send one of serve.api_keys as 'Authorization: Bearer KEY'", code="invalid_api_key", status=401
    )


def _unauthorized() -> RequestError:
    return RequestError(
        "administrators only: send the server's serve.admin_api_key as 'Authorization: Bearer KEY'",
        code="admin_unauthorized",
        status=401,
    )


def _closed() -> RequestError:
    return RequestError(
        "closed: the server listens on an address that others may reach, or has tenants, and has no key to tell "
        "administrators by; set serve.admin_api_key, or bind it to a loopback address such as 127.0.0.1 (serve.host), "
        "without tenants",
        code="admin_closed",
        status=403,
    )
