"""The process in which grammars are compiled, one after the other: no library can be stopped, but a process can.

It ends with its engine, whatever it is doing then: a reader ends it when the pipe closes; where a library keeps the
interpreter from all other threads, the kernel does (on Linux).
"""

import contextlib
import os
import pickle
import queue
import signal
import struct
import sys
import threading
import warnings
from pathlib import Path
from typing import Literal, NamedTuple, NoReturn

import msgspec

from rtk.errors import MAX_REASON, PluginError, one_line, printable
from rtk.frames import receive, send
from rtk.plugin.foreign import contained
from rtk.plugin.grammar import GrammarBackend, Matcher, Spec, Vocabulary, packed, unpacked
from rtk.plugin.info import Options
from rtk.plugin.registry import Registered

NICE = 10
"""Compiling yields to the engine's own threads."""
GONE = 75
"""The exit status of one that ends because its engine has."""
STATUS = struct.Struct("<i")
"""How a fork ended, behind the mark that says so: an exit status, or the negative number of a signal."""
TIRED = 0.5
"""A process that keeps more than this share of what one job may take is replaced: what libraries hold on to adds up."""

WARM = {"choice": '["a"]', "json_schema": '{"type":"null"}', "regex": "a", "ebnf": 'root ::= "a"'}
"""The simplest spec of a kind. One is compiled when a backend is built: what a library does once is no job's time."""

_PR_SET_PDEATHSIG = 1  # of prctl(2)


class Setup(NamedTuple):
    """What a process is told once."""

    entry: Registered
    """The backend; what it takes to build it is done once."""
    options: Options
    vocabulary: Vocabulary
    memory_bytes: int
    """That one job may take beyond what the process has."""
    result_bytes: int
    """That a matcher may have, packed or in memory."""


class Job(msgspec.Struct, frozen=True, array_like=True):
    """One spec to compile."""

    backend: str
    kind: str
    text: str
    whitespace: int


class Answer(msgspec.Struct, frozen=True, array_like=True):
    """What becomes of a job. First `begun`, once its backend is there and the time counts; then one of the others."""

    outcome: Literal["begun", "compiled", "invalid", "too_large", "failed", "unbuildable"]
    problem: str = ""
    """One line, of all but the first two."""
    packed: bytes = b""
    """The matcher, of `compiled`."""


def main() -> None:
    """Started by `rtk.grammar.child`. Builds the backend, and has a fork of itself serve; a new one when that ends.

    A library may take seconds to import, which a fork does not: to kill one costs nothing.
    """
    engine, mark = int(sys.argv[1]), bytes.fromhex(sys.argv[2])
    serving: list[int] = []

    def stop(*_: object) -> None:
        for pid in serving:
            os.kill(pid, signal.SIGKILL)

    signal.signal(signal.SIGUSR1, stop)
    die_with(engine)
    out = os.dup(1)
    os.dup2(2, 1)  # what libraries print goes where the server's log goes
    os.nice(NICE)
    _limit("RLIMIT_CORE", 0)
    hello = receive(Unbuffered(0))
    if hello is None:
        return
    setup: Setup = pickle.loads(hello)  # from the process that started this one
    built = build(setup)
    warnings.simplefilter("ignore")  # about threads that libraries have: none of them matters to a fork
    status = 0
    while status != GONE:
        parent = os.getpid()
        if not (pid := os.fork()):
            die_with(parent)
            serve(setup, built, out)
        serving.append(pid)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        serving.clear()
        os.write(out, mark + STATUS.pack(status))


def build(setup: Setup) -> GrammarBackend | str:
    """The backend, or why there is none."""
    try:
        backend: GrammarBackend = setup.entry.build(setup.options)
    except PluginError as error:
        return str(error)
    warm_up(backend, setup.vocabulary)
    return backend


