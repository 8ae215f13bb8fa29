"""rtk's server against a peer's, driven by bench/peers/load.py: the same prompts, threads and KV bytes, in pairs.

    python bench/e2e.py --peer-python PYTHON [--pairs 5] [--scenario mixed ...] [--write] [--json OUT]

Both servers stay up over the sitting (--restart: fresh ones for each pair) and are asked one at a time, which
alternates (ABBA); what the other one uses of the CPUs meanwhile is printed. Each pair has a seed of its own, the same
on both sides, and every scenario its unmeasured warm-up. Shown are medians with quartiles, and the ratio of a pair's
two figures, its median and quartiles, beside the bound. Texts count as alike where their first 40 characters are.

The peer is vLLM on the CPU, as its default compiles it, with --peer-python's; --peer-command is another one's, a line
with {python}, {model}, {port}, {threads}, {kv_gib} and {budget} in it, the last of which is where its option for the
tokens of a step goes. With `mixed`, the peer runs once more with its step budget set to --budget, what rtk computes of
prompts beside those who decode. rtk's pool has as many tokens as fit into the same bytes.

--write replaces the section of that name in bench/RESULTS.md.
"""

import argparse
import contextlib
import json
import os
import platform
import re
import shlex
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from rtk.model.store import fetch
from rtk.serve.computing import MIXED_CHUNK_ON_CPU

HERE = Path(__file__).parent
CLIENT = HERE / "peers/load.py"
RESULTS = HERE / "RESULTS.md"
SECTION = "## End to end, beside a peer"
NAME = "demo"
"""Of the model, on both sides."""
CONTEXT, RUNNING = 4096, 64
START_S, END_S = 600, 30
SCENARIOS = ("single", "unshared", "shared", "turns", "mixed")
SEEDS_APART = 10
"""The client warms up with the seed after the one that it measures with."""
BUDGET = MIXED_CHUNK_ON_CPU
VLLM = (
    "{python} -m vllm.entrypoints.openai.api_server --model {model} --served-model-name demo --dtype float32 "
    f"--max-model-len {CONTEXT} --max-num-seqs {RUNNING} --enable-prefix-caching --port {{port}} {{budget}}"
)
VLLM_BUDGET = "--max-num-batched-tokens {}"
VLLM_ENV = {"VLLM_CPU_KVCACHE_SPACE": "{kv_gib}", "VLLM_CPU_OMP_THREADS_BIND": "0-{last_thread}"}


class Bound(NamedTuple):
    """What a ratio, rtk to peer, must reach."""

    row: str
    figure: str
    least: float | None = None
    most: float | None = None

    def holds(self, ratio: float) -> bool:
        return (self.least is None or ratio >= self.least) and (self.most is None or ratio <= self.most)

    def __str__(self) -> str:
        return f"≥ {self.least:g}" if self.least is not None else f"≤ {self.most:g}"


BOUNDS = (
    Bound("single", "out_tok_s", least=1.05),
    Bound("unshared", "out_tok_s", least=1.1),
    Bound("shared cold", "out_tok_s", least=1.8),
    Bound("shared warm", "out_tok_s", least=2.0),
    Bound("turns", "out_tok_s", least=1.6),
    Bound("mixed: short", "out_tok_s", least=1.5),
    Bound("mixed: short", "gap_max_ms", most=0.25),
    Bound("mixed: long", "ttft_p50_s", most=1.1),
)
WITH_BUDGET = (
    Bound("mixed: short", "out_tok_s", least=1.1),
    Bound("mixed: long", "ttft_p50_s", most=1.1),
)
"""Against the peer with its step budget set to ours."""
FIGURES = {"out_tok_s": "output tok/s", "gap_max_ms": "longest gap, ms", "ttft_p50_s": "TTFT, s"}
ALIKE = 0.9
"""Share of the texts that must begin as the peer's."""

Rows = dict[str, dict[str, Any]]


