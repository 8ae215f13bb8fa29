"""How long requests may take: the one watch over the longest wait that the server allows, and over deadlines."""

import math
from collections.abc import Iterator, Mapping
from heapq import heapify, heappop, heappush

from rtk.schedule.messages import Finish
from rtk.schedule.request import Request

_Entry = tuple[float, int, bool, float, str]
"""When it is due, the request's arrival number, whether it is a deadline, the limit in seconds, the request's id."""


class TimeLimits:
    """A heap of what will be due, kept by the scheduler's clock.

    Requests that start or end in time are not taken out: their entries are passed over, and dropped in bulk.
    """

    def __init__(self, requests: Mapping[str, Request], max_wait_s: float | None) -> None:
        """`requests`: those that run or wait, by id. `max_wait_s`: the longest wait for the start; None: any."""
        self._requests = requests
        self._max_wait_s = max_wait_s
        self._heap: list[_Entry] = []
        self._crowded = 64  # so many entries are looked through

    def watch(self, request: Request, deadline_s: float | None) -> None:
        """Take an arrival under watch; `deadline_s` counts from there. O(log n) amortised."""
        if len(self._heap) > self._crowded:  # before it comes: it may not be among the requests yet
            self._heap = [entry for entry in self._heap if self._late(entry) is not None]
            heapify(self._heap)
            self._crowded = 2 * len(self._heap) + 64
        for is_deadline, limit_s in ((False, self._max_wait_s), (True, deadline_s)):
            if limit_s is not None:
                entry = (request.arrival_s + limit_s, request.id, is_deadline, limit_s, request.rid)
                heappush(self._heap, entry)

    @property
    def next_s(self) -> float:
        """When the next look is due; infinite where none is."""
        return self._heap[0][0] if self._heap else math.inf

    def exceeded(self, now: float) -> Iterator[tuple[Request, Finish]]:
        """Whose time is over, and what to tell them. O(1) where nothing is due."""
        while self._heap and self._heap[0][0] <= now:
            entry = heappop(self._heap)
            if (request := self._late(entry)) is not None:
                yield request, _told(entry)

    def _late(self, entry: _Entry) -> Request | None:
        """The request that the entry stands for, unless it kept the limit: it ended or, for a wait, it has started."""
        _, number, is_deadline, _, rid = entry
        request = self._requests.get(rid)
        if request is None or request.id != number:
            return None
        return request if is_deadline or not request.has_started else None


def _told(entry: _Entry) -> Finish:
    _, _, is_deadline, limit_s, _ = entry
    if is_deadline:
        problem = f"the request did not end within its deadline of {limit_s * 1000:.15g} ms"
        return Finish(reason="error", problem=problem, code="deadline_exceeded", status=503)
    problem = f"the request did not start within {limit_s:g} s, the longest wait on this server; try again later"
    return Finish(reason="error", problem=problem, code="queue_timeout", status=503)
