"""A plugin's code may raise anything, or never return: what of it the host contains, and how it gets out."""

import ctypes
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import copy_context
from typing import TypeVar

Answer = TypeVar("Answer")


class Overran(BaseException):
    """Raised in a plugin's code that does not return."""


class LeftBehind(BaseException):
    """Ends a loop of a plugin that nobody waits for any more."""


class TooLateError(Exception):
    """A plugin's code has not ended in time."""


def contained(error: BaseException) -> bool:
    """Whether `error` is the plugin's own doing, so that the host goes on without it.

    An attempt to exit is. In the main thread the rest may come from outside, as Ctrl-C does; no other thread gets
    signals.
    """
    if isinstance(error, LeftBehind):
        return False
    if isinstance(error, Exception | SystemExit | GeneratorExit | Overran):
        return True
    return threading.current_thread() is not threading.main_thread()


def raise_in(thread: int, kind: type[BaseException] | None) -> None:
    """Have a thread raise `kind` as soon as it runs Python code again; None takes back what it has not raised yet."""
    raised = None if kind is None else ctypes.py_object(kind)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), raised)


def in_time(ask: Callable[[], Answer], limit_s: float, *, name: str, module: str) -> Answer:
    """What `ask` answers or raises, in a thread of its own; raises `TooLateError` where that takes too long.

    The thread is then left behind. A module that it is importing stays locked, so nobody else can import it. It has the
    caller's context variables; `name` is the thread's, `module` one of the package whose code it is.
    """
    outcome: Future[Answer] = Future()
    context = copy_context()

    def answer() -> None:
        try:
            outcome.set_result(context.run(ask))
        except LeftBehind:
            pass
        except BaseException as error:  # noqa: BLE001 - raised again where somebody waits
            outcome.set_exception(error)

    thread = threading.Thread(target=answer, name=name, daemon=True)
    thread.start()
    thread.join(limit_s)
    if thread.is_alive():
        _leave(thread, module.partition(".")[0])
        raise TooLateError
    return outcome.result()


def _leave(thread: threading.Thread, package: str) -> None:
    """Stop a loop in the package's own code, which would take CPU time from everybody.

    Not while it imports something else: an import that is cut off, of torch say, cannot be made up for. Code that
    sleeps, or catches everything, goes on until the process ends, and disturbs nobody.
    """
    frame = sys._current_frames().get(thread.ident or 0)
    importing = set()
    while frame is not None:
        if frame.f_code.co_name == "<module>":
            importing.add(str(frame.f_globals.get("__name__")).partition(".")[0])
        frame = frame.f_back
    if importing <= {package}:
        raise_in(thread.ident or 0, LeftBehind)
