"""What the requests of one answer have brought so far."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from rtk.schedule.messages import Finish
from rtk.serve.protocol import Delta


class Part:
    """One request of the answer."""

    def __init__(self) -> None:
        self.rid = ""
        self.text = ""
        self.thought = ""
        self.content = ""
        self.verified: bool | None = None
        self.token_ids: list[int] = []
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
        self.verified = delta.verified
        self.token_ids += delta.token_ids
        self.prompt_tokens = delta.prompt_tokens
        self.cached_tokens = delta.cached_tokens
        self.completion_tokens = delta.completion_tokens
        self.finish = delta.finish


class Tally:
    """All requests of the answer, by index."""

    def __init__(self, size: int) -> None:
        self.parts = [Part() for _ in range(size)]

    def add(self, delta: Delta) -> Part:
        """Take in what is new; answers its request."""
        part = self.parts[delta.index]
        part.add(delta)
        return part

    async def add_all(self, deltas: AsyncGenerator[Delta, None]) -> None:
        """Take in everything until all have ended."""
        async with aclosing(deltas):
            async for delta in deltas:
                self.add(delta)

    def usage(self) -> dict[str, Any]:
        """Token counts in OpenAI's form, summed over the requests."""
        prompt = sum(part.prompt_tokens for part in self.parts)
        completion = sum(part.completion_tokens for part in self.parts)
        cached = sum(part.cached_tokens for part in self.parts)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": cached},
        }
