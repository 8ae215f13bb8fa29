"""The engine's end of a process that compiles grammars: frames out and in, with a limit on every wait."""

import contextlib
import os
import select
import signal
import subprocess
import sys
import time

import msgspec

from rtk.frames import HEADER
from rtk.grammar.process import STATUS, Answer

ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
"""Libraries that compute start no threads, which would be lost in a fork."""


class GoneError(Exception):
    """What was to answer has ended, or was killed: `str(error)` says how."""


class ForkServer:
    """The engine's end of a process that has a fork of itself serve. One thread's, but for `stop` and `kill`."""

    def __init__(self, hello: bytes, module: str = "rtk.grammar.process") -> None:
        """Starts it, at the `main` of a module. Raises `OSError` where the system has no more."""
        path = os.pathsep.join(filter(None, sys.path))  # it must find what this process found
        self._mark = os.urandom(16)
        self._process = subprocess.Popen(
            (
                *(sys.executable, "-P", "-c", f"from {module} import main; main()"),
                *(str(os.getpid()), self._mark.hex()),
            ),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | ONE_THREAD | {"PYTHONPATH": path},
            process_group=0,  # Ctrl-C is the engine's to take
        )
        assert self._process.stdin is not None and self._process.stdout is not None, "both are pipes"
        self._in, self._out = self._process.stdin.fileno(), self._process.stdout.fileno()
        self._unread = bytearray()
        self._unsent = HEADER.pack(len(hello)) + hello
        self.alive = True
        """Whether it can be asked again, once a fork has ended."""
        os.set_blocking(self._in, False)
        os.set_blocking(self._out, False)

    def settle(self) -> None:
        """Before a job: take note of a fork that has ended while it was idle. Raises `GoneError` where all has."""
        poll = select.poll()
        poll.register(self._out, select.POLLIN)
        while poll.poll(0):
            self._read()
            with contextlib.suppress(GoneError):
                while self._frame() is not None:
                    pass

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
                self.alive = False
                raise GoneError("no more") from error
        return frame

    def _read(self) -> None:
        data = os.read(self._out, 1 << 20)
        if not data:
            self.alive = False
            raise GoneError("no more")
        self._unread += data

    def _frame(self) -> bytes | None:
        """The next one, if all of it is there. Raises `GoneError` where a fork has ended before."""
        mark = self._unread.find(self._mark)
        there = len(self._unread) if mark < 0 else mark
        if there >= HEADER.size:
            (length,) = HEADER.unpack_from(self._unread)
            end = HEADER.size + length
            if end <= there:
                frame = bytes(self._unread[HEADER.size : end])
                del self._unread[:end]
                return frame
        end = mark + len(self._mark) + STATUS.size
        if mark >= 0 and end <= len(self._unread):
            (status,) = STATUS.unpack_from(self._unread, mark + len(self._mark))
            del self._unread[:end]  # with the part of a frame that it may have left
            raise GoneError(how(status))
        return None

    def stop(self) -> None:
        """End the fork that serves, whatever it does; from any thread."""
        self._process.send_signal(signal.SIGUSR1)

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
                pipe.close()
        return how(code)


def how(status: int) -> str:
    """What ended a process."""
    return f"exit status {status}" if status >= 0 else signal.Signals(-status).name
