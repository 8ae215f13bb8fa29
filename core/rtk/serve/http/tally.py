"""What the requests of one answer have brought so far."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from rtk.schedule.messages import Finish, TokenLogprobs
from rtk.serve.http.logprobs import Placed, count_entries
from rtk.serve.protocol import Delta


class Part:
    """One answer to one prompt."""

    def __init__(self) -> None:
        self.rid = ""
        self.text = ""
        self.thought = ""
        self.content = ""
        self.aside = ""
        self.repeated = ""
        self.verified: bool | None = None
        self.token_ids: list[int] = []
        self.placed: list[Placed] = []
        """Log-probabilities, where they were asked for."""
        self.prompt_logprobs: tuple[TokenLogprobs, ...] = ()
        self._told = 0
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.completion_tokens = 0
        self.finish: Finish | None = None

    def add(self, delta: Delta) -> None:
        """Take in what is new."""
        self.rid = delta.rid
        self.text += delta.text
        self.thought += delta.thought
        self.content += delta.content
        self.aside += delta.aside
        self.repeated += delta.repeated
        self.verified = delta.verified
        self.token_ids += delta.token_ids
        self.placed += map(Placed, delta.logprobs, delta.offsets)
        self.prompt_logprobs = self.prompt_logprobs or delta.prompt_logprobs
        self.prompt_tokens = delta.prompt_tokens
        self.cached_tokens = delta.cached_tokens
        self.completion_tokens = delta.completion_tokens
        self.finish = delta.finish

    def tell(self) -> list[Placed]:
        """The log-probabilities that are decided and were not told before.

        They are when text behind the beginning of the token is; at the end all are. What is behind the end of the text,
        since a stop string was cut off, stands at its end.
        """
        first, length = self._told, len(self.text)
        if self.finish is not None:
            self._told = len(self.placed)
            return [Placed(at, min(offset, length)) for at, offset in self.placed[first:]]
        while self._told < len(self.placed) and self.placed[self._told].offset < length:
            self._told += 1
        return self.placed[first : self._told]


class Tally:
    """All answers, by index."""

    def __init__(self, prompts: int, answers: int = 1) -> None:
        """`answers`: to each prompt."""
        self.answers = answers
        self.parts = [Part() for _ in range(prompts * answers)]

    def add(self, delta: Delta) -> Part:
        """Take in what is new; answers whose it is."""
        part = self.parts[delta.index]
        part.add(delta)
        return part

    @property
    def size(self) -> int:
        """What there is to write: log-probabilities, those of prompts too, and characters, which may be calls."""
        placed = (at for part in self.parts for at, _ in part.placed)
        return count_entries(placed) + sum(count_entries(p.prompt_logprobs) + len(p.content) for p in self.parts)

    async def add_all(self, deltas: AsyncGenerator[Delta, None]) -> None:
        """Take in everything until all have ended."""
        async with aclosing(deltas):
            async for delta in deltas:
                self.add(delta)

    def usage(self) -> dict[str, Any]:
        """Token counts in OpenAI's form, summed over the answers. A prompt counts once: for its first answer."""
        first = self.parts[:: self.answers]
        prompt = sum(part.prompt_tokens for part in first)
        cached = sum(part.cached_tokens for part in first)
        completion = sum(part.completion_tokens for part in self.parts)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": cached},
        }
