"""The prefix cache: rtk's radix tree beside SGLang's, and its growth to a million nodes.

    python bench/cache.py [--peer-python peer/bin/python] [--rounds 3] [--json OUT]
    python bench/cache.py --growth [--nodes 1000,10000,100000,1000000] [--gc default|bounded] [--json OUT]

The peer is the pure-Python RadixCache of SGLang 0.5.20: its reference tree, NOT its default one (UnifiedRadixCache).
Its interpreter is made once; without `--peer-python` only rtk's figures are printed:

    python3 -m venv peer && peer/bin/pip install torch==2.13.0 && peer/bin/pip install -r bench/peers/sglang_cache.txt
    peer/bin/pip install --no-deps sglang==0.5.20

Workloads and the peer's half are those of bench/peers/sglang_cache.py. Each side runs in processes of its own, one
thread, torch loaded as in a server, in changing order, and replays the conversations five times; what is compared are
medians of the rounds' medians. Tokens wait in each side's own array form, except in the storms, where both sides make
them inside the timing. Timed are the look-up, the slots and their way into the request's row, eviction, insertion and
release. What hands slots out is a counter on both sides, as the peer's script has it, and is not timed; in the rows
"real allocator" rtk's own takes evicted slots back instead, inside the timing.

`--growth` needs Linux. Every size has two processes. One grows a tree of 16-token nodes (stems of 32 leaves each),
then times requests that match 16 tokens and insert 16, with room and without. The other leaves as many nodes behind
after a storm: each is what a split left of 128 tokens whose rest was evicted at once. Memory is resident memory less
that of the empty cache. If a node kept the buffers of what it was split from alive, it would take 900 bytes more.
Index bytes a token are counted on one unsplit sequence, by tracemalloc, plus the entry of the request's row.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from cache_growth import LEAF, Figures, churn, grow, growth, index_bytes, make
from peers.sglang_cache import conversations

from rtk.cache.key import DEFAULT_NAMESPACE, TOKEN_BYTES, Key, pack
from rtk.cache.req_table import ReqTable
from rtk.cache.slots import SlotAllocator, Slots
from rtk.cache.tree import PrefixCache
from rtk.plugin import Options
from rtk.plugin.guard import GuardedEviction, Health
from rtk_eviction.lru import Lru

PEER = Path(__file__).parent / "peers" / "sglang_cache.py"
AMPLE, SMALL = "conversations, ample pool", "conversations, pool of 360,000"
REPEAT = 5
REAL = ", real allocator"
BULK = "evict 8,192 tokens a call at 20,000 leaves"


def one_leaf(leaves: int) -> str:
    return f"evict 1 + insert 1 at {leaves:,} leaves"


class Counter:
    """Stands for the allocator where the tree alone is timed: slots never run out of numbers."""

    page_size = 1

    def __init__(self, pool: int) -> None:
        self.free = pool
        self._next = 1

    def alloc(self, pages: int) -> Slots:
        """New slots."""
        self.free -= pages
        self._next += pages
        return np.arange(self._next - pages, self._next, dtype=np.int32)

    def release_packed(self, packed: bytes) -> None:
        """Count slots that come back."""
        self.free += len(packed) // TOKEN_BYTES


def packed(requests: Iterable[tuple[list[int], list[int]]]) -> list[tuple[bytes, bytes]]:
    """The requests as rtk's scheduler holds them."""
    return [(pack(prompt), pack(full)) for prompt, full in requests]


def replay(requests: Iterable[tuple[bytes, bytes]], allocator: Any) -> tuple[float, float]:
    """Microseconds a request, and the hit rate."""
    cache = PrefixCache(allocator, GuardedEviction(Lru(Options()), "lru", Health()))
    table = ReqTable(1, 1 << 16)
    row = table.alloc()
    spent, hit, total, served = 0.0, 0, 0, 0
    for prompt, full in requests:
        size = len(full) // TOKEN_BYTES
        begin = time.perf_counter()
        key = Key(DEFAULT_NAMESPACE, prompt)
        lease = cache.acquire(key, cache.peek(key))
        n = lease.length
        table.write(row, 0, lease.slots())
        lack = size - n - allocator.free
        if lack > 0:
            cache.evict(lack)
        spent += time.perf_counter() - begin
        table.write(row, n, allocator.alloc(size - n))
        begin = time.perf_counter()
        lease.grow(full, table.slots(row, 0, size))
        lease.release()
        spent += time.perf_counter() - begin
        hit, total, served = hit + n, total + key.length, served + 1
    return spent / served * 1e6, hit / total


def storm(leaves: int, nodes_a_call: int = 1, rounds: int = 500) -> float:
    """Microseconds per node: evict `nodes_a_call` leaves of 16 tokens in one call, insert as many.

    500 rounds where the peer takes 50: one of ours lasts microseconds. What a tree puts off to its first eviction is
    in the sum all the same.
    """
    allocator, cache = make(LEAF * (leaves + nodes_a_call))

    def insert(i: int, slots: Slots) -> None:
        key = Key(DEFAULT_NAMESPACE, array("i", [i, *range(LEAF - 1)]).tobytes())
        lease = cache.acquire(key, cache.peek(key))
        lease.grow(key.tokens, slots)
        lease.release()

    for i in range(leaves):
        insert(i, allocator.alloc(LEAF))
    spent = 0.0
    for r in range(rounds):
        begin = time.perf_counter()
        cache.evict(LEAF * nodes_a_call)
        spent += time.perf_counter() - begin
        fresh = allocator.alloc(LEAF * nodes_a_call)
        begin = time.perf_counter()
        for i in range(nodes_a_call):
            insert(leaves + r * nodes_a_call + i, fresh[i * LEAF : (i + 1) * LEAF])
        spent += time.perf_counter() - begin
    return spent / rounds / nodes_a_call * 1e6


