"""All that rtk has for a GPU, on this machine's GPU, in less than eight minutes: a table, and a JSON file.

    python bench/gpu/run.py [--json FILE] [--seconds 440] [--model NAME] [--parts NAME ...] [--tiny] [--here]

- `attention NAME`, of each backend that is installed: the contract suite, which compares with dense attention in
  float64, and the time of layers beside what the device needs to move their bytes (see attention.py);
- `sampling`: whether the device draws the tokens that the host would, without the host waiting for it, and how long
  both take;
- `graphs`: tokens per second with CUDA graphs and without;
- `serve`: a server on a loopback address, whose greedy answers are those of transformers on the same device.

Where the demo model cannot be fetched, random weights of its shape stand for it.

Each part runs in a process of its own: a kernel that reads what it should not spoils the device for its whole process,
and one that never ends is ended. Parts share the time that is left; what has none is left out, and told. Ends with 1
where a part failed. Without a CUDA device only `--tiny` does something, which is for trying the program; `--here` runs
the parts in one process.
"""

import argparse
import contextlib
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent))
import attention

from rtk.errors import ModelError, one_line
from rtk.model.draws import draw
from rtk.model.logprobs import told
from rtk.model.sampler import sample
from rtk.model.store import resolve_model
from rtk.plugin.host import installed
from rtk.schedule.batch import Bias, Mask, Penalties, SampleInputs

STARTING = 20.0
"""Seconds that a part takes before it does anything; with less, none is begun."""
WEIGHTS = {"attention": 3, "sampling": 1, "graphs": 2, "serve": 3}
"""How the time that is left is shared."""
DIFFERING = 0.01
"""Share of rows that may be drawn otherwise than on the host: those whose draw or threshold is at a border."""
NEAR_TIE = 1e-3
"""Distance of the two best float64 logits below which two right computations in float32 may choose differently."""
TEXTS = (
    "The tide comes in",
    "Water boils at a lower temperature on a mountain because",
    "def fibonacci(n):\n    ",
    "Once upon a time there was a lighthouse keeper who " + "walked along the shore and counted the ships. " * 20,
    "List the planets of the solar system, from the sun outwards:",
    "A long letter.\n" + "\n".join(f"{n}. The sea was calm on day {n}, and nobody wrote." for n in range(60)),
)
"""Prompts; the longest have some hundred tokens."""
SHAPE: dict[str, Any] = {
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
    "initializer_range": 0.1,
}
"""Of the demo model, for random weights."""


@dataclass(frozen=True)
class Settings:
    """What a part is told."""

    seconds: float
    model: str
    tiny: bool

    @property
    def device(self) -> str:
        return "cuda" if torch.cuda.is_available() else "cpu"

    @property
    def backend(self) -> str:
        """The attention backend that can be captured; on a CPU there is none."""
        return "triton" if self.device == "cuda" else "torch"


@dataclass
class Outcome:
    """What a part found. Verdicts: passed, failed, cannot run, left out."""

    verdict: str
    told: str
    """In a line."""
    data: dict[str, Any] = field(default_factory=dict)


# --- parts ----------------------------------------------------------------------------------------------------------


