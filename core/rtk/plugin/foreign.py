"""A plugin's code may raise anything: what of it the host contains."""

import threading


def contained(error: BaseException) -> bool:
    """Whether `error` is the plugin's own doing, so that the host goes on without it.

    An attempt to exit is. In the main thread the rest may come from outside, as Ctrl-C does; no other thread gets
    signals.
    """
    if isinstance(error, Exception | SystemExit | GeneratorExit):
        return True
    return threading.current_thread() is not threading.main_thread()
