"""What a text holds already, for penalties: counted as it grows, never anew."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rtk.schedule.params import SamplingParams

Int32 = NDArray[np.int32]


class TokenCounts:
    """The distinct tokens of one request's text, and how often each is in its output."""

    def __init__(self, prompt: bytes) -> None:
        """`prompt`: packed tokens that count as there, whatever the output. O(n log n)."""
        there = np.unique(np.frombuffer(prompt, dtype="<i4"))
        self._size = len(there)
        self._places = {token: place for place, token in enumerate(there.tolist())}
        self._tokens = np.zeros(self._size + 64, dtype=np.int32)
        self._tokens[: self._size] = there
        self._counts = np.zeros_like(self._tokens)

    def add(self, token: int) -> None:
        """One more token of the output. O(1) amortised."""
        place = self._places.setdefault(token, self._size)
        if place == self._size:
            if self._size == len(self._tokens):
                self._tokens, self._counts = (
                    np.concatenate([a, np.zeros_like(a)]) for a in (self._tokens, self._counts)
                )
            self._tokens[place] = token
            self._size += 1
        self._counts[place] += 1

    def with_guesses(self, guesses: Sequence[int]) -> tuple[Int32, Int32]:
        """Tokens and counts of the output with these behind it, as copies. O(distinct tokens)."""
        tokens, counts = self._tokens[: self._size].copy(), self._counts[: self._size].copy()
        fresh: dict[int, int] = {}
        for token in guesses:
            if token in self._places:
                counts[self._places[token]] += 1
            else:
                fresh[token] = fresh.get(token, 0) + 1
        if fresh:
            tokens = np.concatenate([tokens, np.array(list(fresh), np.int32)])
            counts = np.concatenate([counts, np.array(list(fresh.values()), np.int32)])
        return tokens, counts


def token_counts(params: SamplingParams, prompt: bytes) -> TokenCounts | None:
    """What to count for a request; None where nothing depends on it. Prompts count for the repetition penalty only."""
    if not params.penalises:
        return None
    return TokenCounts(prompt if params.repetition_penalty != 1 else b"")
