"""One line of log for each request: who asked for what, and how it went. Never what was asked."""

import logging
import time

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rtk.errors import printable
from rtk.observe.visit import current
from rtk.serve.http.rights import OPEN_PATHS, tenant_of

log = logging.getLogger("rtk.access")
"""Its records have `method`, `path`, `status`, `seconds`, `rid`, `x_request_id`, `tenant` and `whole` as attributes."""

_RID = "rtk.rid"
_SHOWN = 200
"""Characters of a path or id."""
_CLIENT_GONE, _BUG = 499, 500


def name_request(request: Request, rid: str) -> None:
    """Tell the log by which id the client knows the request."""
    request.scope[_RID] = rid


def rid_of(scope: Scope) -> str:
    """That id; empty: it is not known yet, or there is none."""
    rid: str = scope.get(_RID, "")
    return rid


class AccessLog:
    """Logs each request when it is over."""

    def __init__(self, app: ASGIApp, *, enabled: bool) -> None:
        self._app = app
        self._enabled = enabled

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not self._enabled:
            await self._app(scope, receive, send)
            return
        began, status, whole, gone = time.monotonic(), 0, False, False

        async def sending(message: Message) -> None:
            nonlocal status, whole
            if message["type"] == "http.response.start":
                status = message["status"]
            elif not message.get("more_body", False):
                whole = True
            await send(message)

        async def receiving() -> Message:
            nonlocal gone
            message = await receive()
            gone = gone or (message["type"] == "http.disconnect" and not whole)
            return message

        try:
            await self._app(scope, receiving, sending)
        finally:
            _write(Request(scope), status or (_CLIENT_GONE if gone else _BUG), time.monotonic() - began, whole=not gone)


def _write(request: Request, status: int, seconds: float, *, whole: bool) -> None:
    probe = request.scope["path"] in OPEN_PATHS and status == 200
    fields = {
        "method": request.method,
        "path": printable(request.scope["path"][:_SHOWN]),
        "status": status,
        "seconds": seconds,
        "rid": printable(rid_of(request.scope)[:_SHOWN]),
        "x_request_id": current().name,
        "tenant": tenant_of(request),
        "whole": whole,
    }
    line = "{method} {path} {status} {seconds:.3f} s".format_map(fields)
    name = f"x-request-id {fields['x_request_id']}" if fields["x_request_id"] not in ("", fields["rid"]) else ""
    tenant = f"tenant {fields['tenant']}" if fields["tenant"] else ""
    more = [str(fields["rid"]), name, tenant, "" if whole else "the client left"]
    log.log(logging.DEBUG if probe else logging.INFO, "%s", "; ".join([line, *filter(None, more)]), extra=fields)
