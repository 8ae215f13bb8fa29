"""What goes into a scheduler and what comes out: plain messages, ready for a wire.

The scheduler answers every `NewRequest` with exactly one `Verdict`, and every accepted request with `Output`s of which
exactly one, the last, carries a `Finish`.
"""

from typing import Literal

import msgspec

from rtk.cache.key import DEFAULT_NAMESPACE, Namespace
from rtk.schedule.params import SamplingParams

FinishReason = Literal["stop", "length", "abort", "error"]


class NewRequest(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Work for the scheduler. The sender has validated the parameters and picked an id that is not in use."""

    rid: str
    tokens: bytes
    """The prompt, as `rtk.cache.key.pack` makes it."""
    params: SamplingParams
    namespace: Namespace = DEFAULT_NAMESPACE


class Abort(msgspec.Struct, frozen=True, tag=True):
    """End a request, queued or running. Unknown ids are ignored: the request may just have ended by itself."""

    rid: str


class Flush(msgspec.Struct, frozen=True, tag=True):
    """Empty the prefix cache. Answered by `Flushed`."""

    id: int


class GetStats(msgspec.Struct, frozen=True, tag=True):
    """Answered by `Stats`."""

    id: int


Inbound = NewRequest | Abort | Flush | GetStats


class Verdict(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Whether a request was accepted; if not, why, with a stable code and the offending field where there is one."""

    rid: str
    accepted: bool
    code: str = ""
    problem: str = ""
    field: str | None = None
    status: int = 400


class Finish(msgspec.Struct, frozen=True, kw_only=True):
    """How a request ended."""

    reason: FinishReason
    matched: str | int | None = None
    """The stop string or stop token that ended it."""
    problem: str = ""
    """What went wrong, for `error`."""


class Output(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """New tokens of a request, in order; with `finish`, the last of it."""

    rid: str
    tokens: tuple[int, ...]
    cached_tokens: int = 0
    """Prompt tokens that came from the prefix cache."""
    finish: Finish | None = None


class Flushed(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """The answer to `Flush`: tokens given back, or the reason why the cache was left as it is."""

    id: int
    freed: int = 0
    problem: str = ""


class Stats(msgspec.Struct, frozen=True, tag=True):
    """The answer to `GetStats`: counters and gauges by name."""

    id: int
    values: dict[str, int | float]


Outbound = Verdict | Output | Flushed | Stats
