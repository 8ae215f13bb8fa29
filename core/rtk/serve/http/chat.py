"""Chat messages, as clients send them and as templates read them."""

from collections.abc import Mapping
from typing import Any

from rtk.schedule.params import check_text, shown
from rtk.serve.http.body import must_be
from rtk.serve.http.fields import Ignored, not_supported

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
"""What each role is called in templates: few of them know developers, who rank like the system."""

_READ = ("role", "content", "name", "reasoning_content")
_LATER = ("tool_calls", "function_call", "tool_call_id", "audio")


def read_messages(value: Any, ignored: Ignored) -> list[dict[str, Any]]:
    """Messages with text contents. Raises `RequestError` naming the place of what cannot be used."""
    if not isinstance(value, list):
        raise must_be("a list of messages", "messages", value)
    return [_message(message, f"messages[{i}]", ignored) for i, message in enumerate(value)]


def _message(message: Any, place: str, ignored: Ignored) -> dict[str, Any]:
    if not isinstance(message, dict):
        raise must_be('an object with "role" and "content"', place, message)
    for name, value in message.items():
        if name in _LATER and value not in (None, []):
            raise not_supported(f"{place}.{name}")
        if name not in _READ and name not in _LATER:
            ignored.note(f"{place}.{name}")
    result = {"role": _role(message.get("role"), f"{place}.role")}
    result["content"] = _content(message.get("content"), f"{place}.content")
    for name in ("name", "reasoning_content"):
        if message.get(name) is not None:
            result[name] = _text(message[name], f"{place}.{name}")
    return result


def _role(role: Any, place: str) -> str:
    if role in ("tool", "function"):
        raise not_supported(f"role {role}", place)
    if not isinstance(role, str) or role not in ROLES:
        raise must_be(f"one of {', '.join(ROLES)}", place, role)
    return ROLES[role]


def _content(content: Any, place: str) -> str:
    """A text, or text parts, which are joined by line ends."""
    if isinstance(content, list):
        return "\n".join([_part(part, f"{place}[{i}]") for i, part in enumerate(content)])
    return _text(content, place, "a string, or a list of text parts")


def _part(part: Any, place: str) -> str:
    if not isinstance(part, Mapping) or not isinstance(part.get("type"), str):
        raise must_be('an object such as {"type": "text", "text": "…"}', place, part)
    if part["type"] != "text":
        raise not_supported(f"{place}: {shown(part['type'])}", f"{place}.type")
    return _text(part.get("text"), f"{place}.text")


def _text(value: Any, place: str, allowed: str = "a string") -> str:
    if not isinstance(value, str):
        raise must_be(allowed, place, value)
    check_text(value, field=place)
    return value
