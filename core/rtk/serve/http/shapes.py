"""How OpenAI's two endpoints write what was generated."""

from collections.abc import Sequence
from typing import Any, Protocol

from rtk.grammar.forms import AskedForm
from rtk.serve.http.logprobs import Placed, TokenWriter
from rtk.serve.http.tally import Part
from rtk.serve.http.tools import AskedTools
from rtk.serve.protocol import Delta
from rtk.serve.tools.reader import CallPart, Reader, Said, as_content

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

    def form(self, asked: AskedForm | None) -> AskedForm | None:
        """What an answer must look like, given what the request says of that. Asked before there is one."""

    def opening(self, size: int) -> Sequence[Choice]:
        """What chunks before the first text say, one choice each."""

    def says(self, delta: Delta) -> bool:
        """Whether there is anything new to write. Asked once for each delta, before `piece`."""

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

    def form(self, asked: AskedForm | None) -> AskedForm | None:
        """Just that."""
        return asked

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
    """/v1/chat/completions, of one request."""

    prefix = "chatcmpl-"
    answer = "chat.completion"
    chunk = "chat.completion.chunk"
    one_prompt = True

    def __init__(self, tools: AskedTools, *, separate: bool = True) -> None:
        """`separate`: thoughts are no content."""
        self._tools = tools
        self._separate = separate
        self._either = False
        """An answer has the form that was asked for, or is calls."""
        self._readers: dict[int, Reader | None] = {}
        """Of the answers of a stream."""
        self._said = Said()
        """What the delta says that was asked about last."""

    def form(self, asked: AskedForm | None) -> AskedForm | None:
        """That, or calls of tools."""
        self._either = asked is not None
        return self._tools.form(asked)

    def opening(self, size: int) -> Sequence[Choice]:
        """Who speaks."""
        delta = {"role": "assistant", "content": ""}
        return [{"index": i, "delta": delta, "logprobs": None, "finish_reason": None} for i in range(size)]

    def says(self, delta: Delta) -> bool:
        """Whether there is a thought, some of the answer or of a call; marks are none of them."""
        if delta.index not in self._readers:
            self._readers[delta.index] = self._tools.reader(either=self._either)
        self._said = self._read(self._readers[delta.index], delta)
        return bool(self._thought(delta) or self._said.parts)

    def piece(self, delta: Delta) -> Choice:
        """The next part of the message."""
        thought, said = self._thought(delta), self._said
        new: dict[str, Any] = {"reasoning_content": thought} if thought else {}
        if said.content or not (thought or said.calls or delta.finish):
            new["content"] = said.content
        if said.calls:
            new["tool_calls"] = [_new_call(call) for call in said.calls]
        reader = self._readers[delta.index]
        return {"index": delta.index, "delta": new, "logprobs": None, "finish_reason": _chat_reason(delta, reader)}

    def whole(self, index: int, part: Part) -> Choice:
        """The message."""
        reader, thought = self._tools.reader(either=self._either), self._thought(part)
        said = self._read(reader, part)
        message: dict[str, Any] = {"role": "assistant", "content": said.content, "refusal": None}
        if thought:
            message |= {"content": said.content or None, "reasoning_content": thought}
        if said.calls:
            message |= {"content": said.content or None, "tool_calls": [_call(call) for call in said.calls]}
        return {"index": index, "message": message, "logprobs": None, "finish_reason": _chat_reason(part, reader)}

    def _thought(self, new: Delta | Part) -> str:
        return new.thought if self._separate else ""

    def _read(self, reader: Reader | None, new: Delta | Part) -> Said:
        """What the answer says, behind what it repeats, and thoughts where those are content: nobody calls there."""
        text = new.content
        said = as_content(text) if reader is None else reader.push(text, last=new.finish is not None)
        before = new.repeated if self._separate else new.repeated + new.aside
        return Said((*as_content(before).parts, *said.parts)) if before else said

    def logprobs(self, writer: TokenWriter, placed: Sequence[Placed], *, special: bool) -> dict[str, Any]:
        """With their bytes. Those of thoughts are among them."""
        return writer.chat(placed, special=special)


def _reason(end: Delta | Part) -> str | None:
    return None if end.finish is None else end.finish.reason


def _chat_reason(end: Delta | Part, reader: Reader | None) -> str | None:
    """The same, where calls are a reason of their own to stop, unless a stop string cuts the last of them."""
    if end.finish is None or end.finish.reason != "stop" or reader is None or not reader.calls:
        return _reason(end)
    return "stop" if reader.open and isinstance(end.finish.matched, str) else "tool_calls"


def _call(call: CallPart) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _new_call(call: CallPart) -> dict[str, Any]:
    """What is new of a call: in its first part who it is."""
    if call.id:
        return {"index": call.index, **_call(call)}
    return {"index": call.index, "function": {"arguments": call.arguments}}
