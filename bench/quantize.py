"""What int8 weights gain in a step, and what they cost in perplexity: by rtk's kernel, and by each that torch has here.

    python bench/quantize.py [--threads 2] [--context 100] [--rounds 15] [--only NAME ...] [--json FILE]

The demo model on a CPU. `rtk` is what `model.quantize: int8` does; the others have one scale for each output channel.
The embedding stays float32, the head is quantized like the layers. A step is what the engine does of it, see `step.py`;
its linear layers alone are those of such a model; those of a prompt of 1,024 tokens are without the head. Each kernel
takes turns with the packed float32 kernel that rtk computes with, in one process; ratios are of the medians of the
rounds. Perplexity is that of quantize_text.txt, 1,851 tokens in one forward; `same` is the share of its positions at
which the likeliest token is that of float32, and `kl` the mean divergence of the next token's distribution from
float32's.

Those that are called int8 x int8 take activations as 8 bits too, so they quantize more than weights, and bf16 quantizes
less: they are there for comparison.
"""

import argparse
import json
import math
import platform
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from step import Steps, weights

from rtk.errors import RtkError
from rtk.model.bridge import flat_logits
from rtk.model.linear import Linear, Packer, Quantizer
from rtk.model.loader import LoadedModel, load_model
from rtk.model.record import Recorder
from rtk.model.store import fetch

ROWS = (1, 8, 32)
PROMPT = 1024
Make = Callable[[torch.Tensor], Linear]
clock = time.perf_counter


