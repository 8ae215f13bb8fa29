"""Where the time of a decode step goes, and what a token costs outside of the model.

    python bench/profile.py [--threads 2] [--context 256] [--steps 40] [--no-server] [--json OUT]

A step: 1, 8 and 32 requests decode in the real scheduler over the demo model in float32, stepped by hand; medians.
`schedule` is all that the scheduler does itself (messages, planning, what becomes of results), `tables` what the
executor does to hand a step to the model, `plan` and `attention` are the attention backend's, `sample` is the sampler,
`linear` the products with the weights, and `rest` what is left of the model: norms, rotation, activations, and Python.
Those of rtk's own kernel are computed together with what is left, so that they are timed alone, on as many rows, behind
the steps; `rest` is below 0 where a step has them cheaper. torch's are timed in steps of their own, since looking at
every operation costs time. `outside` is the share of the first two.

As served: `rtk serve` with as many streams through bench/peers/load.py. For each of its processes and for the client,
the CPU time that a token takes; and what the scheduler's process says that its time went into.
"""

import argparse
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.append(sys.path.pop(0))  # the standard library has a module of this name, which goes first
if __name__ == "profile":  # which is who was meant, by a bench of this folder that imports it
    del sys.modules["profile"]
    import profile
import torch
from soak_server import Server
from stepping import Stepping
from torch.overrides import TorchFunctionMode

from rtk.model.panels import Panels
from rtk.model.store import fetch
from rtk.schedule.scheduler import Scheduler

STREAMS = (1, 8, 32)
PARTS = ("schedule", "tables", "plan", "attention", "linear", "sample", "rest")
LINEAR = ("linear", "_mkl_linear", "_linear_pointwise", "mm", "addmm", "matmul")
CLIENT = Path(__file__).parent / "peers/load.py"
LOAD = """
import os, random, sys
sys.path.insert(0, sys.argv[1])
import load
streams, prompt, new, seed = map(int, sys.argv[3:])
rng = random.Random(seed)
jobs = [(0, [rng.randrange(1000, 40000) for _ in range(prompt)], new) for _ in range(streams)]
before = os.times()
row, _ = load.together(load.Client(sys.argv[2], "demo"), jobs)
after = os.times()
assert not row["failed"], row
print(row["wall_s"], after.user + after.system - before.user - before.system)
"""
PROMPT, NEW = 64, 64
SPARE = 128
"""Tokens of a request beyond those of the steps that are looked at: it decodes beside the prompts of others."""
MOST = 0.05
"""Share of a step that scheduling and bookkeeping may take at 32 requests."""

clock = time.perf_counter


