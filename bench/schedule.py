"""Scheduling: what a step costs beside the model.

    python bench/schedule.py [--waiting 10000,100000] [--steps 200] [--threads 2] [--rounds 3] [--json OUT]

Ranking: lpm (without its fallback) and hrrn, both with their in-batch check, in a steady state. 10,000 or 100,000
requests wait, of 300 tokens, 200 of which are one of 1,000 stems; the pool of 200,000 tokens is full of what ran.
In each step the order is asked for and its first 8 requests are looked at; the first finishes, so that its prompt and
answer enter the tree and something is evicted; and one request arrives. Timed is all of that. "Looked up anew" is the
same step in the same run with every waiting request matched against the tree, the columns built from the requests, and
all of them sorted. Medians of the steps; single-threaded.

Ledger: 8 streams of 64 tokens of the demo model, and what of their time was spent in the ledger's methods.
"""

import argparse
import json
import os
import platform
from pathlib import Path

from schedule_ledger import STREAMS, Share
from schedule_ledger import measure as measure_ledger
from schedule_ranking import POLICIES, Figures, measure


def ranking(sizes: list[int], steps: int) -> dict[str, Figures]:
    """Every policy at every size, printed as a table."""
    print("| policy | waiting | ms a step | 90% of steps within | looked up anew | times as long |")
    print("|---|---|---|---|---|---|")
    out: dict[str, Figures] = {}
    for name in POLICIES:
        for size in sizes:
            one = out[f"{name} {size}"] = measure(name, size, steps)
            told, anew = one["told_ms"], one["anew_ms"]
            print(f"| {name} | {size:,} | {told:.2f} | {one['told_p90_ms']:.2f} | {anew:.0f} | {anew / told:.0f} |")
    return out


def ledger(threads: int, rounds: int) -> Share:
    """The ledger's share, printed."""
    one = measure_ledger(threads, rounds)
    print(
        f"\nThe ledger takes {one['ledger_us']:.0f} us of a step of {one['step_ms']:.1f} ms at {STREAMS} streams "
        f"({threads} threads): {one['share']:.2%}"
    )
    return one


def main() -> None:
    """Parse, measure, print."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--waiting", default="10000,100000", help="numbers of waiting requests")
    parser.add_argument("--steps", type=int, default=200, help="steps that are timed")
    parser.add_argument("--threads", type=int, default=2, help="of the model, beside which the ledger is measured")
    parser.add_argument("--rounds", type=int, default=3, help="of its 8 streams")
    parser.add_argument("--json", type=Path, help="write the figures here")
    args = parser.parse_args()
    print(f"{platform.machine()}, Python {platform.python_version()}, load {os.getloadavg()[0]:.1f}")
    sizes = [int(size) for size in args.waiting.split(",")]
    out = {"ranking": ranking(sizes, args.steps), "ledger": ledger(args.threads, args.rounds)}
    if args.json:
        args.json.write_text(json.dumps(out, indent=1) + "\n")


if __name__ == "__main__":
    main()
