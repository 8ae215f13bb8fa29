"""Linear layers in float32 on a CPU, from weights that were packed once for the fastest kernel that there is here.

Where that is asked for, weights are rounded to integers of 8 bits first, by our own kernel alone: see `Quantizer`.

A step of few tokens is bound by its linear layers, and torch's own path for them is far from what the memory gives.
Our own kernel needs AVX-512 and a compiler, and packing operators are private to torch: each is used where it is there
and where its results are those of `F.linear`, which is used elsewhere. Original weights are let go: what is in memory
twice is only what somebody else reads too, as the embedding does that a head is tied to.
"""

import functools
import math
import platform
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from rtk.errors import ConfigError, ModelError
from rtk.model.latent import Latent
from rtk.model.loader import LoadedModel
from rtk.model.panels import SOURCE, Arena, Int8, Panels
from rtk.model.record import record
from rtk.model.threads import in_parallel, one_thread
from rtk.native import Unavailable, library

Linear = Callable[[torch.Tensor], torch.Tensor]
"""[..., in] to [..., out]."""
HINT = 256
"""Number of rows to pack for. Measured with 1 to 2,048 rows: packs for 256 and more are the fastest at every number,
those for fewer only up to their own, with both kernels; and one pack serves every number of rows."""
ROWS = (1, 4, 20, 64, 300)
"""Numbers of rows at which a pack is compared with `F.linear`,"""
WORK = 1 << 31
"""as far as a product has at most so many multiplications."""
CLOSE = 1e-5
"""Largest relative difference; rounding gives 1e-7 to 1e-6."""


class Mkl:
    """Intel's kernel: on its processors with AVX-512 the fastest that torch has, for every number of rows.

    A pack is divided among the threads there are when it is made: one made by a single thread is computed by one.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._compute = torch.ops.mkl._mkl_linear.default
        self._packed = torch.ops.mkl._mkl_reorder_linear_weight(weight, HINT)
        self._shape = gone(weight)
        self._bias = bias
        self._width = weight.shape[1]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """The pack is used for the number of rows that is named, whatever the number it was made for."""
        found: torch.Tensor = self._compute(x, self._packed, self._shape, self._bias, x.numel() // self._width)
        return found


class OneDnn:
    """oneDNN's kernel: on processors with AVX2 two times as fast as `F.linear` for a few rows."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._compute = torch.ops.mkldnn._linear_pointwise.default
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight, HINT)
        self._bias = bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self._compute(x, self._packed, self._bias, "none", [], "")
        return found


Kernel = Callable[[torch.Tensor, torch.Tensor | None], Linear]
"""From weight and bias."""


def kernels() -> tuple[Kernel, ...]:
    """Those to try, the fastest first, by what the processor is: nothing is timed, so every start is alike."""
    capability = torch.backends.cpu.get_cpu_capability()
    if capability == "AVX512":
        panels = functools.partial(Panels, arena=Arena())
        return (panels, Mkl, OneDnn) if _vendor() == "GenuineIntel" else (panels, OneDnn)
    return (OneDnn,) if capability == "AVX2" else ()


def _vendor() -> str:
    """Who made the processor, as it says itself."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return platform.processor().rpartition(" ")[2]  # Windows: "Intel64 Family 6 Model 85 Stepping 7, GenuineIntel"
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("vendor_id")), "")


class Packer:
    """Makes linear layers of weights [out, in], float32 on a CPU, and compares each with `F.linear`."""

    def __init__(self) -> None:
        self.kernels = kernels()
        self._seen: set[torch.Size] = set()

    @torch.no_grad()
    def pack(self, weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
        """By the first kernel that is there and right; holds `weight` only where there is none."""
        weight = weight.detach()
        makes = [functools.partial(kernel, weight, bias) for kernel in self.kernels]
        return self._first(makes, weight, bias) or functools.partial(F.linear, weight=weight, bias=bias)

    def _first(
        self, makes: Sequence[Callable[[], Linear]], weight: torch.Tensor, bias: torch.Tensor | None
    ) -> Linear | None:
        """What is made first and computes what `F.linear` does of a weight and a bias; None: nothing does.

        The first weight of a shape is compared at several numbers of rows, others with one row: O(in * out) each.
        """
        plain = functools.partial(F.linear, weight=weight, bias=bias)
        rows = ROWS[:1] if weight.shape in self._seen else [n for n in ROWS if n * weight.numel() <= WORK] or ROWS[:1]
        self._seen.add(weight.shape)
        return next((made for made in _made(makes) if _agree(made, plain, weight.shape[1], rows)), None)


class Quantizer(Packer):
    """Makes linear layers whose weights are integers of 8 bits, see `Int8`, and compares each with what these mean."""

    wanted = "model.quantize = 'int8'"
    """What asks for it, for messages."""

    def __init__(self) -> None:
        """Raises `ConfigError` where the kernel cannot be had: no other computes the same."""
        super().__init__()
        if torch.backends.cpu.get_cpu_capability() != "AVX512":
            raise ConfigError(f"{self.wanted}: its kernel needs a processor with AVX-512; leave it out")
        self._arena = Arena()
        try:
            library(SOURCE)
        except Unavailable as error:
            raise ConfigError(f"{self.wanted}: {error}, or leave it out") from error
        self.size = 0
        """Bytes of the weights that it made."""

    @torch.no_grad()
    def pack(self, weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
        """By our own kernel. Raises `ModelError` where integers cannot do it: a weight is not finite."""
        rounded = Int8.of(weight.detach())
        make = functools.partial(Panels, rounded, bias, self._arena)
        made = self._first([make], rounded.weight(), bias)
        if made is None:
            raise ModelError(
                f"{self.wanted}: a weight of {' x '.join(map(str, weight.shape))} cannot be rounded; leave it out"
            )
        self.size += sum(part.nbytes for part in rounded)
        return made

    def held(self, model: nn.Module) -> int:
        """Bytes of a model's weights, those that it rounded and the others."""
        return self.size + sum(weight.untyped_storage().nbytes() for weight in model.parameters())