def attend(settings: Settings, name: str) -> Outcome:
    """One attention backend."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "told.json"
        small = ["--tiny", "--dtype", "float32", "--rounds", "2"] if settings.tiny else []
        code = attention.main(["--backends", name, "--seconds", str(settings.seconds), "--json", str(file), *small])
        data = json.loads(file.read_text())
    found = data["backends"][name]
    if found["why_not"]:
        return Outcome("cannot run", found["why_not"], data)
    ratios = [layer["us"] / layer["floor_us"] for layer in data["layers"] if "decode" in layer["batch"]]
    floor = f"; decoding {min(ratios):.2f} to {max(ratios):.2f} x the floor" if ratios else ""
    checks = f"{found['passed']} checks passed, {len(found['failed'])} failed, {found['left_out']} had no time"
    return Outcome("failed" if code or found["left_out"] == 0 == found["passed"] else "passed", checks + floor, data)


def inputs(rng: np.random.Generator, rows: int) -> SampleInputs:
    """Parameters of every kind, none of them greedy."""

    def some(values: Any, otherwise: float) -> Any:
        return np.where(rng.random(rows) < 0.5, values, otherwise)

    return SampleInputs(
        temperature=rng.uniform(0.3, 1.5, rows).astype(np.float32),
        top_p=some(rng.uniform(0.5, 1, rows), 1).astype(np.float32),
        top_k=some(rng.integers(1, 100, rows), 0).astype(np.int32),
        min_p=some(rng.uniform(0, 0.1, rows), 0).astype(np.float32),
        uniform=rng.random(rows),
    )


@contextlib.contextmanager
def waiting_is_an_error() -> Iterator[None]:
    """As far as torch notices that the host waits for the device."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def altered(rng: np.random.Generator, logits: torch.Tensor, asked: SampleInputs, device: str) -> Iterator[str]:
    """Everything that is done to logits, to greedy rows: what differs from the host. The host waits for nothing."""
    rows, width = logits.shape
    every, tokens = np.arange(rows, dtype=np.int32), rng.integers(0, width, 3 * rows).astype(np.int32)
    ones, threes = np.ones(rows, np.float32), np.full(rows, 3, np.int32)
    words = rng.integers(-(2**31), 2**31, (rows, -(-width // 32))).astype(np.int32)
    given = replace(
        asked,
        temperature=0 * ones,
        banned={row: (0, row + 1) for row in range(rows)},
        mask=Mask(every, words),
        penalties=Penalties(every, threes, tokens, threes.repeat(3), 1.3 * ones, ones / 2, ones / 4),
        bias=Bias(every, tokens[:rows], ones),
        logprobs=dict.fromkeys(range(rows), 5),
    )
    found = []
    for where in ("cpu", device):
        own = logits.to(where, copy=True)
        if where == "cuda":
            sample(own.clone(), given, width)  # compiles
        with waiting_is_an_error() if where == "cuda" else contextlib.nullcontext():
            made = [sample(own, one, width) for one in (given, asked)]
        found.append(made[0].result())
    if found[0].tokens != found[1].tokens:
        yield "other tokens where logits are altered"
    for own, other in zip(*(one.logprobs.values() for one in found), strict=True):
        if own[0].token == other[0].token and abs(own[0].logprob - other[0].logprob) > 1e-4:
            yield "other log-probabilities"


def milliseconds(run: Callable[[], Any], device: str, rounds: int) -> float:
    """Median."""
    took = []
    for _ in range(rounds + 1):
        begin = time.perf_counter()
        run()
        if device == "cuda":
            torch.cuda.synchronize()
        took.append(time.perf_counter() - begin)
    return 1e3 * statistics.median(took[1:])


def sampling(settings: Settings) -> Outcome:
    """The device's tokens beside the host's."""
    rng, device, rounds = np.random.default_rng(0), settings.device, 2 if settings.tiny else 10
    sizes = [(2, 500)] if settings.tiny else [(rows, width) for width in (49152, 151936) for rows in (1, 32, 64)]
    batches, problems = [], []
    for rows, width in sizes:
        logits = torch.from_numpy(rng.normal(0, 3, (rows, width)).astype(np.float32))
        asked, there, every = inputs(rng, rows), logits.to(device), np.arange(rows)
        differing = int((draw(there, asked, every).cpu() != sample(logits, asked, width).ids).sum())
        problems += [f"{rows} x {width}: {problem}" for problem in altered(rng, logits, asked, device)]
        ties = logits.round()
        best, of_device = (told(t, t.argmax(dim=-1), 20, width).ids.cpu() for t in (ties, ties.to(device)))
        if not torch.equal(best, of_device) or not torch.equal(ties.argmax(-1), ties.to(device).argmax(-1).cpu()):
            problems.append(f"{rows} x {width}: of equal logits it takes others than the first")
        took = milliseconds(lambda there=there, asked=asked, width=width: sample(there, asked, width), device, rounds)
        host = milliseconds(lambda logits=logits, asked=asked, width=width: sample(logits, asked, width), "cpu", 2)
        batches.append({"rows": rows, "width": width, "differing": differing, "device_ms": took, "host_ms": host})
        print(f"sampling {rows:3} x {width:7}: {differing} differ, device {took:8.3f} ms, host {host:8.3f} ms")
    differing, rows = (sum(batch[name] for batch in batches) for name in ("differing", "rows"))
    if differing > max(1, DIFFERING * rows):
        problems.append(f"{differing} of {rows} rows are drawn otherwise than on the host")
    last = batches[-1]
    speed = f"{last['rows']} x {last['width']} in {last['device_ms']:.3f} ms, on the host {last['host_ms']:.1f}"
    found = "; ".join(problems) or f"as on the host; {speed}"
    return Outcome("failed" if problems else "passed", found, {"batches": batches})


def graphs(settings: Settings) -> Outcome:
    """Decoding with and without graphs, the same prompts for both."""
    from rtk import Engine

    sizes, new = ((1, 3), 4) if settings.tiny else ((1, 8, 32, 64), 128)
    rates: dict[str, dict[int, float]] = {}
    answers: dict[str, list[tuple[int, ...]]] = {}
    replayed: dict[str, int] = {}
    for side, wanted in (("without", False), ("with", True if settings.device == "cuda" else None)):
        keys = {
            "model.path": settings.model,
            "model.device": settings.device,
            "model.cuda_graphs": wanted,
            "attention.backend": settings.backend,
            "cache.pool_tokens": 1024 if settings.tiny else 32768,
        }
        rates[side], answers[side] = {}, []
        with Engine(keys) as engine:
            for rows in sizes:
                for length in (2, new):  # the first compiles
                    rng = np.random.default_rng(rows)
                    prompts = [rng.integers(10, 90, 16).tolist() for _ in range(rows)]
                    begin = time.perf_counter()
                    found = engine.generate(prompts, {"temperature": 0, "max_new_tokens": length, "ignore_eos": True})
                    rates[side][rows] = rows * length / (time.perf_counter() - begin)
                answers[side] += [tuple(one.token_ids) for one in found]
            replayed[side] = engine.stats()["replayed"]
        print(f"graphs {side:8}" + "".join(f"{rows:4}: {rate:9,.1f} tok/s" for rows, rate in rates[side].items()))
    equal = sum(one == other for one, other in zip(*answers.values(), strict=True))
    data = {"tokens_per_second": rates, "replayed": replayed, "equal_answers": equal, "answers": len(answers["with"])}
    if settings.device == "cuda" and not replayed["with"]:
        return Outcome("failed", "no step was replayed; the log says why", data)
    gains = ", ".join(f"{rows} rows {rates['with'][rows] / rates['without'][rows]:.2f} x" for rows in sizes)
    return Outcome("passed", f"{gains}; {equal} of {len(answers['with'])} answers equal", data)


Ask = Callable[[list[int], int], list[int]]
"""From a prompt and a length to a greedy answer."""


@contextlib.contextmanager
def served(settings: Settings, dtype: str) -> Iterator[tuple[Ask, str]]:
    """A server in processes of its own; what asks it, and what its log said when it was ready."""
    script = "from rtk_cli.main import main; main()"
    flags = ["--port", "0", "--model", settings.model, "--device", settings.device, "--dtype", dtype]
    command = [sys.executable, "-c", script, "serve", *flags, "--pool-tokens", "32768"]
    with tempfile.TemporaryFile("w+") as log, subprocess.Popen(command, stderr=log, text=True) as process:
        try:
            while not (ready := re.search(r"ready on (http://\S+) as", _read(log))):
                if process.poll() is not None:
                    raise RuntimeError(f"the server ended: {_read(log)[-500:]}")
                time.sleep(0.2)

            def ask(prompt: list[int], new: int) -> list[int]:
                sampling_params = {"temperature": 0, "max_new_tokens": new, "ignore_eos": True}
                body = {"input_ids": prompt, "sampling_params": sampling_params, "return_ids": True}
                request = urllib.request.Request(
                    f"{ready[1]}/generate", json.dumps(body).encode(), {"Content-Type": "application/json"}
                )
                with urllib.request.urlopen(request, timeout=300) as answer:
                    ids: list[int] = json.load(answer)["output_ids"]
                return ids

            chosen = re.search(r"attention \S+, pages of .*", _read(log))
            yield ask, chosen[0] if chosen else ""
        finally:
            process.send_signal(signal.SIGTERM)


def _read(log: Any) -> str:
    log.seek(0)
    text: str = log.read()
    return text


def serve(settings: Settings) -> Outcome:
    """Greedy ids over HTTP, of requests that are under way together, beside transformers' own."""
    from tokenizers import Tokenizer
    from transformers import AutoModelForCausalLM

    folder = Path(settings.model)
    new = 4 if settings.tiny else 64
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    prompts = [tokenizer.encode(text).ids for text in TEXTS[: 2 if settings.tiny else None]]
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    model.eval().to(settings.device)
    model.generation_config.eos_token_id = None  # neither side ends before the length
    with torch.inference_mode():
        wanted = [_generated(model, prompt, new) for prompt in prompts]
    runs: list[dict[str, Any]] = []
    problems, lines = [], []
    for dtype in ("float32",) if settings.tiny else ("float32", "bfloat16"):
        with served(settings, dtype) as (ask, chosen), ThreadPoolExecutor(len(prompts)) as clients:
            begin = time.perf_counter()
            answers = list(clients.map(ask, prompts, [new] * len(prompts)))
            took = time.perf_counter() - begin
        run = {"dtype": dtype, "chosen": chosen, "seconds": took, "differences": []}
        run["equal"] = sum(a == w for a, w in zip(answers, wanted, strict=True))
        for prompt, answer, right in zip(prompts, answers, wanted, strict=True):
            if len(answer) != new:
                problems.append(f"{dtype}: {len(answer)} tokens in place of {new}")
            elif answer != right and dtype == "float32":
                at = next(i for i, (a, b) in enumerate(zip(answer, right, strict=True)) if a != b)
                margin = _margin(model, prompt + right[:at])
                run["differences"].append({"position": at, "margin": margin})
                if margin > NEAR_TIE:
                    problems.append(f"at token {at} another one than transformers', {margin:.2g} apart")
        runs.append(run)
        lines.append(f"{dtype}: {run['equal']} of {len(prompts)} answers equal ({chosen})")
        print(f"serve {lines[-1]}")
    return Outcome("failed" if problems else "passed", "; ".join(problems or lines), {"runs": runs})


def _generated(model: Any, prompt: list[int], new: int) -> list[int]:
    ids = torch.tensor([prompt], device=model.device)
    made = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=new, do_sample=False)
    answer: list[int] = made[0, len(prompt) :].tolist()
    return answer


def _margin(model: Any, tokens: list[int]) -> float:
    """Between the two best float64 logits after these tokens. The model is float64 from then on."""
    with torch.inference_mode():
        best = model.double()(torch.tensor([tokens], device=model.device)).logits[0, -1].topk(2).values
    return float(best[0] - best[1])


# --- the model ------------------------------------------------------------------------------------------------------


def model_folder(name: str, into: Path) -> tuple[Path, str]:
    """Where the model is, and what to say of it. Where it cannot be had, random weights stand for it."""
    try:
        return resolve_model(name), name
    except ModelError as error:
        print(f"{one_line(error)}; random weights stand for it")
    return stand_in(into), f"random weights, for want of {name}"


def stand_in(folder: Path) -> Path:
    """A model of the demo model's shape, whose tokens are bytes."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", **SHAPE)).save_pretrained(folder)
    names = sorted(pre_tokenizers.ByteLevel.alphabet())
    names += [f"token {i}" for i in range(len(names), SHAPE["vocab_size"])]
    tokenizer = Tokenizer(models.BPE(vocab={name: i for i, name in enumerate(names)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


# --- the whole ------------------------------------------------------------------------------------------------------


def perform(part: str, settings: Settings) -> Outcome:
    """A part, in this process. Whatever it raises is its outcome."""
    kind, _, name = part.partition(" ")
    runs: dict[str, Callable[[], Outcome]] = {
        "attention": lambda: attend(settings, name),
        "sampling": lambda: sampling(settings),
        "graphs": lambda: graphs(settings),
        "serve": lambda: serve(settings),
    }
    try:
        return runs[kind]()
    except Exception as error:  # noqa: BLE001 - a kernel may raise anything, and the other parts are to be run
        return Outcome("failed", one_line(error))


def apart(part: str, settings: Settings, limit: float) -> Outcome:
    """A part, in a process of its own, which is ended after `limit` seconds."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "outcome.json"
        command = [sys.executable, __file__, "--here", "--quiet", "--parts", part, "--seconds", f"{settings.seconds:g}"]
        command += ["--model", settings.model, "--json", str(file), *["--tiny"] * settings.tiny]
        with subprocess.Popen(command, start_new_session=True) as process:
            try:
                process.wait(limit)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)  # with a server that it has started
                return Outcome("failed", f"did not end within {limit:.0f} s")
        if not file.exists():
            return Outcome("failed", f"its process ended with {process.returncode}")
        return Outcome(**json.loads(file.read_text())["parts"][part])


def outcomes(
    parts: Sequence[str], model: str, args: argparse.Namespace, deadline: float
) -> Iterator[tuple[str, Outcome]]:
    """One part after the other, as long as there is time."""
    starting = 0.0 if args.here else STARTING
    for at, part in enumerate(parts):
        left = deadline - time.monotonic()
        if left <= starting:
            yield part, Outcome("left out", "no time was left")
            continue
        weights = [WEIGHTS[one.partition(" ")[0]] for one in parts[at:]]
        share = left * weights[0] / sum(weights)
        settings = Settings(max(share - starting, 1.0), model, args.tiny)
        if args.here:
            yield part, perform(part, settings)
            continue
        print(f"\n{part}", flush=True)
        yield part, apart(part, settings, min(left, 1.5 * share + starting))


def main(arguments: Sequence[str]) -> int:
    """Ends with 1 where a part failed, and with 2 where there is nothing to look at."""
    names = [f"attention {name}" for name in installed().names("attention")]
    parts = ["sampling", "serve", "graphs", *names]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write all numbers")
    parser.add_argument("--seconds", type=float, default=440)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--parts", nargs="+", choices=parts, default=parts, metavar="NAME", help=", ".join(parts))
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--here", action="store_true")
    parser.add_argument("--quiet", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    begin, cuda = time.monotonic(), torch.cuda.is_available()
    if not cuda and not args.tiny:
        print("no CUDA device; --tiny tries the program on the CPU")
        return 2
    found: dict[str, Outcome] = {}
    with tempfile.TemporaryDirectory() as folder:
        path, model = model_folder(args.model, Path(folder))
        for part, outcome in outcomes(args.parts, str(path), args, begin + args.seconds):
            found[part] = outcome
    device = torch.cuda.get_device_name() if cuda else "cpu"
    took = time.monotonic() - begin
    if not args.quiet:
        print(f"\n{device}, torch {torch.__version__}, {model}, {took:.0f} s")
        for part, outcome in found.items():
            print(f"{part:24}{outcome.verdict:12}{outcome.told}")
    if args.json:
        every = {part: asdict(outcome) for part, outcome in found.items()}
        data = {"device": device, "torch": torch.__version__, "model": model, "seconds": took, "parts": every}
        args.json.write_text(json.dumps(data, indent=1) + "\n")
    return int(any(outcome.verdict == "failed" for outcome in found.values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
