"""What /v1/responses is asked: a text, or items of a conversation, as messages of a chat."""

from collections.abc import Collection, Mapping
from typing import Any

from rtk.schedule.params import check_text, shown
from rtk.serve.http.body import must_be
from rtk.serve.http.chat import ROLES, read_arguments
from rtk.serve.http.fields import Ignored, not_supported

_ROLES = ("system", "developer", "user", "assistant")
_MESSAGE = ("type", "role", "content", "id", "status")
_REASONING = ("type", "content", "summary", "encrypted_content", "id", "status")
_CALL = ("type", "call_id", "name", "arguments", "id", "status")
_OUTPUT = ("type", "call_id", "output", "id", "status")
_PARTS = ("input_text", "output_text")
_PART = ("type", "text", "annotations", "logprobs")

Messages = list[dict[str, Any]]


def read_input(value: Any, instructions: str | None, ignored: Ignored) -> Messages:
    """The messages of a request, its instructions first. Raises `RequestError` naming the place of what cannot be used.

    What was thought before an answer goes with that answer.
    """
    messages: Messages = []
    if instructions is not None:
        messages.append({"role": "system", "content": _text(instructions, "instructions")})
    if isinstance(value, str):
        return [*messages, {"role": "user", "content": _text(value, "input")}]
    if not isinstance(value, list):
        raise must_be("a string, or a list of messages", "input", value)
    conversation = _Conversation(messages, ignored)
    for i, item in enumerate(value):
        conversation.add(item, f"input[{i}]")
    conversation.end()
    return messages


class _Conversation:
    """Messages, as the items come."""

    def __init__(self, messages: Messages, ignored: Ignored) -> None:
        self._messages = messages
        self._ignored = ignored
        self._called: dict[str, str] = {}
        """The names of the tools that were called so far, by the ids of the calls."""
        self._thought: tuple[str, str] | None = None
        """Where something was thought that no message has yet, and what."""
        self._open = False
        """The last message is the assistant's, and calls that follow are part of it."""

    def add(self, item: Any, place: str) -> None:
        """Take in the next item."""
        kind = _kind(item, place)
        if kind == "reasoning":
            self.end()
            self._open = False
            self._thought = place, _thought(item, place, self._ignored)
        elif kind == "function_call":
            if not self._open:
                self._say({"role": "assistant", "content": ""})
            call = _call(item, place, self._ignored)
            self._messages[-1].setdefault("tool_calls", []).append(call)
            self._called[call["id"]] = call["function"]["name"]
        elif kind == "function_call_output":
            message = _output(item, place, self._ignored)
            if (name := self._called.get(message["tool_call_id"])) is not None:
                message["name"] = name
            self._say(message)
        else:
            self._say(_message(item, place, self._ignored))

    def _say(self, message: dict[str, Any]) -> None:
        self._open = message["role"] == "assistant"
        if self._open and self._thought is not None:
            message["reasoning_content"] = self._thought[1]
            self._thought = None
        self.end()
        self._messages.append(message)

    def end(self) -> None:
        """What was thought before anything else than an answer has no effect."""
        if self._thought is not None:
            self._ignored.note(self._thought[0])
        self._thought = None


def _kind(item: Any, place: str) -> str:
    if not isinstance(item, dict):
        raise must_be('an object with "role" and "content"', place, item)
    kind = "message" if item.get("type") is None else item["type"]
    if not isinstance(kind, str):
        raise must_be("a string", f"{place}.type", kind)
    if kind not in ("message", "reasoning", "function_call", "function_call_output"):
        raise not_supported(f"{place}: {shown(kind)}", f"{place}.type")
    return kind


def _call(item: Mapping[str, Any], place: str, ignored: Ignored) -> dict[str, Any]:
    """A call that was made before, as messages have it."""
    _name_unknown(item, _CALL, place, ignored)
    name = _text(item.get("name"), f"{place}.name")
    arguments = read_arguments(item.get("arguments"), f"{place}.arguments")
    identity = _text(item.get("call_id"), f"{place}.call_id")
    return {"id": identity, "type": "function", "function": {"name": name, "arguments": arguments}}


def _output(item: Mapping[str, Any], place: str, ignored: Ignored) -> dict[str, Any]:
    """What came of a call."""
    _name_unknown(item, _OUTPUT, place, ignored)
    identity = _text(item.get("call_id"), f"{place}.call_id", "the id of the call that it answers")
    return {"role": "tool", "tool_call_id": identity, "content": _texts(item.get("output"), f"{place}.output", ignored)}


def _message(item: Mapping[str, Any], place: str, ignored: Ignored) -> dict[str, Any]:
    _name_unknown(item, _MESSAGE, place, ignored)
    role = item.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise must_be(f"one of {', '.join(_ROLES)}", f"{place}.role", role)
    return {"role": ROLES[role], "content": _texts(item.get("content"), f"{place}.content", ignored)}


def _texts(content: Any, place: str, ignored: Ignored) -> str:
    """A text, or text parts, which are joined by line ends."""
    if isinstance(content, list):
        return "\n".join([_part(part, _PARTS, f"{place}[{i}]", ignored) for i, part in enumerate(content)])
    return _text(content, place, "a string, or a list of text parts")


def _thought(item: Mapping[str, Any], place: str, ignored: Ignored) -> str:
    """What a reasoning item says itself; its summary is not read."""
    _name_unknown(item, _REASONING, place, ignored)
    content = item.get("content")
    if content is None:
        content = []
    if not isinstance(content, list):
        raise must_be("a list of text parts", f"{place}.content", content)
    parts = [_part(part, ("reasoning_text",), f"{place}.content[{i}]", ignored) for i, part in enumerate(content)]
    return "\n".join(parts)


def _part(part: Any, kinds: Collection[str], place: str, ignored: Ignored) -> str:
    if not isinstance(part, dict) or not isinstance(part.get("type"), str):
        raise must_be('an object such as {"type": "input_text", "text": "…"}', place, part)
    if part["type"] not in kinds:
        raise not_supported(f"{place}: {shown(part['type'])}", f"{place}.type")
    _name_unknown(part, _PART, place, ignored)
    return _text(part.get("text"), f"{place}.text")


def _name_unknown(value: Mapping[str, Any], known: Collection[str], place: str, ignored: Ignored) -> None:
    for name in value:
        if name not in known:
            ignored.note(f"{place}.{name}")


def _text(value: Any, place: str, allowed: str = "a string") -> str:
    if not isinstance(value, str):
        raise must_be(allowed, place, value)
    check_text(value, field=place)
    return value
