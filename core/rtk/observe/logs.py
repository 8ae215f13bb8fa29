"""Log lines: as text or JSON, with the id of the request that they are about, and never in anybody's way.

Every process of a server calls `configure` once. A line that cannot be written, because the disk is full or nobody
reads any more, is counted and lost; whoever wrote it goes on.
"""

import json
import logging
import os
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

from rtk.errors import printable
from rtk.observe.visit import current

if TYPE_CHECKING:
    from rtk.config.models import Config


REQUESTS = logging.getLogger("rtk.requests")
"""For what quotes clients. Off unless somebody asks for it (`serve.log_requests`)."""
_OFF = logging.CRITICAL + 1
REQUESTS.setLevel(_OFF)  # not `disabled`: whoever sets up other logs in this process would take that back

_CHAIN = 16
"""Exceptions behind one another that are shown."""


def about(rid: str) -> Mapping[str, str]:
    """The `extra` of a line about a request. The scheduler's ids are a number and the client's id."""
    number, _, name = rid.partition(":")
    return {"request_id": name if name and number.isdecimal() else rid}


class TextFormatter(logging.Formatter):
    """What a message quotes cannot pass for another message, nor steer a terminal; tracebacks stay as they are."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's own interface
        return printable(super().formatMessage(record))


_OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "request_id", "rid"}
"""What every record has, or a field of ours has another name for; all else is said as it was given."""


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
        if rid := getattr(record, "request_id", "") or getattr(record, "rid", "") or current().request_id:
            line["request_id"] = rid
        line |= {name: value for name, value in vars(record).items() if name not in _OWN and name not in line}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            line["stack"] = self.formatStack(record.stack_info)
        return json.dumps(line, default=str)  # ASCII: it fits any encoding, and nothing in it steers a terminal


TEXT = "%(levelname)s: %(message)s"

_drops = 0


def drops() -> int:
    """Lines that this process could not write."""
    return _drops


class Handler(logging.StreamHandler[TextIO]):
    """Writes to a stream; what fails is counted and said nowhere, for there is nowhere to say it."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's own interface
        global _drops
        _drops += 1


class LogSetup(NamedTuple):
    """How a process writes its log."""

    format: str = "text"
    level: str = "warning"
    """Of rtk's own lines; of others, warnings at least."""
    process: str = "main"
    """What JSON calls it."""
    requests: bool = False
    """Whether lines may quote what clients wrote."""


_setup = LogSetup()


def begin() -> None:
    """Warnings as text, for as long as nothing else is known. Called before any file is opened."""
    _hold_streams()
    use(LogSetup())


def _hold_streams() -> None:
    """Standard streams that are closed lead nowhere; else the next file to be opened would get what is printed."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free


def configure(config: "Config", process: str = "main") -> None:
    """What the configuration says, for this process. Of what is not rtk's, warnings at most."""
    section = config.observe
    use(LogSetup(section.log_format, section.log_level, process, config.serve.log_requests))


def setup_of(process: str) -> LogSetup:
    """What a child of this process uses."""
    return _setup._replace(process=process)


def use(setup: LogSetup) -> None:
    """Set this process's log up, in place of what was."""
    global _setup
    _setup = setup
    root, number = logging.getLogger(), logging.getLevelNamesMapping()[setup.level.upper()]
    handler = Handler(sys.stderr)
    handler.setFormatter(TextFormatter(TEXT) if setup.format == "text" else JsonFormatter(setup.process))
    for before in [one for one in root.handlers if isinstance(one, Handler)]:
        root.removeHandler(before)
    root.addHandler(handler)
    root.setLevel(max(number, logging.WARNING))
    logging.getLogger("rtk").setLevel(number)
    REQUESTS.setLevel(logging.INFO if setup.requests else _OFF)


def quotes() -> bool:
    """Whether lines may quote what clients wrote."""
    return REQUESTS.isEnabledFor(logging.INFO)


def loggable(error: BaseException) -> BaseException:
    """What to log of a bug: its type and frames, and those of what is behind it; its words only where asked for."""
    return error if quotes() else _wordless(error, _CHAIN)


def _wordless(error: BaseException, chain: int) -> BaseException:
    kind = type(error)
    stand_in: BaseException = type(kind.__name__, (Exception,), {"__module__": kind.__module__})()
    stand_in.__traceback__ = error.__traceback__
    behind = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if behind is not None and chain:
        stand_in.__context__ = _wordless(behind, chain - 1)
    return stand_in
