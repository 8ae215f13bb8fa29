"""What needs outlines_core: an automaton over tokens."""

import threading

import numpy as np
import outlines_core
from numpy.typing import NDArray

from rtk.plugin.grammar import Vocabulary, write_row
from rtk_grammar.expr import Expr
from rtk_grammar.printed import regex
from rtk_grammar.tokens import PerVocabulary, TokenMatcher, again, one_line

MOST_ROWS = 512
"""Rows of masks that are kept for one automaton."""


class _Vocabularies:
    """A vocabulary with a token for the mark of an end, and without those that have that mark in them."""

    def __init__(self, vocabulary: Vocabulary):
        self.mark = len(vocabulary.tokens)
        """Its token: one that the model does not have."""
        self._ids: dict[bytes, list[int]] = {}
        for i, token in enumerate(vocabulary.tokens):
            if token and i not in vocabulary.ends:
                self._ids.setdefault(token, []).append(i)
        self._made: dict[str, outlines_core.Vocabulary] = {}

    def marked(self, mark: str) -> outlines_core.Vocabulary:
        """With this character as the mark."""
        if mark not in self._made:
            data = mark.encode()
            ids = {token: found for token, found in self._ids.items() if data not in token}
            self._made[mark] = outlines_core.Vocabulary(self.mark + 1, {**ids, data: [self.mark]})
        return self._made[mark]


_vocabularies = PerVocabulary(_Vocabularies)


def compiled(expr: Expr, mark: str, vocabulary: Vocabulary) -> "OutlinesMatcher":
    """A matcher at the start. Raises `ValueError`.

    `mark` is a character that no answer has. The expression ends with it: without, the library would stop at the first
    alternative that matches. And it begins with it: the library also looks for matches that begin anywhere, which takes
    2^n states for n optional characters, were it not for the mark.
    """
    marked = f"\\x{{{ord(mark):x}}}"
    pattern = f"{marked}(?:{regex(expr)}){marked}"
    try:
        index = outlines_core.Index(pattern, _vocabularies(vocabulary).marked(mark))
    except ValueError as error:
        raise ValueError(f"outlines_core cannot compile it: {one_line(error)}") from None
    return OutlinesMatcher(_Automaton(index, vocabulary))


class _Automaton:
    """An index, with the masks of states that were asked for."""

    def __init__(self, index: outlines_core.Index, vocabulary: Vocabulary):
        self.index = index
        self.vocabulary = vocabulary
        self._mark = len(vocabulary.tokens)
        self.start: int = index.get_next_state(index.get_initial_state(), self._mark)
        self._rows: dict[int, NDArray[np.int32]] = {}
        self._lock = threading.Lock()

    def final(self, state: int) -> bool:
        """Whether an answer may end here."""
        return self.index.get_next_state(state, self._mark) is not None

    def row(self, state: int) -> NDArray[np.int32]:
        """The mask of a state."""
        with self._lock:
            found = self._rows.get(state)
            if found is None:
                allowed = set(self.index.get_allowed_tokens(state) or ())
                ends = self.vocabulary.ends if self._mark in allowed else ()
                found = np.zeros(self.vocabulary.words, dtype=np.int32)
                write_row(found, (allowed - {self._mark, self._mark + 1}).union(ends))
                if len(self._rows) >= MOST_ROWS:
                    self._rows.clear()
                self._rows[state] = found
        return found

    def __reduce__(self) -> tuple[object, ...]:
        return _Automaton, (self.index, self.vocabulary)


class OutlinesMatcher(TokenMatcher):
    """A path through an automaton, which all forks share."""

    def __init__(self, automaton: _Automaton) -> None:
        super().__init__(automaton.vocabulary)
        self._automaton = automaton
        self._path = [automaton.start]

    def complete(self) -> bool:
        return self._automaton.final(self._path[-1])

    def step(self, token: int) -> bool:
        state = self._automaton.index.get_next_state(self._path[-1], token)
        if state is not None:
            self._path.append(state)
        return state is not None

    def back(self, count: int) -> None:
        del self._path[len(self._path) - count :]

    def fork(self) -> "OutlinesMatcher":
        fork = self.with_past_of(OutlinesMatcher(self._automaton))
        fork._path = list(self._path)
        return fork

    def fill(self, mask: NDArray[np.int32], row: int) -> None:
        mask[row] = self._automaton.row(self._path[-1])

    def __reduce__(self) -> tuple[object, ...]:
        return _sent, (self._automaton, self.past)


def _sent(automaton: _Automaton, past: list[int]) -> OutlinesMatcher:
    return again(OutlinesMatcher(automaton), past)
