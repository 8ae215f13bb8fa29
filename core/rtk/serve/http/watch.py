"""Around all requests over HTTP: names them, counts answers, gives log lines their subject, and tells a tracer."""

import asyncio
import logging
import re
import uuid
from collections import Counter
from time import monotonic
from typing import TYPE_CHECKING, Any

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rtk.errors import RequestError
from rtk.observe import visit as visits
from rtk.observe.visit import Visit
from rtk.serve.http.access import rid_of
from rtk.serve.http.rights import tenant_of
from rtk.serve.tokenizer_manager import TokenizerManager

if TYPE_CHECKING:
    from rtk.observe.tracing import Tracing

log = logging.getLogger(__name__)

NAME_HEADER = "x-request-id"
"""What a request is called, in what clients send and in every answer."""
_NAME = re.compile(r"[!-~]{1,128}")
"""Names that fit into a header and stand out of a line of log: printable ASCII without spaces."""

ELSEWHERE = "other"
"""The path of requests that no route is for."""

ASKED = 16
"""Answers of one request whose waits a tracer is told of."""


class Tally:
    """How often what was answered."""

    def __init__(self) -> None:
        self.responses: Counter[tuple[str, ...]] = Counter()
        """By the path of the route, and the status."""
        self.errors: Counter[str] = Counter()
        """By code, those that end a stream too."""
        self.paths: dict[Any, str] = {}
        """Of each endpoint."""

    def know(self, path: str, endpoint: Any) -> None:
        """There is such a route; that it was answered is counted from the start."""
        self.paths[endpoint] = path.replace(":path}", "}")
        self.responses[self.paths[endpoint], "200"] += 0


class Watch:
    """The outermost part of the application."""

    def __init__(self, app: ASGIApp, tally: Tally, manager: TokenizerManager, tracing: "Tracing | None" = None) -> None:
        self._app = app
        self._tally = tally
        self._manager = manager
        self._tracing = tracing
        self._telling: set[asyncio.Task[None]] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        visit, status = visits.begin(), 0
        visit.name = _given_name(scope)

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                visit.name = visit.name or _own_name(scope)
                name = NAME_HEADER.encode(), visit.name.encode()
                message = {**message, "headers": [*message.get("headers", ()), name]}
            await send(message)

        try:
            await self._app(scope, receive, watched)
        finally:
            self._done(visit, scope, status)

    def _done(self, visit: Visit, scope: Scope, status: int) -> None:
        path = self._tally.paths.get(scope.get("endpoint"), ELSEWHERE)
        if status:  # else nobody was there any more
            self._tally.responses[path, str(status)] += 1
        if visit.code:
            self._tally.errors[visit.code] += 1
        if self._tracing is not None and visit.rids:
            task = asyncio.create_task(self._tell(self._tracing, visit, path, scope))
            self._telling.add(task)
            task.add_done_callback(self._telling.discard)

    async def _tell(self, tracing: "Tracing", visit: Visit, path: str, scope: Scope) -> None:
        """Tell the tracer, with what the scheduler knows of the time that was spent in its queue."""
        ended, waited, tenant = monotonic(), [], tenant_of(Request(scope))
        try:
            for rid in visit.rids[:ASKED]:
                waited.append((await self._manager.timeline(rid, tenant)).queue_s)
        except RequestError as error:
            log.debug("a span says nothing of the queue: %s", error)
        tracing.tell(
            visit, ended, self._manager.facts.served_name, path, max(waited, default=None), dict(_headers(scope))
        )


def _given_name(scope: Scope) -> str:
    """The client's; empty: it gave none, or one that cannot be used."""
    given = Headers(scope=scope).get(NAME_HEADER, "")
    return given if _NAME.fullmatch(given) else ""


def _own_name(scope: Scope) -> str:
    """The id of the answer, where it can be a name; else a random one."""
    rid = rid_of(scope)
    return rid if _NAME.fullmatch(rid) else uuid.uuid4().hex


def _headers(scope: Scope) -> Any:
    """What says which trace a request is part of."""
    for name, value in scope["headers"]:
        if name in (b"traceparent", b"tracestate"):
            yield name.decode("latin-1"), value.decode("latin-1")
