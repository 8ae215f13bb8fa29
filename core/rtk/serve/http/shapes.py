"""How OpenAI's two endpoints write what was generated."""

from collections.abc import Sequence
from typing import Any, Protocol

from rtk.serve.http.logprobs import Placed, TokenWriter
from rtk.serve.http.tally import Part
from rtk.serve.protocol import Delta

Choice = dict[str, Any]


class Shape(Protocol):
    """The form of one endpoint's answers."""

    prefix: str
    """Of ids."""
    answer: str
    chunk: str
    """The `object` of an answer, and of a chunk of a stream."""
    one_prompt: bool
    """What is told of the prompt stands in the answer, not in each choice."""

    def opening(self, size: int) -> Sequence[Choice]:
        """What chunks before the first text say, one choice each."""

    def says(self, delta: Delta) -> bool:
        """Whether there is anything new to write."""

    def piece(self, delta: Delta) -> Choice:
        """The choice of a chunk."""

    def whole(self, index: int, part: Part) -> Choice:
        """The choice of an answer."""

    def logprobs(self, writer: TokenWriter, placed: Sequence[Placed], *, special: bool) -> dict[str, Any]:
        """Log-probabilities, of a chunk or of an answer. `special`: whether special tokens have text."""


class CompletionShape:
    """/v1/completions."""

    prefix = "cmpl-"
    answer = chunk = "text_completion"
    one_prompt = False

    def opening(self, size: int) -> Sequence[Choice]:
        """Nothing."""
        return ()

    def says(self, delta: Delta) -> bool:
        """Whether there is text."""
        return bool(delta.text)

    def piece(self, delta: Delta) -> Choice:
        """The next part of the text."""
        return {"index": delta.index, "text": delta.text, "logprobs": None, "finish_reason": _reason(delta)}

    def whole(self, index: int, part: Part) -> Choice:
        """The text."""
        return {"index": index, "text": part.text, "logprobs": None, "finish_reason": _reason(part)}

    def logprobs(self, writer: TokenWriter, placed: Sequence[Placed], *, special: bool) -> dict[str, Any]:
        """By name."""
        return writer.completion(placed)


class ChatShape:
    """/v1/chat/completions."""

    prefix = "chatcmpl-"
    answer = "chat.completion"
    chunk = "chat.completion.chunk"
    one_prompt = True

    def opening(self, size: int) -> Sequence[Choice]:
        """Who speaks."""
        delta = {"role": "assistant", "content": ""}
        return [{"index": i, "delta": delta, "logprobs": None, "finish_reason": None} for i in range(size)]

    def says(self, delta: Delta) -> bool:
        """Whether there is a thought, or some of the answer; the mark between the two is neither."""
        return bool(delta.thought or delta.content)

    def piece(self, delta: Delta) -> Choice:
        """The next part of the message."""
        new = {"reasoning_content": delta.thought} if delta.thought else {}
        if delta.content or not (delta.thought or delta.finish):
            new["content"] = delta.content
        return {"index": delta.index, "delta": new, "logprobs": None, "finish_reason": _reason(delta)}

    def whole(self, index: int, part: Part) -> Choice:
        """The message."""
        message: dict[str, Any] = {"role": "assistant", "content": part.content, "refusal": None}
        if part.thought:
            message |= {"content": part.content or None, "reasoning_content": part.thought}
        return {"index": index, "message": message, "logprobs": None, "finish_reason": _reason(part)}

    def logprobs(self, writer: TokenWriter, placed: Sequence[Placed], *, special: bool) -> dict[str, Any]:
        """With their bytes. Those of thoughts are among them."""
        return writer.chat(placed, special=special)


def _reason(end: Delta | Part) -> str | None:
    return None if end.finish is None else end.finish.reason
