"""The process in which grammars are compiled, one after the other: no library can be stopped, but a process can.

It ends with its engine, whatever it is doing then: a reader ends it when the pipe closes; where a library keeps the
interpreter from all other threads, the kernel does (on Linux).
"""

import contextlib
import os
import pickle
import queue
import signal
import sys
import threading
from pathlib import Path
from typing import BinaryIO, Literal, NamedTuple

import msgspec

from rtk.errors import MAX_REASON, PluginError, one_line, printable
from rtk.observe.wire import receive, send
from rtk.plugin.foreign import contained
from rtk.plugin.grammar import GrammarBackend, Matcher, Spec, Vocabulary, packed, unpacked
from rtk.plugin.info import Options
from rtk.plugin.registry import Registered

NICE = 10
"""Compiling yields to the engine's own threads."""
TIRED = 0.5
"""A process that keeps more than this share of what one job may take is replaced: what libraries hold on to adds up."""

_PR_SET_PDEATHSIG = 1  # of prctl(2)


class Setup(NamedTuple):
    """What a process is told once."""

    backends: dict[str, tuple[Registered, Options]]
    """Those that it may be asked for. Built when one first is."""
    vocabulary: Vocabulary
    memory_bytes: int
    """That one job may take beyond what the process has."""
    result_bytes: int
    """That a matcher may have, packed."""


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
    last: bool = False
    """Whether the process ends now."""


def main() -> None:
    """Started by `rtk.grammar.workers`."""
    hello, jobs, out = started()
    if hello is not None:
        work(pickle.loads(hello), jobs, out)  # from the process that started this one
    os._exit(0)  # at once: the reader holds the pipe


def started() -> tuple[bytes | None, "queue.SimpleQueue[bytes]", BinaryIO]:
    """What a process does first: it minds its manners, and takes in what it is told first; then jobs come."""
    _die_with(int(sys.argv[1]))
    out, source = os.fdopen(os.dup(1), "wb"), sys.stdin.buffer
    os.dup2(2, 1)  # what libraries print goes where the server's log goes
    os.nice(NICE)
    _limit("RLIMIT_CORE", 0)
    hello = receive(source)
    jobs: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=read, args=(source, jobs), daemon=True).start()
    return hello, jobs, out


def read(source: BinaryIO, jobs: "queue.SimpleQueue[bytes]") -> None:
    """Pass on what arrives, and end the process when there is no more, in the middle of a job too."""
    while (frame := receive(source)) is not None:
        jobs.put(frame)
    os._exit(0)


def work(setup: Setup, jobs: "queue.SimpleQueue[bytes]", out: BinaryIO) -> None:
    """Compile what comes, until this process had better be replaced."""
    built: dict[str, GrammarBackend] = {}
    fresh = _address_space()
    while True:
        job = msgspec.msgpack.decode(jobs.get(), type=Job)
        try:
            if job.backend not in built:
                entry, options = setup.backends[job.backend]
                backend: GrammarBackend = entry.build(options)
                backend.prepare()
                built[job.backend] = backend
                fresh = _address_space()  # libraries are no part of what a job takes
        except PluginError as error:
            answer = Answer("unbuildable", str(error))
        except BaseException as error:
            if not contained(error):
                raise
            answer = Answer("unbuildable", f"prepare() failed: {one_line(error)}")
        else:
            send(out, msgspec.msgpack.encode(Answer("begun")))
            answer = compiled(built[job.backend], job, setup)
        tired = _address_space() - fresh > TIRED * setup.memory_bytes
        send(out, msgspec.msgpack.encode(msgspec.structs.replace(answer, last=tired)))
        if tired:
            return


def compiled(backend: GrammarBackend, job: Job, setup: Setup) -> Answer:
    """One job, within its memory. What it raises becomes an answer."""
    keep_within(setup.memory_bytes)
    try:
        matcher = backend.compile(Spec(job.kind, job.text, job.whitespace), setup.vocabulary)
        if not isinstance(matcher, Matcher):
            return Answer("failed", f"compile() answered a {type(matcher).__name__}, which is no Matcher")
        data = packed(matcher)
        if len(data) > setup.result_bytes:
            return Answer("too_large", f"compiled it has {len(data):,} bytes, and may have {setup.result_bytes:,}")
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


def _die_with(engine: int) -> None:
    """Have the kernel end this process with the thread that started it, where it can."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != engine:  # it was gone before
        os._exit(0)


def keep_within(memory_bytes: int) -> None:
    """Take no more memory than so much beyond what is taken."""
    if size := _address_space():
        _limit("RLIMIT_AS", size + memory_bytes)


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
