"""Chat messages, as clients send them and as templates read them."""

import json
from collections.abc import Mapping
from typing import Any, NoReturn

from rtk.errors import RequestError
from rtk.schedule.params import check_text, shown
from rtk.serve.http.body import must_be
from rtk.serve.http.fields import Ignored, not_supported

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
"""What each role is called in templates: few of them know developers, who rank like the system."""

_READ = ("role", "content", "name", "reasoning_content", "tool_calls", "tool_call_id")
_LATER = ("audio",)
_INSTEAD = {"function_call": "tool_calls", "function": "tool"}
"""What OpenAI had before there were tools, and what it has now."""


def read_messages(value: Any, ignored: Ignored) -> list[dict[str, Any]]:
    """Messages with text contents. Raises `RequestError` naming the place of what cannot be used."""
    if not isinstance(value, list):
        raise must_be("a list of messages", "messages", value)
    called: dict[str, str] = {}
    return [_message(message, f"messages[{i}]", called, ignored) for i, message in enumerate(value)]


def check_texts(value: Any, place: str) -> None:
    """Raises `RequestError` for a text somewhere in a JSON value that no tokenizer can encode. O(characters)."""
    left: list[tuple[Any, _Path]] = [(value, None)]
    while left:
        one, path = left.pop()
        if isinstance(one, str):
            if not one.isascii():
                check_text(one, field=_place(place, path))
        elif isinstance(one, dict):
            for key, inner in one.items():
                if not key.isascii():
                    check_text(key, field=_place(place, path))
                left.append((inner, (path, f".{key}")))
        elif isinstance(one, list):
            left += ((inner, (path, f"[{i}]")) for i, inner in enumerate(one))


_Path = tuple[Any, str] | None
"""Steps down, the last one first."""


def _place(root: str, path: _Path) -> str:
    steps = []
    while path is not None:
        path, step = path
        steps.append(step)
    return root + "".join(reversed(steps))


def _message(message: Any, place: str, called: dict[str, str], ignored: Ignored) -> dict[str, Any]:
    """`called`: the names of the tools that were called so far, by the ids of the calls."""
    if not isinstance(message, dict):
        raise must_be('an object with "role" and "content"', place, message)
    for name, value in message.items():
        if name in _INSTEAD and value is not None:
            raise not_supported(f"{place}.{name}", instead=_INSTEAD[name])
        if name in _LATER and value not in (None, []):
            raise not_supported(f"{place}.{name}")
        if name not in _READ and name not in _LATER and name not in _INSTEAD:
            ignored.note(f"{place}.{name}")
    role = _role(message.get("role"), f"{place}.role")
    result: dict[str, Any] = {"role": role}
    calls = message.get("tool_calls")
    if calls is not None and not isinstance(calls, list):
        raise must_be("a list of calls", f"{place}.tool_calls", calls)
    if calls and role != "assistant":
        raise RequestError(f"{place}.tool_calls: only assistants call tools", field=f"{place}.tool_calls")
    content = message.get("content")
    result["content"] = "" if calls and content is None else _content(content, f"{place}.content")
    for name in ("name", "reasoning_content"):
        if message.get(name) is not None:
            result[name] = _text(message[name], f"{place}.{name}")
    if calls:
        result["tool_calls"] = [_call(one, f"{place}.tool_calls[{i}]", ignored) for i, one in enumerate(calls)]
        called |= {call["id"]: call["function"]["name"] for call in result["tool_calls"]}
    if role == "tool":
        identity = _text(message.get("tool_call_id"), f"{place}.tool_call_id", "the id of the call that it answers")
        result["tool_call_id"] = identity
        if identity in called:
            result.setdefault("name", called[identity])
    return result


def _call(call: Any, place: str, ignored: Ignored) -> dict[str, Any]:
    """A call that was made before. Its arguments become an object: templates write them as JSON."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        raise must_be('an object such as {"id": "…", "type": "function", "function": {…}}', place, call)
    if call.get("type", "function") != "function":
        raise not_supported(f"{place}: {shown(call['type'])}", f"{place}.type")
    for name in call.keys() - {"id", "type", "function", "index"}:
        ignored.note(f"{place}.{name}")
    named = _text(function.get("name"), f"{place}.function.name")
    arguments = read_arguments(function.get("arguments"), f"{place}.function.arguments")
    return {
        "id": _text(call.get("id"), f"{place}.id"),
        "type": "function",
        "function": {"name": named, "arguments": arguments},
    }


def read_arguments(value: Any, place: str) -> dict[str, Any]:
    """The arguments of a call, which are sent as a text, as the object that templates write."""
    if isinstance(value, str):
        check_text(value, field=place)
        try:
            value = json.loads(value or "{}", parse_constant=_no_constant)
        except (ValueError, RecursionError):
            raise must_be("a JSON object, as a string", place, value) from None
    if not isinstance(value, dict):
        raise must_be("a JSON object, as a string", place, value)
    check_texts(value, place)
    return value


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def _role(role: Any, place: str) -> str:
    if isinstance(role, str) and role in _INSTEAD:
        raise not_supported(f"role {role}", place, instead=f"role {_INSTEAD[role]}")
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
