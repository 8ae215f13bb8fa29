"""Puts text to what the scheduler says: messages in, messages out."""

import logging
from collections.abc import Callable, Iterable

import msgspec

from rtk.cache.key import TOKEN_BYTES
from rtk.observe.logs import about, loggable
from rtk.schedule.messages import Finish, Inbound, NewRequest, Outbound, Output, TokenLogprobs, Verdict
from rtk.serve.text import CONTEXT_TOKENS, TextAssembler

log = logging.getLogger(__name__)


class Open(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """What a detokenizer must know of a request, ahead of its first output."""

    rid: str
    context: bytes
    """The last tokens of the prompt, packed."""
    stop: tuple[str, ...] = ()
    min_new_tokens: int = 0
    include_stop: bool = False
    special: bool = False
    """These two are those of `SamplingParams`: `include_stop_str_in_output`, and not `skip_special_tokens`."""


def opening(request: NewRequest) -> Open:
    """What a detokenizer must know of `request`."""
    params = request.params
    context = request.tokens[-CONTEXT_TOKENS * TOKEN_BYTES :]
    return Open(
        rid=request.rid,
        context=context,
        stop=params.stop,
        min_new_tokens=params.min_new_tokens,
        include_stop=params.include_stop_str_in_output,
        special=not params.skip_special_tokens,
    )


class TextOutput(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """An `Output` with its text."""

    rid: str
    text: str
    tokens: tuple[int, ...]
    cached_tokens: int = 0
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    offsets: tuple[int, ...] = ()
    """How many characters of the text come before each of the tokens, where there are `logprobs`; see `Delta`."""
    finish: Finish | None = None


Texts = Outbound | TextOutput
"""What a detokenizer says."""


class Detokenizer:
    """Puts text to the outputs of many requests: messages in, messages out, and no other effect.

    Every request that it expects outputs of ends with one, or is refused; so nothing has to be closed.
    """

    def __init__(self, assembler: Callable[[Open], TextAssembler]) -> None:
        self._assembler = assembler
        self._open: dict[str, TextAssembler] = {}

    def before(self, send: Callable[[Inbound], None]) -> Callable[[Inbound], None]:
        """`send`, with outputs of a request expected before it goes out: for a detokenizer in the sender's process."""

        def expecting(message: Inbound) -> None:
            if isinstance(message, NewRequest):
                self.process([opening(message)])
            send(message)

        return expecting

    def process(self, messages: Iterable[Open | Outbound]) -> list[Texts]:
        """The same messages, with text in place of outputs. Those of requests that are not open are left out."""
        return [answer for message in messages if (answer := self._answer(message)) is not None]

    def _answer(self, message: Open | Outbound) -> Texts | None:
        if isinstance(message, Open):
            self._open[message.rid] = self._assembler(message)
            return None
        if isinstance(message, Verdict) and not message.accepted:
            self._open.pop(message.rid, None)
        if not isinstance(message, Output):
            return message
        assembler = self._open.get(message.rid)
        if assembler is None:
            return None
        text, finish = "", message.finish
        try:
            text = assembler.push(message.tokens, finish)
        except Exception as error:
            about_it = about(message.rid)
            log.error("the text of request %s cannot be decoded", message.rid, exc_info=loggable(error), extra=about_it)
            finish = Finish(reason="error", problem="the output could not be turned into text")
        if finish is not None:
            del self._open[message.rid]
        return TextOutput(
            rid=message.rid,
            text=text,
            tokens=message.tokens,
            cached_tokens=message.cached_tokens,
            logprobs=message.logprobs,
            prompt_logprobs=message.prompt_logprobs,
            offsets=assembler.offsets if message.logprobs else (),
            finish=finish,
        )

    def __len__(self) -> int:
        return len(self._open)
