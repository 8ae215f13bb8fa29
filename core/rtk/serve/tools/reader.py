"""Reads one answer: what of it is content, and what calls of tools."""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from rtk.serve.tools.layout import Format
from rtk.serve.tools.machine import Arguments, Call, Machine, Plain, Text, Tool


@dataclass(slots=True)
class CallPart:
    """What is new of a call."""

    index: int
    """Which call of the answer."""
    id: str = ""
    name: str = ""
    """Both where the call begins, and empty afterwards."""
    arguments: str = ""
    """The next part of a JSON text."""


@dataclass(frozen=True, slots=True)
class Said:
    """What is new of an answer."""

    parts: tuple[str | CallPart, ...] = ()
    """Content and calls, in the order in which they were written."""

    @property
    def content(self) -> str:
        """All that is no call."""
        return "".join(part for part in self.parts if isinstance(part, str))

    @property
    def calls(self) -> list[CallPart]:
        """All that is one."""
        return [part for part in self.parts if isinstance(part, CallPart)]


def as_content(text: str) -> Said:
    """This is content."""
    return Said((text,)) if text else Said()


class Reader:
    """Reads one answer, as it comes. White space around calls belongs to nobody."""

    def __init__(
        self, format: Format, tools: Collection[Tool], most: int | None = None, *, either: bool = False
    ) -> None:
        """`most`: calls; None: any number. `either`: an answer is calls as a grammar has them written, or has none."""
        self._machine: Machine = format.machine(tools, most)
        self._start = format.layout.start if either else ""
        """What it begins with, if it is calls; empty once that is known."""
        self._begun = ""
        self._new_id: Callable[[], str] = format.new_id
        self._space: list[str] = []
        """White space that was not said yet: a call may follow."""
        self._bare = False
        """Nothing was said since the last call."""
        self.calls = 0
        """That have begun."""

    @property
    def open(self) -> bool:
        """Whether the last call is not complete."""
        return self._machine.open

    def push(self, text: str, *, last: bool = False) -> Said:
        """What the next part of the text says, the `last` one or not."""
        if self._start:
            text = self._begun = self._begun + text
            if self._start.startswith(text) and text != self._start and not last:
                return Said()
            self._machine = self._machine if text.startswith(self._start) else Plain(())
            self._start = ""
        found: list[tuple[CallPart | None, list[str]]] = []
        for event in self._machine.push(text, last=last):
            match event:
                case Text(content):
                    self._add(found, self._content(content))
                case Call(name):
                    self._space, self._bare = [], True
                    found.append((CallPart(self.calls, self._new_id(), name), []))
                    self.calls += 1
                case Arguments(written):
                    if not found or found[-1][0] is None:
                        found.append((CallPart(self.calls - 1), []))
                    found[-1][1].append(written)
        if last:
            self._add(found, "".join(self._space))
        return Said(tuple(_part(call, texts) for call, texts in found))

    def _add(self, found: list[tuple[CallPart | None, list[str]]], content: str) -> None:
        if content and (not found or found[-1][0] is not None):
            found.append((None, []))
        if content:
            found[-1][1].append(content)

    def _content(self, text: str) -> str:
        if self._bare:
            text = text.lstrip()
        said = text.rstrip()
        if not said:
            self._space.append(text)
            return ""
        self._bare = False
        before, self._space = "".join(self._space), [text[len(said) :]]
        return before + said


def _part(call: CallPart | None, texts: Iterable[str]) -> str | CallPart:
    text = "".join(texts)
    if call is None:
        return text
    call.arguments = text
    return call
