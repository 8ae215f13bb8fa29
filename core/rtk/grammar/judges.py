"""Forms are read and judged in processes: that is pure Python, and would keep the engine's threads from running."""

import os
import pickle
import queue
import sys
import threading
from collections.abc import Mapping

import msgspec

from rtk.errors import RequestError
from rtk.frames import receive, send
from rtk.grammar.child import ForkServer, GoneError
from rtk.grammar.forms import Choice, Forms, Known, best, known
from rtk.grammar.process import NICE, Unbuffered, die_with, keep_within, read
from rtk.plugin.grammar import WHITESPACE, GrammarBackend
from rtk.plugin.info import Options
from rtk.plugin.registry import Registered

START_S = 30.0
"""For a process to start and build its backends."""

Plugins = Mapping[str, tuple[Registered, Options]]


class _Question(msgspec.Struct, frozen=True):
    kind: str
    text: str
    whitespace: int


class _Refusal(msgspec.Struct, frozen=True):
    problem: str
    code: str
    status: int


class _Reply(msgspec.Struct, frozen=True):
    """One of the two."""

    choice: Choice | None = None
    refusal: _Refusal | None = None


class Judges(Forms):
    """`Forms` whose work is done in processes, which are started when they are needed and then stay."""

    def __init__(
        self,
        plugins: Plugins,
        backends: Mapping[str, GrammarBackend],
        *,
        whitespace: int = WHITESPACE,
        verify: bool = False,
        limit_s: float = 10.0,
        memory_bytes: int = 2**31,
        lanes: int = 1,
    ) -> None:
        """`plugins` are built once more in each process, `lanes` of them. The limits are for one form."""
        super().__init__(backends, whitespace=whitespace, verify=verify, lanes=lanes)
        self._hello = pickle.dumps(({name: plugins[name] for name in self._backends}, memory_bytes))
        self._limit_s = limit_s
        self._change = threading.Lock()
        self._idle: list[ForkServer] = []
        self._busy: set[ForkServer] = set()
        self._closed = False

    def choose(self, kind: str, text: str, whitespace: int) -> Choice:
        """The best backend; waits for a process to find it."""
        reply = self._asked(msgspec.msgpack.encode(_Question(kind, text, whitespace)))
        if reply.refusal is not None:
            raise RequestError(reply.refusal.problem, code=reply.refusal.code, status=reply.refusal.status)
        assert reply.choice is not None, "it is one of the two"
        return reply.choice

    def _asked(self, question: bytes) -> _Reply:
        try:
            process = self._taken()
        except (OSError, TimeoutError, GoneError) as error:
            problem = f"no process can be started to read it: {type(error).__name__}"
            raise RequestError(problem, code="grammar_failed", status=500) from error
        done = False
        try:
            process.send(question)
            reply = msgspec.msgpack.decode(process.reply(self._limit_s), type=_Reply)
            done = True
            return reply
        except TimeoutError:
            problem = f"it takes more than {self._limit_s:g} s to read (grammar.compile_timeout_s)"
            raise RequestError(problem, code="grammar_timeout") from None
        except GoneError:
            problem = "the process that was to read it has ended; it takes too much memory, perhaps"
            raise RequestError(problem, code="grammar_failed") from None
        finally:
            self._given_back(process, whole=done)

    def _taken(self) -> ForkServer:
        """A process that waits for a question."""
        with self._change:
            if self._closed:
                raise GoneError
            process = self._idle.pop() if self._idle else None
        if process is not None and process.ended:
            process.close()
            return self._taken()
        if process is None:
            process = ForkServer(self._hello, "rtk.grammar.judges")
            try:
                process.reply(START_S)
            except BaseException:
                process.close()
                raise
        with self._change:
            self._busy.add(process)
        return process

    def _given_back(self, process: ForkServer, *, whole: bool) -> None:
        with self._change:
            self._busy.discard(process)
            if whole and not self._closed:
                self._idle.append(process)
                return
        process.close()

    def close(self) -> None:
        """End the processes; who waits for one is refused. Safe to call twice."""
        super().close()
        with self._change:
            self._closed = True
            idle, self._idle = self._idle, []
            for process in self._busy:
                process.kill()
        for process in idle:
            process.close()


def main() -> None:
    """Started by `Judges`."""
    die_with(int(sys.argv[1]))
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what plugins print goes where the server's log goes
    os.nice(NICE)
    hello = receive(Unbuffered(0))
    if hello is None:
        return
    plugins, memory_bytes = pickle.loads(hello)  # from the process that started this one
    backends = known({name: entry.build(options) for name, (entry, options) in plugins.items()})
    questions: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=read, args=(questions,), daemon=True).start()
    keep_within(memory_bytes)
    send(out, b"")
    while True:
        question = msgspec.msgpack.decode(questions.get(), type=_Question)
        send(out, msgspec.msgpack.encode(_reply(backends, question)))


def _reply(backends: Mapping[str, Known], question: _Question) -> _Reply:
    try:
        return _Reply(choice=best(backends, question.kind, question.text, question.whitespace))
    except RequestError as error:
        return _Reply(refusal=_Refusal(str(error), error.code, error.status))
    except MemoryError:
        return _Reply(refusal=_Refusal("it takes too much memory to read", "grammar_too_large", 400))
