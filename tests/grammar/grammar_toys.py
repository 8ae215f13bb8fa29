"""A grammar backend that does what a spec says, at its worst; and how tests watch the processes that it runs in."""

import contextlib
import json
import os
import re
import signal
import socket
import sys

from rtk.grammar.process import WARM, Setup
from rtk.plugin import Options, Plugin, Vocabulary
from rtk.plugin.grammar import Judgement
from rtk.plugin.registry import Origin, Registered
from rtk.plugin.testing.toys import ChoiceMatcher, Choices

WORDS = Vocabulary(tokens=[*(bytes([byte]) for byte in range(256)), b""], ends=frozenset({256}))
MEMORY, RESULT = 64 << 20, 1 << 20


def entry(target, name="toy"):
    plugin = Plugin(kind="grammar", name=name, summary="s", target=target)
    return Registered(plugin, Origin(name, f"rtk-grammar-{name}", "0.1")), Options()


BACKENDS = {
    "toy": entry("grammar_toys:Toy"),
    "broken": entry("grammar_toys:nothing", "broken"),
    "judging": entry("grammar_toys:Judging", "judging"),
}


def setups():
    return {name: Setup(*one, WORDS, memory_bytes=MEMORY, result_bytes=RESULT) for name, one in BACKENDS.items()}


def script(*act):
    """The text of a spec that has the backend do this; then it compiles a choice of one text, the whole script."""
    return json.dumps([json.dumps(act)])


def alive(pid):
    """Whether there is such a process, one that has ended and was not asked for included."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, 0)
        return pid > 0
    return False


class Beacon:
    """Burns as long as the processes do that were told to light it."""

    def __init__(self):
        self._server = socket.create_server(("127.0.0.1", 0))
        self._lit = []
        self.port = self._server.getsockname()[1]

    def lit(self, processes=1):
        """Waits until so many more have lit it and are alive; answers their ids."""
        found = set()
        while len(found) < processes:
            one, _ = self._server.accept()
            self._lit.append(one)
            if alive(pid := int(one.recv(20) or 0)):
                found.add(pid)
        return found

    def put_out(self):
        """Those that have lit it need not wait any longer."""
        for one in self._lit:
            one.send(b".")

    def out(self):
        """Waits until all that have lit it are gone."""
        self._server.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                self._lit.append(self._server.accept()[0])
        self._server.setblocking(True)
        while self._lit:
            with self._lit.pop() as one:
                while one.recv(20):
                    pass
        return True

    def close(self):
        self.out()
        self._server.close()


kept = []


class Toy(Choices):
    """See `script`."""

    warm = False

    def compile(self, spec, vocabulary):
        if spec.text == WARM["choice"]:
            self.warm = True
            raise RuntimeError("which is nobody's")
        (text,) = json.loads(spec.text)
        act, *args = json.loads(text)
        return getattr(self, act)(*args) or ChoiceMatcher((text.encode(),), vocabulary)

    def say(self, *_):
        """Nothing out of the ordinary."""

    def light(self, port):
        """The same, but that the beacon burns until the process ends."""
        self.beacon = socket.create_connection(("127.0.0.1", port))
        self.beacon.send(str(os.getpid()).encode())

    def loop(self, port, *_):
        self.light(port)
        while True:
            pass

    def hold(self, port):
        """No other thread gets to run."""
        self.light(port)
        re.match(r"(?:a|aa)+$", "a" * 99 + "b")

    def wait(self, port):
        """Until somebody puts the beacon out."""
        self.light(port)
        self.beacon.recv(1)

    def refuse(self, problem):
        raise ValueError(problem)

    def fail(self, problem):
        raise RuntimeError(problem)

    def leave(self):
        sys.exit(3)

    def end(self):
        os._exit(3)

    def crash(self):
        os.kill(os.getpid(), signal.SIGSEGV)

    def devour(self):
        eaten = []
        while True:
            eaten.append(bytearray(1 << 20))

    def keep(self):
        kept.append(bytearray(MEMORY * 3 // 4))

    def swell(self):
        return ChoiceMatcher((bytes(RESULT),), WORDS)

    def tell(self):
        """What this process is like, as the only thing that comes back in words."""
        main = sys.modules["__main__"]
        known = "torch" in sys.modules, getattr(main, "__file__", None), self.warm, os.getpid()
        raise ValueError(" ".join(map(str, known)))

    def answer(self):
        return 42

    def unpackable(self):
        return Unpackable((b"",), WORDS)


class Judging(Toy):
    """Does what a spec says when it judges."""

    def judge(self, spec):
        (text,) = json.loads(spec.text)
        act, *args = json.loads(text)
        getattr(self, act)(*args)
        return Judgement.narrowed(f"judged by {os.getpid()}")


class Unpackable(ChoiceMatcher):
    def __setstate__(self, state):
        raise RuntimeError("not again")
