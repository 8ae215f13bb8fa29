"""Gets out of policy code that does not return: a loop in Python, in the scheduler's thread.

The caller notes which call it is in, and clears the note afterwards. A watchdog that finds the same note too often
raises `Overran` in that thread. It must never do so once host code goes on; the rules for that are:

- Who interrupts holds the lock, sounds the alarm *first*, and only then looks whether the call is still noted.
- Who clears the note looks for the alarm *afterwards*. Either it was cleared before that look, and nothing is raised;
  or the alarm is found, and settled under the lock: what was not raised yet is taken back.
- A call is interrupted once at most, and from the note to the settling everything lies inside the guard's `try`.

Without an alarm the caller takes no lock, since a key of eviction costs less than taking one twice. The interpreter's
own lock is what orders the notes and the looks of the two threads.

What cannot be interrupted: code that catches everything, and code that is not Python's, like a loop inside a C library.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

from rtk.plugin.foreign import Overran, raise_in

EVERY_S = 1.0
"""How often the watchdog looks."""
PATIENCE = 5
"""How often the same call is found again before it is interrupted.

Looks are counted, not seconds: a process that was stopped for an hour has not looked meanwhile.
"""

Asked = ParamSpec("Asked")
Answer = TypeVar("Answer")


class Watchdog:
    """Watches the calls that one thread makes. Harmless until `watching`."""

    def __init__(self) -> None:
        self.call: object | None = None
        """The call that policy code is in; a new object for each."""
        self.alarm = False
        """Whether the watchdog is at it: who clears `call` must settle."""
        self._lock = threading.Lock()
        self._thread: int | None = None
        self._interrupted = False
        self._found: object | None = None
        self._times = 0

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Look after the calls of this thread until the block ends."""
        self._thread, done = threading.get_ident(), threading.Event()

        def look() -> None:
            while not done.wait(EVERY_S):
                self.tick()

        threading.Thread(target=look, name="rtk-watchdog", daemon=True).start()
        try:
            yield
        finally:
            done.set()

    def watched(self, ask: Callable[Asked, Answer], *args: Asked.args, **kwargs: Asked.kwargs) -> Answer:
        """What `ask` answers; raises what it raises, or `Overran` where it had to be interrupted. Costs under 1 µs.

        `ask` may have host code around the policy's, as long as that changes nothing.
        """
        try:
            try:
                self.call = object()
                answer = ask(*args, **kwargs)
            finally:
                self.call = None
                if self.alarm and self.settle():
                    raise Overran
        except BaseException:
            self.disarm()
            raise
        return answer

    def disarm(self) -> None:
        """Clear up after an exception, which may have come before the note was cleared."""
        self.call = None
        if self.alarm:
            self.settle()

    def settle(self) -> bool:
        """Whether the call was interrupted; takes the exception back where it was not raised yet."""
        with self._lock:
            if self._interrupted and self._thread is not None:
                raise_in(self._thread, None)
            self.alarm = False
            interrupted, self._interrupted = self._interrupted, False
        return interrupted

    def tick(self) -> None:
        """Look once."""
        call = self.call
        if call is not self._found:
            self._found, self._times = call, 0
        elif call is not None:
            self._times += 1
            if self._times == PATIENCE:
                self._interrupt(call)

    def _interrupt(self, call: object) -> None:
        with self._lock:
            self.alarm = True
            if self.call is call and self._thread is not None:
                self._interrupted = True
                raise_in(self._thread, Overran)
            else:
                self.alarm = False
