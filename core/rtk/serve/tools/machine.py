"""Tells calls of tools from the text around them, one character at a time: how a text is cut changes nothing.

A machine is a generator that looks at `char` and goes on to the next one by `yield`; `char` is empty at the end of the
text. It never looks ahead, so what it says is a fold over characters, and takes time in proportion to them.
"""

import enum
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Generator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")
Steps = Generator[None, None, T]
Take = Callable[[str], object]
"""Somebody who is given text."""

SPACE = " \t\r\n"
ENDS = SPACE + ",;]}"
"""What ends a number or a word of a JSON text."""
NAME = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.:/-")
"""What names of tools are made of."""
_CALL_KEYS = frozenset({"name", "arguments", "parameters", "id", "type"})


@dataclass(frozen=True, slots=True)
class Text:
    """Of the content."""

    text: str


@dataclass(frozen=True, slots=True)
class Call:
    """A call begins."""

    name: str


@dataclass(frozen=True, slots=True)
class Arguments:
    """Of the arguments of the call that began last, which are JSON."""

    text: str


Event = Text | Call | Arguments


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool that may be called."""

    name: str
    parameters: Mapping[str, Any]
    """A JSON Schema of the arguments."""
    strict: bool = False
    place: str = ""
    """Where the client said so, for messages."""


class Outcome(enum.Enum):
    """What an object turned out to be."""

    CALL = enum.auto()
    BROKEN = enum.auto()
    """A call whose arguments are no JSON text: what follows up to the end of the call belongs to them."""
    OTHER = enum.auto()
    """An object that is no call."""
    MALFORMED = enum.auto()


class Machine(ABC):
    """Reads one answer. What is no call of one of `tools`, or one more than `most`, is content, as it was written."""

    def __init__(self, tools: Collection[Tool], most: int | None = None) -> None:
        self.tools = {tool.name: tool for tool in tools}
        self.char = ""
        self._left = most
        self.open = False
        """The last call is not complete."""
        self._events: list[Event] = []
        self._steps = self.read()
        next(self._steps)

    @abstractmethod
    def read(self) -> Steps[None]:
        """All of the text. Yields once before it looks at the first character."""

    def push(self, text: str, *, last: bool = False) -> list[Event]:
        """What the next part of the text says, the `last` one or not."""
        for char in text:
            self.char = char
            next(self._steps)
        if last:
            self.char = ""
            next(self._steps, None)
        events, self._events = self._events, []
        return events

    # --- saying -------------------------------------------------------------------------------------------------

    def text(self, text: str) -> None:
        """This is content."""
        if text:
            self._events.append(Text(text))

    def arguments(self, text: str) -> None:
        """This belongs to the arguments."""
        if text:
            self._events.append(Arguments(text))

    def call(self, name: str) -> None:
        """A call begins, which may; whoever reads it says when it is complete."""
        self.open = True
        self._left = None if self._left is None else self._left - 1
        self._events.append(Call(name))

    def may_call(self, name: str) -> bool:
        """Whether a call of this name is one."""
        return name in self.tools and self._left != 0

    # --- reading ------------------------------------------------------------------------------------------------

    def until(self, *marks: str, take: Take | None = None, held: str = "") -> Steps[str]:
        """What comes before one of these marks; content, if nobody is to `take` it. Answers the mark, empty at the end.

        No mark may begin with another. `held`: what was read of it before.
        """
        take = take or self.text
        while True:
            while held and not any(mark.startswith(held) for mark in marks):
                take(held[0])
                held = held[1:]
            if held in marks:
                return held
            if not self.char:
                take(held)
                return ""
            held += self.char
            yield

    def rest(self, take: Take | None = None) -> Steps[None]:
        """All that is left, which is content, if nobody is to `take` it."""
        take = take or self.text
        while self.char:
            take(self.char)
            yield

    def space(self, take: Take) -> Steps[None]:
        """White space, or none."""
        while self.char and self.char in SPACE:
            take(self.char)
            yield

    def literal(self, text: str, take: Take) -> Steps[bool]:
        """Just this text; what was read of it is taken, also where it turns out to be another."""
        for char in text:
            if self.char != char:
                return False
            take(char)
            yield
        return True

    def name(self, take: Take) -> Steps[str]:
        """What could be the name of a tool."""
        found = []
        while self.char in NAME:
            found.append(self.char)
            take(self.char)
            yield
        return "".join(found)

    def string(self, take: Take, quote: str = '"') -> Steps[bool]:
        """A text in quotes. False where the end comes before the second quote."""
        take(quote)
        yield
        while char := self.char:
            take(char)
            yield
            if char == quote:
                return True
            if char == "\\" and self.char:
                take(self.char)
                yield
        return False

    def value(self, take: Take) -> Steps[bool]:
        """A JSON value, as far as quotes and brackets tell. False where it breaks off, or brackets do not match."""
        if self.char == '"':
            return (yield from self.string(take))
        if self.char not in ("{", "["):
            return (yield from self._scalar(take))
        closing: list[str] = []
        while char := self.char:
            if char == '"':
                if not (yield from self.string(take)):
                    return False
                continue
            if char in "{[":
                closing.append("}" if char == "{" else "]")
            elif char in "}]" and closing.pop() != char:
                return False
            take(char)
            yield
            if not closing:
                return True
        return False

    def _scalar(self, take: Take) -> Steps[bool]:
        there = False
        while self.char and self.char not in ENDS:
            take(self.char)
            yield
            there = True
        return there

    # --- calls as objects ---------------------------------------------------------------------------------------

    def call_object(self, raw: list[str], *, alone: bool) -> Steps[Outcome]:
        """An object with the name of a tool and its arguments, in any order.

        `raw` gets what was read, and is emptied where that is a call. `alone`: nothing else says that it is one, so an
        object with other keys is none.
        """
        found = _Found()
        raw.append("{")
        yield
        yield from self.space(raw.append)
        while self.char == '"':
            key = yield from self._json(self.string, raw)
            yield from self.space(raw.append)
            if not (isinstance(key, str) and (yield from self.literal(":", raw.append))):
                return self._ended(found, raw, whole=False)
            yield from self.space(raw.append)
            whole = yield from self._member(key, found, raw)
            found.strange |= alone and key not in _CALL_KEYS
            if not whole:
                return Outcome.BROKEN if found.open else self._ended(found, raw, whole=False)
            yield from self.space(raw.append)
            if self.char != ",":
                break
            raw.append(",")
            yield
            yield from self.space(raw.append)
        return self._ended(found, raw, whole=(yield from self.literal("}", raw.append)))

    def _member(self, key: str, found: "_Found", raw: list[str]) -> Steps[bool]:
        """What stands behind a key. False where it is no JSON value."""
        if key in ("arguments", "parameters") and not found.said and found.arguments is None:
            if self.char == "{" and found.name is not None and not found.strange and self.may_call(found.name):
                self._begin(found, raw)
                found.open = True
                whole = yield from self.value(self.arguments)
                found.open = self.open = not whole
                return whole
            text: list[str] = []
            value = yield from self._json(self.value, raw, text)
            found.arguments = _arguments(value, "".join(text))
            return value is not _NONE
        value = yield from self._json(self.value, raw)
        if key == "name" and isinstance(value, str) and found.name is None:
            found.name = value
        return value is not _NONE

    def _begin(self, found: "_Found", raw: list[str]) -> None:
        assert found.name is not None, "it may be called"
        raw.clear()
        found.said = True
        self.call(found.name)

    def _ended(self, found: "_Found", raw: list[str], *, whole: bool) -> Outcome:
        """What became of an object that has ended, as a `whole` or not."""
        if not found.said:
            fits = whole and found.name is not None and not found.strange and found.arguments != ""
            if not (fits and found.name is not None and self.may_call(found.name)):
                return Outcome.OTHER if whole else Outcome.MALFORMED
            self._begin(found, raw)
            self.arguments(found.arguments or "{}")
            self.open = False
        if whole:
            raw.clear()
        return Outcome.CALL

    def _json(self, read: Callable[[Take], Steps[bool]], raw: list[str], text: list[str] | None = None) -> Steps[Any]:
        """The value of what `read` reads; `_NONE` where it is no JSON."""
        text = [] if text is None else text

        def take(char: str) -> None:
            text.append(char)
            raw.append(char)

        if not (yield from read(take)):
            return _NONE
        try:
            return json.loads("".join(text))
        except (ValueError, RecursionError):
            return _NONE

    def call_objects(self, raw: list[str], between: str, end: str) -> Steps[Outcome]:
        """Objects with `between` between them, up to `end`, where that is not empty; `char` is at the first.

        Punctuation counts to the object behind it, the end to the one before it. Answers what the last one was.
        """
        outcome = Outcome.MALFORMED
        while self.char == "{":
            outcome = yield from self.call_object(raw, alone=True)
            if outcome is Outcome.BROKEN:
                return outcome
            self._flush(raw)
            if outcome is Outcome.MALFORMED:
                return outcome
            yield from self.space(raw.append)
            if self.char and self.char == end:
                raw.append(end)
                yield
                if outcome is Outcome.CALL:
                    raw.clear()
                break
            if self.char != between:
                break
            raw.append(between)
            yield
            yield from self.space(raw.append)
        self._flush(raw)
        return outcome

    def _flush(self, raw: list[str]) -> None:
        self.text("".join(raw))
        raw.clear()


class Plain(Machine):
    """All of it is content."""

    def read(self) -> Steps[None]:
        yield
        yield from self.rest()


@dataclass(slots=True)
class _Found:
    """What an object has shown so far."""

    name: str | None = None
    arguments: str | None = None
    """As they were written before the name; empty where they can be none."""
    said: bool = False
    """It is a call, and has been delivered."""
    open: bool = False
    """Its arguments are being delivered."""
    strange: bool = False
    """It has keys that no call has."""


_NONE = object()


def _arguments(value: Any, text: str) -> str:
    """Arguments as JSON text: an object, the text of one, or null for none; empty for anything else."""
    if value is None:
        return "{}"
    if isinstance(value, str):
        return value if _is_object(value) else ""
    return text if isinstance(value, dict) else ""


def _is_object(text: str) -> bool:
    try:
        text.encode()
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False
