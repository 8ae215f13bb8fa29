"""Expected failures: one line that names the thing, the value, the choices and the next move; no traceback.

Anything else that escapes is a bug and keeps its traceback.
"""


class RtkError(Exception):
    """An expected failure. `str(error)` is the one line that a person gets to see."""


class ConfigError(RtkError):
    """The configuration cannot be used as it stands."""


class PluginError(RtkError):
    """A plugin is missing, broken, or was asked for something that it cannot do."""


class ModelError(RtkError):
    """A model cannot be found, read, or served correctly."""


class RequestError(RtkError):
    """A request is refused. `field` names the offending parameter, `code` is stable for clients, `status` is HTTP's."""

    def __init__(self, message: str, *, field: str | None = None, code: str = "invalid_request", status: int = 400):
        super().__init__(message)
        self.field = field
        self.code = code
        self.status = status
