"""Every attention backend on this machine's GPU: whether it keeps the contract, and how long a layer takes.

    python bench/gpu/attention.py [--backends NAME ...] [--json FILE] [--seconds 450] [--rounds 30] [--tiny]

First each backend is put to the whole contract suite, which compares with dense attention in float64, for keys and
values of heads (mha) and for latents (mla). Then layers are timed: `forward`, with the step planned and K/V written
before, the backends taking turns, and caches filled with something else in between. The floor is what the device needs
to read each visible token's K/V once and the queries, and to write the answers, at the speed of a copy measured here;
what computes a lot for each byte, as prefill does, cannot reach it. A backend that cannot run says why.

Nothing new is begun after --seconds, six tenths of which are for the suite; what was left out is told. Without a CUDA
device the CPU is measured, by the backends that run there: that is for trying the program, as `--tiny` is.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from rtk.errors import PluginError, one_line
from rtk.plugin import AttentionBackend, KVShape, Workspace
from rtk.plugin.attention import DTYPE_BYTES
from rtk.plugin.host import installed
from rtk.plugin.registry import Registered
from rtk.plugin.testing import NotApplicable, suite
from rtk.plugin.testing.attention_cases import Case
from rtk.plugin.testing.attention_scene import Scene, device_of, oracle

Rows = tuple[tuple[int, int], ...]
"""As (q_len, kv_len)."""
LLAMA = KVShape(layers=1, kv_heads=8, head_dim=128, v_head_dim=128, q_heads=32)
DEEPSEEK = KVShape(layers=1, kv_heads=1, head_dim=576, v_head_dim=512, q_heads=128, mla=True)
SHAPES = {"mha": LLAMA, "mla": DEEPSEEK}
BATCHES: dict[str, Rows] = {
    "decode 1 x 8192": ((1, 8192),),
    "decode 8 x 2048": ((1, 2048),) * 8,
    "decode 64 x 1024": ((1, 1024),) * 64,
    "prefill 2048": ((2048, 2048),),
    "chunk 1024 after 4096": ((1024, 5120),),
    "chunk 512 and decode 32 x 1024": ((512, 1024), *((1, 1024),) * 32),
}
TINY_SHAPES = {
    "mha": KVShape(layers=1, kv_heads=2, head_dim=16, v_head_dim=16, q_heads=6),
    "mla": KVShape(layers=1, kv_heads=1, head_dim=576, v_head_dim=512, q_heads=4, mla=True),
}
TINY: dict[str, Rows] = {"decode": ((1, 40), (1, 9)), "chunk": ((6, 30),)}
COMPARED = 32
"""Queries, at the end of a row, and rows of a timed batch that are compared with the oracle."""
FLUSHED = 2**28
"""Bytes written between two rounds: more than any cache keeps."""


@dataclass(slots=True)
class Verdict:
    """What the contract suite found of one backend."""

    why_not: str = ""
    """Why it cannot run here; empty where it ran."""
    passed: int = 0
    skipped: int = 0
    """Checks of what it does not declare."""
    left_out: int = 0
    """Checks for which there was no time."""
    failed: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Timing:
    """One backend with one batch."""

    kind: str
    batch: str
    backend: str
    page_size: int
    us: float
    """Median."""
    quartiles: tuple[float, float]
    floor_us: float
    tflops: float
    """Of the multiplications that attention needs, masked ones left out."""
    off_by: float
    """Largest difference to the oracle."""


def why_not(backend: AttentionBackend) -> str:
    """Why a backend cannot run on this machine; empty if it can."""
    try:
        device = device_of(backend)
    except NotApplicable as reason:
        return str(reason)
    declared = backend.capabilities.compute_capabilities
    if declared is not None and device.type == "cuda":
        major, minor = torch.cuda.get_device_capability()
        if major not in declared:
            return f"needs compute capability {', '.join(f'{one}.x' for one in sorted(declared))}, not {major}.{minor}"
    return ""


def examined(backend: AttentionBackend, deadline: float) -> Verdict:
    """Put a backend to the contract suite."""
    verdict = Verdict(why_not(backend))
    if verdict.why_not:
        return verdict
    for check in suite("attention"):
        if time.monotonic() > deadline:
            verdict.left_out += 1
            continue
        try:
            check(lambda: backend)
        except NotApplicable:
            verdict.skipped += 1
        except Exception as error:  # noqa: BLE001 - a kernel may raise anything, and the others are to be looked at
            verdict.failed[check.name] = one_line(error)
        else:
            verdict.passed += 1
    return verdict


def bytes_moved(shape: KVShape, rows: Rows, dtype: str) -> int:
    """What one layer must read and write at least."""
    per_token = shape.kv_heads * (shape.head_dim + (0 if shape.mla else shape.v_head_dim))
    per_query = shape.q_heads * (shape.head_dim + shape.v_head_dim)
    return sum(kv_len * per_token + q_len * per_query for q_len, kv_len in rows) * DTYPE_BYTES[dtype]


def flops(shape: KVShape, rows: Rows) -> int:
    """Multiplications and additions of one layer: each query with the keys up to its own."""
    seen = sum(q_len * kv_len - q_len * (q_len - 1) // 2 for q_len, kv_len in rows)
    return 2 * seen * shape.q_heads * (shape.head_dim + shape.v_head_dim)


class Clock:
    """Measures on the device that there is."""

    def __init__(self, *, tiny: bool) -> None:
        self.cuda = torch.cuda.is_available()
        self.device = torch.device("cuda" if self.cuda else "cpu")
        self._other = torch.empty(2**16 if tiny else FLUSHED, dtype=torch.uint8, device=self.device)

    def seconds(self, run: Callable[[], Any]) -> float:
        """Of one call. The device is busy with other memory while it is launched."""
        self._other.zero_()
        if not self.cuda:
            start = time.perf_counter()
            run()
            return time.perf_counter() - start
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / 1e3

    def bytes_per_second(self) -> float:
        """Read and written by the fastest of some copies."""
        source, target = (torch.ones_like(self._other) for _ in range(2))
        return 2 * len(source) / min(self.seconds(lambda: target.copy_(source)) for _ in range(10))


def prepared(backend: AttentionBackend, case: Case) -> tuple[int, float, Callable[[], Any]]:
    """The page size, the distance of the answers to the oracle, and one `forward`. Raises `NotApplicable`."""
    scene = Scene(backend, case)
    rows = range(len(case.rows))
    plan = backend.plan(scene.view(rows), Workspace(scene.device))
    buffers = scene.before(rows)
    scene.write(buffers, rows)
    q = torch.cat(scene.q)
    run = lambda: backend.forward(q, buffers, scene.call, plan)  # noqa: E731
    got = run().split([q_len for q_len, _ in case.rows])
    worst = 0.0
    for row in rows[:COMPARED]:
        wanted = oracle(scene.q[row][-COMPARED:], scene.k[row], scene.v[row], scene.call)
        worst = max(worst, (got[row][-COMPARED:].double() - wanted).abs().max().item())
    return scene.case.page_size, worst, run


def timed(
    backends: dict[str, AttentionBackend], clock: Clock, dtype: str, rounds: int, deadline: float, *, tiny: bool
) -> Iterator[Timing | str]:
    """Every batch with every backend that declares what it asks; a line for what could not be timed."""
    speed = clock.bytes_per_second()
    shapes, batches = (TINY_SHAPES, TINY) if tiny else (SHAPES, BATCHES)
    for kind, shape in shapes.items():
        for batch, rows in batches.items():
            if time.monotonic() > deadline:
                yield f"{kind} {batch}: no time was left"
                continue
            case = Case(name=batch, rows=rows, shape=shape, page_size=64, dtype=dtype)
            sides = {}
            for name, backend in backends.items():
                try:
                    sides[name] = prepared(backend, case)
                except NotApplicable:
                    continue
                except Exception as error:  # noqa: BLE001 - as in `examined`
                    yield f"{kind} {batch}: {name}: {one_line(error)}"
            times: dict[str, list[float]] = {name: [] for name in sides}
            for _ in range(rounds):
                for name, (_, _, run) in sides.items():
                    times[name].append(clock.seconds(run))
            for name, (page, off_by, _) in sides.items():
                low, middle, high = (1e6 * value for value in statistics.quantiles(times[name], n=4))
                floor = 1e6 * bytes_moved(shape, rows, dtype) / speed
                rate = flops(shape, rows) / middle / 1e6
                yield Timing(kind, batch, name, page, middle, (low, high), floor, rate, off_by)


def built(entry: Registered) -> AttentionBackend | str:
    """The backend with its default options, or why there is none."""
    try:
        backend: AttentionBackend = entry.build(entry.plugin.options())
    except PluginError as error:
        return one_line(error.__cause__) if error.__cause__ else str(error)
    return backend


def looked_over(
    entries: Sequence[Registered], deadline: float
) -> Iterator[tuple[Registered, AttentionBackend | None, Verdict]]:
    """Every backend that can run here, and what was found of it. Each gets its share of the time that is left."""
    for at, entry in enumerate(entries):
        now = time.monotonic()
        made = built(entry)
        if isinstance(made, str):
            yield entry, None, Verdict(made)
            continue
        verdict = examined(made, now + (deadline - now) / (len(entries) - at))
        yield entry, None if verdict.why_not else made, verdict


def main(arguments: Sequence[str]) -> int:
    """Ends with 1 where a backend breaks the contract."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backends", nargs="+", metavar="NAME", help="default: every one that is installed")
    parser.add_argument("--dtype", default="bfloat16", help="of the layers that are timed")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write all numbers")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--seconds", type=float, default=450)
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args(arguments)
    start, registry, clock = time.monotonic(), installed(), Clock(tiny=args.tiny)
    device = torch.cuda.get_device_name() if clock.cuda else "cpu"
    print(f"{device}, torch {torch.__version__}, copies {clock.bytes_per_second() / 1e9:,.0f} GB/s")

    verdicts: dict[str, Verdict] = {}
    backends: dict[str, AttentionBackend] = {}
    print(f"{'backend':12}{'passed':>8}{'skipped':>8}{'failed':>8}{'no time':>8}")
    entries = [registry.get("attention", name) for name in args.backends or registry.names("attention")]
    for entry, backend, verdict in looked_over(entries, start + 0.6 * args.seconds):
        name = entry.plugin.name
        verdicts[name] = verdict
        if backend is None:
            print(f"{name:12}cannot run: {verdict.why_not}")
            continue
        backends[name] = backend
        print(f"{name:12}{verdict.passed:8}{verdict.skipped:8}{len(verdict.failed):8}{verdict.left_out:8}")
        for check, problem in verdict.failed.items():
            print(f"  {check}: {problem}")

    timings: list[Timing] = []
    left: list[str] = []
    numbers = f"{'off by':>9}{'us':>11}{'quartiles':>20}{'floor':>9}{'x floor':>9}{'TFLOP/s':>9}"
    print(f"\n{'layer':36}{'backend':12}{'page':>5}{numbers}")
    for found in timed(backends, clock, args.dtype, args.rounds, start + args.seconds, tiny=args.tiny):
        if isinstance(found, Timing):
            timings.append(found)
            print(line(found))
        else:
            left.append(found)
            print(found)
    if args.json:
        told = {
            "device": device,
            "torch": torch.__version__,
            "dtype": args.dtype,
            "backends": {name: asdict(verdict) for name, verdict in verdicts.items()},
            "layers": [asdict(timing) for timing in timings],
            "left_out": left,
        }
        args.json.write_text(json.dumps(told, indent=1) + "\n")
    return int(any(verdict.failed for verdict in verdicts.values()))


def line(one: Timing) -> str:
    """A row of the table."""
    quartiles = " .. ".join(f"{us:,.1f}" for us in one.quartiles)
    what = f"{one.kind + ' ' + one.batch:36}{one.backend:12}{one.page_size:5}{one.off_by:9.1e}"
    return f"{what}{one.us:11,.1f}{quartiles:>20}{one.floor_us:9,.1f}{one.us / one.floor_us:9.2f}{one.tflops:9.1f}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
