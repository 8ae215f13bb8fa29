"""The requests whose grammar is not compiled yet: accepted, and not in the queue before it is."""

from collections.abc import Iterable, Iterator, Set
from typing import Protocol

from rtk.errors import RequestError
from rtk.grammar.constraint import Constraint
from rtk.observe.histogram import Distribution
from rtk.plugin.grammar import Matcher
from rtk.schedule.messages import GrammarOrder
from rtk.schedule.request import Request, Status


class Grammars(Protocol):
    """Who compiles, see `rtk.grammar.manager.GrammarManager`. None of it waits for anything."""

    def submit(self, rid: str, wanted: GrammarOrder) -> Matcher | None:
        """A matcher of the request's own; None where `poll` will tell. Raises `RequestError`."""

    def poll(self) -> Iterable[tuple[str, Matcher | RequestError]]:
        """The requests that wait no more, each with its matcher or what to tell its client."""

    def constraint(self, wanted: GrammarOrder, matcher: Matcher, stops: Set[int]) -> Constraint:
        """The state of a request's grammar. `stops`: every token that ends its text."""

    def abort(self, rid: str) -> None:
        """The request waits no more."""

    def stats(self) -> dict[str, int | float]:
        """Counters and gauges."""

    def histograms(self) -> dict[str, Distribution]:
        """How long it took."""

    def close(self) -> None:
        """End what is under way."""


class Compiling:
    """Who waits for a grammar. Without `grammars` nobody may."""

    def __init__(self, grammars: Grammars | None) -> None:
        self._grammars = grammars
        self._requests: dict[str, Request] = {}

    def __len__(self) -> int:
        return len(self._requests)

    def submit(self, request: Request, wanted: GrammarOrder) -> None:
        """Give a new request its matcher, or have it wait for one. Raises `RequestError`."""
        if self._grammars is None:
            problem = "structured output is not enabled on this server (grammar.backend)"
            raise RequestError(problem, field="grammar", code="grammar_off")
        request.grammar = wanted
        matcher = self._grammars.submit(request.rid, wanted)
        if matcher is None:
            request.status = Status.COMPILING
            self._requests[request.rid] = request
        else:
            request.constraint = self._grammars.constraint(wanted, matcher, request.stop_token_ids)

    def done(self) -> Iterator[tuple[Request, RequestError | None]]:
        """Those that wait no more: ready for the queue, or to be ended for a reason."""
        if self._grammars is None:
            return
        for rid, found in self._grammars.poll():
            request = self._requests.pop(rid)
            if isinstance(found, RequestError):
                yield request, found
                continue
            assert request.grammar is not None, "it waits for one"
            request.constraint = self._grammars.constraint(request.grammar, found, request.stop_token_ids)
            request.status = Status.WAITING
            yield request, None

    def remove(self, request: Request) -> None:
        """It ends."""
        if self._requests.pop(request.rid, None) is not None:
            assert self._grammars is not None, "somebody compiles for it"
            self._grammars.abort(request.rid)

    def stats(self) -> dict[str, int | float]:
        """Counters and gauges."""
        return {"compiling": len(self._requests), **(self._grammars.stats() if self._grammars else {})}

    def histograms(self) -> dict[str, Distribution]:
        """How long compiling took."""
        return self._grammars.histograms() if self._grammars else {}

    def close(self) -> None:
        """End what is under way."""
        if self._grammars:
            self._grammars.close()
