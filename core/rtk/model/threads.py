"""Keeps start-up from spoiling the threads of the steps that follow."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def one_thread() -> Iterator[None]:
    """Torch computes inside with the calling thread alone.

    OpenMP keeps a team of workers for every thread that ever computed in parallel, and its workers stop waiting
    actively once there are more of them than cores. Where a model is loaded in one thread and run in another, steps
    of one request would take nearly twice the time (50 ms instead of 28 on two cores) for as long as both live.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
