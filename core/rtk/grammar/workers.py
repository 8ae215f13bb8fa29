"""Compiles grammars in processes that can be killed: a few threads here, each with a process for every backend.

A job gets `QUICK_S` at first. If it has not ended then, and others have not had theirs, it makes room: its process is
killed, and it starts again, with all its time, when nobody waits for a first try. Of several places one is for first
tries alone. So one that comes behind many slow ones waits for their first tries, and not for all that they may take.
"""

import logging
import pickle
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import msgspec

from rtk.grammar.child import ForkServer, GoneError
from rtk.grammar.process import Answer, Job, Setup
from rtk.observe.logs import loggable
from rtk.plugin.grammar import Matcher, unpacked

log = logging.getLogger(__name__)

QUICK_S = 0.5
"""What a job may take before it has to make room."""
START_S = 120.0
"""How long a process may take to start and to build a backend; some import much."""
END_S = 10.0
"""How long to wait for threads that have been told to end."""

Problem = Literal["invalid", "timeout", "too_large", "failed", "unbuildable"]
"""Why there is no matcher: the backend says that it cannot; the limits; a crash or a bug; no backend to ask."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """What became of a job."""

    matcher: Matcher
    size: int
    """Bytes, packed or in memory, whatever is more."""
    seconds: float


@dataclass(frozen=True, slots=True)
class Failed:
    """What became of a job that did not become a matcher."""

    why: Problem
    problem: str
    """One line."""
    seconds: float


Outcome = Compiled | Failed


class Order:
    """A job on its way. Only the pool looks inside."""

    __slots__ = ("cancelled", "job", "process", "tried")

    def __init__(self, job: Job) -> None:
        self.job = job
        self.tried = False
        """Whether its first try is over."""
        self.cancelled = False
        self.process: ForkServer | None = None
        """The one that is busy with it."""


Done = Callable[[Order, Outcome], None]


class Workers:
    """The pool. Nothing is started before the first job."""

    def __init__(
        self, setups: Mapping[str, Setup], done: Done, *, processes: int, limit_s: float, quick_s: float = QUICK_S
    ) -> None:
        """`setups`: by backend. `done` is told what became of each job, in a thread of the pool's."""
        self.setups = setups
        self.done = done
        self.limit_s, self.quick_s = limit_s, quick_s
        self._most = processes
        self._change = threading.Condition()
        self._fresh: deque[Order] = deque()
        self._slow: deque[Order] = deque()
        self._running: list[Order] = []
        self._idle = 0
        self._threads: list[threading.Thread] = []
        self._hellos: dict[str, bytes] = {}
        self._closed = False

    # --- from outside: any thread, and never for long -----------------------------------------------------------

    def submit(self, job: Job) -> Order:
        """Have a job done. `done` is told of it, unless it is cancelled before."""
        order = Order(job)
        with self._change:
            self._fresh.append(order)
            if self._idle < len(self._fresh) and len(self._threads) < self._most:
                run = _Worker(self).run
                self._threads.append(threading.Thread(target=run, name="rtk-grammar", daemon=True))
                self._threads[-1].start()
            self._change.notify()
        return order

    def cancel(self, order: Order) -> None:
        """Nobody wants it any more: what computes it is killed."""
        with self._change:
            order.cancelled = True
            if order.process is not None:
                order.process.stop()
            for line in (self._fresh, self._slow):
                if order in line:
                    line.remove(order)

    def close(self) -> None:
        """End everything. Safe to call twice."""
        with self._change:
            self._closed = True
            self._fresh.clear()
            self._slow.clear()
            for order in self._running:
                order.cancelled = True
                if order.process is not None:
                    order.process.kill()
            self._change.notify_all()
        for thread in self._threads:
            thread.join(END_S)

    # --- from its threads ---------------------------------------------------------------------------------------

    def next(self) -> Order | None:
        """The next job, once there is one; None: there are no more."""
        with self._change:
            while not self._closed:
                line = self._fresh or (self._slow if self._may_be_slow() else None)
                if line:
                    self._running.append(order := line.popleft())
                    return order
                self._idle += 1
                self._change.wait()
                self._idle -= 1
        return None

    def _may_be_slow(self) -> bool:
        return sum(order.tried for order in self._running) < max(1, self._most - 1)

    def take(self, order: Order, process: ForkServer) -> None:
        """The process is to be killed where the job is cancelled. Raises `GoneError` where it is already."""
        with self._change:
            if order.cancelled:
                raise GoneError("nobody")
            order.process = process

    def finished(self, order: Order, *, makes_room: bool) -> bool:
        """The process is done with it; answers whether anybody wants to know."""
        with self._change:
            self._running.remove(order)
            order.process = None
            if makes_room and not order.cancelled:
                order.tried = True
                self._slow.append(order)
            self._change.notify_all()
            return not order.cancelled

    def may_go_on(self, order: Order) -> bool:
        """Whether a job whose first try is over can have the rest of its time at once."""
        with self._change:
            order.tried = not self._fresh and self._may_be_slow()
            return order.tried

    def hello(self, backend: str) -> bytes:
        """What a process for this backend is told first; made once."""
        with self._change:
            if backend not in self._hellos:
                self._hellos[backend] = pickle.dumps(self.setups[backend])
            return self._hellos[backend]


