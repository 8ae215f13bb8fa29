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
    """Seconds that collections took, since they are watched; each of them stops all threads."""
    gc_longest_pause_s: float
    log_drops: int
    """Log lines that could not be written."""

    def pauses(self) -> dict[str, int | float]:
        """How often its garbage was collected, and how long that took at most."""
        return {"gc_collections": self.gc_pauses.count, "gc_longest_pause_s": self.gc_longest_pause_s}


class GcWatch:
    """Measures collections from the first `start` to the last `stop`."""

    def __init__(self) -> None:
        self._pauses = Histogram(PAUSE_S)
        self._began = 0.0
        self._users = 0
        self.longest_s = 0.0

    def start(self) -> None:
        """Somebody wants to know."""
        self._users += 1
        if self._users == 1:
            gc.callbacks.append(self._told)

    def stop(self) -> None:
        """And no more."""
        self._users -= 1
        if not self._users:
            gc.callbacks.remove(self._told)

    def _told(self, phase: str, _: Mapping[str, Any]) -> None:
        if phase == "start":
            self._began = perf_counter()
        else:
            pause = perf_counter() - self._began
            self._pauses.observe(pause)
            self.longest_s = max(self.longest_s, pause)

    def read(self) -> Distribution:
        """The pauses so far."""
        return self._pauses.read()


gc_watch = GcWatch()


def process_report() -> ProcessReport:
    """This process now."""
    import psutil

    return ProcessReport(
        pid=os.getpid(),
        memory_bytes=psutil.Process().memory_info().rss,
        gc_pauses=gc_watch.read(),
        gc_longest_pause_s=gc_watch.longest_s,
        log_drops=drops(),
    )
