"""Whether overlapping steps pays: `schedule.overlap` on and off, on the demo model, in one run.

    python bench/overlap.py [--threads 2] [--rounds 5] [--new 64] [--json FILE]

float32, greedy. 1, 8 and 16 streams that decode together (prompts of 32 random tokens), and a mix: 8 clients that send
24 requests of different lengths one after another, so that prompts arrive while others decode. Each side has a process
of its own (torch's worker threads of one would disturb the other), and works while the other sleeps. A round is off,
on, on, off, with the same prompts for both; printed are the median rates, and the median of the rounds' ratios. The
first round warms up and is not counted. `rtk.serve.computing.OVERLAP` names the devices where overlap is the default:
those where it pays.
"""

import argparse
import json
import multiprocessing
import platform
import random
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from multiprocessing.connection import Connection
from pathlib import Path

from rtk.model.store import fetch

STREAMS, PROMPT, CLIENTS, REQUESTS = (1, 8, 16), 32, 8, 24
PAIRS = ((False, True), (True, False))
"""One round: whether overlap is on. What drifts slowly weighs on both alike."""


@dataclass(frozen=True)
class Work:
    """Requests, and how many of them are under way at a time; each is a prompt and the length of its answer."""

    requests: list[tuple[list[int], int]]
    clients: int


def together(streams: int, new: int, rng: random.Random) -> Work:
    return Work([(tokens(PROMPT, rng), new) for _ in range(streams)], clients=streams)


def mixed(new: int, rng: random.Random) -> Work:
    sizes = [(rng.randrange(16, 257), rng.randrange(new // 8, new + 1)) for _ in range(REQUESTS)]
    return Work([(tokens(prompt, rng), answer) for prompt, answer in sizes], clients=CLIENTS)


def tokens(count: int, rng: random.Random) -> list[int]:
    return [rng.randrange(1000, 40000) for _ in range(count)]


def side(overlap: bool, threads: int, pipe: Connection) -> None:
    """A process: answers works with their seconds and the ids of their answers, until it is sent None."""
    from rtk import Engine

    engine = Engine(
        {
            "model.path": str(fetch()),
            "model.threads": threads,
            "cache.pool_tokens": 16384,
            "schedule.overlap": overlap,
        }
    )

    def answer(prompt: list[int], new: int) -> tuple[int, ...]:
        return engine.generate(prompt, {"temperature": 0, "max_new_tokens": new, "ignore_eos": True}).token_ids

    while (work := pipe.recv()) is not None:
        with ThreadPoolExecutor(work.clients) as clients:
            begin = time.perf_counter()
            answers = list(clients.map(answer, *zip(*work.requests, strict=True)))
            pipe.send((time.perf_counter() - begin, answers))
    engine.close()


def start(threads: int) -> dict[bool, Connection]:
    context = multiprocessing.get_context("spawn")
    pipes = {}
    for overlap in (False, True):
        pipes[overlap], theirs = context.Pipe()
        context.Process(target=side, args=(overlap, threads, theirs), daemon=True).start()
    return pipes


def measure(threads: int, rounds: int, new: int) -> tuple[dict[str, list[dict[bool, float]]], int]:
    """Tokens per second with overlap off and on, for every kind of work and round; and how many answers differed."""
    pipes = start(threads)
    makes: dict[str, Callable[[random.Random], Work]] = {
        f"{streams} streams": partial(together, streams, new) for streams in STREAMS
    }
    makes[f"mix of {CLIENTS} clients"] = partial(mixed, new)
    rates: dict[str, list[dict[bool, float]]] = {name: [] for name in makes}
    rng, differing = random.Random(1), 0
    for round_ in range(rounds + 1):
        for name, make in makes.items():
            count, seconds = 0, {False: 0.0, True: 0.0}
            for pair in PAIRS:
                work, answers = make(rng), {}
                count += sum(answer for _, answer in work.requests)
                for overlap in pair:
                    pipes[overlap].send(work)
                    took, answers[overlap] = pipes[overlap].recv()
                    seconds[overlap] += took
                differing += sum(off != on for off, on in zip(answers[False], answers[True], strict=True))
            if round_:
                rates[name].append({overlap: count / took for overlap, took in seconds.items()})
    for pipe in pipes.values():
        pipe.send(None)
    return rates, differing


def main() -> None:
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--threads", type=int, default=2)
    ap.add_argument("--rounds", type=int, default=5)
    ap.add_argument("--new", type=int, default=64)
    ap.add_argument("--json", type=Path, metavar="FILE")
    args = ap.parse_args()
    rates, differing = measure(args.threads, args.rounds, args.new)
    ratios = {name: statistics.median(r[True] / r[False] for r in rounds) for name, rounds in rates.items()}
    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers"))
    print(f"{platform.machine()}, {args.threads} threads, {versions}, {args.rounds} rounds")
    for name, rounds in rates.items():
        off, on = (statistics.median(r[overlap] for r in rounds) for overlap in (False, True))
        spread = [r[True] / r[False] for r in rounds]
        print(
            f"{name:18} off {off:7.1f} tok/s   on {on:7.1f} tok/s   on / off {ratios[name]:.3f} x"
            f"   ({min(spread):.3f} to {max(spread):.3f})"
        )
    print(f"answers that differ (near ties in other batches): {differing}")
    if args.json:
        told = {name: [{"off": r[False], "on": r[True]} for r in rounds] for name, rounds in rates.items()}
        args.json.write_text(
            json.dumps({"tokens_per_second": told, "ratios": ratios, "differing": differing}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
