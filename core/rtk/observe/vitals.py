"""How the process that this runs in is: its memory, the pauses of its garbage collector, log lines that were lost.

All of it belongs to the process, so there is one of each, at the end of this module.
"""

import gc
import os
from collections.abc import Mapping
from time import perf_counter
from typing import Any

import msgspec

from rtk.observe.histogram import PAUSE_S, Distribution, Histogram
from rtk.observe.logs import drops


class ProcessReport(msgspec.Struct, frozen=True, kw_only=True):
    """One process at one moment."""

    pid: int
    memory_bytes: int
    """Resident."""
    gc_pauses: Distribution
    """Seconds that collections took, since they are watched."""
    log_drops: int
    """Log lines that could not be written."""


class GcWatch:
    """Measures collections from `start` on."""

    def __init__(self) -> None:
        self._pauses = Histogram(PAUSE_S)
        self._began = 0.0

    def start(self) -> None:
        """Begin. A second call changes nothing."""
        if self._told not in gc.callbacks:
            gc.callbacks.append(self._told)

    def stop(self) -> None:
        """Watch no more."""
        if self._told in gc.callbacks:
            gc.callbacks.remove(self._told)

    def _told(self, phase: str, _: Mapping[str, Any]) -> None:
        if phase == "start":
            self._began = perf_counter()
        else:
            self._pauses.observe(perf_counter() - self._began)

    def read(self) -> Distribution:
        """The pauses so far."""
        return self._pauses.read()


gc_watch = GcWatch()


def process_report() -> ProcessReport:
    """This process now."""
    import psutil

    memory = psutil.Process().memory_info().rss
    return ProcessReport(pid=os.getpid(), memory_bytes=memory, gc_pauses=gc_watch.read(), log_drops=drops())
