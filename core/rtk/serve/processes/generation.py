"""The main process's end of a scheduler and a detokenizer that were started together, and end together."""

import contextlib
import os
import pickle
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import zmq

from rtk.config.models import Config
from rtk.errors import RtkError
from rtk.frames import HEADER, receive
from rtk.grammar.child import ONE_THREAD, how
from rtk.observe import logs
from rtk.schedule.messages import Inbound
from rtk.serve.detokenizer import Texts
from rtk.serve.processes.child import Setup
from rtk.serve.processes.control import (
    Begin,
    Bound,
    EngineFacts,
    Failed,
    FromChild,
    Ping,
    Pong,
    Prepared,
    Ready,
    Stop,
    ToChild,
    decode_from_child,
    encode,
)
from rtk.serve.processes.wire import TO_MAIN, TO_SCHEDULER, End, Place, bind, connect
from rtk.serve.protocol import Vitals

SCHEDULER, DETOKENIZER = "scheduler", "detokenizer"

STOP_S = 10.0
"""How long a scheduler may take to end what runs, and itself: the step that it is in comes first."""
END_S = 2.0
"""How long a process may take to end after its last message."""
LAST_WORDS_S = 0.5
"""How long what a process said before its end is waited for."""

Said = TypeVar("Said", bound=FromChild)


