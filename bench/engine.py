"""rtk against transformers' own `generate`, and 16 streams against one: tokens per second, in one run.

    python bench/engine.py [--threads 2] [--rounds 5] [--json FILE]

float32, greedy, prompts of 64 random tokens, 96 new tokens each. Each side has a process of its own (torch's worker
threads of one would disturb the other), works while the other sleeps, and takes its turns in changing order. Medians
and ratios are printed. The engine runs as it is shipped: scheduler in its thread, detokenization included. The first
round warms up and is not counted.
"""

import argparse
import json
import multiprocessing
import platform
import random
import statistics
import time
from collections.abc import Callable
from importlib.metadata import version
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

from rtk.model.store import fetch

PROMPT, NEW, MANY = 64, 96, 16
Prompts = list[list[int]]
PEER, ONE, ALL = "transformers generate, 1 stream", "rtk, 1 stream", f"rtk, {MANY} streams"


def peer(folder: Path, threads: int) -> Callable[[Prompts], None]:
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(threads)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    settings = {"max_new_tokens": NEW, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}

    def work(prompts: Prompts) -> None:
        ids = torch.tensor(prompts)
        out = model.generate(ids, attention_mask=torch.ones_like(ids), **settings)
        assert out.shape[1] == PROMPT + NEW

    return work


def rtk(folder: Path, threads: int) -> Callable[[Prompts], None]:
    from rtk import Engine

    engine = Engine({"model.path": str(folder), "model.threads": threads, "cache.pool_tokens": 16384})

    def work(prompts: Prompts) -> None:
        answers = engine.generate(prompts, {"temperature": 0, "max_new_tokens": NEW, "ignore_eos": True})
        assert all(len(answer.token_ids) == NEW and answer.cached_tokens < 4 for answer in answers)  # random, so cold

    return work


def side(build: Callable[[Path, int], Callable[[Prompts], None]], threads: int, pipe: Connection) -> None:
    """A process: answers prompts with the seconds they took, until it is sent None."""
    work = build(fetch(), threads)
    while (prompts := pipe.recv()) is not None:
        begin = time.perf_counter()
        work(prompts)
        pipe.send(time.perf_counter() - begin)


def start(build: Callable[[Path, int], Callable[[Prompts], None]], threads: int) -> tuple[BaseProcess, Connection]:
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=side, args=(build, threads, theirs), daemon=True)
    process.start()
    return process, ours


def measure(threads: int, rounds: int) -> dict[str, list[float]]:
    """Tokens per second of every row, a value for each round."""
    processes, pipes = zip(start(peer, threads), start(rtk, threads), strict=True)
    sides = {PEER: pipes[0], ONE: pipes[1], ALL: pipes[1]}
    rates: dict[str, list[float]] = {PEER: [], ONE: [], ALL: []}
    rng = random.Random(1)
    for round_ in range(rounds + 1):
        for name in sorted(rates, reverse=bool(round_ % 2)):
            prompts = [[rng.randrange(1000, 40000) for _ in range(PROMPT)] for _ in range(MANY if name == ALL else 1)]
            sides[name].send(prompts)
            seconds = sides[name].recv()
            if round_:
                rates[name].append(len(prompts) * NEW / seconds)
    for process, pipe in zip(processes, pipes, strict=True):
        pipe.send(None)
        process.join()
    return rates


def main() -> None:
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--threads", type=int, default=2)
    ap.add_argument("--rounds", type=int, default=5)
    ap.add_argument("--json", type=Path, metavar="FILE")
    args = ap.parse_args()
    rates = measure(args.threads, args.rounds)
    median = {name: statistics.median(values) for name, values in rates.items()}
    ratios = {
        "1 stream: rtk / transformers": median[ONE] / median[PEER],
        f"rtk: {MANY} streams / 1 stream": median[ALL] / median[ONE],
    }
    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers"))
    print(f"{platform.machine()}, {args.threads} threads, {versions}, {args.rounds} rounds")
    for name, values in rates.items():
        print(f"{name:36} {median[name]:8.1f} tok/s   (min {min(values):.1f}, max {max(values):.1f})")
    for name, ratio in ratios.items():
        print(f"{name:36} {ratio:8.2f} x")
    if args.json:
        args.json.write_text(json.dumps({"tokens_per_second": rates, "ratios": ratios}, indent=1) + "\n")


if __name__ == "__main__":
    main()
