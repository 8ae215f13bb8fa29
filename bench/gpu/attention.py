"""Attention backends beside one another: how far each is from dense float64 attention, and how long a layer takes.

    python bench/gpu/attention.py [--backends torch triton] [--dtype bfloat16] [--rounds 20] [--tiny]

Where there is a CUDA device it is used. Each row of the table is a batch: decoding and prefill at usual sizes, with
32 query heads over 8 K/V heads of 128 dimensions, in scattered slots. The time is the median of the rounds, each one
`forward` with the step planned and K/V written before; the backends take turns. `--tiny` tries the program itself.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from rtk.plugin import KVShape, Workspace
from rtk.plugin.host import installed
from rtk.plugin.testing import NotApplicable
from rtk.plugin.testing.attention import Case, Scene

LLAMA = KVShape(layers=1, kv_heads=8, head_dim=128, v_head_dim=128, q_heads=32)
BATCHES = {
    "decode 1 x 8192": ((1, 8192),),
    "decode 8 x 2048": ((1, 2048),) * 8,
    "decode 64 x 1024": ((1, 1024),) * 64,
    "prefill 2048": ((2048, 2048),),
    "chunk 1024 after 4096": ((1024, 5120),),
    "chunk 512 and decode 32 x 1024": ((512, 1024), *((1, 1024),) * 32),
}
TINY = {"decode": ((1, 40), (1, 9)), "chunk": ((5, 30),)}


def prepared(backend: Any, case: Case) -> tuple[float, Callable[[], Any]]:
    """Distance of the answers to the oracle, and one `forward`."""
    try:
        scene = Scene(backend, case)
    except NotApplicable as reason:
        raise SystemExit(f"{type(backend).__name__}: {reason}") from None
    rows = range(len(case.rows))
    plan = backend.plan(scene.view(rows), Workspace(scene.device))
    buffers = scene.before(rows)
    scene.write(buffers, rows)
    q = torch.cat(scene.q)
    run = lambda: backend.forward(q, buffers, scene.call, plan)  # noqa: E731
    got = run().split([q_len for q_len, _ in case.rows])
    worst = max((got[row].double() - scene.expected(row)).abs().max().item() for row in rows)
    return worst, run


def seconds(run: Callable[[], Any]) -> float:
    wait = torch.cuda.synchronize if torch.cuda.is_available() else lambda: None
    wait()
    start = time.perf_counter()
    run()
    wait()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backends", nargs="+", default=["torch", "triton"])
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args()
    entries = {name: installed().get("attention", name) for name in args.backends}
    backends = {name: entry.build(entry.plugin.options()) for name, entry in entries.items()}
    print(torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu", args.dtype)
    for name, rows in (TINY if args.tiny else BATCHES).items():
        case = Case(name=name, rows=rows, shape=LLAMA, page_size=16, dtype=args.dtype)
        sides = {one: prepared(backend, case) for one, backend in backends.items()}
        times: dict[str, list[float]] = {one: [] for one in sides}
        for _ in range(args.rounds):
            for one, (_, run) in sides.items():
                times[one].append(seconds(run))
        told = (f"{one} {1e6 * statistics.median(times[one]):8.0f} us (off by {sides[one][0]:.1e})" for one in sides)
        print(f"{name:32}", *told, sep="  ")


if __name__ == "__main__":
    main()
