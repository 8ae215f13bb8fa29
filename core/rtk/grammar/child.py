"""The engine's end of a process that compiles grammars: frames out and in, with a limit on every wait."""

import contextlib
import os
import select
import signal
import subprocess
import sys
import time

import msgspec

from rtk.grammar.process import Answer
from rtk.observe.wire import HEADER


class GoneError(Exception):
    """A process has ended, or was killed."""


class Process:
    """The engine's end of one process. Belongs to one thread, but for `kill`."""

    def __init__(self, hello: bytes, module: str = "rtk.grammar.process") -> None:
        """Starts it, at the `main` of a module. Raises `OSError` where the system has no more."""
        path = os.pathsep.join(filter(None, sys.path))  # it must find what this process found
        self._process = subprocess.Popen(
            (sys.executable, "-P", "-c", f"from {module} import main; main()", str(os.getpid())),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": path},
            process_group=0,  # Ctrl-C is the engine's to take
        )
        assert self._process.stdin is not None and self._process.stdout is not None, "both are pipes"
        self._in, self._out = self._process.stdin.fileno(), self._process.stdout.fileno()
        self._unread = bytearray()
        self._unsent = HEADER.pack(len(hello)) + hello
        os.set_blocking(self._in, False)
        os.set_blocking(self._out, False)

    def send(self, frame: bytes) -> None:
        """Hand a job in; it is written as the process takes it."""
        self._unsent += HEADER.pack(len(frame)) + frame

    def answer(self, limit_s: float) -> Answer:
        """What it says next of its jobs; see `reply`."""
        return msgspec.msgpack.decode(self.reply(limit_s), type=Answer)

    def reply(self, limit_s: float) -> bytes:
        """Its next frame. Raises `TimeoutError`, after which it can be asked again, or `GoneError`."""
        end = time.monotonic() + limit_s
        while (frame := self._frame()) is None:
            poll = select.poll()
            poll.register(self._out, select.POLLIN)
            if self._unsent:
                poll.register(self._in, select.POLLOUT)
            ready = dict(poll.poll(max(0.0, end - time.monotonic()) * 1000))
            if not ready:
                raise TimeoutError
            try:
                if self._out in ready:
                    self._read()
                if self._in in ready:
                    self._unsent = self._unsent[os.write(self._in, self._unsent) :]
            except OSError as error:
                raise GoneError from error
        return frame

    def _read(self) -> None:
        data = os.read(self._out, 1 << 20)
        if not data:
            raise GoneError
        self._unread += data

    def _frame(self) -> bytes | None:
        if len(self._unread) < HEADER.size:
            return None
        (length,) = HEADER.unpack_from(self._unread)
        end = HEADER.size + length
        if len(self._unread) < end:
            return None
        frame = bytes(self._unread[HEADER.size : end])
        del self._unread[:end]
        return frame

    @property
    def ended(self) -> bool:
        """Whether it is gone."""
        return self._process.poll() is not None

    def kill(self) -> None:
        """End it, whatever it does; from any thread."""
        with contextlib.suppress(ProcessLookupError):
            if self._process.returncode is None:
                os.killpg(self._process.pid, signal.SIGKILL)

    def close(self) -> str:
        """End it for good; answers how it ended."""
        self.kill()
        code = self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                os.set_blocking(pipe.fileno(), True)
                pipe.close()
        return f"exit status {code}" if code >= 0 else signal.Signals(-code).name
