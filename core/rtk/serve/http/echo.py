"""`echo`: answers that begin with their prompt.

What is said of the prompt is put in front of what an answer says first, so that whoever writes answers and streams knows
nothing of it. The text of a prompt of token ids is that of its tokens. Where it ends inside a character, that character
follows when the answer has decided it.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import NamedTuple

from rtk.schedule.messages import TokenLogprobs
from rtk.serve.protocol import Delta
from rtk.serve.text import BROKEN, CONTEXT_TOKENS, IncrementalDecoder
from rtk.serve.tokenizer import Tokenizer

_MANY = 500
"""Tokens whose text is worked out in a thread."""


class _Prompt(NamedTuple):
    """What a prompt says."""

    text: str
    scored: tuple[TokenLogprobs, ...]
    offsets: tuple[int, ...]
    """Characters before each of the scored tokens."""
    tail: tuple[int, ...]
    """Its last tokens, where they end inside a character, which is not part of the text."""


@dataclass(slots=True)
class _Answer:
    """One answer to it."""

    length: int
    """Characters of the prompt in front of it."""
    decoder: IncrementalDecoder | None
    """Of prompt and answer, until the character that the prompt ends inside of is decided."""

    def rest(self, delta: Delta) -> str:
        """U+FFFD for that character, where the answer does not go on with it."""
        if self.decoder is None:
            return ""
        decided = "".join([self.decoder.push(token) for token in delta.token_ids])
        if delta.finish is not None:
            decided = decided or self.decoder.finish()
        if not decided:
            return ""
        self.decoder = None
        rest = BROKEN if decided.startswith(BROKEN) else ""
        self.length += len(rest)
        return rest


class Echo:
    """One prompt in front of all of its answers."""

    def __init__(self, tokenizer: Tokenizer, prompt: str | Sequence[int], top: int | None, *, special: bool) -> None:
        """`top`: tell log-probabilities, of so many tokens beside each. `special`: special tokens have text."""
        self._tokenizer = tokenizer
        self._given = prompt
        self._top = top
        self._special = special
        self._prompt: _Prompt | None = None
        self._answers: dict[int, _Answer] = {}

    async def before(self, delta: Delta) -> Delta:
        """An answer's delta, with the prompt in front if it is the first of it."""
        if self._prompt is None:  # the first one of all has the log-probabilities that were asked for
            self._prompt = await self._read(delta.prompt_logprobs)
        prompt, answer, text = self._prompt, self._answers.get(delta.index), ""
        scored, offsets = prompt.scored, prompt.offsets
        if answer is None:
            text = prompt.text
            answer = self._answers[delta.index] = _Answer(len(text), self._ending(prompt.tail) if prompt.tail else None)
        else:
            scored, offsets = (), ()
        text += answer.rest(delta)
        return replace(
            delta,
            text=text + delta.text,
            content=text + delta.content,
            logprobs=scored + delta.logprobs,
            offsets=offsets + tuple(answer.length + offset for offset in delta.offsets),
        )

    async def _read(self, scored: tuple[TokenLogprobs, ...]) -> _Prompt:
        if self._top is None:
            scored = ()
        scored = tuple(TokenLogprobs(at.token, at.logprob, at.top[: self._top]) for at in scored)
        ids = [at.token for at in scored] if isinstance(self._given, str) else list(self._given)
        return await asyncio.to_thread(self._decode, ids, scored) if len(ids) > _MANY else self._decode(ids, scored)

    def _decode(self, ids: Sequence[int], scored: tuple[TokenLogprobs, ...]) -> _Prompt:
        decoder = self._tokenizer.decoder(b"", special=self._special)
        text, offsets = "", []
        for token in ids:
            offsets.append(len(text))
            text += decoder.push(token)
        if isinstance(self._given, str):
            return _Prompt(self._given, scored, tuple(offsets), ())
        tail = tuple(ids[-CONTEXT_TOKENS:]) if decoder.finish() else ()
        return _Prompt(text, scored, tuple(offsets) if scored else (), tail)

    def _ending(self, tail: Sequence[int]) -> IncrementalDecoder:
        decoder = self._tokenizer.decoder(b"", special=self._special)
        for token in tail:
            decoder.push(token)
        return decoder


async def echoed(
    deltas: AsyncGenerator[Delta, None], echoes: Sequence[Echo], answers: int
) -> AsyncGenerator[Delta, None]:
    """The deltas of a batch, each of its `answers` to a prompt behind that prompt."""
    async with aclosing(deltas):
        async for delta in deltas:
            yield await echoes[delta.index // answers].before(delta) if echoes else delta
