"""What the sizes of pieces cost and gain: chunked prefill, and prompts beside requests that decode.

    python bench/chunk.py [--threads 2] [--rounds 3] [--no-model] [--json OUT]

With the demo model in float32, steps of the real scheduler and executor, timed one by one; medians of the rounds:

Pieces: a prompt of 2,048 tokens beside 4 requests of 256 that decode, cut at each size. The longest pause of these is
the longest step with a piece in it, in a mixed step; without mixing it is the whole prompt. The overhead is what the
same prompt costs alone, in pieces of that size, above its time in one piece.

Mixing: B requests decode, and E prompt tokens are computed, in one step, and in a step each. The gain is the share of
the time of the two that the mixed step saves: the weights are read once instead of twice.

Then the scheduler in virtual time over a table of what steps cost (bench/chunk_simulation.py), for the scenarios of
bench/peers/load.py: what sizes do to whole loads, free of what else the machine does. `CHUNK_ON_CPU` and
`MIXED_CHUNK_ON_CPU` of `rtk.serve.computing` come from here.
"""

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from chunk_simulation import Figures, Sizes, scenarios
from stepping import Stepping

from rtk.serve.computing import CHUNK_ON_CPU, MIXED_CHUNK_ON_CPU

PROMPT, CONTEXT, BESIDE = 2048, 256, 4
PIECES = (64, 128, 256, 512, 1024, 2048)
DECODING, EXTENDING = (1, 4, 16, 32), (32, 128, 512)
SIZES = [
    Sizes(2048, False),
    Sizes(512, False),
    Sizes(2048, True),
    Sizes(256, True),
    Sizes(128, True),
    *(Sizes(chunk, True, beside) for chunk in (512, 1024, 2048) for beside in (64, 96, 128, 256)),
]
LONG = 1_000_000
LONGEST = 400
"""Tokens that those who decode may generate."""


@dataclass(frozen=True)
class Step:
    """One step that was timed."""

    seconds: float
    prompt_tokens: int
    decoding: int


class Engine(Stepping):
    """Steps that are timed."""

    def run(self, chunk: int, decoding: int, prompt: int, *, steps: int = LONG) -> list[Step]:
        """`decoding` requests decode when a prompt arrives; the steps until that is computed, at most so many."""
        scheduler = self.scheduler(chunk=chunk + decoding)  # each of them takes one
        self.decoding(scheduler, decoding, CONTEXT, LONGEST)
        if prompt:
            scheduler.receive([self.request("prompt", prompt, 1)])
        done: list[Step] = []
        while len(done) < steps and (not prompt or scheduler.accepted > decoding):
            before, begin = scheduler.stats(), time.perf_counter()
            scheduler.step()
            seconds, after = time.perf_counter() - begin, scheduler.stats()
            computed = [int(after[name] - before[name]) for name in ("prefill_tokens", "decode_tokens")]
            done.append(Step(seconds, *computed))
        return done


def pieces(engine: Engine, rounds: int) -> Iterator[dict[str, float]]:
    """For every size: the longest pause beside others, and the prompt's own time."""
    pauses: dict[int, list[float]] = {size: [] for size in PIECES}
    alone: dict[int, list[float]] = {size: [] for size in PIECES}
    for round_ in range(rounds):
        for size in PIECES if round_ % 2 == 0 else reversed(PIECES):
            pauses[size].append(max(step.seconds for step in engine.run(size, BESIDE, PROMPT)))
            alone[size].append(sum(step.seconds for step in engine.run(size, 0, PROMPT)))
    whole = statistics.median(alone[PIECES[-1]])
    for size in PIECES:
        took = statistics.median(alone[size])
        yield {
            "piece": size,
            "pause_ms": 1e3 * statistics.median(pauses[size]),
            "prefill_tok_s": PROMPT / took,
            "overhead": took / whole - 1,
        }


