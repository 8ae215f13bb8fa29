"""The scheduler's process: model, pool, grammars and observers' feeds, behind messages."""

import threading
from collections.abc import Sequence
from pathlib import Path

import zmq

from rtk.config.load import config_from
from rtk.schedule.messages import NewRequest, Outbound
from rtk.serve.collector import Collector
from rtk.serve.detokenizer import Open, opening
from rtk.serve.processes.child import Child, run
from rtk.serve.processes.control import Begin, Bound, EngineFacts, Prepared, Ready
from rtk.serve.processes.wire import LINGER_MS, TO_DETOKENIZER, TO_SCHEDULER, End, Place, bind, connect
from rtk.serve.runtime import EngineCore, parts


def main() -> None:
    """Started by `rtk.serve.processes.generation`."""
    run(work)


def work(child: Child) -> int:
    """Until the main process says so, or the scheduler stops on a bug."""
    config = config_from(child.setup.config)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    source, address = bind(context, child.setup.place, child.setup.socket)
    child.say(Bound(address))
    begin: Begin

    def locate() -> Path:
        nonlocal begin
        child.say(Prepared())
        begin = child.begin()
        return Path(begin.folder)

    collector = Collector()
    with parts(config, locate) as loaded:
        out = Out(child.setup.place, begin.send_to)
        core = EngineCore(config, *loaded, out.say, collector.after_step)
    collector.freeze()
    core.start()
    child.vitals = lambda: core.vitals
    threading.Thread(target=_receive, args=(source, out, core), name="rtk-inbox", daemon=True).start()
    threading.Thread(target=_outlast, args=(core, child), daemon=True).start()
    backends = core.grammar_backends
    child.say(Ready(EngineFacts(model=core.facts, grammar_backends=None if backends is None else tuple(backends))))
    child.wait()
    core.close()
    if core.thread.failure is not None:
        return 1
    out.say([End()])
    out.close()
    return 0


class Out:
    """What is said to the detokenizer; from any thread."""

    def __init__(self, place: Place, address: str) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = connect(self._context, place, address)
        self._lock = threading.Lock()

    def say(self, messages: Sequence[Open | Outbound | End]) -> None:
        """Send messages. Never waits."""
        frame = TO_DETOKENIZER.encode(messages)
        with self._lock:
            self._socket.send(frame)

    def close(self) -> None:
        """Wait until all of it is on its way."""
        self._context.destroy(LINGER_MS)


def _receive(source: "zmq.Socket[bytes]", out: Out, core: EngineCore) -> None:
    """Pass on what arrives. The detokenizer hears of a request before the scheduler does."""
    while True:
        messages = TO_SCHEDULER.decode(source.recv())
        openings = [opening(message) for message in messages if isinstance(message, NewRequest)]
        if openings:
            out.say(openings)
        for message in messages:
            core.thread.send(message)


def _outlast(core: EngineCore, child: Child) -> None:
    """Have the process end when the scheduler has."""
    core.thread.wait()
    child.stop()