def by_channel(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Integers of -127 to 127, and what each row of them is to be multiplied with."""
    scale = weight.abs().amax(1) / 127
    return (weight / scale[:, None]).round().to(torch.int8), scale


class OneDnn:
    """oneDNN's product of uint8 and int8: one row of bytes and a factor for each row of activations."""

    levels = 127
    offset = 128

    def __init__(self, weight: torch.Tensor) -> None:
        ints, scale = by_channel(weight)
        self.compute = torch.ops.onednn.qlinear_pointwise.default
        self.packed = torch.ops.onednn.qlinear_prepack(ints, None)
        self.scale, self.zero = scale / self.levels, torch.zeros(len(weight), dtype=torch.int32)
        self.bias = (-self.offset * ints.sum(1).double() * self.scale.double()).float()
        self.half = torch.tensor(128.5)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        size = x.abs().amax(-1, keepdim=True)
        ints = torch.addcdiv(self.half, x, size, value=127.0).to(torch.uint8)
        return self.product(ints).mul_(size)

    def product(self, ints: torch.Tensor) -> torch.Tensor:
        """[n, in] bytes, `offset` more than they mean, to [n, out]."""
        found: torch.Tensor = self.compute(
            ints, 1.0, 0, self.packed, self.scale, self.zero, self.bias, 1.0, 0, torch.float32, "none", [], ""
        )
        return found


class OneDnn16(OneDnn):
    """The same with activations of 16 bits: high and low bytes are rows of one product, which reads weights once."""

    levels = 32767
    offset = 32768 / 257  # the bias is added to both rows, and they are added as 256 to 1

    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__(weight)
        self.half = torch.tensor(32768.5)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        n, width = x.shape
        size = x.abs().amax(-1, keepdim=True)
        ints = torch.addcdiv(self.half, x, size, value=32767.0).int().view(torch.uint8)
        low_high = ints.as_strided((2, n, width), (1, 4 * width, 4)).reshape(2 * n, width)
        y = self.product(low_high)
        return torch.add(y[:n], y[n:], alpha=256).mul_(size)


def int8_bf16(weight: torch.Tensor) -> Linear:
    """torch's own weight-only product; it has one for float32 too, of scalar speed."""
    ints, scale = by_channel(weight)
    half = scale.bfloat16()
    return lambda x: torch._weight_int8pack_mm(x.bfloat16(), ints, half).float()


def fbgemm(weight: torch.Tensor) -> Linear:
    """One factor for all activations of a batch: what one request says changes another's answer."""
    ints, scale = by_channel(weight)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # tensors of quantized types are deprecated, and there is no other way
        zero = torch.zeros(len(weight), dtype=torch.int64)
        quantized = torch._make_per_channel_quantized_tensor(ints, scale.double(), zero, 0)
    packed = torch.ops.quantized.linear_prepack(quantized, None)
    compute = torch.ops.quantized.linear_dynamic.default
    return lambda x: compute(x, packed)


def by_blocks(weight: torch.Tensor) -> Linear:
    """Blocks that fit into a core's cache become float32 there: nothing but plain operations."""
    ints, scale = by_channel(weight)
    blocks = ints.split(512)
    return lambda x: torch.cat([F.linear(x, block.float()) for block in blocks], 1).mul_(scale)


def bf16(weight: torch.Tensor) -> Linear:
    """No int8: half of the bytes."""
    packed = torch.ops.mkldnn._reorder_linear_weight(weight.bfloat16(), 256)
    compute = torch.ops.mkldnn._linear_pointwise.default
    return lambda x: compute(x.bfloat16(), packed, None, "none", [], "").float()


class ByTorch(Quantizer):
    """Makes linear layers by a kernel of torch, and compares them with nothing."""

    def __init__(self, make: Make) -> None:
        super().__init__()
        self._make = make

    def pack(self, weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
        assert bias is None, "the demo model has none"
        compute = self._make(weight.detach())
        return lambda x: compute(x.flatten(0, -2)).unflatten(0, x.shape[:-1])


KERNELS: dict[str, Callable[[], Quantizer]] = {
    "rtk": Quantizer,
    "int8, bf16 activations": partial(ByTorch, int8_bf16),
    "int8, 16-bit activations": partial(ByTorch, OneDnn16),
    "int8, blocks to float32": partial(ByTorch, by_blocks),
    "int8 x int8 by row": partial(ByTorch, OneDnn),
    "int8 x int8 by batch": partial(ByTorch, fbgemm),
    "bf16": partial(ByTorch, bf16),
}


def model(folder: Path, context: int, quantizer: Quantizer | None) -> tuple[Steps, LoadedModel]:
    """The model as the engine prepares it."""
    loaded = load_model(folder)
    return Steps(loaded, context, max(ROWS), quantizer=quantizer), loaded


@torch.inference_mode()
def logits(loaded: LoadedModel, ids: torch.Tensor) -> torch.Tensor:
    """[T, vocab] of one sequence."""
    positions = torch.arange(len(ids))
    return flat_logits(loaded.model, Recorder(torch.zeros_like(ids), positions), ids, positions, positions)


def perplexity(found: torch.Tensor, ids: torch.Tensor) -> float:
    return math.exp(F.cross_entropy(found[:-1], ids[1:]).item())


def text_ids(folder: Path) -> torch.Tensor:
    from transformers import AutoTokenizer

    text = (Path(__file__).parent / "quantize_text.txt").read_text(encoding="utf-8")
    tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    return torch.tensor(tokenizer(text)["input_ids"])


def turns(ways: Sequence[Callable[[], object]], rounds: int) -> list[float]:
    """Median seconds of each way, all in turns; the first round is not counted."""
    seconds: list[list[float]] = [[] for _ in ways]
    for _ in range(rounds + 1):
        for way, values in zip(ways, seconds, strict=True):
            begin = clock()
            way()
            values.append(clock() - begin)
    return [statistics.median(values[1:]) for values in seconds]


@torch.inference_mode()
def measure(threads: int, context: int, rounds: int, names: list[str]) -> dict[str, dict[str, float]]:
    torch.set_num_threads(threads)
    folder = fetch()
    ids = text_ids(folder)
    plain = [weight.clone() for weight in weights(load_model(folder).model)]
    packer = Packer()
    packed = [packer.pack(weight, None) for weight in plain]
    base, loaded = model(folder, context, None)
    wanted = logits(loaded, ids)
    exact = perplexity(wanted, ids)
    print(f"float32: perplexity {exact:.3f} of {len(ids)} tokens", flush=True)
    found = {}
    for name in names:
        try:
            quantizer = KERNELS[name]()
            made = [quantizer.pack(weight, None) for weight in plain]
        except (AttributeError, RuntimeError, RtkError) as error:
            print(f"{name}: not here: {str(error).splitlines()[0]}", flush=True)
            continue
        steps, own = model(folder, context, quantizer)
        figures: dict[str, float] = {}
        widths = [weight.shape[1] for weight in plain]
        for rows in ROWS:
            figures |= compare(rows, rounds, widths, (packed, made), (base, steps))
        figures |= compare(PROMPT, max(rounds // 4, 3), widths[:-1], (packed[:-1], made[:-1]))
        del steps, made  # before another model comes
        got = logits(own, ids)
        figures["perplexity"] = perplexity(got, ids)
        figures["change %"] = 100 * (figures["perplexity"] / exact - 1)
        figures["same %"] = 100 * (got.argmax(-1) == wanted.argmax(-1)).double().mean().item()
        said = wanted.log_softmax(-1)
        figures["kl"] = F.kl_div(got.log_softmax(-1), said, reduction="batchmean", log_target=True).item()
        del own, got, said
        found[name] = figures
        _tell(name, figures)
    return found


def compare(
    rows: int,
    rounds: int,
    widths: list[int],
    linears: tuple[list[Linear], list[Linear]],
    steps: tuple[Steps, Steps] | None = None,
) -> dict[str, float]:
    """Milliseconds and ratios of linear layers [in: widths] alone and of whole steps; float32 is the first of each."""
    xs = {width: torch.randn(rows, width) for width in widths}
    given, asked = [xs[width] for width in widths], list(range(rows))

    def alone(kernels: list[Linear]) -> None:
        for kernel, x in zip(kernels, given, strict=True):
            kernel(x)

    kinds: dict[str, list[Callable[[], object]]] = {"linear": [partial(alone, kernels) for kernels in linears]}
    if steps is not None:
        kinds["step"] = [partial(own.run, asked) for own in steps]
    medians = iter(turns([work for works in kinds.values() for work in works], rounds))
    figures = {}
    for kind, (plain, quantized) in zip(kinds, zip(medians, medians, strict=True), strict=True):
        figures[f"float32 {kind} ms {rows}"] = plain * 1e3
        figures[f"{kind} ms {rows}"] = quantized * 1e3
        figures[f"{kind} x {rows}"] = plain / quantized
    return figures


def _tell(name: str, figures: dict[str, float]) -> None:
    for rows, kind in product((*ROWS, PROMPT), ("step", "linear")):
        if f"{kind} x {rows}" in figures:
            before, after = figures[f"float32 {kind} ms {rows}"], figures[f"{kind} ms {rows}"]
            print(f"{name:26} {kind:6} {rows:4}: {before:.1f} to {after:.1f} ms = {figures[f'{kind} x {rows}']:.2f}x")
    print(
        f"{name:26} perplexity {figures['perplexity']:.3f} ({figures['change %']:+.2f}%), "
        f"same {figures['same %']:.1f}%, kl {figures['kl']:.4f}",
        flush=True,
    )


def main() -> None:
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--threads", type=int, default=2)
    ap.add_argument("--context", type=int, default=100)
    ap.add_argument("--rounds", type=int, default=15)
    ap.add_argument("--only", nargs="+", choices=KERNELS, default=list(KERNELS), metavar="NAME")
    ap.add_argument("--json", type=Path, metavar="FILE")
    args = ap.parse_args()
    print(f"{platform.machine()}, {args.threads} threads, torch {version('torch')}, context {args.context}")
    found = measure(args.threads, args.context, args.rounds, args.only)
    if args.json:
        args.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