def mixing(engine: Engine, rounds: int) -> Iterator[dict[str, float]]:
    """For every E and B: a step of both, beside a step each."""
    for decoding in DECODING:
        for extending in EXTENDING:
            ones: dict[str, list[float]] = {"mixed": [], "prompt": [], "decode": []}
            for _ in range(rounds):
                ones["mixed"].append(engine.run(extending, decoding, extending)[0].seconds)
                ones["prompt"].append(engine.run(extending, 0, extending)[0].seconds)
                ones["decode"] += [step.seconds for step in engine.run(extending, decoding, 0, steps=3)]
            mixed, prompt, decode = (statistics.median(seconds) for seconds in ones.values())
            yield {
                "decoding": decoding,
                "extending": extending,
                "each_ms": 1e3 * (prompt + decode),
                "mixed_ms": 1e3 * mixed,
                "gain": 1 - mixed / (prompt + decode),
            }


def simulated() -> Iterator[tuple[Sizes, dict[str, Figures]]]:
    for sizes in SIZES:
        yield sizes, dict(scenarios(sizes))


def show_pieces(rows: list[dict[str, float]]) -> None:
    print(f"\n| piece | longest pause of {BESIDE} beside it, ms | prefill alone, tok/s | overhead |\n|---|---|---|---|")
    for row in rows:
        print(f"| {row['piece']} | {row['pause_ms']:.0f} | {row['prefill_tok_s']:.0f} | {row['overhead']:+.0%} |")


def show_mixing(rows: list[dict[str, float]]) -> None:
    print("\n| B decode | E prompt tokens | E : B | a step each, ms | one step, ms | gain |\n|---|---|---|---|---|---|")
    for row in rows:
        ratio = row["extending"] / row["decoding"]
        costs = f"{row['each_ms']:.0f} | {row['mixed_ms']:.0f} | {row['gain']:.0%}"
        print(f"| {row['decoding']} | {row['extending']} | {ratio:g} | {costs} |")


def show_simulated(rows: list[tuple[Sizes, dict[str, Figures]]]) -> None:
    names = list(rows[0][1])
    print("\nSimulated: output tok/s, median TTFT in seconds, longest gap in milliseconds\n")
    print(f"| piece | beside | {' | '.join(names)} |\n|---|---|{'---|' * len(names)}")
    for sizes, found in rows:
        beside = "not mixed" if not sizes.mixed else "the same" if sizes.beside is None else f"{sizes.beside}"
        chosen = sizes == Sizes(CHUNK_ON_CPU, True, MIXED_CHUNK_ON_CPU)
        told = [f"{f.tok_s:.1f}, {f.ttft_s:.2f}, {f.gap_ms:.0f}" for f in found.values()]
        print(f"| {sizes.chunk} | {beside}{' (default)' if chosen else ''} | {' | '.join(told)} |")


def main() -> None:
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--threads", type=int, default=2)
    ap.add_argument("--rounds", type=int, default=3)
    ap.add_argument("--no-model", action="store_true", help="the simulation only")
    ap.add_argument("--json", type=Path, metavar="FILE")
    args = ap.parse_args()
    print(f"{platform.machine()}, {args.threads} threads, {args.rounds} rounds, load {os.getloadavg()[0]:.1f}")
    out: dict[str, object] = {}
    if not args.no_model:
        engine = Engine(args.threads)
        engine.run(256, BESIDE, PROMPT)  # warms up
        show_pieces(rows := list(pieces(engine, args.rounds)))
        out["pieces"] = rows
        show_mixing(rows := list(mixing(engine, args.rounds)))
        out["mixing"] = rows
    show_simulated(found := list(simulated()))
    out["simulated"] = [asdict(sizes) | {name: asdict(f) for name, f in rows.items()} for sizes, rows in found]
    if args.json:
        args.json.write_text(json.dumps(out, indent=1) + "\n")


if __name__ == "__main__":
    main()
