"""Log-probabilities of a prompt's tokens: what each step makes of them, and what is told once they are all there."""

import numpy as np

from rtk.schedule.batch import Row, Scored
from rtk.schedule.messages import TokenLogprobs
from rtk.schedule.params import SamplingParams


class PromptScores:
    """Of one request. What was scored stays so through a retraction; what was not is scored when it is computed."""

    def __init__(self, prompt: bytes, params: SamplingParams) -> None:
        """`prompt` is packed."""
        self._prompt = np.frombuffer(prompt, dtype="<i4")
        self._top = params.prompt_logprobs or 0
        start = params.prompt_logprobs_start
        first = [TokenLogprobs(int(self._prompt[0]), None)] if start == 0 else []
        self._next = start + len(first)
        self._entries = first

    @property
    def complete(self) -> bool:
        """Whether every token has been scored that is to be."""
        return self._next >= len(self._prompt)

    @property
    def first_position(self) -> int | None:
        """Where the next one to be computed is, which no cache must leave out; None: nowhere."""
        return None if self.complete else self._next - 1

    def of(self, number: int, row: Row, offset: int) -> Scored | None:
        """What a step that computes this row scores of it; `offset` is where the row begins among the step's tokens."""
        first, last = max(row.start, self._next - 1), min(row.start + row.q_len, len(self._prompt) - 1)
        if self.complete or first >= last:
            return None
        following = self._prompt[first + 1 : last + 1].astype(np.int32)
        return Scored(number, offset + first - row.start, following, self._top)

    def add(self, entries: tuple[TokenLogprobs, ...]) -> None:
        """The scores of the next tokens."""
        self._entries += entries
        self._next += len(entries)

    def take(self) -> tuple[TokenLogprobs, ...]:
        """All of them, once: in the first answer after they are complete."""
        if not self.complete:
            return ()
        entries, self._entries = tuple(self._entries), []
        return entries
