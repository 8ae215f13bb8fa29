"""The grammars of those who run: their masks, and what becomes of a backend that fails.

A request whose backend raises, does not return, or contradicts itself ends with an error, and only that one: text that
nobody vouches for is never sent. Requests without a grammar cost nothing here.
"""

from collections import Counter
from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from rtk.grammar.constraint import Constraint, ask
from rtk.plugin.foreign import contained
from rtk.plugin.guard import Health, problem_of
from rtk.schedule.batch import Mask
from rtk.schedule.flight import Flight
from rtk.schedule.messages import Finish
from rtk.schedule.request import Request, Status

INSTEAD = "an error for the request"
"""What the host uses where a backend fails."""


class Constraints:
    """Owns the bitmap: a row for each request row, written when the request's grammar has moved."""

    def __init__(self, rows: int, health: Health, counters: Counter[str]) -> None:
        self._rows = rows
        self._health = health
        self._counters = counters
        self._bits: NDArray[np.int32] | None = None

    def wait(self, flight: Flight) -> bool:
        """Whether the sampling of a step needs tokens that the step before it samples. O(rows)."""
        return any(
            row.samples and request.constraint is not None and request.sampled > len(request.output) + row.samples
            for request, row in zip(flight.batch, flight.plan.rows, strict=True)
        )

    def accept(self, request: Request, token: int) -> Finish | None:
        """Take a sampled token in; answers how the request ends where its backend fails on that."""
        constraint = request.constraint
        if constraint is None:
            return None
        try:
            if self._health.watchdog.watched(constraint.accept, token):
                return None
            problem = f"accept() refused token {token}, which its mask allows"
        except BaseException as error:
            if not contained(error):
                raise
            problem = problem_of("accept", error)
        return self._fault(constraint, problem)

    def complete(self, request: Request) -> bool:
        """Whether a request's grammar allows nothing more."""
        return any(finish.reason == "stop" for _, finish in self.renew([request]))

    def renew(self, requests: Iterable[Request]) -> list[tuple[Request, Finish]]:
        """Bring the masks of these up to date, of those who run; answers who ends by that, and how. O(rows * vocab)."""
        stale: dict[int, list[tuple[Request, Constraint]]] = {}
        for request in requests:
            constraint = request.constraint
            if constraint is not None and constraint.stale and request.status is Status.RUNNING:
                stale.setdefault(id(constraint.backend), []).append((request, constraint))
        return [ended for group in stale.values() for ended in self._renew(group)]

    def _renew(self, group: list[tuple[Request, Constraint]]) -> Iterator[tuple[Request, Finish]]:
        """The same for requests of one backend."""
        bits = self._bits_of(group[0][1])
        problem = self._ask(group, bits)
        if problem is not None and len(group) > 1:  # whose fault is it?
            alone = [ended for one in group for ended in self._renew([one])]
            if not alone:
                self._health.fault(f"grammar plugin {group[0][1].name!r}", problem, "one answer after the other")
            yield from alone
            return
        for request, constraint in group:
            if problem is not None:
                yield request, self._fault(constraint, problem)
                continue
            constraint.refine(bits[request.row])
            if constraint.state == "ended":
                yield request, Finish(reason="stop")
            elif constraint.state == "dead":
                self._counters["grammar_dead_ends"] += 1
                yield request, _error("no token can follow here under the grammar", "grammar_dead_end")

    def _ask(self, group: list[tuple[Request, Constraint]], bits: NDArray[np.int32]) -> str | None:
        """Have a backend write the rows of these; answers what went wrong."""
        try:
            rows = [request.row for request, _ in group]
            self._health.watchdog.watched(ask, [constraint for _, constraint in group], bits, rows)
        except BaseException as error:
            if not contained(error):
                raise
            return problem_of("fill_batch", error)
        return None

    def mask(self, requests: list[Request]) -> Mask | None:
        """The masks of these, which are up to date, those that have ended left out. A copy: it is read later."""
        rows = [i for i, r in enumerate(requests) if r.constraint is not None and r.status is Status.RUNNING]
        if not rows:
            return None
        assert self._bits is not None, "no mask was made"
        assert not any(requests[i].constraint.stale for i in rows), "a mask is out of date"  # type: ignore[union-attr]
        return Mask(np.array(rows, dtype=np.int32), self._bits[[requests[i].row for i in rows]])

    def _bits_of(self, constraint: Constraint) -> NDArray[np.int32]:
        """All of an engine's grammars are over one vocabulary."""
        if self._bits is None:
            self._bits = np.zeros((self._rows + 1, constraint.words), dtype=np.int32)
        return self._bits

    def _fault(self, constraint: Constraint, problem: str) -> Finish:
        self._counters["grammar_faults"] += 1
        self._health.fault(f"grammar plugin {constraint.name!r}", problem, INSTEAD)
        return _error(f"the grammar backend {constraint.name!r} failed on this answer", "grammar_failed")


def _error(problem: str, code: str) -> Finish:
    return Finish(reason="error", problem=problem, code=code)
