"""What the main process and its children say of themselves, over pipes that end with either: frames of MessagePack."""

import msgspec

from rtk.serve.protocol import ModelFacts, Vitals


class Begin(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """The model is there: load, and send to the next in the round."""

    folder: str
    """Of the model."""
    send_to: str
    """Address of who reads what the child says."""


class Ping(msgspec.Struct, frozen=True, tag=True):
    """Answered at once by `Pong`."""


class Stop(msgspec.Struct, frozen=True, tag=True):
    """To the scheduler: end what runs, and then yourself."""


ToChild = Begin | Ping | Stop


class Bound(msgspec.Struct, frozen=True, tag=True):
    """The child can be sent to."""

    address: str


class Prepared(msgspec.Struct, frozen=True, tag=True):
    """The plugins are built, and it waits for `Begin`."""


class EngineFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What the main process must know of what the scheduler has."""

    model: ModelFacts
    grammar_backends: tuple[str, ...] | None
    """Names of those in use; None: there are no grammars."""


class Ready(msgspec.Struct, frozen=True, tag=True):
    """It works."""

    engine: EngineFacts | None = None
    """Of the scheduler."""


class Failed(msgspec.Struct, frozen=True, tag=True):
    """It cannot start, for a reason that a person can do something about."""

    error: bytes
    """The exception, pickled."""


class Pong(msgspec.Struct, frozen=True, tag=True):
    """It lives."""

    vitals: Vitals


FromChild = Bound | Prepared | Ready | Failed | Pong

encode = msgspec.msgpack.Encoder().encode
decode_to_child = msgspec.msgpack.Decoder(ToChild).decode
decode_from_child = msgspec.msgpack.Decoder(FromChild).decode
