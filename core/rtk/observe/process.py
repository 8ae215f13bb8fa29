"""The process of one observer: builds it, says whether that went well, and passes on what arrives until the end.

It ends with the engine: when the pipe closes; or some time after, where the observer does not come back.
"""

import logging
import os
import pickle
import queue
import threading
import time
from collections.abc import Callable
from typing import Any, BinaryIO

import msgspec

from rtk.errors import PluginError, one_line
from rtk.frames import receive
from rtk.observe.logs import use
from rtk.plugin.foreign import contained
from rtk.plugin.observer import Observer, RequestReport, StepReport

log = logging.getLogger(__name__)

STEP, REQUEST = 0, 1
"""What stands before a report in a frame, which is a list of pairs in MessagePack."""

LIMIT = 1024
"""Reports that wait here; more wait in the pipe and then in the engine, which drops what is too much."""
PATIENCE_S = 2.0
"""How often it looks whether the engine is still there."""

LAST_S = 10.0
"""How long an observer may take for what is left, where no engine is there to stop it."""


def main() -> None:
    """Started by `rtk.observe.feed`."""
    engine = os.getppid()
    answers, source = os.fdopen(os.dup(1), "w"), os.fdopen(os.dup(0), "rb")
    os.dup2(2, 1)  # what the observer prints goes where the server's log goes
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # and what it, or a program that it starts, reads is no report
    entry, options, setup = pickle.loads(receive(source) or b"")  # from the process that started this one
    use(setup)
    try:
        observer = entry.build(options)
    except PluginError as error:
        answers.write(f"{error}\n")
        return
    answers.write("ready\n")
    answers.close()
    reports: queue.Queue[tuple[int, list[Any]] | None] = queue.Queue(LIMIT)
    threading.Thread(target=read, args=(source, reports), daemon=True).start()
    threading.Thread(target=outlive, args=(engine,), daemon=True).start()
    tell(observer, reports, lambda problem: log.error("%s: %s", entry.label, problem))


def read(source: BinaryIO, reports: "queue.Queue[Any]") -> None:
    """Pass on what arrives, and that there is no more."""
    try:
        while (frame := receive(source)) is not None:
            for report in msgspec.msgpack.decode(frame):
                reports.put(report)
    finally:  # also where memory was lacking, or the observer has closed what is not its own
        reports.put(None)


def outlive(engine: int) -> None:
    """End this process some time after its parent, the engine, which would have seen to that."""
    while os.getppid() == engine:
        time.sleep(PATIENCE_S)
    time.sleep(LAST_S)
    os._exit(1)


def tell(observer: Observer, reports: "queue.Queue[Any]", complain: Callable[[str], None]) -> None:
    """Hand the observer its reports; what it raises is told once for each method."""
    failed = set()

    def call(method: str, *report: object) -> None:
        try:
            getattr(observer, method)(*report)
        except BaseException as error:
            if not contained(error):
                raise
            if method not in failed:
                complain(f"{method}() failed: {one_line(error)}; the next report comes all the same")
            failed.add(method)

    while (report := reports.get()) is not None:
        kind, values = report
        if kind == STEP:
            call("on_step", StepReport(*values))
        else:
            call("on_request", RequestReport(*values))
    call("close")
