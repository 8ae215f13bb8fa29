"""A whole decode step against its linear layers alone: what everything else costs beside reading the weights.

    python bench/step.py [--threads 2] [--context 300] [--attention native] [--rounds 9]
                         [--json FILE]

float32, the demo model, steps of 1 and of 32 requests with that many tokens of context each. A step is what the engine
does of it: tables, model, attention and greedy sampling, ids on the host. The linear layers alone are those of the
model, joined as the engine joins them, on inputs that are there already, by each kernel that this torch has; the
fastest counts. All take turns in one process and one run; medians of the rounds, the first of which is not counted.
"""

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from rtk.cache.pool import KVPool
from rtk.model.fused import fuse_layers
from rtk.model.inline_executor import InlineExecutor
from rtk.model.linear import Quantizer, pack_linears
from rtk.model.loader import LoadedModel, load_model
from rtk.model.panels import Arena, Panels
from rtk.model.probe import probe
from rtk.model.runner import ModelRunner
from rtk.model.store import fetch
from rtk.plugin.host import installed
from rtk.schedule.batch import Row, SampleInputs, StepPlan

BOUNDS = {1: 1.25, 32: 1.5}
"""Of a step to its linear layers, by the number of requests."""
CHUNK = 2048
Kernel = Callable[[torch.Tensor], torch.Tensor]
clock = time.perf_counter


class Steps:
    """Requests that decode, one step after the other."""

    def __init__(
        self,
        loaded: LoadedModel,
        context: int,
        most: int,
        attention: str = "native",
        quantizer: Quantizer | None = None,
    ) -> None:
        entry = installed().get("attention", attention)
        backend = entry.build(entry.plugin.options())
        needs = probe(loaded)
        fuse_layers(loaded, quantizer=quantizer)
        pack_linears(loaded, quantizer=quantizer)
        length = context + 512
        pool = KVPool(backend.layout(needs.shape, 1, needs.dtype), most * length, loaded.device)
        runner = ModelRunner(loaded, backend, pool, rows=most, context_length=length)
        self._executor = InlineExecutor(runner, loaded.facts.vocab_size)
        self._length = length
        self._lens = [0] * most
        self._next = np.random.default_rng(0).integers(1000, 40000, (most, context)).astype(np.int32)
        for row in range(most):
            self._next[row, :1] = self.run([row])

    def run(self, rows: list[int]) -> list[int]:
        """One token for each of these requests: what follows its prompt, and then one after the other."""
        tokens = [self._next[row, :1] if self._lens[row] else self._next[row] for row in rows]
        plan_rows = tuple(Row(row, self._lens[row], len(t), 1) for row, t in zip(rows, tokens, strict=True))
        slots = [row.req_row * self._length + 1 + row.start + np.arange(row.q_len) for row in plan_rows]
        plan = StepPlan(0, plan_rows, np.concatenate(tokens), np.concatenate(slots).astype(np.int32))
        step = self._executor.launch(plan)
        step.sample(_greedy(len(rows)))
        found = [ids[0] for ids in step.result().tokens]
        for row, t, token in zip(rows, tokens, found, strict=True):
            self._lens[row] += len(t)
            self._next[row, 0] = token
        return found


def _greedy(n: int) -> SampleInputs:
    return SampleInputs(np.zeros(n, np.float32), np.ones(n, np.float32), np.zeros(n, np.int32), np.zeros(n))


def weights(model: Any) -> list[torch.Tensor]:
    """Of all linear layers, those with one input as one; before they are packed."""
    found = []
    for layer in model.model.layers:
        attention, mlp = layer.self_attn, layer.mlp
        joint = (attention.q_proj, attention.k_proj, attention.v_proj), (mlp.gate_proj, mlp.up_proj)
        qkv, gate_up = (torch.cat([part.weight for part in parts]) for parts in joint)
        found += [qkv, attention.o_proj.weight, gate_up, mlp.down_proj.weight]
    return [*found, model.lm_head.weight]


def kernels(rows: int) -> Iterator[tuple[str, Callable[[torch.Tensor], Kernel]]]:
    """Ways to compute a linear layer, by name: what makes it of a weight."""
    yield "F.linear", lambda w: lambda x: F.linear(x, w)
    if torch.backends.mkldnn.is_available():
        yield "oneDNN, packed", lambda w: _onednn(w, rows)
    if torch.backends.mkl.is_available():
        yield "MKL, packed", lambda w: _mkl(w, rows)
    if torch.backends.cpu.get_cpu_capability() == "AVX512":
        arena = Arena()
        yield "panels", lambda w: Panels(w, None, arena)


def _onednn(weight: torch.Tensor, rows: int) -> Kernel:
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, rows)
    return lambda x: torch.ops.mkldnn._linear_pointwise(x, packed, None, "none", [], "")


def _mkl(weight: torch.Tensor, rows: int) -> Kernel:
    packed = torch.ops.mkl._mkl_reorder_linear_weight(weight, rows)
    return lambda x: torch.ops.mkl._mkl_linear(x, packed, weight, None, len(x))


@torch.inference_mode()
def measure(folder: Path, threads: int, context: int, attention: str, rounds: int) -> dict[int, dict[str, list[float]]]:
    """Seconds of every way, by the number of requests: a value for each round."""
    torch.set_num_threads(threads)
    loaded = load_model(folder)
    plain = [weight.clone() for weight in weights(loaded.model)]
    steps = Steps(loaded, context, max(BOUNDS), attention)
    found = {}
    for rows in BOUNDS:
        inputs = {weight.shape[1]: torch.randn(rows, weight.shape[1]) for weight in plain}
        ways: dict[str, Callable[[], object]] = {"step": lambda rows=rows: steps.run(list(range(rows)))}
        for name, make in kernels(rows):
            made = [(make(weight), inputs[weight.shape[1]]) for weight in plain]
            ways[name] = lambda made=made: [kernel(x) for kernel, x in made]
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(rounds + 1):
            for name, work in ways.items():
                begin = clock()
                work()
                seconds[name].append(clock() - begin)
        found[rows] = {name: values[1:] for name, values in seconds.items()}
    return found


def main() -> None:
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--threads", type=int, default=2)
    ap.add_argument("--context", type=int, default=300)
    ap.add_argument("--attention", default="native", help="the plugin")
    ap.add_argument("--rounds", type=int, default=9)
    ap.add_argument("--json", type=Path, metavar="FILE")
    args = ap.parse_args()
    seconds = measure(fetch(), args.threads, args.context, args.attention, args.rounds)
    print(f"{platform.machine()}, {args.threads} threads, torch {version('torch')}, context {args.context}")
    ratios = {}
    for rows, ways in seconds.items():
        medians = {name: statistics.median(values) for name, values in ways.items()}
        for name, value in medians.items():
            print(f"{rows:3} requests  {name:16} {value * 1e3:8.2f} ms   (min {min(ways[name]) * 1e3:.2f})")
        step = medians.pop("step")
        best = min(medians, key=medians.__getitem__)
        ratios[rows] = step / medians[best]
        print(f"{rows:3} requests  step / {best}: {ratios[rows]:.2f}, wanted at most {BOUNDS[rows]}")
    if args.json:
        args.json.write_text(json.dumps({"seconds": seconds, "ratios": ratios}, indent=1) + "\n")


if __name__ == "__main__":
    main()
