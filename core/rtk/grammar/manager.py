"""The grammars of one engine: who waits for which, what was compiled, and what becomes of those that cannot be.

Belongs to the scheduler's thread, which never waits here. Only `_finished` is called by another, and says `wake`.
"""

import os
import queue
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from rtk.errors import RequestError
from rtk.grammar.cache import GrammarCache, GrammarKey, Invalid
from rtk.grammar.constraint import Constraint, runs_out_of_keys
from rtk.grammar.process import Job, Setup
from rtk.grammar.unique_keys import KeyIndex, UniqueKeys
from rtk.grammar.workers import Compiled, Done, Failed, Order, Outcome, Problem, Workers
from rtk.observe.histogram import WAIT_S, Distribution, Histogram
from rtk.plugin.foreign import contained
from rtk.plugin.grammar import GrammarBackend, Matcher, Vocabulary
from rtk.plugin.info import Options
from rtk.plugin.registry import Registered
from rtk.schedule.messages import GrammarOrder

MIB = 1024 * 1024


def default_workers() -> int:
    """Half of the cores: the engine has the others."""
    return max(1, (os.cpu_count() or 1) // 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class GrammarSettings:
    """The limits of compiling."""

    workers: int = field(default_factory=default_workers)
    """Processes that compile at a time."""
    timeout_s: float = 10.0
    """For one grammar."""
    memory_bytes: int = 2048 * MIB
    """For one grammar, while it is compiled."""
    cache_bytes: int = 256 * MIB
    """For all that are kept, and so for each of them."""
    max_spec_bytes: int = 256 * 1024
    """Of the text of one."""
    max_queue: int = 256
    """Grammars that may be on their way together."""


class Told(NamedTuple):
    """How clients are told of a problem."""

    code: str
    status: int = 400


TOLD: dict[Problem, Told] = {
    "invalid": Told(code="invalid_grammar"),
    "timeout": Told(code="grammar_timeout"),
    "too_large": Told(code="grammar_too_large"),
    "failed": Told(code="grammar_not_compiled"),  # no 500: who tries again brings it about again
    "unbuildable": Told(code="grammar_failed", status=500),
}
OFF = Told(code="grammar_off")
QUEUE_FULL = Told(code="grammar_queue_full", status=503)


class CompilePool(Protocol):
    """See `rtk.grammar.workers.Workers`."""

    def submit(self, job: Job) -> Order:
        """Have a job done."""

    def cancel(self, order: Order) -> None:
        """Nobody wants it any more."""

    def close(self) -> None:
        """End everything."""


@dataclass(slots=True, eq=False)
class _Wait:
    """One grammar on its way, and the requests that wait for it."""

    key: GrammarKey
    order: Order
    rids: dict[str, None] = field(default_factory=dict)


class GrammarManager:
    """See the module. A request is known by the scheduler's id."""

    def __init__(
        self,
        backends: Mapping[str, GrammarBackend],
        vocabulary: Vocabulary,
        settings: GrammarSettings,
        wake: Callable[[], None],
        pool: Callable[[Done], CompilePool],
    ) -> None:
        """`wake` is called from any thread, once there is something to `poll`."""
        self.backends = backends
        """Who may be asked for; built here too, to judge and to fill masks."""
        self.vocabulary = vocabulary
        """Which all matchers are over."""
        self._index = KeyIndex(vocabulary)
        self._settings = settings
        self._wake = wake
        self._pool = pool(self._finished)
        self._cache = GrammarCache(settings.cache_bytes)
        self._waits: dict[GrammarKey, _Wait] = {}
        self._by_rid: dict[str, _Wait] = {}
        self._by_order: dict[Order, _Wait] = {}
        self._done: queue.SimpleQueue[tuple[Order, Outcome]] = queue.SimpleQueue()
        self._counts: Counter[str] = Counter()
        self._seconds = 0.0
        self._compile_seconds = Histogram(WAIT_S)

    def submit(self, rid: str, wanted: GrammarOrder) -> Matcher | None:
        """A matcher of the request's own, at the start; None where `poll` will tell. Raises `RequestError`."""
        key = GrammarKey(wanted.backend, wanted.kind, wanted.text, wanted.whitespace)
        if key.backend not in self.backends:
            names = ", ".join(sorted(self.backends))
            raise _refusal(f"grammar backend {key.backend!r} is not in use here; in use: {names}", OFF)
        if key.size > self._settings.max_spec_bytes:
            most = f"{self._settings.max_spec_bytes:,} (grammar.max_spec_bytes)"
            raise _refusal(f"as rtk writes it, it has {key.size:,} bytes, and may have {most}", TOLD["too_large"])
        found = self._cache.get(key)
        if found is not None:
            self._counts["grammar_hits"] += 1
            if isinstance(found, Invalid):
                raise _problem(key, "invalid", found.problem)
            return _fork(key, found)
        self._counts["grammar_misses"] += 1
        wait = self._waits.get(key) or self._ordered(key)
        wait.rids[rid] = None
        self._by_rid[rid] = wait
        return None

    def _ordered(self, key: GrammarKey) -> _Wait:
        if len(self._waits) >= self._settings.max_queue:
            self._counts["grammar_queue_full"] += 1
            most = f"(grammar.max_queue = {self._settings.max_queue})"
            problem = f"{len(self._waits)} grammars are being compiled {most}; try again later"
            raise _refusal(problem, QUEUE_FULL)
        wait = _Wait(key, self._pool.submit(Job(*key)))
        self._waits[key] = self._by_order[wait.order] = wait
        return wait

    def constraint(self, wanted: GrammarOrder, matcher: Matcher, stops: Set[int]) -> Constraint:
        """The state of a request's grammar, with a matcher that becomes its own."""
        backend, vocabulary = self.backends[wanted.backend], self.vocabulary
        keys = UniqueKeys(self._index) if wanted.unique_keys else None
        return Constraint(
            matcher,
            backend,
            wanted.backend,
            vocabulary,
            stops=stops,
            after=wanted.after,
            keys=keys,
            scarce=keys is not None and runs_out_of_keys(wanted.text),
        )

    def abort(self, rid: str) -> None:
        """The request waits no more; with the last one that does, the work on its grammar ends."""
        wait = self._by_rid.pop(rid)
        del wait.rids[rid]
        if not wait.rids:
            self._counts["grammar_cancelled"] += 1
            self._pool.cancel(wait.order)
            self._over(wait)

    def poll(self) -> Iterator[tuple[str, Matcher | RequestError]]:
        """The requests that wait no more, each with a matcher of its own or what to tell its client."""
        while not self._done.empty():
            order, outcome = self._done.get()
            wait = self._by_order.get(order)
            if wait is None:
                continue  # cancelled as it ended
            self._over(wait)
            self._note(wait.key, outcome)
            for rid in wait.rids:
                del self._by_rid[rid]
                yield rid, _answer(wait.key, outcome)

    def _over(self, wait: _Wait) -> None:
        del self._waits[wait.key], self._by_order[wait.order]

    def _note(self, key: GrammarKey, outcome: Outcome) -> None:
        self._seconds += outcome.seconds
        self._compile_seconds.observe(outcome.seconds)
        if isinstance(outcome, Compiled):
            self._counts["grammar_compiles"] += 1
            self._cache.put(key, outcome.matcher, outcome.size)
            return
        self._counts[f"grammar_{outcome.why}"] += 1
        if outcome.why == "invalid":  # all else may end otherwise another time
            self._cache.put(key, Invalid(outcome.problem), len(outcome.problem.encode()))

    def _finished(self, order: Order, outcome: Outcome) -> None:
        self._done.put((order, outcome))
        self._wake()

    def stats(self) -> dict[str, int | float]:
        """Counters since the start, and gauges of now."""
        return {
            **dict.fromkeys(COUNTERS, 0),
            **self._counts,
            "grammar_compile_seconds": self._seconds,
            "grammar_pending": len(self._waits),
            "grammar_cached": len(self._cache),
            "grammar_cached_bytes": self._cache.size,
        }

    def histograms(self) -> dict[str, Distribution]:
        """How long compiling took, whatever came of it."""
        return {"grammar_compile_seconds": self._compile_seconds.read()}

    def close(self) -> None:
        """End the processes. Safe to call twice."""
        self._pool.close()


COUNTERS = (
    "grammar_hits",
    "grammar_misses",
    "grammar_compiles",
    "grammar_cancelled",
    "grammar_queue_full",
    *(f"grammar_{why}" for why in TOLD),
)
"""Every counter of `GrammarManager.stats`."""


class Chosen(NamedTuple):
    """A plugin that may be asked for."""

    entry: Registered
    options: Options
    backend: GrammarBackend
    """Built here."""


def start_manager(
    chosen: Iterable[Chosen], vocabulary: Vocabulary, settings: GrammarSettings, wake: Callable[[], None]
) -> GrammarManager:
    """A manager over processes, none of which is started before it is needed."""
    by_name = {one.entry.plugin.name: one for one in chosen}
    limits = settings.memory_bytes, settings.cache_bytes
    setups = {name: Setup(one.entry, one.options, vocabulary, *limits) for name, one in by_name.items()}

    def pool(done: Done) -> Workers:
        return Workers(setups, done, processes=settings.workers, limit_s=settings.timeout_s)

    backends = {name: one.backend for name, one in by_name.items()}
    return GrammarManager(backends, vocabulary, settings, wake, pool)


def _answer(key: GrammarKey, outcome: Outcome) -> Matcher | RequestError:
    if isinstance(outcome, Failed):
        return _problem(key, outcome.why, outcome.problem)
    try:
        return _fork(key, outcome.matcher)
    except RequestError as error:
        return error


def _fork(key: GrammarKey, matcher: Matcher) -> Matcher:
    try:
        return matcher.fork()
    except BaseException as error:
        if not contained(error):
            raise
        raise _problem(key, "failed", f"its matcher cannot be forked: {type(error).__name__}") from error


def _problem(key: GrammarKey, why: Problem, problem: str) -> RequestError:
    if why == "timeout":
        problem += " (grammar.compile_timeout_s)"
    return _refusal(f"grammar backend {key.backend!r} cannot compile this: {problem}", TOLD[why])


def _refusal(problem: str, told: Told) -> RequestError:
    return RequestError(problem, field="grammar", code=told.code, status=told.status)
