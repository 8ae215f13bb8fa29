"""The computing side of an engine: from a model folder to an executor and the sizes that the scheduler works with."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rtk.config.models import Config
from rtk.errors import ConfigError, ModelError, RtkError, one_line
from rtk.native import built_in
from rtk.plugin.foreign import contained
from rtk.plugin.registry import Registry
from rtk.schedule.budget import Limits
from rtk.schedule.executor import Executor
from rtk.serve.backends import Choice, Settled, allowed, border, too_short

if TYPE_CHECKING:
    from rtk.model.linear import Quantizer
    from rtk.model.loader import LoadedModel
    from rtk.model.runner import ModelRunner
    from rtk.plugin import Capabilities, KVLayout

log = logging.getLogger(__name__)

CHUNK_ON_CPU, CHUNK = 1024, 8192
"""Longest piece of a prompt where none is set, in tokens."""
MIXED_CHUNK_ON_CPU = 96
"""The same beside requests that decode; elsewhere it is not shorter than in other steps.

`bench/chunk.py` shows what both cost and gain on a CPU.
"""
OVERLAP = frozenset[str]()
"""Devices on which steps overlap where nothing is set: those where `bench/overlap.py` shows that it pays.

None yet. On a CPU the host's work between two steps is 0.2 to 0.7 ms beside 28 to 100 of computation, and overlapping
them gained nothing that could be measured; CUDA was not measured.
"""


@dataclass(frozen=True, slots=True)
class Computing:
    """An executor, and what the scheduler and the front end must know of the model behind it."""

    executor: Executor
    limits: Limits
    vocab_size: int
    """Token ids that both the tokenizer and the model know are smaller."""
    end_tokens: frozenset[int]
    generation_config: Mapping[str, Any]
    """The model authors' defaults for requests that say nothing."""
    summary: str
    """One line: model, sizes, and how the pool's size came about."""
    attention: str = ""
    """Name of the attention backend."""
    overlap: bool = False
    """Whether a step is to be launched before the results of the one before are taken in."""
    mixed: bool = False
    """Whether running requests are to decode in the steps that compute prompts."""


def choose_backend(config: Config, registry: Registry) -> Choice:
    """Build the attention backends that may serve. Raises `RtkError` where none runs here, with pages of that size.

    Raises it too where weights cannot be held as they are to be. Which of the backends serves is settled by the model.
    Its page size is then the one that everybody uses.
    """
    choice = allowed(config, registry, usable_device(config)).narrowed(None)
    chunk_tokens(config, choice.device, choice.taken.page_size)  # whether prompts can be cut shows before a model does
    quantizer(config, choice.device)
    return choice


def quantizer(config: Config, device: str) -> "Quantizer | None":
    """What rounds the weights. Raises `ConfigError` where it cannot be had here."""
    from rtk.model.linear import Quantizer

    model = config.model
    if model.quantize is None:
        return None
    if device != "cpu" or model.dtype not in ("auto", "float32"):
        kind = f"on {device}" if device != "cpu" else f"and model.dtype = {model.dtype!r}"
        raise ConfigError(f"{Quantizer.wanted} {kind}: it is for float32 on a CPU; leave one of them out")
    with built_in(model.cache_dir / "native"):
        return Quantizer()


def load(config: Config, choice: Choice, folder: Path, vocab_size: int) -> Computing:
    """Load the model, ask it and the attention backends what they need, and allocate the pool.

    `vocab_size` is the tokenizer's. Raises `RtkError` where something is missing or does not fit.
    """
    from rtk.cache.pool import KVPool
    from rtk.model.cuda_graphs import cuda_recorder
    from rtk.model.fused import fuse_layers
    from rtk.model.inline_executor import InlineExecutor
    from rtk.model.linear import pack_linears
    from rtk.model.loader import load_model, read_outline
    from rtk.model.probe import probe
    from rtk.model.runner import ModelRunner
    from rtk.model.thread_executor import ThreadExecutor

    device, trust = choice.device, config.model.trust_remote_code
    outline = read_outline(folder, dtype=config.model.dtype, device=device, trust_remote_code=trust)
    choice = choice.narrowed(outline)  # before weights are read
    loaded = load_model(folder, dtype=config.model.dtype, device=device, trust_remote_code=trust)
    settled = choice.settled(lambda kinds: probe(loaded, kinds))
    log.info(settled.told)
    layout = settled.layout
    rounding = quantizer(config, device)
    with built_in(config.model.cache_dir / "native"):
        fuse_layers(loaded, rounding)
        pack_linears(loaded, rounding)
    size = loaded.facts.parameter_bytes if rounding is None else rounding.held(loaded.model)
    limits, reason = _limits(config, loaded, layout)  # of what is free once the model is in its place
    pool = KVPool(layout, limits.pool_tokens, loaded.device)
    known = min(vocab_size, loaded.facts.vocab_size)
    rows, context = limits.max_running + 1, limits.context_length
    runner = ModelRunner(loaded, settled.attention, pool, rows=rows, context_length=context)
    _warm_up(runner, loaded, settled)
    if graphs(config, loaded.device.type, settled.declared):
        runner.capture(limits.max_running, cuda_recorder(loaded.device))
    overlap = overlaps(config, loaded.device.type)
    executor = InlineExecutor(runner, known)
    return Computing(
        # Devices other than CPUs compute by themselves: there it is the host alone that a thread would have to share.
        executor=ThreadExecutor(executor) if overlap and loaded.device.type == "cpu" else executor,
        limits=limits,
        vocab_size=known,
        end_tokens=frozenset(loaded.facts.end_tokens),
        generation_config=loaded.facts.generation_config,
        attention=settled.name,
        summary=_summary(folder, config, loaded, size, settled.name, limits, reason),
        overlap=overlap,
        mixed=mixes(config, loaded.device.type),
    )


