"""The HTTP server's process side: uvicorn, with an end that tells the clients who still wait."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable
from functools import partial
from types import FrameType

import uvicorn
from fastapi import FastAPI

from rtk.serve.http.connection import Connection

GRACE_S = 5.0
"""After a signal, how long running requests may take to end by themselves; a second Ctrl-C cuts it short."""
LOOK_S = 0.1
"""How often that is looked for."""
LINGER_S = 2.0
"""How long clients may then take to read that; of those who do not, and of those who still send, it hangs up."""
BACKSTOP_S = 10
"""After a signal, when what is still going on is cancelled, whatever it is."""


class Server(uvicorn.Server):
    """Serves until a signal. New connections are refused then; requests that still run after `GRACE_S` get an error.

    A second Ctrl-C gives them that error at once, a third leaves them without.
    """

    def __init__(
        self,
        app: FastAPI,
        close_engine: Callable[[], None],
        *,
        tls: ssl.SSLContext | None = None,
        max_connections: int = 4096,
        header_timeout_s: float = 30.0,
    ) -> None:
        """`close_engine` ends what still runs; called from a thread of its own, once."""
        connection = partial(Connection, most=max_connections, head_s=header_timeout_s)
        settings = uvicorn.Config(
            app,
            http=connection,  # type: ignore[arg-type] # it is only called
            ws="none",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            timeout_graceful_shutdown=BACKSTOP_S,
        )
        if tls is not None:
            settings.ssl_context_factory = lambda *_: tls
        super().__init__(settings)
        self._close_engine = close_engine
        self._hurried = False

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Called by uvicorn when a signal comes; `force_exit` would leave every open request with a traceback."""
        super().handle_exit(sig, frame)
        if self.force_exit and not self._hurried:
            self._hurried, self.force_exit = True, False

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Called by uvicorn when a signal has come."""
        ending = asyncio.create_task(self._end_requests())
        await super().shutdown(sockets)
        ending.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await ending

    async def _end_requests(self) -> None:
        for _ in range(round(GRACE_S / LOOK_S)):
            if self._hurried:
                break
            await asyncio.sleep(LOOK_S)
        await asyncio.to_thread(self._close_engine)
        await asyncio.sleep(LINGER_S)
        for connection in list(self.server_state.connections):
            connection.transport.abort()  # who serves it hears that the client has gone
