"""How messages go from process to process: lists of them in MessagePack, over ZeroMQ.

On unix sockets in a folder that only this user may enter; where there are none, on loopback TCP, where whoever has not
been given the server's key cannot be heard.
"""

import contextlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Generic, TypeVar

import msgspec
import zmq

from rtk.errors import ConfigError
from rtk.schedule.messages import Inbound, Outbound
from rtk.serve.detokenizer import Open, TextOutput

PREFIX = "rtk-serve-"
LOCK = "lock"
LONGEST = 80
"""Bytes that the path of a folder may have: the address of a unix socket has room for little more than a hundred."""
ABANDONED_S = 60.0
"""A folder without a lock that is older than this is nobody's."""
LINGER_MS = 2000
"""How long a process that ends may take to get rid of what it has said."""

T = TypeVar("T")


class End(msgspec.Struct, frozen=True, tag=True):
    """The last message of a scheduler."""


class Codec(Generic[T]):
    """Lists of messages of some kinds as bytes, and back."""

    def __init__(self, kinds: object) -> None:
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[list[T]] = msgspec.msgpack.Decoder(list[kinds])  # type: ignore[valid-type]

    def encode(self, messages: Sequence[T]) -> bytes:
        """Messages as one frame."""
        return self._encoder.encode(messages)

    def decode(self, frame: bytes) -> list[T]:
        """The messages of a frame."""
        return self._decoder.decode(frame)


TO_SCHEDULER: Codec[Inbound] = Codec(Inbound)
TO_DETOKENIZER: Codec[Open | Outbound | End] = Codec(Open | Outbound | End)
TO_MAIN: Codec[Outbound | TextOutput | End] = Codec(Outbound | TextOutput | End)


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where the processes of a server meet."""

    folder: str | None = None
    """Of the sockets; None: loopback TCP."""
    public: bytes = b""
    """CURVE's keys, of TCP: nobody else is told either of them."""
    secret: bytes = b""


class Meeting:
    """The main process's hold on a `Place`, which is gone when it is closed."""

    def __init__(self, *, unix: bool = True) -> None:
        """`unix`: whether to use unix sockets where there are some. Raises `ConfigError` where there is no place."""
        self._lock: IO[bytes] | None = None
        found = _folder() if unix and zmq.has("ipc") and sys.platform != "win32" else None
        if found is not None:
            folder, self._lock = found
            self.place = Place(folder=str(folder))
        elif zmq.has("curve"):
            public, secret = zmq.curve_keypair()
            self.place = Place(public=public, secret=secret)
        else:
            raise ConfigError(
                "serve.in_process = false: this system has no way for processes to meet; use --in-process"
            )

    def close(self) -> None:
        """Remove it. Safe to call twice."""
        remove(self.place)
        if self._lock is not None:
            self._lock.close()


def remove(place: Place) -> None:
    """Remove the folder, if there is one."""
    if place.folder is not None:
        shutil.rmtree(place.folder, ignore_errors=True)


def bind(context: "zmq.Context[zmq.Socket[bytes]]", place: Place, name: str) -> tuple["zmq.Socket[bytes]", str]:
    """A socket that receives, and its address."""
    socket = context.socket(zmq.PULL)
    socket.set_hwm(0)
    if place.folder is not None:
        address = f"ipc://{place.folder}/{name}"
        socket.bind(address)
        return socket, address
    socket.curve_server = True
    socket.curve_secretkey = place.secret
    socket.curve_publickey = place.public
    return socket, f"tcp://127.0.0.1:{socket.bind_to_random_port('tcp://127.0.0.1')}"


def connect(context: "zmq.Context[zmq.Socket[bytes]]", place: Place, address: str) -> "zmq.Socket[bytes]":
    """A socket that sends, and never waits: what is not taken yet is kept."""
    socket = context.socket(zmq.PUSH)
    socket.set_hwm(0)
    if place.folder is None:
        socket.curve_serverkey = place.public
        socket.curve_publickey, socket.curve_secretkey = zmq.curve_keypair()
    socket.connect(address)
    return socket


def _folder() -> tuple[Path, IO[bytes]] | None:
    """A new folder of this user's own, with its lock; None: nothing can be written, or no path is short enough.

    Removes what killed servers left.
    """
    for parent in _parents():
        _sweep(Path(parent))
        with contextlib.suppress(OSError):
            folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
            with contextlib.suppress(OSError):  # the disk may be full
                if len(os.fsencode(folder)) <= LONGEST:
                    lock = (folder / LOCK).open("wb")
                    _locked(lock)
                    return folder, lock
            folder.rmdir()
    return None


def _parents() -> dict[str, None]:
    """Where folders may be, in order."""
    try:
        return dict.fromkeys((tempfile.gettempdir(), "/tmp"))
    except FileNotFoundError:  # it can be written nowhere
        return {}


def _sweep(parent: Path) -> None:
    """Remove the folders of this user's servers that have ended."""
    for folder in parent.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            state = folder.lstat()
            if state.st_uid == os.getuid() and _abandoned(folder, time.time() - state.st_mtime):
                shutil.rmtree(folder, ignore_errors=True)


def _abandoned(folder: Path, age_s: float) -> bool:
    try:
        with (folder / LOCK).open("rb+") as file:
            return _locked(file)
    except FileNotFoundError:
        return age_s > ABANDONED_S


def _locked(file: IO[bytes]) -> bool:
    """Take the lock of an open file, which goes with the process; answers whether nobody else has it."""
    import fcntl  # unix only, as is what needs it

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
