"""Connections: how many there are, and how long a client may take to say what it wants.

A client that sends its request a byte a second holds a connection for a while, and nothing else.
"""

import asyncio
import logging
import sys
from typing import Any

import h11
import msgspec
from uvicorn.protocols.http.h11_impl import H11Protocol

from rtk.serve.http.errors import error_body, error_headers
from rtk.serve.http.guard import busy

log = logging.getLogger(__name__)

SPARE = 256
"""Files that the process may have open beside its connections: sockets, and the pipes of processes that it starts."""

LINGER_S = 5.0
"""After an answer that did not wait for its request's end: how long the rest may take to come."""
STALL_S = 300.0
"""How long a client may leave unread what is sent to it: its request counts as one in work for as long."""


def room_for(connections: int) -> int:
    """How many of so many connections the system lets this process have, after asking it for more where it takes that.

    Who has no more cannot take another one either, to refuse it, nor start a process.
    """
    if sys.platform == "win32":
        return connections
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = connections + SPARE
    allowed = [files if limit == resource.RLIM_INFINITY else limit for limit in (soft, hard)]
    if allowed[0] < files and allowed[0] < allowed[1]:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(files, allowed[1]), hard))
    room = max(1, min(connections, max(allowed) - SPARE))
    if room < connections:
        log.warning(
            "up to %d connections, and not %d: the system allows %d open files", room, connections, max(allowed)
        )
    return room


class Connection(H11Protocol):
    """One connection."""

    def __init__(self, *args: Any, most: int, head_s: float, **more: Any) -> None:
        """`most`: connections at a time. `head_s`: what the head of a request may take."""
        super().__init__(*args, **more)
        self._most, self._head_s = most, head_s
        self._timer: asyncio.TimerHandle | None = None
        self._stalled: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Called by asyncio."""
        super().connection_made(transport)
        if len(self.connections) > self._most:
            self._turn_away()
        else:
            self._limit(self._head_s)

    def data_received(self, data: bytes) -> None:
        """Called by asyncio."""
        super().data_received(data)
        if self.conn.their_state is h11.IDLE:
            self._limit(self._head_s)
        elif not self._lingers:
            self._unlimit()

    def on_response_complete(self) -> None:
        """Called by uvicorn."""
        super().on_response_complete()
        if self._lingers:
            self._limit(LINGER_S)

    @property
    def _lingers(self) -> bool:
        """Whether a request goes on that is answered already."""
        return self.conn.our_state is h11.DONE and self.conn.their_state is h11.SEND_BODY

    def pause_writing(self) -> None:
        """Called by asyncio, when the client does not read."""
        super().pause_writing()
        self._stalled = self.loop.call_later(STALL_S, self.transport.abort)

    def resume_writing(self) -> None:
        """Called by asyncio, when it does again."""
        super().resume_writing()
        self._go_on()

    def _go_on(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by asyncio."""
        self._unlimit()
        self._go_on()
        super().connection_lost(exc)

    def _limit(self, seconds: float) -> None:
        """Hang up after so long, unless it is limited already: what comes in the meantime changes nothing."""
        if self._timer is None:
            self._timer = self.loop.call_later(seconds, self.transport.close)

    def _unlimit(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _turn_away(self) -> None:
        """Answer before anything was asked: whoever opens too many connections costs nothing more."""
        error = busy(f"{self._most:,} connections are open")
        body = msgspec.json.encode(error_body(error))
        head = {"Content-Type": "application/json", "Content-Length": str(len(body)), "Connection": "close"}
        lines = [f"{name}: {value}" for name, value in {**head, **error_headers(error)}.items()]
        self.transport.write("\r\n".join([f"HTTP/1.1 {error.status} ", *lines, "\r\n"]).encode() + body)
        self.transport.close()
