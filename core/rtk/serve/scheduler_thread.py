"""Runs a scheduler in a thread of this process: messages in through `send`, messages out through a callback."""

import logging
import math
import queue
import threading
import time
from collections.abc import Callable
from typing import Literal, Protocol

from msgspec.structs import replace

from rtk.schedule.messages import Inbound, NewRequest, Outbound, Question, Refused, Verdict
from rtk.schedule.scheduler import Scheduler
from rtk.serve.protocol import Vitals

log = logging.getLogger(__name__)

Deliver = Callable[[list[Outbound]], None]
_Received = Inbound | Literal["wake"] | None


class AfterStep(Protocol):
    """Called after each step."""

    def __call__(self, nodes: int, *, idle: bool) -> None:
        """`nodes`: made by the prefix tree since the start; `idle`: whether nobody runs or waits now."""


SHORTEST_PAUSE_S, LONGEST_PAUSE_S = 0.001, 0.05
"""Between two steps while a schedule policy keeps everybody waiting: doubled from the one to the other."""


class SchedulerThread:
    """Owns the thread in which a scheduler lives. Sleeps while there is nothing to compute; `stop` ends it."""

    def __init__(self, scheduler: Scheduler, deliver: Deliver, after_step: AfterStep | None = None) -> None:
        self._after_step = after_step
        self._scheduler = scheduler
        self._clock = scheduler.clock
        self._deliver = deliver
        self._inbox: queue.SimpleQueue[_Received] = queue.SimpleQueue()
        self._health = scheduler.health
        self._turn_began: float | None = None
        self._pause = 0.0
        self._thread = threading.Thread(target=self._run, name="rtk-scheduler", daemon=True)
        self.healthy = True
        """Whether messages are still worked on. Once false, a message sent later may stay without an answer."""
        self.failure: BaseException | None = None
        """The bug that ended the thread, if one did."""

    @property
    def vitals(self) -> Vitals:
        """How the scheduler is; from any thread."""
        began = self._turn_began
        return Vitals(0.0 if began is None else time.monotonic() - began, self._health.report())

    def start(self) -> None:
        """Begin. Called once."""
        self._thread.start()

    def send(self, message: Inbound) -> None:
        """Hand a message to the scheduler; from any thread. Never blocks.

        A request arrives here, not when the step under way has ended and it is taken in.
        """
        if isinstance(message, NewRequest):
            message = replace(message, arrival_s=self._clock())
        self._inbox.put(message)

    def wake(self) -> None:
        """Have the scheduler look at what has happened outside; from any thread. Never blocks."""
        self._inbox.put("wake")

    def stop(self, timeout: float = 30.0) -> None:
        """End the thread after the step it is in. What still ran ends with an error. Safe to call twice."""
        self._inbox.put(None)
        if self._thread.ident is not None:
            self._thread.join(timeout)

    def wait(self) -> None:
        """Until the thread has ended."""
        self._thread.join()

    def _run(self) -> None:
        with self._health.watchdog.watching():
            self._serve()
        del self._scheduler  # and with it the model and the pool: a closed engine that somebody keeps holds no memory

    def _serve(self) -> None:
        why = "the engine shut down"
        try:
            while self._turn():
                pass
        except BaseException as error:
            log.exception("the scheduler stopped on a bug; running requests are ended with an error")
            self.failure, why = error, "the scheduler stopped"
        self.healthy, self._turn_began = False, None
        self._emit(self._scheduler.abandon(why))
        self._emit([answer for message in self._waiting() if (answer := _refusal(message, why)) is not None])

    def _turn(self) -> bool:
        """Take in what arrived and make one step; waits only when there is nothing to compute. False: stop."""
        self._turn_began = None
        messages = [*self._awaited(), *self._waiting()]
        self._turn_began = time.monotonic()
        self._emit(self._scheduler.receive(m for m in messages if m is not None and m != "wake"))
        if None in messages:
            return False
        self._emit(self._scheduler.step())
        longer = max(min(2 * self._pause, LONGEST_PAUSE_S, self._scheduler.rest_s), SHORTEST_PAUSE_S)
        self._pause = longer if self._scheduler.stalled else 0.0
        if self._after_step is not None:
            self._after_step(self._scheduler.created_nodes, idle=not self._scheduler.busy)
        return True

    def _awaited(self) -> list[_Received]:
        """The next message, if there is nothing to do before it: while a policy holds everybody, not for long."""
        if self._scheduler.busy and not self._pause:
            return []
        try:
            return [self._inbox.get(timeout=self._pause or self._patience())]
        except queue.Empty:
            return []

    def _patience(self) -> float | None:
        """With nothing to compute: how long until the time of somebody is over who waits for a grammar; None: never."""
        rest_s = self._scheduler.rest_s if self._scheduler.accepted else math.inf
        return None if rest_s == math.inf else max(0.0, rest_s)

    def _waiting(self) -> list[_Received]:
        """Everything that has arrived, without waiting."""
        messages: list[_Received] = []
        try:
            while True:
                messages.append(self._inbox.get_nowait())
        except queue.Empty:
            return messages

    def _emit(self, messages: list[Outbound]) -> None:
        if messages:
            self._deliver(messages)


def _refusal(message: _Received, why: str) -> Outbound | None:
    """What a message gets that arrived too late to be worked on."""
    match message:
        case NewRequest(rid=rid):
            return Verdict(rid=rid, accepted=False, code="engine_stopped", problem=why, status=503)
        case Question(id=id):
            return Refused(id=id, problem=why, code="engine_stopped", status=503)
    return None
