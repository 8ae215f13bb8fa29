"""What the matchers here have in common: what was accepted, and the ends, of which libraries are not told."""

import threading
from abc import abstractmethod
from collections.abc import Callable
from typing import Generic, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from rtk.plugin.grammar import Matcher, Vocabulary

T = TypeVar("T")
M = TypeVar("M", bound="TokenMatcher")


class PerVocabulary(Generic[T]):
    """What is made of a vocabulary, once for each as long as there is one."""

    def __init__(self, make: Callable[[Vocabulary], T]):
        self._make = make
        self._made: WeakKeyDictionary[Vocabulary, T] = WeakKeyDictionary()
        self._lock = threading.Lock()

    def __call__(self, vocabulary: Vocabulary) -> T:
        with self._lock:
            found = self._made.get(vocabulary)
            if found is None:
                found = self._made[vocabulary] = self._make(vocabulary)
            return found


class TokenMatcher(Matcher):
    """A matcher that keeps its past: its library is asked about tokens with bytes only, and about no end."""

    max_rollback = 2**31

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self.past: list[int] = []
        self.ended = False

    @abstractmethod
    def complete(self) -> bool:
        """Whether the answer may end here."""

    @abstractmethod
    def step(self, token: int) -> bool:
        """Go on by a token with bytes. False, and nothing changed, where that is not allowed."""

    @abstractmethod
    def back(self, count: int) -> None:
        """Take back some tokens with bytes."""

    @abstractmethod
    def fill(self, mask: NDArray[np.int32], row: int) -> None:
        """Write the tokens that may come next, ends too, into a row."""

    def accept(self, token: int) -> bool:
        tokens = self.vocabulary.tokens
        if self.ended or not 0 <= token < len(tokens):
            return False
        if token in self.vocabulary.ends:
            self.ended = accepted = self.complete()
        else:
            accepted = bool(tokens[token]) and self.step(token)
        if accepted:
            self.past.append(token)
        return accepted

    def rollback(self, count: int) -> None:
        if not count:
            return
        back = count - self.ended
        self.ended = False
        del self.past[len(self.past) - count :]
        if back:
            self.back(back)

    def with_past_of(self, fork: M) -> M:
        """A fork of the library's state, with this one's past."""
        fork.past, fork.ended = list(self.past), self.ended
        return fork


def again(matcher: M, past: list[int]) -> M:
    """The matcher, once it has gone on by these tokens."""
    for token in past:
        assert matcher.accept(token), f"token {token} was accepted before"
    return matcher


def one_line(error: BaseException | str) -> str:
    """What a library says, as one line."""
    return " ".join(str(error).split())[:400] or "no reason given"
