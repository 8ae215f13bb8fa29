"""Runs a scheduler in a thread of this process: messages in through `send`, messages out through a callback."""

import logging
import queue
import threading
from collections.abc import Callable

from rtk.schedule.messages import Inbound, Outbound
from rtk.schedule.scheduler import Scheduler

log = logging.getLogger(__name__)

Deliver = Callable[[list[Outbound]], None]


class SchedulerThread:
    """Owns the thread in which a scheduler lives. Sleeps while the scheduler is idle; `stop` ends it."""

    def __init__(self, scheduler: Scheduler, deliver: Deliver) -> None:
        self._scheduler = scheduler
        self._deliver = deliver
        self._inbox: queue.SimpleQueue[Inbound | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="rtk-scheduler", daemon=True)
        self.failure: BaseException | None = None

    def start(self) -> None:
        """Begin. Called once."""
        self._thread.start()

    def send(self, message: Inbound) -> None:
        """Hand a message to the scheduler; from any thread. Never blocks."""
        self._inbox.put(message)

    def stop(self, timeout: float = 30.0) -> None:
        """End the thread after the step it is in. What still ran is aborted. Safe to call twice."""
        self._inbox.put(None)
        if self._thread.ident is not None:
            self._thread.join(timeout)

    @property
    def healthy(self) -> bool:
        """Whether the thread runs and nothing broke it."""
        return self._thread.is_alive() and self.failure is None

    def _run(self) -> None:
        try:
            while (messages := self._collect()) is not None:
                self._emit(self._scheduler.receive(messages))
                self._emit(self._scheduler.step())
        except BaseException as error:  # noqa: BLE001 - kept for health, logged with its traceback
            self.failure = error
            log.exception("the scheduler stopped on a bug; running requests are ended with an error")
        self._emit(self._scheduler.abandon("the scheduler stopped" if self.failure else "the engine shut down"))

    def _collect(self) -> list[Inbound] | None:
        """Everything that arrived; waits for a first message only when there is nothing to compute. None: stop."""
        messages: list[Inbound] = []
        block = not self._scheduler.busy
        while True:
            try:
                message = self._inbox.get(block=block)
            except queue.Empty:
                return messages
            if message is None:
                return None
            messages.append(message)
            block = False

    def _emit(self, messages: list[Outbound]) -> None:
        if messages:
            self._deliver(messages)
