"""The ledger of scheduling: why each request waited, what it was given, and what its time went into.

The scheduler reports: `arrived`, and `moved_on` of those that had to wait outside of the queue; each planning round
(`planned`); each step when it is launched and when it is done (`launched`, `retired`, in the order of the steps);
`retracted`; `ended`. A round costs O(attempts + arrivals since the last one), a step O(prompts it computes), however
many wait or decode.

Memory is bounded: the attempts of `RECENT` rounds; of each request in flight a few records; of `FINISHED`
finished ones the same, written down as bytes: at most 48 KiB each, and 1 to 3 KiB where ids are short.
"""

import dataclasses
from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from rtk.schedule.admission import Attempt
from rtk.schedule.ledger_clocks import NOTES, QueueClock, Starts, StepClock, Totals
from rtk.schedule.ledger_entry import Entry, Episode, Round, record
from rtk.schedule.messages import ExplainRequest, Finish, Refused, RequestExplained
from rtk.schedule.request import Request, Status
from rtk.schedule.timeline import (
    AttemptRecord,
    Behind,
    Cause,
    Chunk,
    FirstToken,
    Gap,
    Overtaken,
    RetractedFor,
    Retraction,
    Timeline,
)

FINISHED = 1000
"""Finished requests that are remembered."""
RECENT = 256
"""Planning rounds of which all attempts are remembered, beside those kept for requests."""
NAMED = 4
"""Requests that one retraction names."""


_OUTSIDE: dict[Status, Cause] = {Status.COMPILING: "compile", Status.FOLLOWING: "leader"}
"""What requests wait for that are not in the queue yet."""


class Prefill(NamedTuple):
    """A request's part of a prefill: positions `start .. stop - 1`."""

    request: Request
    start: int
    stop: int


class _Flight(NamedTuple):
    """A step under way."""

    begin: float
    prefills: list[tuple[Entry, int, int]]
    decoding: int
    decode_steps: int
    """Steps launched before it that only decode."""


_Named = tuple[str, str]
"""A tenant, and what it calls a request."""


