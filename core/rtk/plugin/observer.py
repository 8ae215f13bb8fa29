"""The observer contract: told what the engine did, in a process of its own; it can neither change nor slow a step."""

from abc import ABC
from typing import NamedTuple


class StepReport(NamedTuple):
    """One step, when its results were taken in.

    Times are seconds of the engine's clock, which only runs forward; to date a report, look at a clock when it comes.
    """

    step: int
    """Its number, ascending."""
    ended_s: float
    failed: bool
    """Whether it could not be computed; the requests in it ended with an error."""
    rows: int
    """Requests that it computed something for."""
    prefill_tokens: int
    """Tokens of prompts, or of what was generated before a retraction."""
    decode_tokens: int
    running: int
    """Requests that run after it."""
    waiting: int
    """Requests that wait after it."""
    free: int
    """Slots of the KV pool by state, after it; the four add up to the pool."""
    evictable: int
    protected: int
    held: int


class RequestReport(NamedTuple):
    """One request, when it ended. Times are seconds of the engine's clock."""

    rid: str
    """What its client calls it."""
    arrival_s: float
    first_token_s: float | None
    """None where it generated nothing."""
    ended_s: float
    prompt_tokens: int
    cached_tokens: int
    """Tokens of its prompt that came from the cache."""
    output_tokens: int
    retractions: int
    """How often it had to make room for others."""
    priority: int
    reason: str
    """`stop`, `length`, `abort` or `error`."""
    code: str = ""
    """Of an error, what clients get as its code: `deadline_exceeded`, `queue_timeout`, `generation_failed`, …"""


class Observer(ABC):
    """Built once with its options, in a process of its own, and called from that process's main thread only.

    Reports come in order, some moments late. Where they come faster than it takes them, the engine drops the newest and
    counts them. What it raises is logged once, and the next report comes all the same. What it prints goes to the
    server's standard error.
    """

    def on_step(self, report: StepReport) -> None:
        """Told after each step."""

    def on_request(self, report: RequestReport) -> None:
        """Told after each request, whatever its end."""

    def close(self) -> None:
        """The engine has ended, or is gone; there is a second or two left."""
