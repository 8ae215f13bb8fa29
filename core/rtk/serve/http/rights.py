"""Who may run the server: the one place that decides."""

import hmac
from dataclasses import dataclass, field

from starlette.requests import Request

from rtk.errors import RequestError


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminRights:
    """With a key, whoever brings it; without one, whoever reaches the server, if that is only this machine."""

    key: str | None = field(default=None, repr=False)
    local: bool = True
    """Whether only this machine reaches the server."""

    def refusal(self, request: Request) -> RequestError | None:
        """Why the sender of `request` may not run the server; None if it may."""
        if self.key is not None:
            return None if self._brings_key(request) else _unauthorized()
        return None if self.local else _closed()

    def check(self, request: Request) -> None:
        """Raises `RequestError` unless the sender of `request` may run the server."""
        if (refusal := self.refusal(request)) is not None:
            raise refusal

    def _brings_key(self, request: Request) -> bool:
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        key = (self.key or "").encode()
        return hmac.compare_digest(given.strip().encode("latin-1"), key) and scheme.lower() == "bearer"


def _unauthorized() -> RequestError:
    return RequestError(
        "administrators only: send the server's serve.admin_api_key as 'Authorization: Bearer KEY'",
        code="admin_unauthorized",
        status=401,
    )


def _closed() -> RequestError:
    return RequestError(
        "closed: the server listens on an address that others may reach, and has no key to tell administrators by; "
        "set serve.admin_api_key, or bind it to a loopback address such as 127.0.0.1 (serve.host)",
        code="admin_closed",
        status=403,
    )
