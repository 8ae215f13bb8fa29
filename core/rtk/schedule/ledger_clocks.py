"""The running sums behind the ledger: what the queue waits for, who was started, and what steps were spent on.

They grow by a constant amount of work a round or a step, however many requests wait or run. What one request saw is the
difference between two readings.
"""

from bisect import bisect_right
from collections import deque
from typing import NamedTuple, get_args

import numpy as np

from rtk.schedule.timeline import Behind, Cause, Gap, Overtaken

STOPS = 256
"""Changes of what planning stopped at that are remembered."""
STARTS = 4096
"""Starts of requests that are remembered."""
PREFILLS = 64
"""Pieces of prompts between two decode steps that are told apart; of more, the first."""
GAPS = 1024
NOTES = 4
"""Different things that the schedule policy said that are remembered, in all and of each request."""

CAUSES: tuple[Cause, ...] = get_args(Cause)


# --- the queue --------------------------------------------------------------------------------------------------


class _Stop(NamedTuple):
    """From this time on, planning stopped at this request."""

    since: float
    rid: str
    cause: Cause


class QueueClock:
    """Seconds that the queue spent on each cause: those between two rounds count for what the first stopped at."""

    def __init__(self) -> None:
        self.now = 0.0
        """Time of the last round."""
        self.cause: Cause = "step"
        """What it stopped at."""
        self.rounds = 0
        self.stopped_at = ""
        self._seconds = dict.fromkeys(CAUSES, 0.0)
        self._stops: deque[_Stop] = deque(maxlen=STOPS)
        self._notes: dict[str, int] = {}

    def reading(self) -> dict[Cause, float]:
        """The sums as of the last round."""
        return dict(self._seconds)

    def since(self, reading: dict[Cause, float]) -> dict[Cause, float]:
        """What was added after `reading`."""
        return {cause: seconds - reading[cause] for cause, seconds in self._seconds.items()}

    def turn(self, now: float) -> float:
        """A round begins: the time since the one before is over. Answers it."""
        passed = now - self.now
        self._seconds[self.cause] += passed
        self.now = now
        self.rounds += 1
        return passed

    def stop(self, cause: Cause, at: str, note: str) -> None:
        """The round stopped for `cause` at the request `at`; "": at none."""
        self.cause = cause
        if note:
            self._note(note)
        if not self._stops or self._stops[-1][1:] != (at, cause):
            self._stops.append(_Stop(self.now, at, cause))
        self.stopped_at = at

    def _note(self, note: str) -> None:
        self._notes.pop(note, None)
        self._notes[note] = self.rounds
        if len(self._notes) > NOTES:
            del self._notes[next(iter(self._notes))]

    def notes(self, since: int) -> tuple[str, ...]:
        """What was said in round `since` or later, the last one last."""
        return tuple(note for note, last in self._notes.items() if last >= since)

    def behind(self, begin: float, end: float, rid: str) -> Behind | None:
        """Whom planning stopped at longest from `begin` to `end`, but for `rid` itself. O(STOPS)."""
        seconds: dict[tuple[str, Cause], float] = {}
        for stop in reversed(self._stops):
            if end <= begin:
                break
            if stop.rid not in ("", rid):
                key = stop.rid, stop.cause
                seconds[key] = seconds.get(key, 0.0) + end - max(stop.since, begin)
            end = min(end, stop.since)
        if not seconds:
            return None
        (longest, cause), most = max(seconds.items(), key=lambda item: item[1])
        return Behind(longest, cause, most) if most else None


class Starts:
    """The last `STARTS` first starts of requests, by arrival number, with the tokens that each had to compute."""

    def __init__(self) -> None:
        self.count = 0
        self._numbers = np.zeros(STARTS, np.int64)
        self._tokens = np.zeros(STARTS, np.int64)

    def add(self, number: int, tokens: int) -> None:
        """A request is started. O(1)."""
        self._numbers[self.count % STARTS], self._tokens[self.count % STARTS] = number, tokens
        self.count += 1

    def overtaking(self, number: int, since: int) -> Overtaken:
        """Those that arrived after `number` and came after the first `since` starts. O(starts since), in numpy."""
        recent = min(self.count - since, STARTS)
        places = np.arange(self.count - recent, self.count) % STARTS
        places = places[self._numbers[places] > number]
        return Overtaken(len(places), int(self._tokens[places].sum()), recent == self.count - since)


