"""The HTTP server's process side: uvicorn, with an end that tells the clients who still wait."""

import asyncio
import contextlib
import socket
from collections.abc import Callable

import uvicorn
from fastapi import FastAPI

GRACE_S = 5.0
"""After a signal, how long running requests may take to end by themselves."""
BACKSTOP_S = 10
"""After a signal, when connections are closed whatever is going on in them."""


class Server(uvicorn.Server):
    """Serves until a signal. New connections are refused then; requests that still run after `GRACE_S` get an error."""

    def __init__(self, app: FastAPI, close_engine: Callable[[], None]) -> None:
        """`close_engine` ends what still runs; called from a thread of its own, once."""
        settings = uvicorn.Config(app, log_config=None, access_log=False, timeout_graceful_shutdown=BACKSTOP_S)
        super().__init__(settings)
        self._close_engine = close_engine

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Called by uvicorn when a signal has come."""
        ending = asyncio.create_task(self._end_requests())
        await super().shutdown(sockets)
        ending.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await ending

    async def _end_requests(self) -> None:
        await asyncio.sleep(GRACE_S)
        await asyncio.to_thread(self._close_engine)
