"""What three processes bring a server, against one with all in it (`--in-process`): tokens a second, and an even pace.

    python bench/serve_processes.py [--model NAME] [--streams 8 32] [--tokens 64] [--pairs 3] [-- FLAGS]

Both servers run, one is asked at a time, in ABBA order. Every run is made twice: alone, and beside clients that send
--malformed bodies a second, or as many as the machine manages; they are refused. Prints medians over the runs: tokens
a second, and the time between two pieces of a stream, which are tokens mostly, at the median and at the 99th percentile
of a run. The clients share the machine.
"""

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from contextlib import nullcontext
from itertools import cycle, pairwise
from pathlib import Path

import soak_model
from soak_client import MALFORMED, Plan, run
from soak_server import Server

SENDERS = 8
SMALL = [(path, body) for path, body in MALFORMED if len(body) < 10_000]
"""Those that cost little: a prompt that has to be encoded to be refused is work like any other."""


async def stream(server: Server, number: int, tokens: int) -> list[float]:
    """When each piece of one stream came."""
    body = {"prompt": f"{number} and", "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "stream": True}
    content = json.dumps(body | {"stream_options": {"include_usage": True}}).encode()
    reader, writer = await asyncio.open_connection(server.host, server.port)
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {len(content)}\r\n"
    )
    writer.write(head.encode() + b"\r\n" + content)
    times, last = [], {}
    while line := await reader.readline():
        if line.startswith(b"data: {"):
            times.append(time.perf_counter())
            last = json.loads(line[6:])
    writer.close()
    await writer.wait_closed()
    if (last.get("usage") or {}).get("completion_tokens") != tokens:
        raise SystemExit(f"stream {number} ended with {last}")
    return times[:-1]


async def measure(server: Server, streams: int, tokens: int, malformed: int) -> tuple[float, float, float, float]:
    """Tokens a second; milliseconds between pieces, p50 and p99; malformed bodies a second that were refused."""
    bodies, over, refused = cycle(SMALL), asyncio.Event(), 0

    async def annoy() -> None:
        nonlocal refused
        due = time.perf_counter()
        while not over.is_set():
            path, body = next(bodies)
            found = await run(server.host, server.port, Plan("malformed", path, body))
            if found.problem:
                raise SystemExit(f"{path} {body[:40]!r}: {found.problem}")
            refused += 1
            due += SENDERS / malformed
            await asyncio.sleep(max(0.0, due - time.perf_counter()))

    began = time.perf_counter()
    noise = [asyncio.create_task(annoy()) for _ in range(SENDERS if malformed else 0)]
    times = await asyncio.gather(*(stream(server, i, tokens) for i in range(streams)))
    seconds = time.perf_counter() - began
    over.set()
    await asyncio.gather(*noise)
    gaps = sorted(1e3 * (after - before) for own in times for before, after in pairwise(own))
    return streams * tokens / seconds, statistics.median(gaps), gaps[len(gaps) * 99 // 100], refused / seconds


def main() -> None:
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--model", help="default: a tiny random one")
    ap.add_argument("--streams", type=int, nargs="+", default=[8, 32])
    ap.add_argument("--tokens", type=int, default=64)
    ap.add_argument("--pairs", type=int, default=3)
    ap.add_argument("--malformed", type=int, default=200, help="bodies a second")
    ap.add_argument("flags", nargs="*", help="of rtk serve, behind --")
    options = ap.parse_args()
    with tempfile.TemporaryDirectory() if options.model is None else nullcontext("") as folder:
        if options.model is None:
            soak_model.write(Path(folder))
        flags = ["--model", options.model or folder, "--threads", "1", "--pool-tokens", "20000", *options.flags]
        with Server(*flags) as three, Server(*flags, "--in-process") as one:
            servers = {"three": three, "one": one}
            for server in servers.values():
                asyncio.run(measure(server, 4, 8, 0))
            print(f"{'streams':>7} {'malformed/s':>11} {'processes':>9} {'tokens/s':>9} {'p50 ms':>8} {'p99 ms':>8}")
            for streams in options.streams:
                for malformed in (0, options.malformed):
                    found: dict[str, list[tuple[float, float, float, float]]] = {"three": [], "one": []}
                    for i in range(options.pairs):
                        for name in ("three", "one") if i % 2 == 0 else ("one", "three"):
                            run_ = asyncio.run(measure(servers[name], streams, options.tokens, malformed))
                            found[name].append(run_)
                    for name, runs in found.items():
                        rate, p50, p99, bad = map(statistics.median, zip(*runs, strict=True))
                        print(f"{streams:7} {bad:11.0f} {name:>9} {rate:9.1f} {p50:8.2f} {p99:8.2f}", flush=True)


if __name__ == "__main__":
    main()