class Process:
    """One child process. `ended` is called once, from a thread of its own, when it has ended."""

    def __init__(self, name: str, setup: Setup, ended: Callable[["Process"], None], **environment: str) -> None:
        """Starts it. Raises `OSError` where the system has no more."""
        self.name = name
        path = os.pathsep.join(filter(None, sys.path))  # it must find what this process found
        module = f"rtk.serve.processes.{name}"
        self._process = subprocess.Popen(
            (sys.executable, "-P", "-c", f"from {module} import main; main()"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | environment | {"PYTHONPATH": path},
            process_group=0,  # Ctrl-C is the main process's to take
        )
        self._ended = ended
        self._writing = threading.Lock()
        self._said: queue.SimpleQueue[FromChild | None] = queue.SimpleQueue()
        self.vitals = Vitals()
        """The last that it told."""
        self._told_s = time.monotonic()
        self.serves = False
        """Whether its start is over."""
        self.unanswered = False
        """Whether it still owes the answer to a ping."""
        self.silent_s = 0.0
        """For how long, by the clock of who pings."""
        self._write(pickle.dumps(setup))
        self._reader = threading.Thread(target=self._read, name=f"rtk-{name}-reader", daemon=True)
        self._waiter = threading.Thread(target=self._wait, name=f"rtk-{name}-waiter", daemon=True)
        self._reader.start()
        self._waiter.start()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def end(self) -> str:
        """How it ended; empty: not yet."""
        status = self._process.returncode
        return "" if status is None else how(status)

    @property
    def turn_s(self) -> float:
        """For how long its thread has been in the turn that it is in."""
        return self.vitals.turn_s and self.vitals.turn_s + time.monotonic() - self._told_s

    def tell(self, order: ToChild) -> None:
        """Tell it something; from any thread. One that has ended does not hear it."""
        self._write(encode(order))

    def ping(self, since_s: float) -> None:
        """Ask whether it lives, `since_s` after the last time; one that has not answered yet is not asked again."""
        if self.unanswered:
            self.silent_s += since_s
            return
        self.unanswered, self.silent_s = True, 0.0
        self.tell(Ping())

    def expect(self, kind: type[Said]) -> Said:
        """What it says next, of the kind that comes next. Raises `RtkError`: its own, or because it has ended."""
        said = self._said.get()
        if isinstance(said, kind):
            return said
        if isinstance(said, Failed):
            raise pickle.loads(said.error)  # from the process that this one started
        raise RtkError(f"the {self.name} process could not start: it has ended ({self.end}); its log may tell why")

    def kill(self) -> None:
        """End it, whatever it does; from any thread."""
        self._process.kill()

    def join(self, limit_s: float) -> None:
        """Wait until it has ended, and kill it where that takes too long."""
        try:
            self._process.wait(limit_s)
        except subprocess.TimeoutExpired:
            self.kill()
            self._process.wait()
        with contextlib.suppress(OSError):
            assert self._process.stdin is not None, "it is a pipe"
            self._process.stdin.close()

    def _write(self, frame: bytes) -> None:
        pipe = self._process.stdin
        assert pipe is not None, "it is a pipe"
        with self._writing, contextlib.suppress(OSError, ValueError):  # it has ended, which others tell
            pipe.write(HEADER.pack(len(frame)) + frame)
            pipe.flush()

    def _read(self) -> None:
        pipe = self._process.stdout
        assert pipe is not None, "it is a pipe"
        with pipe:
            while (frame := receive(pipe)) is not None:
                message = decode_from_child(frame)
                if isinstance(message, Pong):
                    self.vitals, self._told_s = message.vitals, time.monotonic()
                    self.unanswered, self.silent_s = False, 0.0
                else:
                    self.serves = isinstance(message, Ready)
                    self._said.put(message)

    def _wait(self) -> None:
        self._process.wait()
        self._reader.join(LAST_WORDS_S)  # a process that it left behind may have the pipe
        self._said.put(None)
        self._ended(self)


class Generation:
    """A scheduler, a detokenizer, and the sockets of this process in their round."""

    def __init__(
        self,
        config: Config,
        place: Place,
        number: int,
        deliver: Callable[[Sequence[Texts]], None],
        ended: Callable[[Process], None],
    ) -> None:
        """Starts both. `deliver` gets what they say, and `ended` is told when one has ended, from other threads."""
        self._place = place
        self._deliver = deliver
        self._sending = threading.Lock()
        self._ending = threading.Lock()
        self._out: zmq.Socket[bytes] | None = None
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._source, self._address = bind(self._context, place, f"main{number}")
        values = config.model_dump(by_alias=True, round_trip=True)
        del values["serve"]  # it is for the main process, and has the keys of the server in it

        def setup(name: str, values: dict[str, object]) -> Setup:
            return Setup(values, place, f"{name}{number}", logs.setup_of(name))

        self._inbox = threading.Thread(target=self._receive, name="rtk-inbox", daemon=True)
        self.scheduler = Process(SCHEDULER, setup(SCHEDULER, values), ended)
        try:
            self.detokenizer = Process(DETOKENIZER, setup(DETOKENIZER, {}), ended, **ONE_THREAD, RAYON_NUM_THREADS="1")
        except BaseException:
            self.scheduler.kill()
            raise
        self._inbox.start()

    @property
    def both(self) -> tuple[Process, Process]:
        """The processes."""
        return self.scheduler, self.detokenizer

    def prepare(self) -> None:
        """Wait until the plugins are built. Raises `RtkError` where they cannot be."""
        self._addresses = [process.expect(Bound).address for process in self.both]
        for process in self.both:
            process.expect(Prepared)

    def begin(self, folder: Path) -> None:
        """Have the model in `folder` loaded."""
        to_scheduler, to_detokenizer = self._addresses
        self._out = connect(self._context, self._place, to_scheduler)
        self.scheduler.tell(Begin(folder=str(folder), send_to=to_detokenizer))
        self.detokenizer.tell(Begin(folder=str(folder), send_to=self._address))

    def ready(self) -> EngineFacts:
        """Wait until it serves. Raises `RtkError` where it cannot."""
        self.detokenizer.expect(Ready)
        engine = self.scheduler.expect(Ready).engine
        assert engine is not None, "the scheduler tells of it"
        return engine

    def send(self, message: Inbound) -> None:
        """Hand a message to the scheduler; from any thread. Never waits."""
        frame = TO_SCHEDULER.encode([message])
        with self._sending:
            if self._out is not None:
                self._out.send(frame)

    def stop(self) -> None:
        """End what runs with an error, and then the processes; what they said last is delivered."""
        self.scheduler.tell(Stop())
        self._inbox.join(STOP_S)
        self._end(END_S)

    def kill(self) -> None:
        """End the processes, whatever they do. What they said and was not read yet is not delivered."""
        for process in self.both:
            process.kill()
        self._end(END_S)

    def _end(self, limit_s: float) -> None:
        with self._ending:  # a shutdown and a death may come together
            for process in self.both:
                process.join(limit_s)
            if self._inbox.is_alive():
                waker = connect(self._context, self._place, self._address)
                waker.send(TO_MAIN.encode([End()]))
                self._inbox.join()
                waker.close(0)
            with self._sending:
                if self._out is not None:
                    self._out.close(0)
                    self._out = None
            self._source.close(0)
            self._context.term()

    def _receive(self) -> None:
        """Deliver what comes, until the last message."""
        ended = False
        while not ended:
            messages = TO_MAIN.decode(self._source.recv())
            ended = isinstance(messages[-1], End)
            if texts := [message for message in messages if not isinstance(message, End)]:
                self._deliver(texts)
