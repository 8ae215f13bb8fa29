"""Logging failures without what clients wrote: an exception's words may quote a prompt, its frames do not."""

import logging

REQUESTS = logging.getLogger("rtk.requests")
"""For what quotes clients. Off unless somebody asks for it (`serve.log_requests`)."""
REQUESTS.disabled = True

_CHAIN = 16
"""Exceptions behind one another that are shown."""


def loggable(error: BaseException) -> BaseException:
    """What to log of a bug: its type and frames, and those of what is behind it; its words only where asked for."""
    return _wordless(error, _CHAIN) if REQUESTS.disabled else error


def _wordless(error: BaseException, chain: int) -> BaseException:
    kind = type(error)
    stand_in: BaseException = type(kind.__name__, (Exception,), {"__module__": kind.__module__})()
    stand_in.__traceback__ = error.__traceback__
    behind = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if behind is not None and chain:
        stand_in.__context__ = _wordless(behind, chain - 1)
    return stand_in