class Stopwatch:
    """Seconds by part. A part that another one is within counts to itself alone."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self._within: list[str] = []
        self._since = clock()

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        self._turn()
        self._within.append(name)
        try:
            yield
        finally:
            self._turn()
            self._within.pop()

    def _turn(self) -> None:
        now = clock()
        if self._within:
            self.seconds[self._within[-1]] += now - self._since
        self._since = now

    def is_in(self, name: str) -> bool:
        return name in self._within

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            with self.part(name):
                return function(*args, **kwargs)

        return run

    def wrap(self, owner: Any, attribute: str, name: str) -> None:
        setattr(owner, attribute, self.timed(name, getattr(owner, attribute)))


class Products(TorchFunctionMode):
    """Times the products with weights, which are those outside of attention."""

    def __init__(self, watch: Stopwatch) -> None:
        super().__init__()
        self._watch = watch

    def __torch_function__(self, function: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(getattr(function, "__name__", "")).removesuffix(".default")
        if name not in LINEAR or self._watch.is_in("attention"):
            return function(*args, **(kwargs or {}))
        with self._watch.part("linear"):
            return function(*args, **(kwargs or {}))


def packs() -> list[Panels]:
    """Those that are made from now on: of a model's weights, each once."""
    made: list[Panels] = []
    make = Panels.__init__

    def remember(self: Panels, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        made.append(self)

    Panels.__init__ = remember  # type: ignore[method-assign]
    return made


@torch.inference_mode()
def alone(products: list[Panels], rows: int, count: int) -> float:
    """Median seconds of all products one after the other."""
    given = {depth: torch.randn(rows, depth) for depth in {product.pack.depth for product in products}}
    seconds = []
    for _ in range(count):
        begin = clock()
        for product in products:
            product(given[product.pack.depth])
        seconds.append(clock() - begin)
    return statistics.median(seconds)


def instrument(engine: Stepping, watch: Stopwatch) -> None:
    """Have the parts of a step timed that have a name."""
    import rtk.model.inline_executor as inline
    import rtk.model.runner as runner

    watch.wrap(engine.backend.taken.attention, "plan", "plan")
    watch.wrap(engine.backend.taken.attention, "write", "attention")
    watch.wrap(engine.backend.taken.attention, "forward", "attention")
    watch.wrap(inline, "sample", "sample")
    watch.wrap(inline.InlineStep, "result", "sample")
    watch.wrap(runner, "flat_logits", "rest")
    watch.wrap(engine.computing.executor, "launch", "tables")


def steps(scheduler: Scheduler, watch: Stopwatch, count: int) -> dict[str, float]:
    """Median seconds of each part, and of the whole, over so many steps."""
    found: dict[str, list[float]] = {part: [] for part in PARTS}
    for _ in range(count):
        watch.seconds.clear()
        with watch.part("schedule"):
            scheduler.step()
        for part in PARTS:
            found[part].append(watch.seconds[part])
    return {part: statistics.median(seconds) for part, seconds in found.items()}


def profile(
    engine: Stepping, products: list[Panels], watch: Stopwatch, streams: int, context: int, count: int
) -> dict[str, float]:
    """Milliseconds of each part of a step. `products` are all of the model's, or there are none by panels."""
    scheduler = engine.scheduler()
    engine.decoding(scheduler, streams, context, 3 * count + SPARE)
    steps(scheduler, watch, 5)  # warms up
    plain = steps(scheduler, watch, count)
    if products:
        plain["linear"] = alone(products, streams, count)
    else:
        with Products(watch):
            plain["linear"] = steps(scheduler, watch, max(5, count // 4))["linear"]
    plain["rest"] -= plain["linear"]
    return {part: 1e3 * plain[part] for part in PARTS}


def show(rows: dict[int, dict[str, float]]) -> None:
    print(f"\n| requests | {' | '.join(PARTS)} | step, ms | outside |\n|---|{'---|' * len(PARTS)}---|---|")
    for streams, row in rows.items():
        whole = sum(row.values())
        outside = (row["schedule"] + row["tables"]) / whole
        print(f"| {streams} | {' | '.join(f'{row[p]:.2f}' for p in PARTS)} | {whole:.1f} | {outside:.1%} |")
    outside = sum(rows[STREAMS[-1]][part] for part in ("schedule", "tables")) / sum(rows[STREAMS[-1]].values())
    print(f"\nOutside of the model at {STREAMS[-1]} requests: {outside:.1%} (at most {MOST:.0%}).")


# --- as served --------------------------------------------------------------------------------------------------


def cpu_s(server: Server) -> dict[str, float]:
    """CPU seconds of each of the server's processes so far."""
    found = {}
    for process in server.processes():
        words = " ".join(process.cmdline())
        name = next((name for name in ("scheduler", "detokenizer") if f"processes.{name}" in words), "main")
        found[name] = found.get(name, 0.0) + sum(process.cpu_times()[:2])
    return found


def served(folder: Path, threads: int) -> Iterator[dict[str, Any]]:
    """What a token costs each process, in microseconds, by the number of streams."""
    flags = ["--model", f"{folder}", "--served-name", "demo", "--threads", f"{threads}", "--pool-tokens", "46603"]
    with Server(*flags, env={"OMP_NUM_THREADS": f"{threads}"}) as server:
        for streams in STREAMS:
            load(server, folder, streams, 8)
            before, parts = cpu_s(server), step_parts(server)
            wall, client = load(server, folder, streams, NEW)
            after, tokens = cpu_s(server), streams * NEW
            took = {name: 1e6 * (after[name] - before[name]) / tokens for name in sorted(after)}
            ran = {name: seconds - parts[name] for name, seconds in step_parts(server).items()}
            yield {
                "streams": streams,
                "tok_s": tokens / wall,
                "us_a_token": took | {"client": 1e6 * client / tokens},
                "scheduler_s": {name: seconds for name, seconds in ran.items() if name != "between"},
            }


def load(server: Server, folder: Path, streams: int, new: int) -> tuple[float, float]:
    """So many streams at once, from a process of their own: wall seconds, and its CPU seconds."""
    url = f"http://{server.host}:{server.port}"
    words = [f"{CLIENT.parent}", url, *map(str, (streams, PROMPT, new, time.time_ns()))]
    said = subprocess.run([sys.executable, "-c", LOAD, *words], check=True, capture_output=True, text=True).stdout
    wall, cpu = map(float, said.split())
    return wall, cpu


def step_parts(server: Server) -> dict[str, float]:
    """What the scheduler's thread has spent its time on so far, in seconds."""
    with server._get("/metrics") as answer:
        text = answer.read().decode()
    found = re.findall(r'^rtk_step_part_seconds_total\{.*?part="(\w+)".*?\} (\S+)$', text, re.MULTILINE)
    return {part: float(seconds) for part, seconds in found}


def show_served(rows: list[dict[str, Any]]) -> None:
    print(
        "\nAs served: CPU time a token, microseconds\n\n| streams | tok/s | scheduler | main | detokenizer | client |"
    )
    print("|---|---|---|---|---|---|")
    for row in rows:
        us = row["us_a_token"]
        told = " | ".join(f"{us[name]:.0f}" for name in ("scheduler", "main", "detokenizer", "client"))
        print(f"| {row['streams']} | {row['tok_s']:.1f} | {told} |")
    print("\nThe scheduler's seconds meanwhile:")
    for row in rows:
        print(f"{row['streams']:3} streams: " + ", ".join(f"{n} {s:.3f}" for n, s in row["scheduler_s"].items()))


def main() -> None:
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--threads", type=int, default=2)
    ap.add_argument("--context", type=int, default=256)
    ap.add_argument("--steps", type=int, default=40)
    ap.add_argument("--no-server", action="store_true")
    ap.add_argument("--json", type=Path, metavar="FILE")
    args = ap.parse_args()
    print(f"{platform.machine()}, {args.threads} threads, context {args.context}, load {os.getloadavg()[0]:.1f}")
    products = packs()
    watch, engine = Stopwatch(), Stepping(args.threads)
    instrument(engine, watch)
    rows = {streams: profile(engine, products, watch, streams, args.context, args.steps) for streams in STREAMS}
    show(rows)
    out: dict[str, Any] = {"step_ms": rows}
    if not args.no_server:
        show_served(found := list(served(fetch(), args.threads)))
        out["served"] = found
    if args.json:
        args.json.write_text(json.dumps(out, indent=1) + "\n")


if __name__ == "__main__":
    main()
