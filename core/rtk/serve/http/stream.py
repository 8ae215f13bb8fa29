"""Answers that take long: the client is watched while they are made, and a stream begins with its first event."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Mapping
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from rtk.errors import RequestError
from rtk.observe.logs import loggable
from rtk.observe.visit import current
from rtk.serve.http.errors import encoded, error_body, internal_error

log = logging.getLogger(__name__)

T = TypeVar("T")

Events = AsyncGenerator[bytes, None]

DONE = b"data: [DONE]\n\n"


def event(content: Any) -> bytes:
    """One server-sent event."""
    return b"data: " + encoded(content) + b"\n\n"


async def while_connected(receive: Receive, work: Awaitable[T]) -> T:
    """The result of `work`. When the client goes away, cancels it and raises `ClientDisconnect`."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        task.cancel()
        gone.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def stream_response(request: Request, events: Events, headers: Mapping[str, str]) -> Response:
    """An answer that streams `events`. Waits for the first, so that an error before it gets a status of its own.

    The generator is closed when the client goes away, whenever that is.
    """
    first = await while_connected(request.receive, anext(events))
    return _EventStream(first, events, headers)


async def _with_errors(events: Events) -> Events:
    """An error inside a stream is its last event, and nothing says that the stream is done."""
    try:
        async for item in events:
            yield item
    except RequestError as error:
        yield _error_event(error)
    except Exception as error:
        log.error("a stream failed", exc_info=loggable(error))
        yield _error_event(internal_error())


def _error_event(error: RequestError) -> bytes:
    current().code = error.code
    return event(error_body(error))


class _EventStream(Response):
    media_type = "text/event-stream"

    def __init__(self, first: bytes, rest: Events, headers: Mapping[str, str]) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", **headers})
        del self.headers["content-length"]
        self._first = first
        self._rest = rest
        self._events = _with_errors(rest)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await while_connected(receive, self._send(send))
        except ClientDisconnect:
            log.debug("the client of a stream went away")
        finally:
            await self._events.aclose()
            await self._rest.aclose()

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": self._first, "more_body": True})
        async for item in self._events:
            await send({"type": "http.response.body", "body": item, "more_body": True})
            # With a backlog nothing else here waits: let the others run, and a departure be seen.
            await asyncio.sleep(0)
        await send({"type": "http.response.body", "body": b"", "more_body": False})
