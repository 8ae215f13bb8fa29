"""From what a client sends as a prompt (text, token ids, messages) to packed tokens that a scheduler takes."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from rtk.cache.key import pack
from rtk.errors import RequestError
from rtk.schedule.budget import check_prompt_length
from rtk.schedule.params import check_text, check_token_ids, shown
from rtk.serve.protocol import Chat, GenerateRequest, ModelFacts
from rtk.serve.tokenizer import Tokenizer

T = TypeVar("T")

LONG_TEXT = 8_000
"""Characters; longer texts are encoded in a thread, so that the event loop goes on (a shorter one takes about 5 ms)."""

VERY_LONG_TEXT = 1_000_000
"""Characters; texts above it are encoded one after the other: each takes some 300 bytes of memory a character."""

MESSAGE_COST = 60
"""Characters that could be encoded in the time that a template takes for an empty message."""

_HERE = "\ue0c4\uf3a1\ue0c4"
"""Private characters, which mark a place in what a template makes of messages."""


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
        self._check_known(ids, request.prompt_name)
        return pack(ids)

    async def ids(self, prompt: str | Chat, *, name: str, add_special_tokens: bool | None = None) -> Sequence[int]:
        """What a text or a chat becomes, also where it is empty or longer than the context.

        `add_special_tokens`: whether `tokenizer.json` may put tokens such as BOS around it; None: as for an answer.
        """
        ids = await self._encode_text(prompt, name, add_special_tokens)
        self._check_known(ids, name)
        return ids

    async def text(self, ids: Sequence[Any], *, name: str) -> str:
        """The text of token ids, special ones by name."""
        return await self._in_thread(len(ids), self._read, ids, name)

    async def _encode(self, request: GenerateRequest) -> Sequence[int]:
        prompt, name = request.prompt, request.prompt_name
        if isinstance(prompt, str) and not prompt:
            return []  # refused like an empty list of ids, also where the tokenizer would put BOS before it
        if isinstance(prompt, str | Chat):
            return await self._encode_text(prompt, name)
        if not _is_row(prompt):
            raise RequestError(f"{name} = {shown(prompt)}: must be a text, token ids, or a chat", field=name)
        check_prompt_length(len(prompt), self._facts.context_length, field=name)  # before a look at each of them
        check_token_ids(prompt, self._facts.vocab_size, field=name)
        return prompt

    async def _encode_text(self, prompt: str | Chat, name: str, special: bool | None = None) -> list[int]:
        if isinstance(prompt, str):
            check_text(prompt, field=name)
            return await self._in_thread(len(prompt), self._text_ids, prompt, special is not False)
        _check_messages(prompt.messages, name)
        length = MESSAGE_COST * len(prompt.messages) + _characters([*prompt.messages, prompt.options.get("tools")])
        return await self._in_thread(length, self._chat_ids, prompt, name, special is True)

    def _text_ids(self, text: str, special: bool) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=special)

    def _chat_ids(self, chat: Chat, name: str, special: bool) -> list[int]:
        if not chat.messages:
            return []
        try:
            text = self._chat_text(chat)
        except RequestError as error:  # which calls them messages
            named = error.field == "messages"
            problem, field = (str(error).replace("messages", name, 1), name) if named else (str(error), error.field)
            raise RequestError(problem, field=field, code=error.code, status=error.status) from error
        check_text(text, field=name)
        return self._text_ids(text, special)

    def _chat_text(self, chat: Chat) -> str:
        if not chat.continues:
            return self._tokenizer.chat(chat.messages, **chat.options)
        *before, last = chat.messages
        if not isinstance(last.get("content"), str):
            raise RequestError("the last message has no text that could be continued", field="continue_final_message")
        marked = {**last, "content": last["content"] + _HERE}
        text, here, _ = self._tokenizer.chat(
            [*before, marked], **{**chat.options, "add_generation_prompt": False}
        ).rpartition(_HERE)
        if not here:
            problem = "the model's chat template does not show the end of the last message, so it cannot be continued"
            raise RequestError(problem, field="continue_final_message")
        return text

    def _read(self, ids: Sequence[Any], name: str) -> str:
        check_token_ids(ids, self._facts.vocab_size, field=name)
        return self._tokenizer.read(ids)

    def _check_known(self, ids: Sequence[int], name: str) -> None:
        """Of a text: given ids have been looked at."""
        if (highest := max(ids, default=0)) >= self._facts.vocab_size:
            raise RequestError(
                f"{name} becomes token {highest}, which the model lacks: it knows those from 0 to "
                f"{self._facts.vocab_size - 1}; leave out the special tokens that it was not made for",
                field=name,
            )

    async def _in_thread(self, length: int, encode: Callable[..., T], *arguments: Any) -> T:
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
