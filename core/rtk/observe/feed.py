"""The engine's end of observers: reports go into a bounded queue, and from there to each observer's process."""

import contextlib
import logging
import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable
from typing import Any

import msgspec

from rtk.errors import PluginError, one_line
from rtk.frames import send
from rtk.observe.logs import setup_of
from rtk.observe.process import REQUEST, STEP
from rtk.plugin.info import Options
from rtk.plugin.observer import RequestReport, StepReport
from rtk.plugin.registry import INSTEAD, Registered

log = logging.getLogger(__name__)

LIMIT = 4096
"""Reports that wait for one observer; the next one is dropped."""
GATHER_S = 0.05
"""For how long reports are gathered before they are sent together: a wake-up costs the engine more than a report."""
START_S = 30.0
"""How long an observer may take to be built."""
END_S = 2.0
"""How long it may take to end."""

COMMAND = (sys.executable, "-P", "-c", "from rtk.observe.process import main; main()")


class Feed:
    """One observer's process, and what waits for it. Whatever becomes of it, the engine's thread goes on."""

    def __init__(self, entry: Registered, options: Options) -> None:
        """Starts the process. Raises `PluginError` where the observer cannot be built."""
        self.name = entry.plugin.name
        self.dropped = 0
        """Reports that the observer did not get."""
        self._label = entry.label
        self._queue: queue.SimpleQueue[tuple[int, tuple[Any, ...]] | None] = queue.SimpleQueue()
        self._lost = False
        self._closing = threading.Event()
        path = os.pathsep.join(filter(None, sys.path))  # it must find what this process found
        self._process = subprocess.Popen(
            COMMAND,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": path},
            start_new_session=True,  # Ctrl-C is the engine's to take
        )
        assert self._process.stdin is not None and self._process.stdout is not None, "both are pipes"
        self._pipe, self._answers = self._process.stdin, self._process.stdout
        self._writer = threading.Thread(target=self._write, name=f"rtk-observer-{self.name}", daemon=True)
        try:
            self._await(self._hello(entry, options))
        except BaseException:
            self._end()
            raise
        self._writer.start()

    def _hello(self, entry: Registered, options: Options) -> bytes:
        try:
            return pickle.dumps((entry, options, setup_of(f"observer {self.name}")))
        except Exception as error:
            raise PluginError(
                f"{self._label} cannot be used: its options cannot be sent to its process: {one_line(error)}; "
                "define them at the top of a module, and of values that can be pickled"
            ) from error

    def _await(self, hello: bytes) -> None:
        """Until it is built."""
        said: queue.SimpleQueue[str] = queue.SimpleQueue()

        def listen() -> None:
            with contextlib.suppress(OSError):
                send(self._pipe, hello)
            said.put(self._answers.readline().decode(errors="replace").strip())

        listener = threading.Thread(target=listen, daemon=True)
        listener.start()
        try:
            answer = said.get(timeout=START_S)
        except queue.Empty:
            self._kill()
            listener.join(END_S)
            raise PluginError(
                f"{self._label} cannot be used: it was not built within {START_S:g} s; {INSTEAD}"
            ) from None
        if answer != "ready":
            raise PluginError(answer or f"{self._label} cannot be used: its process ended early; {INSTEAD}")

    def offer(self, kind: int, report: tuple[Any, ...]) -> None:
        """Queue a report, or drop it. Never waits; a microsecond or two."""
        if not self._lost and self._queue.qsize() < LIMIT:
            self._queue.put((kind, report))
            return
        self.dropped += 1
        if self.dropped == 1 and not self._lost:
            log.warning("%s takes reports more slowly than they come; what it misses is counted", self._label)

    def _write(self) -> None:
        encoder = msgspec.msgpack.Encoder()
        while reports := self._gathered():
            try:
                send(self._pipe, encoder.encode(reports))
            except OSError:
                break
        else:
            return
        self._lost = True
        self.dropped += len(reports) + self._queue.qsize()
        if not self._closing.is_set():
            log.error("%s: its process has ended; what it misses is counted, and the engine goes on", self._label)

    def _gathered(self) -> list[tuple[int, tuple[Any, ...]]]:
        """What is to be sent next, in order; nothing at the end."""
        reports: list[tuple[int, tuple[Any, ...]]] = []
        while (report := self._queue.get()) is not None:
            if not reports and not self._closing.is_set():
                self._closing.wait(GATHER_S)
            reports.append(report)
            if self._queue.empty():
                return reports
        self._queue.put(None)  # for the next time
        return reports

    def close(self) -> None:
        """End it, with what was reported so far if it takes that soon enough."""
        self._closing.set()
        self._queue.put(None)
        self._writer.join(END_S)
        self._end()

    def _end(self) -> None:
        """Close the pipe, which is where its process stops; or stop it."""
        if self._writer.is_alive():
            self._kill()  # it takes nothing more
            self._writer.join(END_S)
        if not self._writer.is_alive():  # else somebody else has the pipe, and does not read it
            with contextlib.suppress(OSError):
                self._pipe.close()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._kill()
            self._process.wait()
        self._answers.close()

    def _kill(self) -> None:
        """End its process, and those that it has started, which may have the pipe too."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)


class Feeds:
    """All observers of an engine."""

    def __init__(self, chosen: Iterable[tuple[Registered, Options]] = ()) -> None:
        """Starts them. Raises `PluginError` where one cannot be built; then none is left."""
        self._feeds: list[Feed] = []
        try:
            for entry, options in chosen:
                self._feeds.append(Feed(entry, options))
        except BaseException:
            self.close()
            raise

    def __len__(self) -> int:
        return len(self._feeds)

    def on_step(self, report: StepReport) -> None:
        """Pass a step on."""
        for feed in self._feeds:
            feed.offer(STEP, report)

    def on_request(self, report: RequestReport) -> None:
        """Pass a request on."""
        for feed in self._feeds:
            feed.offer(REQUEST, report)

    def report(self) -> dict[str, dict[str, int]]:
        """By observer: what it missed. From any thread."""
        return {feed.name: {"dropped": feed.dropped} for feed in self._feeds}

    def close(self) -> None:
        """End them all. Safe to call twice."""
        feeds, self._feeds = self._feeds, []
        for feed in feeds:
            feed.close()
