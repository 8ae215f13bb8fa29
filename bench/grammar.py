"""Structured output: what it costs, what compiling does to others, and what jumping forward saves.

    python bench/grammar.py [cost] [load] [jump] [--threads 1] [--rounds 5] [--new 64] [--seconds 6] [--json OUT]

The demo model, float32, greedy; without names, all three parts.

cost: 8 streams of random prompts, free and under a form, in turns within a round, so that what drifts weighs on both
alike; jump-forward is off. Under the expression that allows all texts the answers are those of the free run; under the
schema of records that never end they are other ones, of as many tokens. Ratios are of whole runs, prompts included,
by the clock and by the process's CPU time: the latter is less of a neighbour's doing. Then the parts by themselves:
filling a row of the mask, each backend along whole documents; applying one; and how much later the first token comes.

load: 6 streams, alone and while 50 different grammars are asked for at once: how fast they go on, and their longest
gaps between tokens. "large": what takes long to work out. "beyond": objects of which between 50 and 100 of 150 keys
may be there, which is refused. "endless": more than the limit of 2 s, each of them (outlines_core). After each, what
CPU time the engine and its processes use within a second, one second after the last answer and the streams' end.

jump: steps for five schemas with `grammar.jump_forward` and without, one request at a time.
"""

import argparse
import json
import os
import platform
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import grammar_cost
import grammar_jump
import grammar_load

from rtk.model.store import fetch


def parts(args: argparse.Namespace) -> dict[str, Callable[[], dict[str, Any]]]:
    """What can be measured, by name; each prints its table."""
    config = {"model.path": str(fetch()), "model.threads": args.threads, "cache.pool_tokens": 32768}
    return {
        "cost": lambda: grammar_cost.measure(config, args.rounds, args.new),
        "load": lambda: grammar_load.measure(config, args.seconds),
        "jump": lambda: grammar_jump.measure(config),
    }


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help="cost, load, jump")
    parser.add_argument("--threads", type=int, default=1, help="of the model")
    parser.add_argument("--rounds", type=int, default=5, help="of the 8 streams")
    parser.add_argument("--new", type=int, default=64, help="tokens of an answer")
    parser.add_argument("--seconds", type=float, default=6, help="for which the streams are watched alone")
    parser.add_argument("--json", type=Path, help="write the figures here")
    args = parser.parse_args()
    measures = parts(args)
    if unknown := set(args.parts) - set(measures):
        parser.error(f"no such part: {', '.join(sorted(unknown))}; there are {', '.join(measures)}")
    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "xgrammar", "llguidance", "outlines_core"))
    print(f"{platform.machine()}, Python {platform.python_version()}, {versions}")
    print(f"{os.cpu_count()} cores, {args.threads} for the model, load {os.getloadavg()[0]:.1f}")
    out = {name: measures[name]() for name in args.parts or measures}
    if args.json:
        args.json.write_text(json.dumps(out, indent=1) + "\n")


if __name__ == "__main__":
    main()
