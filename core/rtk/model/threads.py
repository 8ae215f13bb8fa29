"""Keeps start-up from spoiling the threads of the steps that follow."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from typing import TypeVar

import torch

T = TypeVar("T")
_outside: ContextVar[int | None] = ContextVar("rtk_threads", default=None)


@contextmanager
def one_thread() -> Iterator[None]:
    """Torch computes inside with the calling thread alone.

    OpenMP keeps a team of workers for every thread that ever computed in parallel, and its workers stop waiting
    actively once there are more of them than cores. Where a model is loaded in one thread and run in another, steps
    of one request would take nearly twice the time (50 ms instead of 28 on two cores) for as long as both live.
    """
    threads = torch.get_num_threads()
    token = _outside.set(_outside.get() or threads)
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        _outside.reset(token)


def in_parallel(function: Callable[[], T]) -> T:
    """Call it, inside of `one_thread` too, with as many threads as torch has outside.

    It runs in a thread of its own, whose team of workers ends with it, with the caller's context variables.
    """
    here = torch.get_num_threads()
    threads = _outside.get() or here

    def run() -> T:
        torch.set_num_threads(threads)
        return function()

    try:
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(copy_context().run, run).result()
    finally:
        torch.set_num_threads(here)  # part of it is common to all threads