class Ledger:
    """See the module. Belongs to the scheduler's thread."""

    def __init__(self, *, finished: int = FINISHED) -> None:
        self._rounds: deque[Round] = deque(maxlen=RECENT)
        self._keep = finished
        self._live: dict[str, Entry] = {}
        self._finished: dict[str, tuple[_Named, bytes]] = {}  # the timelines, oldest first
        self._names: dict[_Named, str] = {}  # the newest request of each
        self._fresh: dict[str, Entry] = {}  # no round has found these waiting yet
        self._held: dict[str, Entry] = {}  # these the policy kept out of the last round
        self._flights: dict[int, _Flight] = {}
        self._joined: dict[str, Entry] = {}  # these have a token, and no step that decodes has been done since
        self._queue, self._steps, self._starts = QueueClock(), StepClock(), Starts()
        self._arrivals = self._waiting = 0
        self._decode_steps = 0  # launched, those that only decode

    # --- what the scheduler reports -----------------------------------------------------------------------------

    def arrived(self, request: Request, name: str, now: float) -> None:
        """A request was accepted, which its client calls `name`: into the queue, or to wait outside first. O(1)."""
        self._arrivals += 1
        rid, name = request.rid, name or request.rid
        entry = Entry(request, name, self._arrivals, now, self._waiting, self._starts.count, now)
        self._live[rid] = entry
        entry.outside = _OUTSIDE.get(request.status)
        if not entry.outside:
            self._fresh[rid] = entry
        self._finished.pop(rid, None)
        self._names[request.tenant, name] = rid
        self._waiting += 1

    def moved_on(self, request: Request, now: float) -> None:
        """What a request waited for outside of the queue is there: it waits in it now, or for its leader. O(1)."""
        entry = self._live[request.rid]
        if entry.outside:
            entry.waits[entry.outside] += now - entry.since
        entry.outside, entry.since, entry.starts = _OUTSIDE.get(request.status), now, self._starts.count
        if not entry.outside:
            self._fresh[request.rid] = entry

    def planned(
        self,
        step: int,
        attempts: tuple[Attempt, ...],
        rho: float,
        now: float,
        *,
        gate: Cause | None = None,
        note: str = "",
        held: Iterable[Request] = (),
    ) -> None:
        """A round planned step `step` with these attempts; it stopped at the last one, if that was refused.

        `gate`: why no waiting request was looked at, where none was; `note`: what the policy said, one of a few fixed
        texts; `held`: who waits and was kept out of its order. O(attempts + held + arrivals).
        """
        self._turn(now)
        if attempts:
            this = Round(step, now, rho, attempts)
            self._rounds.append(this)
            for attempt in attempts:
                self._live[attempt.rid].attempted(this, attempt)
        cause, at = (gate, "") if gate else _stop(attempts)
        if gate == "kv":
            at = self._queue.stopped_at  # nothing has come back since
        self._queue.stop(cause, at, note)
        self._held = {request.rid: self._live[request.rid] for request in held}

    def launched(self, step: int, prefills: Iterable[Prefill], decoding: int, now: float) -> None:
        """A step begins: it computes these parts of prompts, and one token each for `decoding` requests."""
        begun = []
        for request, start, stop in prefills:
            entry = self._live[request.rid]
            if entry.waiting:
                self._start(entry, start, now)
            begun.append((entry, start, stop))
        self._flights[step] = _Flight(now, begun, decoding, self._decode_steps)
        self._decode_steps += not begun

    def retired(self, step: int, now: float) -> None:
        """The results of a step are there, or it has failed. Comes before what becomes of its rows."""
        flight = self._flights.pop(step)
        pieces = [(stop - start, entry.name) for entry, start, stop in flight.prefills]
        seconds = self._steps.count(flight.begin, now, pieces, flight.decoding)
        if flight.decoding:
            self._decoded(now)
        total = sum(tokens for tokens, _ in pieces)
        for entry, start, stop in flight.prefills:
            if self._live.get(entry.request.rid) is not entry:
                continue  # it ended meanwhile
            between, other = flight.decode_steps - entry.decode_steps, total - (stop - start)
            at = now - entry.arrival_s
            entry.chunks.add(Chunk(step, start, stop, at, seconds, between, other, flight.decoding))
            entry.forward_s += seconds
            entry.decode_steps = flight.decode_steps
            if stop >= entry.request.fill_len and entry.request.max_new_tokens:
                self._join(entry, now)

    def retracted(self, request: Request, why: RetractedFor, for_rids: Sequence[str], step: int, now: float) -> None:
        """A request made room for `for_rids` before step `step`, and waits again. O(1)."""
        entry = self._live[request.rid]
        self._pause(entry, now)
        self._steps.retractions += 1
        entry.retractions.add(
            Retraction(
                step=step,
                after_s=now - entry.arrival_s,
                why=why,
                made_room_for=tuple(map(self.name, for_rids[:NAMED])),
                others=max(0, len(for_rids) - NAMED),
                output_tokens=len(request.output),
            )
        )
        entry.waiting, entry.since = True, now
        self._fresh[request.rid] = entry
        self._waiting += 1

    def ended(self, request: Request, finish: Finish, now: float) -> None:
        """A request is over, wherever it was. O(1), and what writing its timeline down costs."""
        entry = self._live[request.rid]
        timeline = self._as_of(entry, now).timeline(now, finish)
        if entry.waiting:
            self._leave_queue(entry)
        self._joined.pop(request.rid, None)
        del self._live[request.rid]
        self._finished[request.rid] = (request.tenant, entry.name), msgspec.msgpack.encode(timeline)
        if len(self._finished) > self._keep:
            oldest = next(iter(self._finished))
            named, _ = self._finished.pop(oldest)
            if self._names.get(named) == oldest:
                del self._names[named]

    # --- what is asked of it ------------------------------------------------------------------------------------

    def explain(self, question: ExplainRequest, now: float) -> RequestExplained | Refused:
        """What became of the newest request of a name."""
        timeline = self.timeline(question.name, now, question.tenant)
        if timeline is not None:
            return RequestExplained(id=question.id, timeline=timeline)
        problem = (
            f"no request {question.name!r} is known; those in flight are, and the last {self._keep:,} that have ended, "
            "without those that were refused"
        )
        return Refused(id=question.id, problem=problem, code="unknown_request", field="rid", status=404)

    def timeline(self, name: str, now: float, tenant: str = "") -> Timeline | None:
        """What became of the newest request that its client calls `name`; None where it is not known, or no more."""
        rid = self._names.get((tenant, name), "")
        if rid in self._live:
            return self._as_of(self._live[rid], now).timeline(now, None)
        if rid in self._finished:
            return msgspec.msgpack.decode(self._finished[rid][1], type=Timeline)
        return None

    def attempts(self) -> list[AttemptRecord]:
        """The attempts of the last `RECENT` rounds, in order, with the scheduler's own ids and times."""
        return [record(at, attempt, rid=attempt.rid) for at in self._rounds for attempt in at.attempts]

    def _as_of(self, entry: Entry, now: float) -> Entry:
        """The entry with all that the clocks have measured since it was written last."""
        decoded, decoded_s = self._decoded_of(entry, now)
        gap = self._gap_of(entry)
        if not entry.waiting:
            return dataclasses.replace(entry, decoded=decoded, decoded_s=decoded_s, gap=gap)
        return dataclasses.replace(
            entry,
            waits=self._waits_of(entry, now),
            behind=self._behind_of(entry, now),
            overtaken=self._overtaken_of(entry),
            notes=self._notes_of(entry),
            decoded=decoded,
            decoded_s=decoded_s,
            gap=gap,
        )

    # --- the queue ----------------------------------------------------------------------------------------------

    def _turn(self, now: float) -> None:
        """The time since the last round is over: note what it was spent on."""
        cause, passed = self._queue.cause, self._queue.turn(now)
        for entry in self._held.values():
            entry.waits["hold"] += passed
            entry.waits[cause] -= passed
        for entry in self._fresh.values():
            entry.waits["step"] += now - entry.since
            entry.seen, entry.seen_round = self._queue.reading(), self._queue.rounds
        self._fresh.clear()

    def _start(self, entry: Entry, cached: int, now: float) -> None:
        """The first step since it waited begins."""
        entry.waits, entry.behind = self._waits_of(entry, now), self._behind_of(entry, now)
        entry.overtaken, entry.notes = self._overtaken_of(entry), self._notes_of(entry)
        self._leave_queue(entry)
        entry.decode_steps = self._decode_steps
        if entry.started_s is None:
            entry.started_s, entry.cached = now, cached
            self._starts.add(entry.number, entry.request.fill_len - cached)
        else:
            again = {"again_s": now - entry.arrival_s, "cached_tokens": cached}
            entry.retractions.last = msgspec.structs.replace(entry.retractions.last, **again)

    def _leave_queue(self, entry: Entry) -> None:
        entry.waiting, entry.seen = False, None
        self._fresh.pop(entry.request.rid, None)
        self._held.pop(entry.request.rid, None)
        self._waiting -= 1

    def _waits_of(self, entry: Entry, now: float) -> dict[Cause, float]:
        """Its time in the queue, by cause."""
        waits = dict(entry.waits)
        if entry.seen is None:
            waits[entry.outside or "step"] += now - entry.since
            return waits
        for cause, seconds in self._queue.since(entry.seen).items():
            waits[cause] += seconds
        waits["hold" if entry.request.rid in self._held else self._queue.cause] += now - self._queue.now
        return waits

    def _behind_of(self, entry: Entry, now: float) -> Behind | None:
        """Whom it stood behind longest, over all its waits."""
        found = None if entry.outside else self._queue.behind(entry.since, now, entry.request.rid)
        if found is None or (entry.behind is not None and entry.behind.seconds >= found.seconds):
            return entry.behind
        return Behind(self.name(found.rid), found.cause, found.seconds)

    def _overtaken_of(self, entry: Entry) -> Overtaken:
        starts = self._starts.count if entry.outside else entry.starts  # nobody is before it in the queue
        return entry.overtaken or self._starts.overtaking(entry.number, starts)

    def _notes_of(self, entry: Entry) -> tuple[str, ...]:
        said = () if entry.seen is None else self._queue.notes(entry.seen_round)
        return tuple(dict.fromkeys((*entry.notes, *said)))[-NOTES:]

    def name(self, rid: str) -> str:
        """What the client calls a request; the scheduler's id where that is forgotten."""
        if rid in self._live:
            return self._live[rid].name
        return self._finished[rid][0][1] if rid in self._finished else rid

    # --- tokens -------------------------------------------------------------------------------------------------

    def _join(self, entry: Entry, now: float) -> None:
        """Its prompt is computed and its next token there: it decodes from here on."""
        entry.episode = Episode(self._steps.gap_start(now), self._steps.decodes)
        self._joined[entry.request.rid] = entry
        if entry.first_token is None:
            after, queue = now - entry.arrival_s, sum(entry.waits.values())
            entry.first_token = FirstToken(after, queue, entry.forward_s, after - queue - entry.forward_s)
        else:
            entry.took(Gap(now - entry.last_token_s, now, True, 0, 0, 0.0, False, ""))

    def _decoded(self, now: float) -> None:
        """A step is done that decodes."""
        for entry in self._joined.values():
            assert entry.episode is not None, "it has a token"
            entry.took(self._steps.gap(entry.episode.start, now))
            entry.episode = entry.episode._replace(decodes=self._steps.decodes + 1)
        self._steps.decoded(now)
        self._joined.clear()

    def _pause(self, entry: Entry, now: float) -> None:
        """It decodes no more for now, if it did."""
        if entry.episode is None:
            return
        entry.decoded, entry.decoded_s = self._decoded_of(entry, now)
        entry.gap = self._gap_of(entry)
        entry.last_token_s = max(entry.episode.start.time, self._steps.last_token_s)
        entry.episode = None
        self._joined.pop(entry.request.rid, None)

    def _decoded_of(self, entry: Entry, now: float) -> tuple[Totals, float]:
        """What steps were spent on while it decoded, and how long it did."""
        if entry.episode is None:
            return entry.decoded, entry.decoded_s
        start = entry.episode.start
        spent = (had + t - s for had, t, s in zip(entry.decoded, self._steps.totals, start.totals, strict=True))
        return Totals._make(spent), entry.decoded_s + now - start.time

    def _gap_of(self, entry: Entry) -> Gap | None:
        """Its longest time between two tokens."""
        measured = None if entry.episode is None else self._steps.longest_gap(entry.episode.decodes)
        if measured is None or (entry.gap is not None and entry.gap.seconds >= measured.seconds):
            return entry.gap
        return measured


def _stop(attempts: Sequence[Attempt]) -> tuple[Cause, str]:
    """What planning stopped for, and at whom."""
    if not attempts or not (cause := attempts[-1].reason):
        return "step", ""
    if cause == "cut":
        return cause, next((a.rid for a in attempts if a.is_chunked), attempts[-1].rid)
    return cause, attempts[-1].rid