class _Worker:
    """One of the pool's threads, and its processes: one for each backend that it was asked for."""

    def __init__(self, pool: Workers) -> None:
        self._pool = pool
        self._processes: dict[str, ForkServer] = {}

    def run(self) -> None:
        """Until the pool is closed. The processes must end in the thread that has started them."""
        try:
            while (order := self._pool.next()) is not None:
                self._serve(order)
        finally:
            for backend in [*self._processes]:
                self._end(backend)

    def _serve(self, order: Order) -> None:
        outcome: Outcome | None
        try:
            outcome = self._outcome(order)
        except Exception as error:
            log.error("a grammar could not be compiled, because of a bug", exc_info=loggable(error))
            self._end(order.job.backend)
            outcome = Failed("failed", f"the server failed at it: {type(error).__name__}", 0.0)
        if self._pool.finished(order, makes_room=outcome is None) and outcome is not None:
            self._pool.done(order, outcome)

    def _outcome(self, order: Order) -> Outcome | None:
        """What becomes of a job; None: it makes room."""
        backend = order.job.backend
        try:
            process, first = self._begin(order)
        except GoneError:
            return Failed("unbuildable", f"its process ended with {self._end(backend)} before it was built", 0.0)
        except TimeoutError:
            self._end(backend)
            return Failed("unbuildable", f"it was not built within {START_S:g} s", 0.0)
        except OSError as error:
            return Failed("unbuildable", f"no process can be started: {type(error).__name__}", 0.0)
        if first.outcome == "unbuildable":
            return self._read(first, order, 0.0)
        if order.cancelled:  # while the backend was built, when nothing could be stopped
            self._stop(backend)
            return None
        began = time.monotonic()
        try:
            answer = self._awaited(order, process)
        except GoneError as error:
            ended = str(error) if process.alive else self._end(backend)
            return Failed("failed", f"its process ended with {ended}", time.monotonic() - began)
        except TimeoutError:
            self._stop(backend)
            return Failed("timeout", f"it takes more than {self._pool.limit_s:g} s to compile", self._pool.limit_s)
        if answer is None:
            self._stop(backend)
            return None
        return self._read(answer, order, time.monotonic() - began)

    def _begin(self, order: Order) -> tuple[ForkServer, Answer]:
        """The process, and its first answer. One that ends meanwhile is replaced."""
        backend, job = order.job.backend, msgspec.msgpack.encode(order.job)
        if backend in self._processes:
            try:
                self._processes[backend].settle()
                return self._processes[backend], self._asked(order, self._processes[backend], job)
            except GoneError:  # whether it has taken the job in is not known
                self._end(backend)
        process = self._processes[backend] = ForkServer(self._pool.hello(backend))
        return process, self._asked(order, process, job)

    def _asked(self, order: Order, process: ForkServer, job: bytes) -> Answer:
        self._pool.take(order, process)
        process.send(job)
        return process.answer(START_S)

    def _awaited(self, order: Order, process: ForkServer) -> Answer | None:
        """The second; None where it is to make room."""
        quick, limit = self._pool.quick_s, self._pool.limit_s
        if order.tried or quick >= limit:
            return process.answer(limit)
        try:
            return process.answer(quick)
        except TimeoutError:
            return process.answer(limit - quick) if self._pool.may_go_on(order) else None

    def _read(self, answer: Answer, order: Order, seconds: float) -> Outcome:
        match answer.outcome:
            case "compiled":
                try:
                    matcher = unpacked(answer.packed, self._pool.setups[order.job.backend].vocabulary)
                    size = max(len(answer.packed), matcher.size)
                except Exception as error:  # noqa: BLE001 - of a plugin
                    return Failed("failed", f"what it compiled cannot be unpacked: {type(error).__name__}", seconds)
                return Compiled(matcher, size, seconds)
            case "begun":
                raise AssertionError("a job began twice")
            case why:
                return Failed(why, answer.problem, seconds)

    def _stop(self, backend: str) -> None:
        """End what serves, and wait until it is gone."""
        process = self._processes[backend]
        process.stop()
        try:
            while True:  # its answer may have been under way
                process.answer(END_S)
        except (GoneError, TimeoutError) as error:
            if isinstance(error, TimeoutError) or not process.alive:
                self._end(backend)

    def _end(self, backend: str) -> str:
        """Give a process up; answers how it ended."""
        process = self._processes.pop(backend, None)
        return "nothing" if process is None else process.close()
