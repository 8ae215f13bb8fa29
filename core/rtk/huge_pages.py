"""Memory in huge pages, where the system gives them: finding the addresses of large buffers costs less then."""

import contextlib
import mmap

import torch

HUGE = 2 << 20
"""Bytes of a huge page."""
PRIVATE = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}
"""Python shares memory unless told otherwise, and Linux gives shared memory no huge pages (`shmem_enabled`)."""


def zeros(size: int) -> torch.Tensor:
    """uint8 [size] on a CPU, from the start of a page: zeros that take memory as they are first written to.

    Raises `MemoryError` where the system does not give that much.
    """
    try:
        memory = mmap.mmap(-1, size + HUGE, **PRIVATE)
    except OSError as error:
        raise MemoryError(f"{size:,} bytes: {error.strerror}") from error
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without them
            memory.madvise(mmap.MADV_HUGEPAGE)
    bytes_ = torch.frombuffer(memory, dtype=torch.uint8)
    skip = -bytes_.data_ptr() % HUGE
    return bytes_[skip : skip + size]
