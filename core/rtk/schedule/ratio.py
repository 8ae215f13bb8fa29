"""The new-token ratio: how much of their remaining answers the running requests are expected to need.

Nobody knows how long an answer gets. Admission reserves this share of what is left of each: near 1, few requests run
and none is retracted; near 0, many run and some have to make room. The ratio falls while all goes well and is estimated
anew when somebody was retracted. The numbers are those of SGLang's scheduler.
"""

from collections.abc import Iterable

BASE = 0.7
"""Where the ratio starts, times the conservativeness."""
FLOOR = 0.14
"""How low it gets, as a share of where it starts."""
DECAY_STEPS = 600
"""Steps from the start to the floor."""
LOOKAHEAD = 20
"""Tokens that an estimate grants each request beyond what it has generated."""


class NewTokenRatio:
    """The ratio of one scheduler."""

    def __init__(self, conservativeness: float = 1.0) -> None:
        self.initial = min(1.0, BASE * conservativeness)
        self.floor = FLOOR * self.initial
        self.value = self.initial

    def decay(self) -> None:
        """A step decoded and nobody had to be retracted. O(1)."""
        self.value = max(self.floor, self.value - (self.initial - self.floor) / DECAY_STEPS)

    def estimate(self, staying: Iterable[tuple[int, int]]) -> None:
        """Somebody was retracted; (generated, max_new_tokens) of those who stay replaces the ratio. O(requests)."""
        generated = wanted = 0
        for tokens, most in staying:
            generated += tokens + LOOKAHEAD
            wanted += most
        self.value = max(self.floor, min(1.0, generated / (wanted + 1)))

    def reset(self) -> None:
        """Nobody runs any more: start over. O(1)."""
        self.value = self.initial