def _warm_up(runner: "ModelRunner", loaded: "LoadedModel", settled: Settled) -> None:
    """Compute what can be computed of first steps while nobody waits for an answer, or for a sign of life.

    Raises `RtkError` where it cannot.
    """
    if loaded.device.type != "cpu":
        log.info("computing a first step; kernels that are compiled when they are first needed take minutes")
    try:
        runner.warm_up()
    except RtkError:
        raise
    except BaseException as error:
        if not contained(error):
            raise
        log.debug("a first step failed", exc_info=True)
        kind, name = loaded.facts.kind, settled.name
        problem = f"no step of {kind} can be computed with attention {name}: {one_line(error)}"
        raise ModelError(f"{problem}; choose another attention.backend, or another model") from error


def _limits(config: Config, loaded: "LoadedModel", layout: "KVLayout") -> tuple[Limits, str]:
    """The sizes that requests are measured against, and how the pool's came about."""
    from rtk.model.memory import check_tables, free_bytes, pool_size

    page_size, max_running = layout.page_size, config.schedule.max_running
    longest = context_length(config, loaded.facts.context_length)
    free = free_bytes(loaded.device)
    check_tables(free, max_running, longest)
    size = pool_size(
        free=free,
        device=loaded.device.type,
        mem_fraction=config.cache.mem_fraction,
        pool_tokens=config.cache.pool_tokens,
        bytes_per_slot=layout.bytes_per_slot,
        page_size=page_size,
        max_running=max_running,
        context_length=longest,
    )
    limits = Limits(
        context_length=longest,
        pool_tokens=size.slots,
        page_size=page_size,
        max_running=max_running,
        max_prefill_tokens=config.schedule.max_prefill_tokens,
        chunk_tokens=chunk_tokens(config, loaded.device.type, page_size),
        mixed_tokens=mixed_tokens(config, loaded.device.type, page_size),
        align_tokens=config.schedule.truncation_align_size or 1,
    )
    return limits, size.reason


def graphs(config: Config, device: str, declared: "Capabilities") -> bool:
    """Whether steps that only decode are captured on a device of this type, by a backend that declares this."""
    return device == "cuda" and declared.graphs and config.model.cuda_graphs is not False


def overlaps(config: Config, device: str) -> bool:
    """Whether steps overlap on a device of this type."""
    wanted = config.schedule.overlap
    return device in OVERLAP if wanted is None else wanted


def mixes(config: Config, device: str) -> bool:
    """Whether running requests decode in the steps that compute prompts, on a device of this type."""
    wanted = config.schedule.mixed_chunk
    return device == "cpu" if wanted is None else wanted


def mixed_tokens(config: Config, device: str, page: int) -> int | None:
    """Longest piece of a prompt beside requests that decode; None: as in other steps. Never longer than there."""
    piece, wanted = chunk_tokens(config, device, page), config.schedule.mixed_chunk_size
    if piece is None or (wanted is None and device != "cpu"):
        return None
    return min(piece, wanted or max(border(config.schedule, page), MIXED_CHUNK_ON_CPU))


def chunk_tokens(config: Config, device: str, page: int) -> int | None:
    """Longest piece of a prompt; None where prompts are not cut. Pieces reach from border to border."""
    piece, align = config.schedule.chunked_prefill_size, config.schedule.truncation_align_size or 1
    if piece == -1:
        return None
    if short := too_short(config.schedule, page):
        name, tokens = short
        aligned = f" and multiples of schedule.truncation_align_size = {align}" if align > 1 else ""
        raise ConfigError(
            f"{name} = {tokens}: prompts are cut at borders of pages, which hold {page} tokens{aligned}; "
            f"make it at least {border(config.schedule, page)}, or set schedule.chunked_prefill_size = -1"
        )
    return piece or max(border(config.schedule, page), CHUNK_ON_CPU if device == "cpu" else CHUNK)


def usable_device(config: Config) -> str:
    """The torch device that `model.device` means here; also sets the number of CPU threads."""
    import torch

    if config.model.threads is not None:
        torch.set_num_threads(config.model.threads)
    wanted = config.model.device
    if wanted == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        found = torch.zeros(1, device=wanted)
        found.item()  # some devices take tensors and give no value back
    except Exception as error:
        raise ConfigError(
            f"model.device = {wanted!r}: not usable here: {one_line(error)}; choose cpu or auto"
        ) from error
    return "cpu" if found.device.type == "cpu" else wanted


def context_length(config: Config, own: int | None) -> int:
    """The longest sequence that is served, of a model that takes `own` tokens."""
    wanted = config.model.context_length
    length = own if wanted is None else wanted
    if length is None:
        raise ConfigError("the model's files name no context length; set model.context_length")
    if own is not None and length > own:
        raise ConfigError(
            f"model.context_length = {length}: the model takes at most {own} tokens; choose that or fewer"
        )
    return length


def weight_types(dtype: str, config: Config) -> str:
    """What weights are held as, of a model of this type, in a few words."""
    return dtype if config.model.quantize is None else f"{dtype} with {config.model.quantize} weights"


def _summary(
    folder: Path, config: Config, loaded: "LoadedModel", size: int, backend: str, limits: Limits, reason: str
) -> str:
    facts = loaded.facts
    types = weight_types(facts.dtype, config)
    return (
        f"{folder.name}: {facts.kind}, {types} on {loaded.device}, {size / 2**20:,.0f} MiB; "
        f"attention {backend}; up to {limits.max_running} requests of {limits.context_length:,} tokens; "
        f"KV pool {limits.pool_tokens:,} tokens: {reason}"
    )
