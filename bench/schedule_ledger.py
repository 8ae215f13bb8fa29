"""What the ledger of scheduling takes of a decode step of the demo model; used by `schedule.py`."""

import random
import time
from collections.abc import Callable
from typing import Any, TypedDict

from rtk import Engine
from rtk.model.store import fetch

STREAMS, PROMPT, NEW = 8, 64, 64
CALLS = ("arrived", "planned", "launched", "retired", "retracted", "ended")


class Share(TypedDict):
    """Microseconds of the ledger and milliseconds of the engine, both for each step; and their ratio."""

    ledger_us: float
    step_ms: float
    share: float


class Stopwatch:
    """Sums up the seconds spent in some methods of an object."""

    def __init__(self, owner: object, names: tuple[str, ...]) -> None:
        self.seconds = 0.0
        for name in names:
            setattr(owner, name, self._timed(getattr(owner, name)))

    def _timed(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            begin = time.perf_counter()
            try:
                return method(*args, **kwargs)
            finally:
                self.seconds += time.perf_counter() - begin

        return timed


def measure(threads: int, rounds: int) -> Share:
    """8 streams of 64 tokens; the first round warms up. The stopwatch's own time counts as the ledger's."""
    rng = random.Random(1)
    with Engine({"model.path": str(fetch()), "model.threads": threads, "cache.pool_tokens": 16384}) as engine:
        watch = Stopwatch(engine._runtime._thread._scheduler._ledger, CALLS)
        spent = taken = steps = 0.0
        for number in range(rounds + 1):
            prompts = [[rng.randrange(1000, 40000) for _ in range(PROMPT)] for _ in range(STREAMS)]
            before, watch.seconds, begin = engine.stats()["steps"], 0.0, time.perf_counter()
            engine.generate(prompts, {"temperature": 0, "max_new_tokens": NEW, "ignore_eos": True})
            if number:
                taken += time.perf_counter() - begin
                spent += watch.seconds
                steps += engine.stats()["steps"] - before
    return {"ledger_us": spent / steps * 1e6, "step_ms": taken / steps * 1e3, "share": spent / taken}