# --- the steps --------------------------------------------------------------------------------------------------


class Totals(NamedTuple):
    """What steps were spent on since the start."""

    decode_steps: int = 0
    decode_s: float = 0.0
    prefill_steps: int = 0
    prefill_s: float = 0.0
    prefill_tokens: int = 0
    mixed_steps: int = 0
    mixed_s: float = 0.0
    mixed_tokens: int = 0
    """Of prompts."""


class GapStart(NamedTuple):
    """A token is there, the next one is awaited."""

    time: float
    totals: Totals
    prefills: int
    """Pieces of prompts that had been computed since the last decode step."""
    retractions: int


class StepClock:
    """Sums over steps, and the gaps between those that decode.

    The gaps that are longer than all after them are kept, oldest first: the longest one since a step is the first of
    these after it.
    """

    def __init__(self) -> None:
        self.totals = Totals()
        self.decodes = 0
        """Steps that decoded."""
        self.retractions = 0
        self._free_s = 0.0
        self._prefills: list[tuple[int, str]] = []
        self._last = self.gap_start(0.0)
        self._gaps: list[tuple[int, Gap]] = []

    def count(self, begin: float, now: float, pieces: list[tuple[int, str]], decoding: int) -> float:
        """A step is done that began at `begin` or when the one before was done. Answers its seconds. O(pieces)."""
        seconds, tokens, t = now - max(begin, self._free_s), sum(tokens for tokens, _ in pieces), self.totals
        self._free_s = now
        if not pieces:
            self.totals = t._replace(decode_steps=t.decode_steps + 1, decode_s=t.decode_s + seconds)
        elif decoding:
            self.totals = t._replace(
                mixed_steps=t.mixed_steps + 1, mixed_s=t.mixed_s + seconds, mixed_tokens=t.mixed_tokens + tokens
            )
        else:
            self.totals = t._replace(
                prefill_steps=t.prefill_steps + 1,
                prefill_s=t.prefill_s + seconds,
                prefill_tokens=t.prefill_tokens + tokens,
            )
        self._prefills += pieces[: PREFILLS - len(self._prefills)]
        return seconds

    def gap_start(self, now: float) -> GapStart:
        """A token is there now."""
        return GapStart(now, self.totals, len(self._prefills), self.retractions)

    def gap(self, start: GapStart, now: float) -> Gap:
        """From `start`, after the last decode step, to the token that a step has just made."""
        then, t = start.totals, self.totals
        by: dict[str, int] = {}
        for tokens, name in self._prefills[start.prefills :]:
            by[name] = by.get(name, 0) + tokens
        return Gap(
            seconds=now - start.time,
            ended_s=now,
            retracted=False,
            others_retracted=self.retractions - start.retractions,
            prefill_tokens=t.prefill_tokens - then.prefill_tokens + t.mixed_tokens - then.mixed_tokens,
            prefill_s=t.prefill_s - then.prefill_s,
            mixed=t.mixed_steps > then.mixed_steps,
            prefill_by=max(by, key=by.__getitem__, default=""),
        )

    def decoded(self, now: float) -> None:
        """The step just counted decoded. O(1), amortised."""
        self.decodes += 1
        gap = self.gap(self._last, now)
        while self._gaps and self._gaps[-1][1].seconds <= gap.seconds:
            self._gaps.pop()
        self._gaps.append((self.decodes, gap))
        del self._gaps[:-GAPS]
        self._prefills.clear()
        self._last = self.gap_start(now)

    @property
    def last_token_s(self) -> float:
        """When the last step that decoded was done."""
        return self._last.time

    def longest_gap(self, after: int) -> Gap | None:
        """The longest gap that ended after the first `after` decode steps. O(log n)."""
        place = bisect_right(self._gaps, after, key=lambda gap: gap[0])
        return self._gaps[place][1] if place < len(self._gaps) else None