def _made(makes: Sequence[Callable[[], Linear]]) -> Iterator[Linear]:
    for make in makes:
        try:
            made = in_parallel(make)
        except (AttributeError, ImportError, RuntimeError, TypeError):
            continue  # no compiler, a torch that was built without it, or whose operator takes something else
        yield made


def _agree(made: Linear, plain: Linear, width: int, rows: Sequence[int]) -> bool:
    given = torch.randn(max(rows), width, generator=torch.Generator().manual_seed(0))
    for n in rows:
        wanted = plain(given[:n])
        try:
            got = made(given[:n])
        except (RuntimeError, TypeError):
            return False
        if got.shape != wanted.shape or not (got - wanted).norm() <= CLOSE * wanted.norm():
            return False
    return True


def gone(weight: torch.Tensor) -> torch.Tensor:
    """Takes the place of a weight that is not kept: its shape and type without its memory, and NaN whoever reads it."""
    return torch.full((), math.nan, dtype=weight.dtype, device=weight.device).expand(weight.shape)


def let_go(module: nn.Linear) -> None:
    """Drop the module's weight."""
    module.weight = nn.Parameter(gone(module.weight), requires_grad=False)


@one_thread()
def pack_linears(loaded: LoadedModel, quantizer: Quantizer | None = None) -> int:
    """Pack the linear modules of a model that was probed; returns how many.

    Experts are left alone: of those, a step reads some only. Nothing is packed where anything but the modules
    themselves reads their weights. Costs two forwards of a few tokens and, one at a time, a copy of the weights.

    With a quantizer, packed weights are rounded; raises `ModelError` where the model multiplies by others too.
    """
    packer = quantizer or Packer()
    if loaded.device.type != "cpu" or loaded.facts.dtype != "float32" or not packer.kernels:
        return 0
    named = loaded.model.named_modules()
    linears = [module for name, module in named if is_plain(module) and "expert" not in name]
    if not _read_by_themselves(loaded, linears):
        linears = []
    for module in linears:
        module.forward = packer.pack(module.weight, module.bias)
        let_go(module)
    if quantizer is not None and (left := list(_matrices(loaded.model))):
        more = f" and {len(left) - 1} more" * (len(left) > 1)
        raise ModelError(
            f"{quantizer.wanted}: models of type {loaded.facts.kind!r} have weights that are not those of plain linear "
            f"layers, {left[0]!r}{more}; leave it out"
        )
    return len(linears)


def _matrices(model: nn.Module) -> Iterator[str]:
    """Names of weights that are still there, but for vectors and embeddings: of those, a step reads few rows."""
    for name, module in model.named_modules():
        if isinstance(getattr(module, "expand_kv", None), Latent):
            yield f"{name}.kv_b_proj.weight"  # it is there in parts
        if not isinstance(module, nn.Embedding):
            for own, weight in module.named_parameters(recurse=False):
                if weight.dim() > 1 and weight.untyped_storage().nbytes() >= weight.nbytes:
                    yield f"{name}.{own}"


def is_plain(module: nn.Module) -> bool:
    """Whether it is what it seems: nobody changed what it does, or keeps its weights in another way or type."""
    if type(module) is not nn.Linear or "forward" in vars(module):
        return False
    held = [part for part in (module.weight, module.bias) if part is not None]
    return all(type(part) is nn.Parameter and part.dtype == torch.float32 and part.numel() for part in held) and (
        module.weight.is_contiguous()
    )


def _read_by_themselves(loaded: LoadedModel, linears: Sequence[nn.Linear]) -> bool:
    """Whether the model's logits are the same without the modules' weights where only the modules can read them."""
    _, wanted = record(loaded)
    weights = [module.weight for module in linears]
    for module in linears:
        module.forward = functools.partial(F.linear, weight=module.weight, bias=module.bias)  # type: ignore[method-assign]
        let_go(module)
    try:
        _, got = record(loaded)
    except Exception:  # noqa: BLE001 - a forward of any model
        got = torch.full_like(wanted, math.nan)
    for module, weight in zip(linears, weights, strict=True):
        module.weight = weight
        del module.forward
    return bool((got - wanted).norm() <= CLOSE * wanted.norm())
