"""The server's side of its processes: who lives, who is unwell, and what becomes of the rest when one dies."""

import dataclasses
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Literal

from rtk.config.models import Config
from rtk.errors import RequestError, RtkError
from rtk.grammar.judges import Judges
from rtk.plugin.host import installed
from rtk.schedule.messages import Inbound
from rtk.serve.detokenizer import Texts
from rtk.serve.handling import stopped
from rtk.serve.processes.control import EngineFacts
from rtk.serve.processes.generation import Generation, Process
from rtk.serve.processes.wire import Meeting
from rtk.serve.protocol import Vitals
from rtk.serve.runtime import Fetching, find_or_fetch, quietly, start_judges
from rtk.serve.thinking import thinking
from rtk.serve.tokenizer import Tokenizer
from rtk.serve.tokenizer_manager import TokenizerManager

log = logging.getLogger(__name__)

PING_S = 0.25
"""How often processes are asked whether they live."""
START_S = 60.0
"""How long one that starts may be silent at least: while libraries are imported, no other code may run."""
RESTARTS, WITHIN_S = 3, 600.0
"""An engine that has been started again so often in so many seconds, and dies once more, is given up."""

State = Literal["serving", "restarting", "lost", "closed"]


class Supervisor:
    """A running engine in processes of its own. `manager` is the way in; `close` ends it.

    A thread asks the processes whether they live, and kills who is silent for too long, while they start too. Another
    hears who has ended. That ends what runs with an error, and then either the engine is started again
    (`serve.restart`), or it is lost: `lost` says why.
    """

    def __init__(self, config: Config, fetching: Fetching = quietly) -> None:
        """Starts it, and finds the model or fetches it. Raises `RtkError`."""
        self.config = config
        self._state: State = "serving"
        self._events: queue.SimpleQueue[Process | None] = queue.SimpleQueue()
        self._changing = threading.Lock()
        self._starts: deque[float] = deque(maxlen=RESTARTS)
        self._number = 0
        self.lost = ""
        """Why it serves no more; empty: it does, or was closed."""
        self._on_lost: Callable[[], None] = lambda: None
        self._closing = threading.Event()
        self._pinger = threading.Thread(target=self._keep_asking, name="rtk-pinger", daemon=True)
        self._meeting = Meeting()
        try:
            self._generation = self._spawned()
        except BaseException:
            self._meeting.close()
            raise
        self._pinger.start()
        try:
            self._generation.prepare()
            self._folder = find_or_fetch(config, fetching)
            self._generation.begin(self._folder)
            tokenizer = Tokenizer.load(self._folder)
            self._forms, self.manager = self._client_side(tokenizer, self._generation.ready())
        except BaseException:
            self._end_pinger()
            self._generation.kill()
            self._meeting.close()
            raise
        self._thread = threading.Thread(target=self._watch, name="rtk-supervisor", daemon=True)
        self._thread.start()

    def _spawned(self) -> Generation:
        self._number += 1
        return Generation(self.config, self._meeting.place, self._number, self._deliver, self._events.put)

    def _client_side(self, tokenizer: Tokenizer, engine: EngineFacts) -> tuple[Judges | None, TokenizerManager]:
        section, names = self.config.grammar, engine.grammar_backends
        backends = None
        if names is not None:
            entries = {name: installed().get("grammar", name) for name in names}
            backends = {name: entry.build_in_time(section.options(name)) for name, entry in entries.items()}
        forms = start_judges(self.config, backends)
        manager = TokenizerManager(
            tokenizer,
            self._send,
            engine.model,
            healthy=lambda: self._state == "serving",
            ailment=self._ailment,
            forms=forms,
            thinking=thinking(tokenizer, self.config.model.thinking_end),
            vitals=lambda: self.vitals,
        )
        return forms, manager

    def _send(self, message: Inbound) -> None:
        if self._state == "serving":
            self._generation.send(message)

    def _deliver(self, messages: Sequence[Texts]) -> None:
        self.manager.deliver(messages)

    def _ailment(self) -> RequestError:
        if self._state != "restarting":
            return stopped()
        problem = "the engine has stopped and is being started again; try again later"
        return RequestError(problem, code="engine_restarting", status=503)

    @property
    def vitals(self) -> Vitals:
        """How the engine is, as it last told, and whether its processes still answer; from any thread."""
        scheduler = self._generation.scheduler
        unwell = max(self._generation.both, key=lambda process: process.silent_s)
        problem = ""
        if unwell.silent_s > self.config.serve.unwell_after_s:
            problem = (
                f"the {unwell.name} process has answered nothing for {unwell.silent_s:.0f} s: it is stopped, or caught "
                f"in code that lets no other run; after {self.config.serve.dead_after_s:g} s it counts as dead"
            )
        processes = {one.name: one.vitals.process for one in self._generation.both if one.vitals.process is not None}
        return dataclasses.replace(scheduler.vitals, turn_s=scheduler.turn_s, unwell=problem, processes=processes)

    def when_lost(self, tell: Callable[[], None]) -> None:
        """Have `tell` called, from any thread, once the engine is lost: at once if it is."""
        with self._changing:
            self._on_lost = tell
        if self.lost:
            tell()

    def close(self) -> None:
        """Stop the engine; requests that still run end with an error. Safe to call twice."""
        with self._changing:
            before, self._state = self._state, "closed"
        if before == "closed":
            return
        self._end_pinger()
        if before == "serving":
            self._generation.stop()
            self.manager.lose(stopped())  # who was not told
        else:
            self._generation.kill()
        self._events.put(None)  # not before: the kernel ends processes with the thread that started them
        self._thread.join()
        if self._forms is not None:
            self._forms.close()
        self._meeting.close()

    # --- the thread that asks -----------------------------------------------------------------------------------

    def _end_pinger(self) -> None:
        self._closing.set()
        self._pinger.join()

    def _keep_asking(self) -> None:
        before = time.monotonic()
        while not self._closing.wait(PING_S):
            now = time.monotonic()
            self._ping(min(now - before, 2 * PING_S))  # if this process was stopped itself, nobody is to blame
            before = now

    def _ping(self, since_s: float) -> None:
        limits = self.config.serve
        for process in self._generation.both:
            if process.end:
                continue
            was, dead_after_s = process.silent_s, limits.dead_after_s
            process.ping(since_s)
            if not process.serves:
                dead_after_s = max(START_S, dead_after_s)
            elif was <= limits.unwell_after_s < process.silent_s:
                log.warning("the %s process has answered nothing for %.1f s", process.name, process.silent_s)
            if was <= dead_after_s < process.silent_s:
                log.error(
                    "the %s process has answered nothing for %.1f s; it is killed", process.name, process.silent_s
                )
                process.kill()

    # --- the thread that hears of deaths ------------------------------------------------------------------------

    def _watch(self) -> None:
        while (process := self._events.get()) is not None:
            if process in self._generation.both and self._state == "serving":
                self._bereaved(process)

    def _bereaved(self, process: Process) -> None:
        why = f"the {process.name} process has ended ({process.end})"
        again = self.config.serve.restart and self._may_start()
        if not self._enter("restarting" if again else "lost"):
            return
        log.error(
            "%s; requests that ran end with an error%s", why, ", and the engine is started again" if again else ""
        )
        self.manager.lose(self._ailment())
        self._generation.kill()
        if again:
            try:
                self._start_again()
            except (RtkError, OSError) as error:
                if not self._enter("lost"):
                    return
                why = f"{why}, and the engine cannot be started again: {error}"
            else:
                if self._enter("serving"):
                    log.info("the engine was started again")
                return
        self.lost = why
        with self._changing:
            tell = self._on_lost
        tell()

    def _enter(self, state: State) -> bool:
        """Change the state, but not once it is closed."""
        with self._changing:
            if self._state == "closed":
                return False
            self._state = state
            return True

    def _may_start(self) -> bool:
        now = time.monotonic()
        if len(self._starts) == RESTARTS and now - self._starts[0] < WITHIN_S:
            return False
        self._starts.append(now)
        return True

    def _start_again(self) -> None:
        generation = self._spawned()
        with self._changing:
            self._generation, closed = generation, self._state == "closed"
        try:
            if closed:
                raise RtkError("the engine shut down")
            generation.prepare()
            generation.begin(self._folder)
            generation.ready()
        except BaseException:
            generation.kill()
            raise