def rtk_side() -> dict[str, Figures]:
    """rtk's half, in the form of the peer's JSON."""
    import torch

    torch.set_num_threads(1)
    requests = packed(conversations())
    out: dict[str, Figures] = {}
    for name, pool in ((AMPLE, 1_000_000), (SMALL, 360_000)):  # all the conversations together have 631,200 tokens
        for kind, fresh in (("", Counter), (REAL, partial(SlotAllocator, page_size=1))):
            runs = [replay(requests, fresh(pool)) for _ in range(REPEAT)]
            out[name + kind] = {"us_per_request": statistics.median(run[0] for run in runs), "hit_rate": runs[0][1]}
    for leaves in (200, 2_000, 20_000):
        out[one_leaf(leaves)] = {"us": storm(leaves)}
    out[BULK] = {"us_per_node": storm(20_000, nodes_a_call=512, rounds=10)}
    return out


def measured(interpreter: str | Path, *arguments: object) -> Any:
    """What a process of its own wrote as JSON."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.json"
        command = [str(part) for part in (interpreter, *arguments, "--json", out)]
        done = subprocess.run(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"{' '.join(command)} failed:\n{done.stderr}")
        return json.loads(out.read_text())


def targets(rtk: Figures, peer: Figures) -> list[tuple[str, float, str, bool]]:
    """(what, value, bound, whether it is met)."""
    rows = [(f"{one_leaf(20_000)}: time at 200 leaves x", rtk[one_leaf(20_000)] / rtk[one_leaf(200)], "<=", 2.0)]
    for name, times in ((AMPLE, 5.0), (SMALL, 5.0), (one_leaf(20_000), 100.0), (BULK, 1.0)) if peer else ():
        rows.append((f"{name}: faster than the peer x", peer[name] / rtk[name], ">=", times))
    return [(what, v, f"{sign} {bound:g}", v <= bound if sign == "<=" else v >= bound) for what, v, sign, bound in rows]


def beside(peer_python: Path | None, rounds: int) -> dict[str, Any]:
    """Both sides by turns; prints the table."""
    sides = {"rtk": (sys.executable, __file__, "--side", "rtk")}
    if peer_python:
        sides["peer"] = (str(peer_python), str(PEER), "--repeat", str(REPEAT))
    runs: dict[str, list[dict[str, Figures]]] = {"rtk": [], "peer": []}
    for round_ in range(rounds):
        for name in sorted(sides, reverse=bool(round_ % 2)):
            runs[name].append(measured(*sides[name]))
    time_of = {
        side: {row: statistics.median(next(iter(run[row].values())) for run in done) for row in (done or [{}])[0]}
        for side, done in runs.items()
    }
    rtk, peer = time_of["rtk"], time_of["peer"]
    print(f"microseconds a request or node; medians of {rounds}, one thread")
    print("peer: SGLang 0.5.20's pure-Python RadixCache, NOT its default tree (UnifiedRadixCache)")
    print(f"{'':44}{'rtk':>12}{'peer':>12}{'peer / rtk':>12}   hit rates")
    for row, ours in rtk.items():
        same = row.removesuffix(REAL)
        theirs = f"{peer[same]:12,.1f}{peer[same] / ours:12.1f}" if peer else f"{'-':>12}{'-':>12}"
        rates = [f"{done[0][same]['hit_rate']:.4f}" for done in runs.values() if done and "hit_rate" in done[0][same]]
        print(f"{row:44}{ours:12,.1f}{theirs}   {' '.join(rates)}")
    for what, value, bound, met in targets(rtk, peer):
        print(f"{what:68}{value:8.2f}   target {bound:7} {'met' if met else 'MISSED'}")
    return {"runs": runs, "targets": targets(rtk, peer)}


def main() -> None:
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--peer-python", type=Path, metavar="PATH", help="an interpreter that has sglang")
    ap.add_argument("--rounds", type=int, default=3)
    ap.add_argument("--growth", action="store_true", help="the growth table instead of the comparison")
    ap.add_argument("--nodes", default="1000,10000,100000,1000000", help="sizes of the growth table")
    ap.add_argument("--gc", choices=("default", "bounded"), default="default", help="collector once the tree is full")
    ap.add_argument("--json", type=Path, metavar="OUT")
    ap.add_argument("--side", choices=("rtk", "grow", "churn", "index"), help=argparse.SUPPRESS)
    args = ap.parse_args()

    def own_process(side: str, nodes: int) -> Figures:
        return measured(sys.executable, __file__, "--side", side, "--nodes", nodes, "--gc", args.gc)

    sizes = [int(size) for size in args.nodes.split(",")]
    if args.side:
        out = {
            "rtk": rtk_side,
            "grow": lambda: grow(sizes[0], args.gc),
            "churn": lambda: churn(sizes[0]),
            "index": lambda: index_bytes(sizes[0]),
        }[args.side]()
    else:
        print(f"{platform.machine()}, Python {platform.python_version()}, load {os.getloadavg()[0]:.1f}")
        out = growth(sizes, args.gc, own_process) if args.growth else beside(args.peer_python, args.rounds)
    if args.json:
        args.json.write_text(json.dumps(out, indent=1) + "\n")


if __name__ == "__main__":
    main()
