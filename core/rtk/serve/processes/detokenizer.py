"""The detokenizer's process: reads what the scheduler says, and passes it on with text."""

import signal
from pathlib import Path

import zmq

from rtk.serve.detokenizer import Detokenizer
from rtk.serve.processes.child import Child, run
from rtk.serve.processes.control import Bound, Prepared, Ready
from rtk.serve.processes.wire import LINGER_MS, TO_DETOKENIZER, TO_MAIN, End, bind, connect
from rtk.serve.tokenizer import Tokenizer


def main() -> None:
    """Started by `rtk.serve.processes.generation`.

    The kernel does not kill this one with the main process, but wakes it if it is stopped: it tidies up then.
    """
    run(work, die_by=signal.SIGCONT)


def work(child: Child) -> int:
    """Until the scheduler's last message."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    source, address = bind(context, child.setup.place, child.setup.socket)
    child.say(Bound(address))
    child.say(Prepared())
    begin = child.begin()
    detokenizer = Detokenizer(Tokenizer.load(Path(begin.folder)).assembler)
    out = connect(context, child.setup.place, begin.send_to)
    child.say(Ready())
    ended = False
    while not ended:
        messages = TO_DETOKENIZER.decode(source.recv())
        ended = isinstance(messages[-1], End)
        texts = detokenizer.process(message for message in messages if not isinstance(message, End))
        if texts or ended:
            out.send(TO_MAIN.encode([*texts, End()] if ended else texts))
    context.destroy(LINGER_MS)
    return 0
