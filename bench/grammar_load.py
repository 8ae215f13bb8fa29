"""What compiling does to those who have no grammar; used by `grammar.py`."""

import itertools
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from grammar_specs import beyond, endless, large

from rtk import Engine
from rtk.errors import RequestError

STREAMS, PROMPT, LIMIT_S = 6, 32, 2.0
TICK = os.sysconf("SC_CLK_TCK")
Config = Mapping[str, Any]
Ask = Mapping[str, Any]

WORKS: dict[str, tuple[Mapping[str, Any], Callable[[int], list[Ask]], int]] = {
    "large": ({}, lambda count: [{"json_schema": text} for text in large(count)], 50),
    "beyond": ({}, lambda count: [{"json_schema": text} for text in beyond(count)], 50),
    "endless": ({"grammar.backend": "outlines"}, lambda count: [{"regex": text} for text in endless(count)], 10),
    "endless, the same": ({"grammar.backend": "outlines"}, lambda count: [{"regex": endless(1)[0]}] * count, 20),
}
"""Configuration, what is asked for, and how often."""


def measure(config: Config, seconds: float, works: Mapping[str, int] | None = None) -> dict[str, Any]:
    """Every kind of work, printed as a table. `works`: these only, with so many grammars each."""
    print("\n| grammars at once | answers | all within, s | streams: tok/s alone | meanwhile | ratio ", end="")
    print("| longest gap alone, ms | meanwhile | CPU s in a second, 1 s later |\n|---|---|---|---|---|---|---|---|---|")
    out = {}
    for name, count in (works or {name: count for name, (_, _, count) in WORKS.items()}).items():
        keys, asks, _ = WORKS[name]
        limit = {"grammar.compile_timeout_s": LIMIT_S} if name != "large" else {}
        one = out[name] = load({**config, **keys, **limit}, asks(count), seconds)
        answers = ", ".join(f"{times} x {answer}" for answer, times in one["answers"].items())
        rates = f"{one['alone']:.1f} | {one['meanwhile']:.1f} | {one['ratio']:.2f}"
        gaps = f"{one['gap_alone_ms']:.0f} | {one['gap_ms']:.0f}"
        print(f"| {name}: {count} | {answers} | {one['seconds']:.1f} | {rates} | {gaps} | {one['busy_after']:.2f} |")
    return out


def load(config: Config, asks: list[Ask], seconds: float) -> dict[str, Any]:
    """Streams that are watched alone, while grammars are compiled, and alone again."""
    with Engine(config) as engine:
        with streaming(engine) as times:
            time.sleep(seconds / 2)  # warm
            begin = time.perf_counter()
            time.sleep(seconds)
            asked = time.perf_counter()
            with ThreadPoolExecutor(len(asks)) as clients:
                answers = Counter(clients.map(lambda ask: answer(engine, ask), asks))
            answered = time.perf_counter()
            time.sleep(seconds)
            end = time.perf_counter()
        time.sleep(1)
        before = cpu_seconds()
        time.sleep(1)
        busy = cpu_seconds() - before
    alone = [rate(times, begin, asked), rate(times, answered, end)]
    gaps = [longest_gap(times, begin, asked), longest_gap(times, answered, end)]
    meanwhile, mean = rate(times, asked, answered), sum(alone) / 2
    return {
        "answers": dict(sorted(answers.items())),
        "seconds": answered - asked,
        "alone": mean,
        "meanwhile": meanwhile,
        "ratio": meanwhile / mean,
        "gap_alone_ms": max(gaps) * 1000,
        "gap_ms": longest_gap(times, asked, answered) * 1000,
        "busy_after": busy,
    }


def answer(engine: Engine, ask: Ask) -> str:
    """What comes back for a request under a form: a token, or how it is refused."""
    try:
        engine.generate([1, 2, 3], {"temperature": 0, "max_new_tokens": 1, **ask})
    except RequestError as error:
        return f"{error.status} {error.code}"
    return "200"


@contextmanager
def streaming(engine: Engine) -> Iterator[list[list[float]]]:
    """Has streams run without an end, and gives the times at which their tokens come."""
    rng, over = random.Random(1), threading.Event()
    times: list[list[float]] = [[] for _ in range(STREAMS)]

    def stream(mine: list[float], prompt: list[int]) -> None:
        deltas = engine.stream(prompt, {"temperature": 0, "max_new_tokens": 4000, "ignore_eos": True})
        for delta in deltas:
            mine += [time.perf_counter()] * len(delta.token_ids)
            if over.is_set():
                break
        deltas.close()

    prompts = [[rng.randrange(1000, 40000) for _ in range(PROMPT)] for _ in times]
    with ThreadPoolExecutor(STREAMS) as clients:
        running = [clients.submit(stream, mine, prompt) for mine, prompt in zip(times, prompts, strict=True)]
        try:
            yield times
        finally:
            over.set()
    for one in running:
        one.result()


def rate(times: list[list[float]], begin: float, end: float) -> float:
    """Tokens a second of all streams within a span."""
    return sum(begin <= at < end for mine in times for at in mine) / (end - begin)


def longest_gap(times: list[list[float]], begin: float, end: float) -> float:
    """Seconds between two tokens of a stream, of which a part lies within the span."""
    gaps = [0.0]
    for mine in map(np.array, times):
        gaps += [late - early for early, late in itertools.pairwise(mine) if late > begin and early < end]
    return float(max(gaps))


def cpu_seconds() -> float:
    """What this process and those that it has started have used."""
    ticks = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rsplit(")", 1)[1].split()
        except OSError:  # it has ended
            continue
        if int(fields[1]) == os.getpid() or stat.parent.name == str(os.getpid()):
            ticks += int(fields[11]) + int(fields[12])
    return ticks / TICK
