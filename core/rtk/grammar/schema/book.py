"""What is kept while one schema is normalised: its schemas, the literals made of them, why something has no value."""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from rtk.grammar.regex import TooLargeError
from rtk.grammar.schema import patterns
from rtk.grammar.schema.errors import SchemaError
from rtk.grammar.schema.keywords import CONSTRAINTS
from rtk.grammar.schema.place import Place, Places
from rtk.grammar.schema.shapes import ANYTHING, Literal, Shape, Shapes, State, alternatives

T = TypeVar("T")

MAX_WORK = 30_000
"""Shapes that are made, merged or looked into. Some 20 µs each."""

AUTOMATON = 50
"""What a combination of patterns costs of that at least."""
MAX_LEVELS = 100
"""Of schemas that judge a constant and its parts, one by way of the other."""
MAX_SECONDS = 1.0
"""Of a thread's own time, for combinations of patterns; those that take more are left over."""


@dataclass(frozen=True, slots=True)
class Clash:
    """Why no value is as a schema says."""

    problem: str
    pointer: str
    keyword: str


@dataclass(frozen=True, slots=True)
class Source:
    """What a literal says: a schema of the client's, or a shape."""

    pointer: str
    what: Place | bool | Shape


class Book:
    """See the module."""

    def __init__(self, places: Places):
        self.places = places
        self.sources: list[Source] = []
        self.clashes: list[Clash] = []
        self.narrowed: dict[str, str] = {}
        """Pointers of the client's, and what is not generated of what it allows."""
        self._numbers: dict[tuple[str, bool | None], int] = {}
        self._work = MAX_WORK
        self._seconds = MAX_SECONDS
        self._level = 0

    def join(self, *parts: Shapes) -> dict[str, tuple[Shape, ...]]:
        """What any of them allows."""
        found: dict[str, list[Shape]] = {}
        for part in parts:
            for kind, shapes in part.items():
                found.setdefault(kind, []).extend(shapes)
        return {kind: alternatives(kind, shapes, self.spend) for kind, shapes in found.items()}

    def spend(self, work: int = 1) -> None:
        """Count work, of which there is a limit."""
        self._work -= work
        if self._work < 0:
            raise SchemaError("too large once its parts are put together; say less, or fewer alternatives")

    @contextmanager
    def level(self, pointer: str) -> Iterator[None]:
        """Look at a constant, or a part of one, by a schema; not without end."""
        self.spend()
        if self._level == MAX_LEVELS:
            raise SchemaError(f"a constant needs more than {MAX_LEVELS} schemas in each other to be judged", pointer)
        self._level += 1
        yield
        self._level -= 1

    def combined(
        self,
        wanted: Iterable[str],
        unwanted: Iterable[str] = (),
        excluded: Iterable[str] = (),
        low: int = 0,
        high: int | None = None,
    ) -> str | None:
        """See `patterns.combined`."""
        return self._timed(lambda: patterns.combined(wanted, unwanted, excluded, low, high))

    def overlap(self, a: str, b: str) -> bool:
        """See `patterns.overlap`."""
        return self._timed(lambda: patterns.overlap(a, b))

    def _timed(self, combine: Callable[[], T]) -> T:
        self.spend(AUTOMATON)
        if self._seconds < 0:
            raise TooLargeError("patterns that take too long to be combined")
        begin = time.thread_time()
        try:
            return combine()
        finally:
            self._seconds -= time.thread_time() - begin

    def clash(self, problem: str, pointer: str, keyword: str) -> None:
        """Keep why there is no value: said where one was looked for."""
        self.clashes.append(Clash(problem, pointer, keyword))

    def state(self, pointer: str, holds: bool = True) -> State:
        """The schema there, or its opposite."""
        place = self.places[pointer]
        while isinstance(place, Place) and "$ref" in place.keywords and not place.keywords.keys() & CONSTRAINTS:
            pointer = place.keywords["$ref"]
            place = self.places[pointer]
        if isinstance(place, bool):
            return ANYTHING if place == holds else self.nothing(pointer)
        return frozenset({(self._number(pointer, None, place), holds)})

    def nothing(self, pointer: str) -> State:
        """No value; said by the client there."""
        return frozenset({(self._number(pointer, False, False), True)})

    def made(self, shape: Shape, pointer: str) -> State:
        """A shape as a state."""
        self.sources.append(Source(pointer, shape))
        return frozenset({(len(self.sources) - 1, True)})

    def _number(self, pointer: str, kind: bool | None, what: Place | bool) -> int:
        number = self._numbers.setdefault((pointer, kind), len(self.sources))
        if number == len(self.sources):
            self.sources.append(Source(what.here if isinstance(what, Place) else pointer, what))
        return number

    def is_nothing(self, state: State) -> bool:
        """It says `false`, in so many words."""
        return any(self.sources[number].what is False for number, _ in state)

    def both(self, *states: State) -> State:
        """All of them hold."""
        found = ANYTHING.union(*states)
        for literal in found:
            if self.sources[literal[0]].what is False:
                return frozenset({literal})
        return found

    def pointer(self, state: State) -> str | None:
        """Where the client wrote it, or the first of several."""
        return self.sources[min(state)[0]].pointer if state else None

    def literals(self, state: State) -> Iterable[Literal]:
        """In the order in which they were met."""
        return sorted(state)
