"""Log lines, as every process of a server writes them."""

import logging

from rtk.errors import printable

TEXT = "%(levelname)s: %(message)s"


class TextFormatter(logging.Formatter):
    """What a message quotes cannot pass for another message, nor steer a terminal; tracebacks stay as they are."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's own interface
        return printable(super().formatMessage(record))


def begin() -> None:
    """Warnings as text, for as long as nothing else is known."""
    handler = logging.StreamHandler()
    handler.setFormatter(TextFormatter(TEXT))
    logging.basicConfig(handlers=[handler])
