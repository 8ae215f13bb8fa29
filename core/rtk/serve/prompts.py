"""From what a client sends as a prompt (text, token ids, messages) to packed tokens that a scheduler takes."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from rtk.cache.key import pack
from rtk.errors import RequestError
from rtk.schedule.budget import check_prompt_length
from rtk.schedule.params import check_text, check_token_ids, shown
from rtk.serve.protocol import Chat, GenerateRequest, ModelFacts
from rtk.serve.tokenizer import Tokenizer

LONG_TEXT = 8_000
"""Characters; longer texts are encoded in a thread, so that the event loop goes on (a shorter one takes about 5 ms)."""

VERY_LONG_TEXT = 1_000_000
"""Characters; texts above it are encoded one after the other: each takes some 300 bytes of memory a character."""

MESSAGE_COST = 60
"""Characters that could be encoded in the time that a template takes for an empty message."""


class PromptEncoder:
    """Encodes prompts, the long ones in threads, and refuses what no model could take."""

    def __init__(self, tokenizer: Tokenizer, facts: ModelFacts) -> None:
        self._tokenizer = tokenizer
        self._facts = facts
        self._lane = ThreadPoolExecutor(max_workers=1, thread_name_prefix="rtk-very-long")

    async def tokens(self, request: GenerateRequest) -> bytes:
        """The prompt, encoded and packed."""
        ids = await self._encode(request)
        if not ids:
            raise RequestError(self._emptiness(request), field=request.prompt_name, code="empty_prompt")
        check_prompt_length(len(ids), self._facts.context_length, field=request.prompt_name)
        if (highest := max(ids)) >= self._facts.vocab_size:  # of a text: given ids have been looked at
            raise RequestError(
                f"{request.prompt_name} becomes token {highest}, which the model lacks: it knows those from 0 to "
                f"{self._facts.vocab_size - 1}; leave out the special tokens that it was not made for",
                field=request.prompt_name,
            )
        return pack(ids)

    async def _encode(self, request: GenerateRequest) -> Sequence[int]:
        prompt, name = request.prompt, request.prompt_name
        if isinstance(prompt, str):
            check_text(prompt, field=name)
            return await self._in_thread(len(prompt), self._text_ids, prompt)
        if isinstance(prompt, Chat):
            _check_messages(prompt.messages, name)
            length = MESSAGE_COST * len(prompt.messages) + _characters([*prompt.messages, prompt.options.get("tools")])
            return await self._in_thread(length, self._chat_ids, prompt, name)
        if not _is_row(prompt):
            raise RequestError(f"{name} = {shown(prompt)}: must be a text, token ids, or a chat", field=name)
        check_prompt_length(len(prompt), self._facts.context_length, field=name)  # before a look at each of them
        check_token_ids(prompt, self._facts.vocab_size, field=name)
        return prompt

    def _text_ids(self, text: str) -> list[int]:
        # An empty text is refused like an empty list of ids, also where the tokenizer would put BOS before it.
        return self._tokenizer.encode(text, add_special_tokens=True) if text else []

    def _chat_ids(self, chat: Chat, name: str) -> list[int]:
        if not chat.messages:
            return []
        text = self._tokenizer.chat(chat.messages, **chat.options)
        check_text(text, field=name)
        return self._tokenizer.encode(text, add_special_tokens=False)

    async def _in_thread(self, length: int, encode: Callable[..., list[int]], *arguments: Any) -> list[int]:
        """Encode here if that is quick, and in a thread otherwise."""
        if length <= LONG_TEXT:
            return encode(*arguments)
        lane = self._lane if length > VERY_LONG_TEXT else None
        return await asyncio.get_running_loop().run_in_executor(lane, encode, *arguments)

    def _emptiness(self, request: GenerateRequest) -> str:
        bos = self._tokenizer.token_id("bos_token")
        hint = f"; to start from nothing, send the id of the BOS token, [{bos}]"
        chat = isinstance(request.prompt, Chat)
        return f"{request.prompt_name} is empty: a prompt has at least one token{'' if chat or bos is None else hint}"


def _characters(value: Any) -> int:
    """Characters of all texts in a JSON value, however deep it is."""
    count, left = 0, [value]
    while left:
        one = left.pop()
        if isinstance(one, str):
            count += len(one)
        elif isinstance(one, Mapping):
            left += [*one, *one.values()]
        elif isinstance(one, list | tuple):
            left += one
    return count


def _is_row(prompt: object) -> bool:
    return isinstance(prompt, Sequence) and not isinstance(prompt, bytes)


def _check_messages(messages: Any, name: str) -> None:
    """What HTTP has looked at before: Python programs may bring anything."""
    if not isinstance(messages, list | tuple) or not all(isinstance(message, Mapping) for message in messages):
        raise RequestError(f"{name} = {shown(messages)}: must be a list of messages with role and content", field=name)
