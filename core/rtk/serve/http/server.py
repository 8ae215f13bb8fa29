"""The HTTP server's process side: uvicorn, with an end that tells the clients who still wait."""

import asyncio
import contextlib
import logging
import signal
import socket
import ssl
from collections.abc import Callable
from functools import partial
from types import FrameType

import uvicorn
from fastapi import FastAPI

from rtk.serve.http.connection import Connection
from rtk.serve.tokenizer_manager import TokenizerManager

log = logging.getLogger(__name__)

LOOK_S = 0.1
"""How often it is looked whether requests still run."""
LINGER_S = 2.0
"""How long clients may then take to read that; of those who do not, and of those who still send, it hangs up."""
BACKSTOP_S = 10
"""After the last request has ended, when what is still going on is cancelled, whatever it is."""


class Server(uvicorn.Server):
    """Serves until a signal, or until the engine is lost.

    Then nobody can connect any more, new requests on open connections get 503, and those that run have `drain_s` to
    end by themselves. What still runs then, or when a second signal comes, ends with an error. A third Ctrl-C leaves
    it without.
    """

    def __init__(
        self,
        app: FastAPI,
        manager: TokenizerManager,
        close_engine: Callable[[], None],
        drain_s: float,
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
        self._manager = manager
        self._close_engine = close_engine
        self._drain_s = drain_s
        self._signals: list[int] = []

    @property
    def _hurried(self) -> bool:
        """Whether somebody will not wait."""
        return len(self._signals) > 1

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Called by uvicorn when a signal comes; `force_exit` leaves every open request with a traceback."""
        super().handle_exit(sig, frame)
        self._signals.append(sig)
        self.force_exit = self.force_exit and len(self._signals) > 2

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Called by uvicorn when it is to end."""
        for listener in (*self.servers, *(sockets or ())):
            listener.close()
        self._manager.drain()
        if self._signals:
            name, running = signal.Signals(self._signals[0]).name, self._manager.in_flight
            log.info("%s: no new requests; %d have up to %g s to end", name, running, self._drain_s)
        await self._drained()
        await asyncio.to_thread(self._close_engine)
        ending = asyncio.create_task(self._hang_up())
        await super().shutdown(sockets)
        ending.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await ending

    async def _drained(self) -> None:
        """Until nothing runs, or has to end."""
        for _ in range(round(self._drain_s / LOOK_S)):
            if self._hurried or not self._manager.in_flight:
                return
            await asyncio.sleep(LOOK_S)

    async def _hang_up(self) -> None:
        await asyncio.sleep(LINGER_S)
        for connection in list(self.server_state.connections):
            connection.transport.abort()  # who serves it hears that the client has gone
