"""How calls are written: a format, as a reader and as a grammar see it."""

import random
import secrets
import string
from collections.abc import Callable
from dataclasses import dataclass

from rtk.serve.tools.machine import Machine

_SYSTEM = random.SystemRandom()


def call_id() -> str:
    """A new id of a call."""
    return f"call_{secrets.token_hex(12)}"


def short_id() -> str:
    """The same for templates that take nine letters and digits, and nothing else."""
    return "".join(_SYSTEM.choices(string.ascii_letters + string.digits, k=9))


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How a grammar has calls written. The format's machine reads that, and maybe more."""

    head: str
    """What comes before the arguments; `NAME` stands for the name."""
    tail: str = ""
    begin: str = ""
    between: str = ""
    end: str = ""
    """What comes before, between and after calls."""
    trigger: str = ""
    """Where this is written in a text, calls begin."""
    openers: tuple[str, ...] = ()
    """Without a trigger: where an answer begins with one of these, it is calls."""

    @property
    def start(self) -> str:
        """What an answer of calls begins with, where a grammar has them written."""
        return (self.begin + self.head).partition("NAME")[0]

    def head_of(self, name: str) -> str:
        """What comes before the arguments of a call of this tool."""
        return self.head.replace("NAME", name)


@dataclass(frozen=True, slots=True)
class Format:
    """One way to write calls."""

    name: str
    machine: type[Machine]
    layout: Layout
    new_id: Callable[[], str] = call_id
