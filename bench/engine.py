"""rtk against transformers' own `generate`, and 16 streams against one: tokens per second, in one process and one run.

    python bench/engine.py [--threads 2] [--rounds 5] [--json FILE]

float32, greedy, prompts of 64 tokens, 96 new tokens each, cold cache. The order turns from round to round, so that a
machine that slows down hurts all rows; medians and ratios are printed. The engine runs as it is shipped: scheduler
in its thread, detokenization included. The first round warms up and is not counted.
"""

import argparse
import json
import platform
import statistics
import time
from importlib.metadata import version
from pathlib import Path

import torch

from rtk import Engine
from rtk.model.store import fetch

PROMPT, NEW = 64, 96
GREEDY = {"temperature": 0, "max_new_tokens": NEW, "ignore_eos": True}


def prompts(count: int, seed: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(1000, 40000, (count, PROMPT), generator=generator).tolist()


def rate(tokens: int, work) -> float:
    begin = time.perf_counter()
    work()
    return tokens / (time.perf_counter() - begin)


def main() -> None:
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--threads", type=int, default=torch.get_num_threads())
    ap.add_argument("--rounds", type=int, default=5)
    ap.add_argument("--json", type=Path, metavar="FILE")
    args = ap.parse_args()
    torch.set_num_threads(args.threads)

    from transformers import AutoModelForCausalLM

    folder = fetch()
    peer = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    engine = Engine({"model.path": str(folder), "model.threads": args.threads, "cache.pool_tokens": 16384})

    def generate(prompt: list[int]) -> None:
        ids = torch.tensor([prompt])
        peer.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=NEW,
            do_sample=False,
            eos_token_id=-1,
            pad_token_id=0,
        )

    rows: dict[str, list[float]] = {"transformers generate, 1 stream": [], "rtk, 1 stream": [], "rtk, 16 streams": []}
    for round_ in range(-1, args.rounds):
        [one], many = prompts(1, round_ + 10), prompts(16, round_ + 1000)
        runs = [
            ("transformers generate, 1 stream", NEW, lambda one=one: generate(one)),
            ("rtk, 1 stream", NEW, lambda one=one: engine.generate(one, GREEDY)),
            ("rtk, 16 streams", 16 * NEW, lambda many=many: engine.generate(many, GREEDY)),
        ]
        for name, tokens, work in runs if round_ % 2 else runs[::-1]:
            engine.flush()
            speed = rate(tokens, work)
            if round_ >= 0:
                rows[name].append(speed)
    engine.close()

    median = {name: statistics.median(speeds) for name, speeds in rows.items()}
    peer_name, one_name, many_name = rows
    ratios = {
        "1 stream: rtk / transformers": median[one_name] / median[peer_name],
        "rtk: 16 streams / 1 stream": median[many_name] / median[one_name],
    }
    print(
        f"{platform.processor() or platform.machine()}, {args.threads} threads, torch {version('torch')}, "
        f"transformers {version('transformers')}, {args.rounds} rounds"
    )
    for name, speeds in rows.items():
        print(f"{name:36} {median[name]:8.1f} tok/s   (min {min(speeds):.1f}, max {max(speeds):.1f})")
    for name, ratio in ratios.items():
        print(f"{name:36} {ratio:8.2f} x")
    if args.json:
        args.json.write_text(json.dumps({"tokens_per_second": rows, "ratios": ratios}, indent=1) + "\n")


if __name__ == "__main__":
    main()
