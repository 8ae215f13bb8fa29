"""Reads one answer: what of it is content, and what calls of tools."""

from collections.abc import Callable, Collection
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


@dataclass(slots=True)
class Said:
    """What is new of an answer."""

    content: str
    calls: list[CallPart]


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
                return Said("", [])
            self._machine = self._machine if text.startswith(self._start) else Plain(())
            self._start = ""
        content: list[str] = []
        parts: list[CallPart] = []
        for event in self._machine.push(text, last=last):
            match event:
                case Text(said):
                    content.append(self._content(said))
                case Call(name):
                    self._space, self._bare = [], True
                    parts.append(CallPart(self.calls, self._new_id(), name))
                    self.calls += 1
                case Arguments(said):
                    if not parts:
                        parts.append(CallPart(self.calls - 1))
                    parts[-1].arguments += said
        if last:
            content += self._space
        return Said("".join(content), parts)

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