class Unbuffered:
    """A file that takes no more out of a pipe than it is asked for: the rest is for the process that is forked."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def read(self, size: int) -> bytes:
        """So many bytes, or what there is before the end."""
        data = b""
        while len(data) < size and (more := os.read(self._descriptor, size - len(data))):
            data += more
        return data


def serve(setup: Setup, built: GrammarBackend | str, out: int) -> NoReturn:
    """Compile what comes, until this process is killed, or had better be replaced."""
    jobs: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=read, args=(jobs,), daemon=True).start()
    answers, fresh, tired = os.fdopen(out, "wb"), _address_space(), False
    while not tired:
        job = msgspec.msgpack.decode(jobs.get(), type=Job)
        if isinstance(built, str):
            answer = Answer("unbuildable", built)
        else:
            send(answers, msgspec.msgpack.encode(Answer("begun")))
            answer = compiled(built, job, setup)
        tired = _address_space() - fresh > TIRED * setup.memory_bytes
        send(answers, msgspec.msgpack.encode(answer))
    os._exit(0)


def read(jobs: "queue.SimpleQueue[bytes]") -> None:
    """Pass on what arrives, and end the process when there is no more, in the middle of a job too."""
    source = Unbuffered(0)
    while (frame := receive(source)) is not None:
        jobs.put(frame)
    os._exit(GONE)


def warm_up(backend: GrammarBackend, vocabulary: Vocabulary) -> None:
    """Have a backend import its library and look at the vocabulary. If that fails, the job will tell."""
    try:
        spec = next((Spec(kind, text) for kind, text in WARM.items() if kind in backend.spec_kinds), None)
        if spec is not None and backend.judge(spec).verdict != "refused":
            backend.compile(spec, vocabulary)
    except BaseException as error:
        if not contained(error):
            raise


def compiled(backend: GrammarBackend, job: Job, setup: Setup) -> Answer:
    """One job, within its memory. What it raises becomes an answer."""
    keep_within(setup.memory_bytes)
    try:
        matcher = backend.compile(Spec(job.kind, job.text, job.whitespace), setup.vocabulary)
        if not isinstance(matcher, Matcher):
            return Answer("failed", f"compile() answered a {type(matcher).__name__}, which is no Matcher")
        data = packed(matcher)
        if (size := max(len(data), matcher.size)) > setup.result_bytes:
            return Answer("too_large", f"compiled it has {size:,} bytes, and may have {setup.result_bytes:,}")
        unpacked(data, setup.vocabulary)  # where that takes a process along, it takes this one
        return Answer("compiled", packed=data)
    except MemoryError:
        return Answer("too_large", f"it takes more than {setup.memory_bytes:,} bytes of memory to compile")
    except ValueError as error:
        return Answer("invalid", printable(" ".join(str(error).split()))[:MAX_REASON])
    except BaseException as error:
        if not contained(error):
            raise
        return Answer("failed", one_line(error))
    finally:
        _limit("RLIMIT_AS", None)


def keep_within(memory_bytes: int) -> None:
    """Take no more memory than so much beyond what is taken."""
    if size := _address_space():
        _limit("RLIMIT_AS", size + memory_bytes)


def told_of_death(number: int) -> None:
    """Have the kernel send this process a signal when the thread that started it ends, where it can."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)


def die_with(engine: int) -> None:
    """End when the thread that started this process does, or where it has ended already."""
    told_of_death(signal.SIGKILL)
    if os.getppid() != engine:  # it was gone before
        os._exit(0)


def _address_space() -> int:
    """Bytes; 0 where the system does not say, and memory is not limited then."""
    with contextlib.suppress(OSError):
        return int(Path("/proc/self/statm").read_bytes().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def _limit(name: str, size: int | None) -> None:
    """Set a limit of this process; None: as much as it may have."""
    import resource

    which = getattr(resource, name)
    _, most = resource.getrlimit(which)
    with contextlib.suppress(ValueError, OSError):  # less than that is allowed already, or the system has no such limit
        resource.setrlimit(which, (most if size is None else size, most))
