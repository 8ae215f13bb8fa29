"""A child process's end: it tells the main process how it is, and ends when that does."""

import contextlib
import os
import pickle
import queue
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

from rtk.errors import RtkError
from rtk.frames import receive, send
from rtk.grammar.process import GONE, Unbuffered, told_of_death
from rtk.observe.logs import LogSetup, use
from rtk.observe.vitals import gc_watch, process_report
from rtk.serve.processes.control import (
    Begin,
    Failed,
    FromChild,
    Ping,
    Pong,
    Stop,
    decode_to_child,
    encode,
)
from rtk.serve.processes.wire import Place, remove
from rtk.serve.protocol import Vitals


class Setup(NamedTuple):
    """What a child is told once."""

    config: dict[str, Any]
    """See `rtk.config.load.config_from`."""
    place: Place
    socket: str
    """The name of the child's own."""
    log: LogSetup
    """Its log is written like that of the main process."""


class Child:
    """Owns the pipes to the main process. Pings are answered by a thread, whatever else is done."""

    def __init__(self) -> None:
        """What the process prints goes from now on where the server's log goes, and what it reads is empty."""
        self._out, self._source = os.fdopen(os.dup(1), "wb"), Unbuffered(os.dup(0))
        os.dup2(2, 1)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)
        self._saying = threading.Lock()
        self._orders: queue.SimpleQueue[Begin | Stop | None] = queue.SimpleQueue()
        self.vitals: Callable[[], Vitals] = lambda: Vitals(process=process_report())
        """Asked at each ping, from another thread."""
        hello = receive(self._source)
        if hello is None:
            os._exit(GONE)
        self.setup: Setup = pickle.loads(hello)  # from the process that started this one
        self._orphaned = False
        self._listener = threading.Thread(target=self._listen, name="rtk-control", daemon=True)
        self._listener.start()

    def say(self, message: FromChild) -> None:
        """Tell the main process something; from any thread."""
        with self._saying, contextlib.suppress(BrokenPipeError):  # who does not listen has ended: `_listen` hears of it
            send(self._out, encode(message))

    def begin(self) -> Begin:
        """Wait for the model."""
        order = self._orders.get()
        assert isinstance(order, Begin), "it comes first"
        return order

    def wait(self) -> None:
        """Until the process is to end: because it is told to, or by `stop`."""
        self._orders.get()

    def complain(self) -> None:
        """Print what went wrong, where that is not just that the main process is gone, and the sockets with it."""
        if self._orphaned:
            self._listener.join()  # which ends the process
        traceback.print_exc()

    def stop(self) -> None:
        """Have the process end; from any thread."""
        self._orders.put(None)

    def _listen(self) -> None:
        while (frame := receive(self._source)) is not None:
            order = decode_to_child(frame)
            if isinstance(order, Ping):
                self.say(Pong(self.vitals()))
            else:
                self._orders.put(order)
        self._orphaned = True
        remove(self.setup.place)  # the main process is gone, and could not
        os._exit(GONE)


def run(work: Callable[[Child], int], *, die_by: int = signal.SIGKILL) -> NoReturn:
    """What a child's `main` does: `work`, which answers the exit status. The main process tells of expected failures.

    `die_by`: the signal that the kernel sends when the main process has ended, where it can.
    """
    told_of_death(die_by)  # one that was orphaned before finds that out by its pipe, and tidies up as any other
    for number in (
        signal.SIGTERM,
        signal.SIGINT,
    ):  # for the main process to take
        signal.signal(number, lambda *_: None)
    child, status = Child(), 1
    use(child.setup.log)
    gc_watch.start()
    try:
        status = work(child)
    except (RtkError, ModuleNotFoundError) as error:
        if isinstance(error, ModuleNotFoundError):
            error.add_note(traceback.format_exc())
        child.say(Failed(pickle.dumps(error)))
    except BaseException:  # noqa: BLE001 - told, and the process ends
        child.complain()
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.flush()
    os._exit(status)  # nothing is left to do, and taking everything apart takes seconds
