"""How long-running model work reports where it is: one plain callable, so that the core draws nothing itself."""

from collections.abc import Callable, Iterator
from typing import IO

#: Called as `progress(stage, done, total)`, both counts in bytes; the last call of a stage has `done == total`.
Progress = Callable[[str, int, int], None]

_CHUNK_BYTES = 1 << 20


def silent(stage: str, done: int, total: int) -> None:
    """Report nothing."""


def read_chunks(stream: IO[bytes], stage: str, total: int, progress: Progress) -> Iterator[bytes]:
    """Read a stream of `total` bytes to its end in pieces of 1 MiB, reporting each piece after its use."""
    done = 0
    while chunk := stream.read(_CHUNK_BYTES):
        yield chunk
        done += len(chunk)
        progress(stage, done, total)
