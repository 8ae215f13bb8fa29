"""Log lines: as text or JSON, with the id of the request that they are about, and never in anybody's way.

Every process of a server calls `configure` once. A line that cannot be written, because the disk is full or nobody
reads any more, is counted and lost; whoever wrote it goes on.
"""

import contextvars
import json
import logging
import os
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Literal, TextIO

from rtk.errors import printable

Format = Literal["text", "json"]
Level = Literal["debug", "info", "warning", "error"]


class Subject:
    """What a line is about that is written while somebody is served."""

    __slots__ = ("request_id",)

    def __init__(self) -> None:
        self.request_id = ""
        """The client's id of the request, once it is known."""


subject: contextvars.ContextVar[Subject | None] = contextvars.ContextVar("rtk_log_subject", default=None)
"""Set for each request over HTTP. A holder, since tasks that are begun on the way cannot set it for the one above."""


def about(rid: str) -> Mapping[str, str]:
    """The `extra` of a line about a request. The scheduler's ids are a number and the client's id."""
    number, _, name = rid.partition(":")
    return {"request_id": name if name and number.isdecimal() else rid}


def call_it(rid: str) -> None:
    """From here on, lines about the request that is being served have this id."""
    holder = subject.get()
    if holder is not None:
        holder.request_id = rid


def _request_id(record: logging.LogRecord) -> str:
    named = getattr(record, "request_id", "")
    holder = subject.get()
    return str(named or (holder.request_id if holder is not None else ""))


class TextFormatter(logging.Formatter):
    """What a message quotes cannot pass for another message, nor steer a terminal; tracebacks stay as they are."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's own interface
        return printable(super().formatMessage(record))


class JsonFormatter(logging.Formatter):
    """One object a line."""

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            "process": self._process,
            "pid": os.getpid(),
        }
        if rid := _request_id(record):
            line["request_id"] = rid
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            line["stack"] = self.formatStack(record.stack_info)
        return json.dumps(line)  # ASCII: it fits any encoding, and nothing in it steers a terminal


_drops = 0


def drops() -> int:
    """Lines that this process could not write."""
    return _drops


class Handler(logging.StreamHandler[TextIO]):
    """Writes to a stream; what fails is counted and said nowhere, for there is nowhere to say it."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's own interface
        global _drops
        _drops += 1


def configure(format: Format = "text", level: Level = "warning", process: str = "main") -> None:
    """Set this process's log up, in place of what was: rtk's lines from `level` up, others' from warnings up."""
    handler = Handler(sys.stderr)
    handler.setFormatter(TextFormatter("%(levelname)s: %(message)s") if format == "text" else JsonFormatter(process))
    logging.basicConfig(handlers=[handler], force=True)
    number = logging.getLevelNamesMapping()[level.upper()]
    logging.getLogger().setLevel(max(number, logging.WARNING))
    logging.getLogger("rtk").setLevel(number)
