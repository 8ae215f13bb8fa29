"""What goes through pipes between rtk's processes: frames of bytes, each after its length."""

import struct
from typing import IO, Protocol

HEADER = struct.Struct("<I")
"""The length."""


class Readable(Protocol):
    """What frames are read from."""

    def read(self, size: int, /) -> bytes:
        """So many bytes; fewer only at the end."""


def send(out: IO[bytes], frame: bytes) -> None:
    """Write a frame; waits until it is taken."""
    out.write(HEADER.pack(len(frame)) + frame)
    out.flush()


def receive(source: Readable) -> bytes | None:
    """Read a frame; None where there is no more, or only a part of one."""
    header = source.read(HEADER.size)
    if len(header) < HEADER.size:
        return None
    (length,) = HEADER.unpack(header)
    frame = source.read(length)
    return frame if len(frame) == length else None
