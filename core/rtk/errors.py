"""Expected failures: one line that names the thing, the value, the choices and the next move; no traceback.

Anything else that escapes is a bug and keeps its traceback.
"""

import re
import textwrap

MAX_REASON = 400
"""Characters that a line of ours quotes of an exception of somebody else's."""

#: Control characters but for tab and line feed, embedded and overridden directions, and halves of characters.
_STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    """`text` on one line that any terminal, log and encoding takes: all else is escaped as `repr` would."""
    return text if text.isprintable() else "".join(map(_printable_character, text))


def _printable_character(character: str) -> str:
    return character if character.isprintable() else repr(character)[1:-1]


def harmless(text: str) -> str:
    """`text` without what could steer a terminal or reorder a line; line ends and tabs stay. Pieces add up."""
    return _STEERING.sub("", text)


def one_line(error: BaseException) -> str:
    """An exception of somebody else's, whose message may be anything, as one line."""
    try:
        text = str(error).strip()
    except (Exception, SystemExit, GeneratorExit):  # noqa: BLE001 - `__str__` of a stranger
        text = "its message cannot be read"
    name = type(error).__name__
    return textwrap.shorten(f"{name}: {text}" if text else name, MAX_REASON, placeholder=" …")


class RtkError(Exception):
    """An expected failure. `str(error)` is the one line that a person gets to see, whatever `message` quotes."""

    def __init__(self, message: str):
        super().__init__(printable(message))


class ConfigError(RtkError):
    """The configuration cannot be used as it stands, for one reason or several."""

    def __init__(self, *problems: str):
        super().__init__("; ".join(problems))
        self.problems = tuple(map(printable, problems))
        """One line each."""


class PluginError(RtkError):
    """A plugin is missing, broken, or was asked for something that it cannot do."""


class ModelError(RtkError):
    """A model cannot be found, read, or served correctly."""


class RequestError(RtkError):
    """A request is refused. `field` names the offending parameter, `code` is stable for clients, `status` is HTTP's.

    `retry_after_s`: when it may be worth another try, where that is known.
    """

    def __init__(
        self,
        message: str,
        *,
        field: str | None = None,
        code: str = "invalid_request",
        status: int = 400,
        retry_after_s: float | None = None,
    ):
        super().__init__(message)
        self.field = None if field is None else printable(field)
        self.code = code
        self.status = status
        self.retry_after_s = retry_after_s
