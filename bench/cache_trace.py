"""Hit rates of every installed eviction policy on a recorded trace, beside one that knows the future.

    python bench/cache_trace.py --trace FILE [--requests 4000] [--pools 1000,4000,16000] [--json OUT]

A line of the trace names `input_length` and `hash_ids`, one id for each block of 512 tokens (the last block may be
shorter). The cache holds one token for each block, with page size 1, so a node can be cut and evicted at any block, and
a hit of n blocks counts min(512 n, input_length) tokens. Pools are given in blocks. The rate is hit tokens over prompt
tokens. Answers are not cached: the trace does not say what their blocks are.

Requests are served one after the other: look up and lock, evict what is lacking, insert, release. So the figures are
exact and the same on every machine: no clock is read. A prompt with more blocks than the pool is skipped and counted.

`clairvoyant` is a simulator of its own, over single blocks: it evicts the unlocked leaf whose next use lies furthest in
the future; among equals the deepest block goes first. A prompt that uses a block uses every block above it, so the leaf
that is needed last is also the block that is needed last: this is Belady's rule, and it never has to spare a block for
the sake of one below it. With whole blocks an exhaustive search over small traces finds nothing better (tests/bench);
in general it is a reference and no proven bound, as a short last block counts fewer tokens for the same room. Policies
evict whole nodes of the tree, often many blocks where the reference gives up one: part of the distance is due to that.
`unbounded` is the rate of a pool from which nothing is ever evicted.
"""

import argparse
import heapq
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rtk.plugin.host import installed
from rtk.plugin.testing.trace import BLOCK, Outcome, Request, read, replay

REFERENCE = "clairvoyant"


def interned(requests: Sequence[Request]) -> list[list[int]]:
    """For each request a number for each of its prefixes, the same for the same prefix."""
    numbers: dict[tuple[int, int], int] = {}
    chains = []
    for request in requests:
        chain, above = [], -1
        for block in request.blocks:
            above = numbers.setdefault((above, block), len(numbers))
            chain.append(above)
        chains.append(chain)
    return chains


def clairvoyant(requests: Sequence[Request], pool: int) -> Outcome:
    """Serve the requests from single blocks, evicting what is needed last. O(blocks log blocks)."""
    served = [request for request in requests if len(request.blocks) <= pool]
    chains = interned(served)
    uses: dict[int, list[int]] = {}  # of each block, the requests to come that use it, the next one last
    for i in range(len(chains) - 1, -1, -1):
        for block in chains[i]:
            uses.setdefault(block, []).append(i)
    cached: dict[int, float] = {}  # block -> its next use
    order: list[tuple[float, int, int]] = []  # (-next use, -depth, block); void unless `cached` says the same
    hit = 0
    for request, chain in zip(served, chains, strict=True):
        found = next((n for n, block in enumerate(chain) if block not in cached), len(chain))
        hit += request.hit_tokens(found)
        for block in chain[:found]:
            cached[block] = math.nan  # locked: no entry of `order` says so
        room = pool - len(cached)
        while room < len(chain) - found:
            later, _, block = heapq.heappop(order)
            if cached.get(block) == -later:
                del cached[block]
                room += 1
        for depth, block in enumerate(chain):
            uses[block].pop()
            cached[block] = uses[block][-1] if uses[block] else math.inf
            heapq.heappush(order, (-cached[block], -depth, block))
    return Outcome(hit, sum(request.tokens for request in served), len(requests) - len(served))


def compare(requests: Sequence[Request], pools: Sequence[int]) -> dict[int, dict[str, Outcome]]:
    """Every installed policy and the reference, for each pool size."""
    table = {}
    for pool in pools:
        table[pool] = {
            entry.plugin.name: replay(requests, pool, entry.build(entry.plugin.options()))
            for entry in installed().of_kind("eviction")
        }
        table[pool][REFERENCE] = clairvoyant(requests, pool)
    return table


def main() -> None:
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--trace", type=Path, required=True, metavar="FILE")
    ap.add_argument("--requests", type=int, default=4000, metavar="N", help="the first N of the trace")
    ap.add_argument("--pools", default="1000,4000,16000", help=f"sizes in blocks of {BLOCK} tokens")
    ap.add_argument("--json", type=Path, metavar="OUT")
    args = ap.parse_args()
    requests = read(args.trace, args.requests)
    pools = [int(pool) for pool in args.pools.split(",")]
    table = compare(requests, pools)
    blocks = sum(len(request.blocks) for request in requests)
    unbounded = clairvoyant(requests, max(1, blocks))
    print(f"{args.trace.name}: {len(requests):,} requests, {unbounded.total:,} prompt tokens; hit rate of the tokens")
    print(f"{'pool':24}" + "".join(f"{f'{pool:,} blocks':>16}" for pool in pools))
    for name in table[pools[0]]:
        print(f"{name:24}" + "".join(f"{table[pool][name].rate:16.4f}" for pool in pools))
    print(f"{'unbounded':24}" + f"{unbounded.rate:16.4f}" * len(pools))
    print(f"{'skipped requests':24}" + "".join(f"{table[pool][REFERENCE].skipped:16,}" for pool in pools))
    if args.json:
        out: dict[str, Any] = {"requests": len(requests), "unbounded": unbounded.rate, "pools": {}}
        for pool, row in table.items():
            out["pools"][pool] = {name: {**outcome._asdict(), "rate": outcome.rate} for name, outcome in row.items()}
        args.json.write_text(json.dumps(out, indent=1) + "\n")


if __name__ == "__main__":
    main()
