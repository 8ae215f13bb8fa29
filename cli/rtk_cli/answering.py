"""Who answers in `rtk chat`: an engine in this process, or a running server."""

import uuid
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from rtk_cli.server import Server

if TYPE_CHECKING:
    from rtk.engine import Engine

Messages = Sequence[Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class Piece:
    """What is new of an answer; counts run from its start."""

    thought: str = ""
    content: str = ""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    tokens: int = 0
    """Of thoughts and answer."""
    reason: str | None = None
    """Why the answer ends here, in the last piece of one that does."""


class Answerer(Protocol):
    """Answers chats."""

    def answer(self, messages: Messages) -> Generator[Piece, None, None]:
        """The answer, piece by piece. Closing the iterator ends the request. Raises `RequestError`."""


class Local:
    """An engine in this process."""

    def __init__(self, engine: "Engine", params: Mapping[str, Any], options: Mapping[str, Any]) -> None:
        """`params` by field of `SamplingParams`; `options` are variables of the chat template."""
        self._engine = engine
        self._params = params
        self._options = options

    def answer(self, messages: Messages) -> Generator[Piece, None, None]:
        """See `Answerer`."""
        from rtk.serve.protocol import Chat

        rid = uuid.uuid4().hex
        try:
            for new in self._engine.stream(Chat(messages, self._options), self._params, rid=rid):
                reason = None if new.finish is None else new.finish.reason
                counts = new.prompt_tokens, new.cached_tokens, new.completion_tokens
                yield Piece(new.thought, new.content, *counts, reason)
        finally:
            self._engine.abort(rid)  # wherever Ctrl-C came; nothing where it has ended


class Remote:
    """A running server."""

    def __init__(self, server: Server, params: Mapping[str, Any], options: Mapping[str, Any]) -> None:
        """`params` by field of `SamplingParams`; `options` are variables of the chat template.

        Asks the server for its model. Raises `RequestError`.
        """
        self._server = server
        try:
            self.model = server.ask("GET", "/v1/models")["data"][0]["id"]
        except (LookupError, TypeError):
            raise server.strange() from None
        named = {("max_tokens" if name == "max_new_tokens" else name): value for name, value in params.items()}
        self._body = {
            "model": self.model,
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
            **named,
            **({"chat_template_kwargs": options} if options else {}),
        }

    def answer(self, messages: Messages) -> Generator[Piece, None, None]:
        """See `Answerer`. The server ends a request whose client hangs up."""
        with closing(self._server.stream("/v1/chat/completions", {**self._body, "messages": messages})) as events:
            for event in events:
                try:
                    piece = _piece(event)
                except (AttributeError, LookupError, TypeError):
                    raise self._server.strange() from None
                yield piece


def _piece(event: Mapping[str, Any]) -> Piece:
    """A chunk of OpenAI's form. The last has the counts and no choice, the others where the server puts them there."""
    choice: Mapping[str, Any] = next(iter(event["choices"]), {})
    new, usage = choice.get("delta", {}), event.get("usage") or {}
    return Piece(
        new.get("reasoning_content") or "",
        new.get("content") or "",
        usage.get("prompt_tokens", 0),
        (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0),
        usage.get("completion_tokens", 0),
        choice.get("finish_reason"),
    )
