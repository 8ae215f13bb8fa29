"""Log-probabilities as clients of OpenAI, vLLM and SGLang read them.

A token is written as its text. One that is only a part of a character is written as its bytes, as OpenAI does, so that
no two are written alike; `bytes`, put together, are the text.
"""

import asyncio
import math
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple, TypeVar

from rtk.schedule.messages import TokenLogprobs
from rtk.serve.tokenizer import Tokenizer
from rtk.serve.vocabulary import TokenBytes

T = TypeVar("T")

_REMEMBERED = 50_000
"""Tokens whose text is kept."""
_MANY = 2_000
"""Entries that are written in a thread."""

FLOOR = -9999.0
"""Stands for what is not finite, which JSON has no number for."""


class Placed(NamedTuple):
    """A token's log-probability, and how many characters of the text come before it."""

    at: TokenLogprobs
    offset: int


def count_entries(scored: Iterable[TokenLogprobs]) -> int:
    """How many log-probabilities these are."""
    return sum(1 + len(at.top) for at in scored)


async def beside(entries: int, write: Callable[[], T]) -> T:
    """What `write` answers, beside the event loop where it has many log-probabilities to write."""
    return await asyncio.to_thread(write) if entries > _MANY else write()


def finite(logprob: float) -> float:
    """A number that JSON has."""
    return logprob if math.isfinite(logprob) else FLOOR


class TokenWriter:
    """Writes tokens and their log-probabilities. Safe to use from several threads."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        known = TokenBytes(tokenizer)
        self._tokenizer = tokenizer
        self._bytes = lru_cache(_REMEMBERED)(known.of)
        self._text = lru_cache(_REMEMBERED)(tokenizer.text_of)
        self._name = lru_cache(_REMEMBERED)(partial(self._written, mark="bytes:"))
        self._part = lru_cache(_REMEMBERED)(partial(self._written, mark=""))

    def completion(self, placed: Sequence[Placed]) -> dict[str, Any]:
        """`logprobs` of a choice of /v1/completions."""
        return {
            "tokens": [self._name(at.token) for at, _ in placed],
            "token_logprobs": [None if at.logprob is None else finite(at.logprob) for at, _ in placed],
            "top_logprobs": [self._by_name(at) for at, _ in placed],
            "text_offset": [offset for _, offset in placed],
        }

    def chat(self, placed: Sequence[Placed], *, special: bool) -> dict[str, Any]:
        """`logprobs` of a choice of /v1/chat/completions. `special`: whether special tokens have text."""
        content = [
            {
                **self._described(at.token, at.logprob, special),
                "top_logprobs": [self._described(token, logprob, special) for token, logprob in at.top],
            }
            for at, _ in placed
        ]
        return {"content": content, "refusal": None}

    def prompt(self, scored: Iterable[TokenLogprobs], top: int) -> list[dict[str, Any] | None]:
        """vLLM's `prompt_logprobs`: for each token of the prompt, it and the `top` most probable there, by id.

        `rank` is the place among those, null where it is none of them.
        """
        return [None if at.logprob is None else self._ranked(at, at.logprob, top) for at in scored]

    def native(self, scored: Iterable[TokenLogprobs], *, text: bool) -> list[list[Any]]:
        """SGLang's lists of a log-probability, a token id and its text, which is null unless asked for."""
        return [self._triple(at.token, at.logprob, text) for at in scored]

    def native_top(self, scored: Iterable[TokenLogprobs], *, text: bool) -> list[list[list[Any]] | None]:
        """The same of the most probable tokens at each place."""
        return [
            None if at.logprob is None else [self._triple(token, logprob, text) for token, logprob in at.top]
            for at in scored
        ]

    # --- parts --------------------------------------------------------------------------------------------------

    def _by_name(self, at: TokenLogprobs) -> dict[str, float] | None:
        if at.logprob is None:
            return None
        named: dict[str, float] = {}
        for token, logprob in (*at.top, (at.token, at.logprob)):
            named.setdefault(self._name(token), finite(logprob))
        return named

    def _described(self, token: int, logprob: float | None, special: bool) -> dict[str, Any]:
        known = self._bytes(token)
        silent = not special and token in self._tokenizer.silent
        return {
            "token": self._part(token),
            "logprob": None if logprob is None else finite(logprob),
            "bytes": [] if silent else None if known is None else list(known),
        }

    def _ranked(self, at: TokenLogprobs, logprob: float, top: int) -> dict[str, Any]:
        ranked: dict[str, Any] = {}
        places = enumerate(at.top[:top], 1)
        for rank, (token, value) in (*places, (None, (at.token, logprob))):
            entry = {"logprob": finite(value), "rank": rank, "decoded_token": self._text(token)}
            ranked.setdefault(str(token), entry)
        return ranked

    def _triple(self, token: int, logprob: float | None, text: bool) -> list[Any]:
        value = None if logprob is None else finite(logprob)
        return [value, token, self._text(token) if text else None]

    def _written(self, token: int, mark: str) -> str:
        known = self._bytes(token)
        if known is None:
            return self._text(token)
        try:
            return known.decode()
        except UnicodeDecodeError:
            return mark + "".join(f"\\x{byte:02x}" for byte in known)
