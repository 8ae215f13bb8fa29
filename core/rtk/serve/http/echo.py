"""`echo`: answers that begin with their prompt.

What is said of the prompt is put in front of what an answer says first, so that whoever writes answers and streams
knows nothing of it. The text of a prompt of token ids is that of its tokens. Where it ends inside a character, that
character follows when the answer has decided it.
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

    def place(self, delta: Delta) -> tuple[str, tuple[int, ...]]:
        """U+FFFD for that character, where the answer turns out not to go on with it; and where its tokens stand."""
        rest, early = "", []
        for token in delta.token_ids:
            if self.decoder is None:
                break
            decided = self.decoder.push(token)
            early.append(self.length + self.decoder.passed)
            rest += self._decide(decided)
        if self.decoder is not None and delta.finish is not None:
            rest += self._decide(self.decoder.finish())
        late = delta.offsets[len(early) :]
        return rest, (*early[: len(delta.offsets)], *(self.length + offset for offset in late))

    def _decide(self, decided: str) -> str:
        if not decided:
            return ""
        rest = BROKEN if decided.startswith(BROKEN) else ""
        self.length += len(rest)
        self.decoder = None
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
        prompt, answer = self._prompt, self._answers.get(delta.index)
        head = _Prompt("", (), (), ())
        if answer is None:
            head = prompt
            answer = self._answers[delta.index] = _Answer(
                len(head.text), self._ending(head.tail) if head.tail else None
            )
        rest, offsets = answer.place(delta)
        text = head.text + rest
        return replace(
            delta,
            text=text + delta.text,
            repeated=text,
            logprobs=(*head.scored, *delta.logprobs),
            offsets=(*head.offsets, *offsets),
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
            new = decoder.push(token)
            offsets.append(len(text) + decoder.passed)
            text += new
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
            yield await echoes[delta.index // answers].before(delta)
