"""The grammars of those who run: their masks, and what becomes of a backend that fails.

A request whose backend raises, does not return, contradicts itself or takes too long ends with an error, and only that
one: text that nobody vouches for is never sent. Requests without a grammar cost nothing here.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from time import thread_time
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from rtk.grammar.constraint import Constraint, ask
from rtk.observe.logs import quotes
from rtk.plugin.foreign import contained
from rtk.plugin.guard import Health, problem_of
from rtk.schedule.batch import Mask
from rtk.schedule.flight import Flight
from rtk.schedule.messages import Finish
from rtk.schedule.request import Request, Status

Answer = TypeVar("Answer")

GUESSES = 32
"""Tokens that are guessed at once for a request, at most."""
SLOW_S = 1.0
"""Seconds of computing that the mask of one answer may take: everybody else waits meanwhile."""
TOO_SLOW = (
    f"what the grammar allows here took more than {SLOW_S:g} s to find out: "
    "write it so that a text can be read in one way only"
)
INSTEAD = "an error for the request"
"""What the host uses where a backend fails."""


class Constraints:
    """Owns the bitmap: a row for each request row, written when the request's grammar has moved."""

    def __init__(self, rows: int, health: Health, counters: Counter[str], *, jump_forward: bool) -> None:
        """`jump_forward`: whether tokens are computed along that a grammar leaves no choice of."""
        self._rows = rows
        self._jump_forward = jump_forward
        self._health = health
        self._counters = counters
        self._bits: NDArray[np.int32] | None = None

    def accept(self, constraint: Constraint, token: int) -> Finish | None:
        """Take a sampled token in; answers how the request ends where its backend fails on that."""
        accepted, problem = self._try("accept", lambda: constraint.accept(token))
        if accepted:
            return None
        return self._fault(constraint, problem or f"accept() refused token {token}, which its mask allows")

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
        began = thread_time()
        failed = self._ask(group, bits)
        slow = thread_time() - began > SLOW_S
        if (failed or slow) and len(group) > 1:  # whose fault is it?
            alone = [ended for one in group for ended in self._renew([one])]
            if failed and not alone:
                self._health.fault(f"grammar plugin {group[0][1].name!r}", failed, "one answer after the other")
            yield from alone
            return
        for request, constraint in group:
            problem = failed
            if not problem:
                _, problem = self._try("fill_batch", partial(constraint.refine, bits[request.row]))
            if not problem:
                _, problem = self._try("forced", partial(constraint.look_ahead, bits[request.row]))
            if problem:
                yield request, self._fault(constraint, problem)
            elif slow:
                self._counters["grammar_slow"] += 1
                yield request, Finish(reason="error", problem=TOO_SLOW, code="grammar_too_slow", status=400)
            elif constraint.state == "ended":
                yield request, Finish(reason="stop")
            elif constraint.state in ("barred", "dead"):
                self._counters["grammar_dead_ends"] += 1
                yield request, _dead_end(barred=constraint.state == "barred")

    def _ask(self, group: list[tuple[Request, Constraint]], bits: NDArray[np.int32]) -> str:
        """Have a backend write the rows of these; answers what went wrong."""
        constraints, rows = [constraint for _, constraint in group], [request.row for request, _ in group]
        _, problem = self._try("fill_batch", lambda: ask(constraints, bits, rows))
        return problem

    def _try(self, what: str, act: Callable[[], Answer]) -> tuple[Answer | None, str]:
        """The answer of something that has a backend's code in it, or none and what went wrong."""
        try:
            return self._health.watchdog.watched(act), ""
        except BaseException as error:
            if not contained(error):
                raise
            said = self._health.said(error)
            if said is not None and not quotes():  # it may quote the grammar, or the answer
                said = type(error).__name__
            return None, problem_of(what, said)

    def mask(self, flight: Flight) -> Mask | None:
        """The masks of a step, which are up to date; none for who has ended. A copy: it is read later."""
        rows: list[int] = []
        words: list[NDArray[np.int32]] = []
        at = 0
        for request, row in zip(flight.batch, flight.plan.rows, strict=True):
            constraint = request.constraint
            if row.samples and constraint is not None and request.status is Status.RUNNING:
                assert self._bits is not None and not constraint.stale, "a mask is out of date"
                rows += range(at, at + row.samples)
                words += [self._bits[request.row : request.row + 1], constraint.ahead[: row.samples - 1]]
            at += row.samples
        return Mask(np.array(rows, dtype=np.int32), np.concatenate(words)) if rows else None

    # --- jump-forward -------------------------------------------------------------------------------------------

    def borne_out(self, request: Request, tokens: tuple[int, ...]) -> tuple[int, ...]:
        """Of what was sampled before and behind each guess: up to the first that was guessed otherwise."""
        assert request.constraint is not None, "tokens are guessed under a grammar only"
        right = [token == guess for token, guess in zip(tokens, request.constraint.drafts, strict=False)]
        return tokens[: [*right, False].index(False) + 1]

    def foresees(self, request: Request) -> bool:
        """Whether tokens beyond the next one of a request can be guessed."""
        return self._jump_forward and request.constraint is not None and len(request.constraint.drafts) > 1

    def draft(self, request: Request, most: int) -> tuple[int, Finish | None]:
        """How many tokens of a request are guessed next, with their masks made; how it ends if its backend fails."""
        constraint, most = request.constraint, min(most, GUESSES)
        if constraint is None or not self._jump_forward or not constraint.drafts or most < 1:
            return 0, None
        states, problem = self._try("accept", lambda: constraint.behind_drafts(most))
        if states is None:
            return 0, self._fault(constraint, problem)
        _, problem = self._try("fill_batch", lambda: constraint.mask_drafts(states))
        if not problem:
            count, problem = self._try("forced", lambda: constraint.refine_drafts(states))
        return (0, self._fault(constraint, problem)) if problem else (count or 0, None)

    def _bits_of(self, constraint: Constraint) -> NDArray[np.int32]:
        """All of an engine's grammars are over one vocabulary."""
        if self._bits is None:
            self._bits = np.zeros((self._rows + 1, constraint.words), dtype=np.int32)
        return self._bits

    def _fault(self, constraint: Constraint, problem: str) -> Finish:
        self._counters["grammar_faults"] += 1
        self._health.fault(f"grammar plugin {constraint.name!r}", problem, INSTEAD)
        failed = f"the grammar backend {constraint.name!r} failed on this answer"
        return Finish(reason="error", problem=failed, code="grammar_failed")


def _dead_end(*, barred: bool) -> Finish:
    """`barred`: by the request's own stops."""
    problem = "no token can follow here under the grammar"
    if barred:
        problem += " but those of stop_token_ids; leave some of them out"
    return Finish(reason="error", problem=problem, code="grammar_dead_end", status=400 if barred else 500)
