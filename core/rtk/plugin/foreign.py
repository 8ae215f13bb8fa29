"""A plugin's code may raise anything, or never return: what of it the host contains, and how it gets out."""

import ctypes
import threading


class Overran(BaseException):
    """Raised in a plugin's code that does not return."""


def contained(error: BaseException) -> bool:
    """Whether `error` is the plugin's own doing, so that the host goes on without it.

    An attempt to exit is. In the main thread the rest may come from outside, as Ctrl-C does; no other thread gets
    signals.
    """
    if isinstance(error, Exception | SystemExit | GeneratorExit | Overran):
        return True
    return threading.current_thread() is not threading.main_thread()


def raise_in(thread: int, kind: type[BaseException] | None) -> None:
    """Have a thread raise `kind` as soon as it runs Python code again; None takes back what it has not raised yet."""
    raised = None if kind is None else ctypes.py_object(kind)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), raised)
