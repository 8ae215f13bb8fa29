"""What the ledger knows of one request in flight, and how that becomes its timeline."""

from collections import deque
from dataclasses import dataclass, field
from typing import Generic, Literal, NamedTuple, TypeVar

from msgspec.structs import replace

from rtk.schedule.admission import Attempt
from rtk.schedule.ledger_clocks import CAUSES, GapStart, Totals
from rtk.schedule.messages import Finish
from rtk.schedule.request import Request
from rtk.schedule.timeline import (
    Accounts,
    AttemptRecord,
    Attempts,
    Behind,
    Cause,
    Chunk,
    Decoding,
    FirstToken,
    Gap,
    Overtaken,
    Reason,
    Retraction,
    Timeline,
    Wait,
)

CHUNKS = 16
"""Pieces of a prompt that are kept from its start, and as many from its end."""
RETRACTIONS = 4
"""The same for retractions."""
SHORTEST_S = 1e-9
"""What is shorter is rounding."""
NOTHING = Totals()

T = TypeVar("T")


class Few(Generic[T]):
    """The first and the last `keep` of what was added, and how many there were."""

    __slots__ = ("_first", "_keep", "_last", "count")

    def __init__(self, keep: int) -> None:
        self.count = 0
        self._keep = keep
        self._first: list[T] = []
        self._last: deque[T] = deque(maxlen=keep)

    def add(self, item: T) -> None:
        """One more. O(1)."""
        self.count += 1
        (self._first if len(self._first) < self._keep else self._last).append(item)

    @property
    def last(self) -> T:
        """What was added last."""
        return (self._last or self._first)[-1]

    @last.setter
    def last(self, item: T) -> None:
        (self._last or self._first)[-1] = item

    def kept(self) -> tuple[T, ...]:
        """In order."""
        return (*self._first, *self._last)


class Round(NamedTuple):
    """One round of planning."""

    step: int
    time: float
    rho: float
    attempts: tuple[Attempt, ...]


@dataclass(slots=True)
class Alike:
    """Attempts that ended alike."""

    count: int
    first: tuple[Round, Attempt]
    last: tuple[Round, Attempt]


class Episode(NamedTuple):
    """A request decodes since then."""

    start: GapStart
    decodes: int
    """Steps that had decoded."""


@dataclass(slots=True, eq=False)
class Entry:
    """One request in flight. Times are the scheduler's clock. Only the ledger writes it."""

    request: Request
    name: str
    number: int
    """Arrival number; refused requests have none."""
    arrival_s: float
    ahead: int
    """Requests that waited when it arrived."""
    starts: int
    """Requests that had been started when it arrived."""
    since: float
    """It waits since then, if it does."""

    outside: Cause | None = None
    """What it waits for before it is in the queue; None: it is, or was."""
    waiting: bool = True
    seen: dict[Cause, float] | None = None
    """The queue's clock when a round first found it waiting; None: none has, or it does not wait."""
    seen_round: int = 0
    waits: dict[Cause, float] = field(default_factory=lambda: dict.fromkeys(CAUSES, 0.0))
    """Its time in the queue, without what the clock has measured since `seen`."""
    behind: Behind | None = None
    overtaken: Overtaken | None = None
    notes: tuple[str, ...] = ()
    attempts: dict[Reason, Alike] = field(default_factory=dict)
    """By what refused it."""

    started_s: float | None = None
    cached: int = 0
    chunks: Few[Chunk] = field(default_factory=lambda: Few(CHUNKS))
    forward_s: float = 0.0
    decode_steps: int = 0
    """Steps that only decoded, as of its last chunk."""
    first_token: FirstToken | None = None

    episode: Episode | None = None
    """Set while it decodes."""
    decoded: Totals = NOTHING
    """What steps were spent on in earlier episodes, and how long these were."""
    decoded_s: float = 0.0
    gap: Gap | None = None
    """Its longest, without those that the step clock has measured in this episode."""
    last_token_s: float = 0.0
    """Of the last token of the episode before."""
    retractions: Few[Retraction] = field(default_factory=lambda: Few(RETRACTIONS))

    def attempted(self, at: Round, attempt: Attempt) -> None:
        """Admission looked at it. O(1)."""
        alike = self.attempts.get(attempt.reason)
        if alike is None:
            self.attempts[attempt.reason] = Alike(1, (at, attempt), (at, attempt))
        else:
            alike.count += 1
            alike.last = at, attempt

    def took(self, gap: Gap) -> None:
        """It waited that long for a token."""
        if self.gap is None or gap.seconds > self.gap.seconds:
            self.gap = gap

    def timeline(self, now: float, finish: Finish | None) -> Timeline:
        """What became of it until now. Its sums must be up to date: see `Ledger`."""
        request, queue_s = self.request, sum(self.waits.values())
        spoke = bool(request.output)
        going: Literal["waiting", "running"] = "waiting" if self.waiting else "running"
        return Timeline(
            rid=self.name,
            state=going if finish is None else "finished",
            age_s=now - self.arrival_s,
            end=finish.reason if finish else None,
            problem=finish.problem if finish else "",
            prompt_tokens=request.prompt_len,
            output_tokens=len(request.output),
            waiting_at_arrival=self.ahead,
            started_s=None if self.started_s is None else self.started_s - self.arrival_s,
            cached_tokens=self.cached,
            queue_s=queue_s,
            waits=self._waits(),
            behind=self.behind,
            overtaken=self.overtaken or Overtaken(0, 0, True),
            notes=self.notes,
            attempts=tuple(self._attempts(reason, alike) for reason, alike in self.attempts.items()),
            chunks=self.chunks.kept(),
            chunk_count=self.chunks.count,
            forward_s=self.forward_s,
            first_token=self.first_token if spoke else None,
            decoding=self._decoding() if spoke else None,
            retractions=self.retractions.kept(),
            retraction_count=self.retractions.count,
        )

    def _waits(self) -> tuple[Wait, ...]:
        waits = [Wait(cause, seconds) for cause, seconds in self.waits.items() if seconds > SHORTEST_S]
        return tuple(sorted(waits, key=lambda wait: -wait.seconds))

    def _attempts(self, reason: Reason, alike: Alike) -> Attempts:
        first, last = (record(*pair, rid=self.name, since=self.arrival_s) for pair in (alike.first, alike.last))
        return Attempts(reason=reason, count=alike.count, first=first, last=last)

    def _decoding(self) -> Decoding:
        spent = self.decoded
        return Decoding(
            seconds=self.decoded_s,
            steps=spent.decode_steps + spent.mixed_steps,
            prefill_steps=spent.prefill_steps,
            prefill_s=spent.prefill_s,
            prefill_tokens=spent.prefill_tokens,
            mixed_steps=spent.mixed_steps,
            mixed_s=spent.mixed_s,
            mixed_tokens=spent.mixed_tokens,
            gap=replace(self.gap, ended_s=self.gap.ended_s - self.arrival_s) if self.gap else None,
        )


def record(at: Round, attempt: Attempt, *, rid: str, since: float = 0.0) -> AttemptRecord:
    """An attempt as it is told: of the request that is called `rid`, at a time that counts from `since`."""
    return AttemptRecord(
        rid=rid,
        step=at.step,
        time=at.time - since,
        rho=at.rho,
        prefix=attempt.prefix,
        candidate=attempt.candidate,
        selected=attempt.selected,
        is_chunked=attempt.is_chunked,
        charge=attempt.charge,
        locked=attempt.locked,
        before=Accounts(*attempt.before),
        after=Accounts(*attempt.after),
        verdict=attempt.verdict,
        reason=attempt.reason,
    )
