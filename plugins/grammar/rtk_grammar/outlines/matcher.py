"""What needs outlines_core: an automaton over tokens."""

import threading

import numpy as np
import outlines_core
from numpy.typing import NDArray

from rtk.plugin.grammar import Vocabulary, write_row
from rtk_grammar.expr import Expr, can_be_empty, without_empty
from rtk_grammar.printed import regex
from rtk_grammar.tokens import PerVocabulary, TokenMatcher, again, one_line

MOST_ROWS = 512
"""Rows of masks that are kept for one automaton."""


def _vocabulary(vocabulary: Vocabulary) -> outlines_core.Vocabulary:
    ids: dict[bytes, list[int]] = {}
    for i, token in enumerate(vocabulary.tokens):
        if token and i not in vocabulary.ends:
            ids.setdefault(token, []).append(i)
    return outlines_core.Vocabulary(min(vocabulary.ends), ids)


_vocabularies = PerVocabulary(_vocabulary)


def compiled(expr: Expr, vocabulary: Vocabulary) -> "OutlinesMatcher":
    """A matcher at the start. Raises `ValueError`."""
    # It stops at the first alternative that matches; the end of the text as a part of each makes it look at all. An
    # empty text is not told to it: that end would be at the start, where it takes none.
    pattern = rf"(?:{regex(without_empty(expr))})\z"
    try:
        index = outlines_core.Index(pattern, _vocabularies(vocabulary))
    except ValueError as error:
        raise ValueError(f"outlines_core cannot compile it: {one_line(error)}") from None
    return OutlinesMatcher(_Automaton(index, vocabulary, can_be_empty(expr, {})))


class _Automaton:
    """An index, with the masks of states that were asked for."""

    def __init__(self, index: outlines_core.Index, vocabulary: Vocabulary, may_be_empty: bool):
        self.index = index
        self.vocabulary = vocabulary
        self.start: int = index.get_initial_state()
        self.may_be_empty = may_be_empty
        self._rows: dict[tuple[int, bool], NDArray[np.int32]] = {}
        self._lock = threading.Lock()

    def final(self, path: list[int]) -> bool:
        """Whether a text may end that led along these states."""
        return bool(self.index.is_final_state(path[-1])) or (self.may_be_empty and len(path) == 1)

    def row(self, path: list[int]) -> NDArray[np.int32]:
        """The mask after these states."""
        key = path[-1], len(path) == 1
        with self._lock:
            found = self._rows.get(key)
            if found is None:
                allowed = set(self.index.get_allowed_tokens(path[-1]) or ()) - self.vocabulary.ends
                found = np.zeros(self.vocabulary.words, dtype=np.int32)
                write_row(found, allowed | self.vocabulary.ends if self.final(path) else allowed)
                if len(self._rows) >= MOST_ROWS:
                    self._rows.clear()
                self._rows[key] = found
        return found

    def __reduce__(self) -> tuple[object, ...]:
        return _Automaton, (self.index, self.vocabulary, self.may_be_empty)


class OutlinesMatcher(TokenMatcher):
    """A path through an automaton, which all forks share."""

    def __init__(self, automaton: _Automaton) -> None:
        super().__init__(automaton.vocabulary)
        self._automaton = automaton
        self._path = [automaton.start]

    def complete(self) -> bool:
        return self._automaton.final(self._path)

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
        mask[row] = self._automaton.row(self._path)

    def __reduce__(self) -> tuple[object, ...]:
        return _sent, (self._automaton, self.past)


def _sent(automaton: _Automaton, past: list[int]) -> OutlinesMatcher:
    return again(OutlinesMatcher(automaton), past)
