"""How the prefix cache grows: time, memory and the collector's pauses at up to a million nodes. See bench/cache.py."""

import gc
import os
import time
import tracemalloc
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from rtk.cache.key import DEFAULT_NAMESPACE, TOKEN_BYTES, Key, pack
from rtk.cache.req_table import ReqTable
from rtk.cache.slots import SlotAllocator
from rtk.cache.tree import PrefixCache
from rtk.plugin import EvictionPolicy, NodeView, Options
from rtk.plugin.guard import GuardedEviction, Health
from rtk.serve.collector import Collector
from rtk_eviction.lru import Lru

Figures = dict[str, float]
LEAF = 16
"""Tokens of a node."""
FAN_OUT = 32
"""Leaves of a stem."""
STORED = 128
"""Tokens that a sequence of the storm enters with; all but the first LEAF are evicted."""


def make(pool: int, policy: EvictionPolicy | None = None) -> tuple[SlotAllocator, PrefixCache]:
    """An empty cache over `pool` slots, least recently used unless told otherwise."""
    allocator = SlotAllocator(pool, 1)
    return allocator, PrefixCache(allocator, GuardedEviction(policy or Lru(Options()), "bench", Health()))


class DeepestFirst(EvictionPolicy):
    """For the storm: evicts what a split left below, never the stems. A split makes the lower half more urgent."""

    facts = frozenset({"start"})

    def key(self, node: NodeView) -> tuple[int]:
        return (-node.start,)


class Pauses:
    """Counts the collector's pauses while the block runs. Milliseconds."""

    def __enter__(self) -> "Pauses":
        self.longest = self.total = self._begin = 0.0
        gc.callbacks.append(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        gc.callbacks.remove(self._note)

    def _note(self, phase: str, _: dict[str, int]) -> None:
        if phase == "start":
            self._begin = time.perf_counter()
        else:
            pause = (time.perf_counter() - self._begin) * 1e3
            self.total, self.longest = self.total + pause, max(self.longest, pause)


def resident() -> int:
    """Bytes of this process in memory, after a collection."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def serve(allocator: SlotAllocator, cache: PrefixCache, tokens: bytes) -> None:
    """One request from look-up to release."""
    key = Key(DEFAULT_NAMESPACE, tokens)
    lease = cache.acquire(key, cache.peek(key))
    need = key.length - lease.length
    if need > allocator.free:
        cache.evict(need - allocator.free)
    lease.grow(tokens, np.concatenate([lease.slots(), allocator.alloc(need)]))
    lease.release()


def branch(i: int) -> bytes:
    """The i-th sequence of the growing tree: a stem that FAN_OUT of them share, and a leaf."""
    return array("i", [i // FAN_OUT, *range(1, LEAF), i % FAN_OUT, *range(1, LEAF)]).tobytes()


def grow(nodes: int, collector: str) -> Figures:
    """Grow a tree, time requests on it with room and without, and watch the collector."""
    leaves, timed = nodes * FAN_OUT // (FAN_OUT + 1), max(FAN_OUT, min(2_000, nodes // 10))
    allocator, cache = make(LEAF * (nodes + 2 * timed))
    bounded = Collector() if collector == "bounded" else None

    def serve_all(first: int, count: int) -> float:
        begin = time.perf_counter()
        for i in range(first, first + count):
            serve(allocator, cache, branch(i))
            if bounded is not None:
                bounded.after_step(cache.created_nodes, idle=False)
        return (time.perf_counter() - begin) / count * 1e6

    before = resident()
    with Pauses() as growing:
        serve_all(0, leaves)
    memory = (resident() - before) / nodes
    with Pauses() as pauses:
        room = serve_all(leaves, timed)
        allocator.alloc(allocator.free)  # from here on nothing is free
        full = serve_all(leaves + timed, timed)
    with Pauses() as whole:
        gc.collect()
    return {
        "match_insert_us": room,
        "evict_insert_us": full,
        "bytes_per_node": memory,
        "gc_growing_longest_ms": growing.longest,
        "gc_growing_total_ms": growing.total,
        "gc_timed_longest_ms": pauses.longest,
        "gc_timed_total_ms": pauses.total,
        "gc_full_collection_ms": whole.total,
    }


def churn(nodes: int) -> Figures:
    """Memory of a tree that splits and evictions left behind: of each sequence only the first LEAF tokens."""
    allocator, cache = make(LEAF * nodes + STORED, DeepestFirst())
    before = resident()
    for i in range(nodes):
        tokens = array("i", [i, *range(1, STORED)]).tobytes()
        serve(allocator, cache, tokens)
        serve(allocator, cache, tokens[: LEAF * TOKEN_BYTES])  # splits
        cache.evict(STORED - LEAF)
    assert cache.evictable == LEAF * nodes, "the storm left something else than its stems"
    memory = resident() - before
    return {"storm_bytes_per_node": memory / nodes, "storm_bytes_per_token": memory / nodes / LEAF}


def index_bytes(tokens: int) -> Figures:
    """Bytes a token that an unsplit sequence takes in the tree and in its request's row."""
    allocator, cache = make(tokens)
    tracemalloc.start()
    serve(allocator, cache, pack(np.arange(tokens)))
    gc.collect()
    tree = tracemalloc.get_traced_memory()[0] / tokens
    tracemalloc.stop()
    return {"tree": tree, "row": ReqTable(1, tokens).nbytes / (2 * tokens)}


def growth(sizes: list[int], collector: str, side: Callable[[str, int], Figures]) -> dict[str, Any]:
    """Prints the table. `side` runs "grow", "churn" or "index" at a size in a process of its own."""
    print(f"times in microseconds a request, memory in bytes, pauses in milliseconds; collector: {collector}")
    print(f"{'':>10}{'match +':>10}{'evict +':>10}{'B/node':>10}{'B/node':>10}{'B/token':>10}", end="")
    print(f"{'gc growing':>18}{'gc timed':>18}{'full':>12}")
    print(f"{'nodes':>10}{'insert':>10}{'insert':>10}{'grown':>10}{'storm':>10}{'storm':>10}", end="")
    print(f"{'longest / total':>18}{'longest / total':>18}{'collection':>12}")
    table: dict[str, Any] = {}
    for nodes in sizes:
        row = side("grow", nodes) | side("churn", nodes)
        us, ms = ("match_insert_us", "evict_insert_us"), ("gc_growing", "gc_timed")
        sizes_of = ("bytes_per_node", "storm_bytes_per_node", "storm_bytes_per_token")
        print(f"{nodes:10,}" + "".join(f"{row[name]:10,.1f}" for name in (*us, *sizes_of)), end="")
        print("".join(f"{row[f'{n}_longest_ms']:9,.1f} /{row[f'{n}_total_ms']:7,.1f}" for n in ms), end="")
        print(f"{row['gc_full_collection_ms']:12,.1f}", flush=True)
        table[str(nodes)] = row
    index = side("index", 1 << 20)
    total = index["tree"] + index["row"]
    print(f"index: {index['tree']:.3f} bytes a token in the tree + {index['row']:.3f} in the row = {total:.2f}", end="")
    print(f"   target <= 12 {'met' if round(total, 2) <= 12 else 'MISSED'}")
    return {"growth": table, "index_bytes": index, "gc": collector}