@dataclass
class Served:
    """A server in a process of its own. A context manager; whatever it started is gone afterwards."""

    name: str
    command: list[str]
    port: int
    env: Mapping[str, str] = field(default_factory=dict)

    def __enter__(self) -> "Served":
        self._log = tempfile.TemporaryFile("w+")
        self._process = subprocess.Popen(
            self.command, stdout=self._log, stderr=subprocess.STDOUT, env={**os.environ, **self.env}
        )
        end = time.monotonic() + START_S
        while not self._serves():
            if self._process.poll() is not None or time.monotonic() > end:
                self.__exit__()
                raise SystemExit(f"{self.name} did not start:\n{self.said()}")
            time.sleep(0.5)
        return self

    def _serves(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/v1/models", timeout=5) as answer:
                return answer.status == 200
        except OSError:
            return False

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def said(self) -> str:
        """The end of its log."""
        self._log.seek(0)
        return "\n".join(self._log.read().splitlines()[-20:])

    def _processes(self) -> list[psutil.Process]:
        try:
            root = psutil.Process(self._process.pid)
            return [root, *root.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def cpu_s(self) -> float:
        """CPU seconds that it has used so far."""
        seconds = 0.0
        for process in self._processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                seconds += sum(process.cpu_times()[:2])
        return seconds

    def __exit__(self, *_: object) -> None:
        processes = self._processes()
        self._process.terminate()
        _, left = psutil.wait_procs(processes, END_S)
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(left, END_S)
        self._process.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def kv_bytes(folder: Path) -> int:
    """Of a token, in float32."""
    config = json.loads((folder / "config.json").read_text())
    heads = config["num_attention_heads"]
    wide = config.get("head_dim") or config["hidden_size"] // heads
    return int(2 * config["num_hidden_layers"] * config.get("num_key_value_heads", heads) * wide * 4)


def rtk(folder: Path, args: argparse.Namespace) -> Served:
    port, tokens = free_port(), int(args.kv_gib * 2**30) // kv_bytes(folder)
    sizes = ["--pool-tokens", f"{tokens}", "--context-length", f"{CONTEXT}", "--max-running", f"{RUNNING}"]
    flags = [
        "--model",
        f"{folder}",
        "--served-name",
        NAME,
        "--threads",
        f"{args.threads}",
        "--dtype",
        "float32",
        *sizes,
    ]
    serve = [sys.executable, "-c", "from rtk_cli.main import main; main()", "serve", "--host", "127.0.0.1"]
    threads = {"OMP_NUM_THREADS": f"{args.threads}"}
    return Served("rtk", [*serve, "--port", f"{port}", *flags, *args.rtk_flags], port, threads)


def peer(folder: Path, args: argparse.Namespace, budget: int | None = None) -> Served:
    port = free_port()
    words = {
        "python": args.peer_python,
        "model": folder,
        "port": port,
        "threads": args.threads,
        "last_thread": args.threads - 1,
        "kv_gib": f"{args.kv_gib:g}",
        "budget": "" if budget is None else args.peer_budget.format(budget),
    }
    env = {name: value.format(**words) for name, value in VLLM_ENV.items()}
    return Served(args.peer_name, shlex.split(args.peer_command.format(**words)), port, env)


def drive(server: Served, folder: Path, scenario: str, seed: int) -> Rows:
    """One scenario, as the client measures it."""
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "rows.json"
        command = [sys.executable, f"{CLIENT}", server.url, "--model", NAME, "--tokenizer", f"{folder}"]
        asked = ["--scenario", scenario, "--seed", f"{seed}", "--json", f"{out}"]
        done = subprocess.run([*command, *asked], capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{server.name}, {scenario}, seed {seed}:\n{done.stdout}{done.stderr}\n{server.said()}")
        rows: Rows = json.loads(out.read_text())
        return rows


@dataclass
class Pairs:
    """What was measured of the same work on both sides, pair by pair."""

    ours: list[Rows] = field(default_factory=list)
    theirs: list[Rows] = field(default_factory=list)
    idle_s: dict[str, float] = field(default_factory=dict)
    """CPU seconds that each side used while the other was asked."""

    def values(self, row: str, figure: str) -> list[tuple[float, float]]:
        pairs = zip(self.ours, self.theirs, strict=True)
        return [(a[row][figure], b[row][figure]) for a, b in pairs if row in a and row in b]

    def alike(self) -> tuple[int, int]:
        """Texts that begin as the peer's, and all."""
        both = [
            (mine, other)
            for a, b in zip(self.ours, self.theirs, strict=True)
            for row in a
            for mine, other in zip(a[row]["texts"], b[row]["texts"], strict=True)
        ]
        return sum(mine[:40] == other[:40] for mine, other in both), len(both)


def one_pair(pairs: Pairs, ours: Served, theirs: Served, folder: Path, scenarios: list[str], number: int) -> None:
    """Every scenario on both sides, one after the other; who begins alternates."""
    seed, found = SEEDS_APART * (number + 1), {ours.name: {}, theirs.name: {}}
    order = (ours, theirs) if number % 2 == 0 else (theirs, ours)
    for scenario in scenarios:
        for server, other in (order, order[::-1]):
            before = other.cpu_s()
            rows = drive(server, folder, scenario, seed)
            pairs.idle_s[other.name] = pairs.idle_s.get(other.name, 0.0) + other.cpu_s() - before
            found[server.name] |= rows
            for name, row in rows.items():
                told = "   ".join(f"{row[figure]:8.2f} {unit}" for figure, unit in FIGURES.items())
                print(f"pair {number + 1}  {name:13} {server.name:10} {told}", flush=True)
    pairs.ours.append(found[ours.name])
    pairs.theirs.append(found[theirs.name])


def measure(folder: Path, args: argparse.Namespace, scenarios: list[str], budget: int | None = None) -> Pairs:
    pairs = Pairs()
    sittings = [[number] for number in range(args.pairs)] if args.restart else [list(range(args.pairs))]
    for numbers in sittings:
        with rtk(folder, args) as ours, peer(folder, args, budget) as theirs:
            for number in numbers:
                one_pair(pairs, ours, theirs, folder, scenarios, number)
    return pairs


def quartiles(values: list[float]) -> tuple[float, float, float]:
    """Median, and the quartiles around it."""
    if len(values) == 1:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return middle, low, high


def spread(values: list[float], digits: int) -> str:
    middle, low, high = quartiles(values)
    return f"{middle:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def table(pairs: Pairs, bounds: tuple[Bound, ...], name: str) -> Iterator[str]:
    yield f"| scenario | figure | rtk | {name} | rtk / {name} | bound | met |"
    yield "|---|---|---|---|---|---|---|"
    for bound in bounds:
        values = pairs.values(bound.row, bound.figure)
        if not values:
            continue
        ours, theirs = [a for a, _ in values], [b for _, b in values]
        ratios, digits = [a / b for a, b in values], 0 if bound.figure.endswith("_ms") else 1
        met = "yes" if bound.holds(statistics.median(ratios)) else "**no**"
        figures = f"{spread(ours, digits)} | {spread(theirs, digits)} | **{spread(ratios, 2)}**"
        yield f"| {bound.row} | {FIGURES[bound.figure]} | {figures} | {bound} | {met} |"
    alike, texts = pairs.alike()
    idle = ", ".join(f"{server} {seconds:.1f} s" for server, seconds in pairs.idle_s.items())
    yield ""
    yield f"{alike} of {texts} texts begin alike (bound: {ALIKE:.0%}). CPU time of the one that was not asked: {idle}."


def section(found: dict[str, Pairs], args: argparse.Namespace) -> str:
    versions = f"{platform.machine()}, {args.threads} threads, Python {platform.python_version()}"
    lines = [
        SECTION,
        "",
        f"`python bench/e2e.py`, {date.today():%Y-%m-%d}: {args.pairs} ABBA pairs, medians with quartiles; {versions}; "
        f"{args.kv_gib:g} GiB of K/V on both sides; load {os.getloadavg()[1]:.1f} over the last five minutes.",
        "",
        *table(found["default"], BOUNDS, args.peer_name),
    ]
    if "budget" in found:
        lines += ["", f"The peer with a step budget of {args.budget} tokens:", ""]
        lines += table(found["budget"], WITH_BUDGET, args.peer_name)
    return "\n".join(lines) + "\n"


def replaced(page: str, new: str) -> str:
    """The page with the section of that name in place of the one it has, or at its end."""
    old = re.compile(rf"^{re.escape(SECTION)}\n.*?(?=^## |\Z)", re.MULTILINE | re.DOTALL)
    if old.search(page):
        return old.sub(lambda found: new + ("\n" if found.end() < len(page) else ""), page)
    return page.rstrip("\n") + "\n\n" + new


def main() -> None:
    assert __doc__ is not None
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--peer-python", default=sys.executable, help="the interpreter of the peer's environment")
    ap.add_argument("--peer-name", default="vLLM-CPU")
    ap.add_argument("--peer-command", default=VLLM)
    ap.add_argument("--peer-budget", default=VLLM_BUDGET, help="its option for the tokens of a step; {} is the number")
    ap.add_argument("--scenario", nargs="+", choices=SCENARIOS, default=list(SCENARIOS))
    ap.add_argument("--pairs", type=int, default=5)
    ap.add_argument("--threads", type=int, default=2)
    ap.add_argument("--kv-gib", type=float, default=2)
    ap.add_argument("--budget", type=int, default=BUDGET, help="of the peer's steps; 0: leave that out")
    ap.add_argument("--restart", action="store_true", help="fresh servers for each pair")
    ap.add_argument("--write", action="store_true", help="into bench/RESULTS.md")
    ap.add_argument("--json", type=Path, help="write all figures here, with the texts")
    ap.add_argument("rtk_flags", nargs="*", help="of rtk serve, behind --")
    args = ap.parse_args()
    folder = fetch()
    found = {"default": measure(folder, args, args.scenario)}
    if "mixed" in args.scenario and args.budget:
        found["budget"] = measure(folder, args, ["mixed"], args.budget)
    text = section(found, args)
    print("\n" + text)
    if args.write:
        RESULTS.write_text(replaced(RESULTS.read_text(), text))
    if args.json:
        told = {name: {"rtk": p.ours, "peer": p.theirs, "idle_s": p.idle_s} for name, p in found.items()}
        args.json.write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
