"""One request over HTTP, as those who observe it see it: whoever serves it notes here what it finds out.

The visit is a context variable that holds an object: tasks that are begun on the way cannot set a variable for those
that began them, and can write into the object.
"""

from collections.abc import Iterable, Sequence
from contextvars import ContextVar
from time import monotonic, time
from typing import Protocol


class Finished(Protocol):
    """See `rtk.schedule.messages.Finish`."""

    @property
    def reason(self) -> str:
        """`stop`, `length`, `abort` or `error`."""


class News(Protocol):
    """See `rtk.serve.protocol.Delta`."""

    @property
    def token_ids(self) -> Sequence[int]:
        """New ones."""

    @property
    def prompt_tokens(self) -> int:
        """Of its prompt."""

    @property
    def cached_tokens(self) -> int:
        """Of these, from the cache."""

    @property
    def finish(self) -> Finished | None:
        """Set in the last of an answer."""


class Visit:
    """What is known of the request so far."""

    __slots__ = (
        "began",
        "began_at",
        "cached_tokens",
        "code",
        "ended",
        "finishes",
        "first_token",
        "name",
        "output_tokens",
        "prompt_tokens",
        "rids",
    )

    def __init__(self) -> None:
        self.began, self.began_at = monotonic(), time()
        """By the clock that only runs forward, and by that on the wall."""
        self.name = ""
        """What client and server call the request itself, from the head of its answer on (`x-request-id`)."""
        self.rids: tuple[str, ...] = ()
        """The ids by which the client, and `/requests/{rid}/explain`, know what is generated; none: nothing is."""
        self.first_token: float | None = None
        """When it was there, by the first clock."""
        self.ended: float | None = None
        """When the last answer was."""
        self.prompt_tokens = self.cached_tokens = self.output_tokens = 0
        self.finishes: list[str] = []
        self.code = ""
        """Of the error that it was answered with."""

    @property
    def request_id(self) -> str:
        """What log lines call it; empty: nothing yet."""
        return self.rids[0] if self.rids else ""

    def serves(self, rids: Iterable[str]) -> None:
        """Answers to these are generated."""
        self.rids = tuple(dict.fromkeys(rids))

    def saw(self, news: News, *, further: bool = False) -> None:
        """Something of an answer has come; `further`: whose prompt counts with an earlier one. O(1)."""
        if news.token_ids and self.first_token is None:
            self.first_token = monotonic()
        self.output_tokens += len(news.token_ids)
        if news.finish is not None:
            self.ended = monotonic()
            self.finishes.append(news.finish.reason)
            self.prompt_tokens += 0 if further else news.prompt_tokens
            self.cached_tokens += 0 if further else news.cached_tokens


_current: ContextVar[Visit | None] = ContextVar("rtk_visit", default=None)


def begin() -> Visit:
    """A visit begins, here and in all that this calls."""
    visit = Visit()
    _current.set(visit)
    return visit


def current() -> Visit:
    """The visit that this is part of; one that nobody looks at where it is part of none."""
    return _current.get() or Visit()
