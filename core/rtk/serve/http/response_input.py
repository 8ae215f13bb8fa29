"""What /v1/responses is asked: a text, or items of a conversation, as messages of a chat."""

from collections.abc import Collection, Mapping
from typing import Any

from rtk.schedule.params import check_text, shown
from rtk.serve.http.body import must_be
from rtk.serve.http.chat import ROLES
from rtk.serve.http.fields import Ignored, not_supported

_ROLES = ("system", "developer", "user", "assistant")
_MESSAGE = ("type", "role", "content", "id", "status")
_REASONING = ("type", "content", "summary", "encrypted_content", "id", "status")
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
    thought: tuple[str, str] | None = None
    for i, item in enumerate(value):
        place = f"input[{i}]"
        if _kind(item, place) == "reasoning":
            thought = place, _thought(item, place, ignored)
            continue
        message = _message(item, place, ignored)
        if thought is not None:
            if message["role"] == "assistant":
                message["reasoning_content"] = thought[1]
            else:
                ignored.note(thought[0])
        thought = None
        messages.append(message)
    if thought is not None:
        ignored.note(thought[0])
    return messages


def _kind(item: Any, place: str) -> str:
    if not isinstance(item, dict):
        raise must_be('an object with "role" and "content"', place, item)
    kind = "message" if item.get("type") is None else item["type"]
    if not isinstance(kind, str):
        raise must_be("a string", f"{place}.type", kind)
    if kind not in ("message", "reasoning"):
        raise not_supported(f"{place}: {shown(kind)}", f"{place}.type")
    return kind


def _message(item: Mapping[str, Any], place: str, ignored: Ignored) -> dict[str, Any]:
    _name_unknown(item, _MESSAGE, place, ignored)
    role = item.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise must_be(f"one of {', '.join(_ROLES)}", f"{place}.role", role)
    content = item.get("content")
    if isinstance(content, list):
        content = "\n".join([_part(part, _PARTS, f"{place}.content[{i}]", ignored) for i, part in enumerate(content)])
    return {"role": ROLES[role], "content": _text(content, f"{place}.content", "a string, or a list of text parts")}


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
