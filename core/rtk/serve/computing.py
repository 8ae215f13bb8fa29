"""The computing side of an engine: from a model folder to an executor and the sizes that the scheduler works with."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import lcm
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rtk.config.models import Config
from rtk.errors import ConfigError, one_line
from rtk.plugin.registry import Registry
from rtk.schedule.budget import Limits
from rtk.schedule.executor import Executor

if TYPE_CHECKING:
    from rtk.model.loader import LoadedModel
    from rtk.plugin import AttentionBackend

CHUNK_ON_CPU, CHUNK = 2048, 8192
"""Longest piece of a prompt where none is set, in tokens."""
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
    overlap: bool = False
    """Whether a step is to be launched before the results of the one before are taken in."""


@dataclass(frozen=True, slots=True)
class Backend:
    """The attention backend that configuration chooses, and the torch device that it is to run on."""

    name: str
    attention: "AttentionBackend"
    device: str


def choose_backend(config: Config, registry: Registry) -> Backend:
    """Build the attention backend. Raises `RtkError` where it does not run here, or not with pages of that size.

    The page size that is configured is the one that is used, by everybody: a backend cannot change it.
    """
    import torch

    from rtk.model.probe import check_backend

    device = usable_device(config)
    entry = registry.get("attention", config.attention.backend)
    built = entry.build_in_time(config.attention.options())
    check_backend(entry.plugin.name, built.capabilities, None, torch.device(device), config.cache.page_size)
    return Backend(entry.plugin.name, built, device)


def load(config: Config, chosen: Backend, folder: Path, vocab_size: int) -> Computing:
    """Load the model, ask it and the attention backend what they need, and allocate the pool.

    `vocab_size` is the tokenizer's. Raises `RtkError` where something is missing or does not fit.
    """
    import torch

    from rtk.cache.pool import KVPool
    from rtk.model.fused import fuse_layers
    from rtk.model.inline_executor import InlineExecutor
    from rtk.model.linear import pack_linears
    from rtk.model.loader import load_model, read_outline
    from rtk.model.probe import check_backend, probe
    from rtk.model.runner import ModelRunner
    from rtk.model.thread_executor import ThreadExecutor

    name, backend, device = chosen.name, chosen.attention, chosen.device
    trust, page_size = config.model.trust_remote_code, config.cache.page_size
    outline = read_outline(folder, dtype=config.model.dtype, device=device, trust_remote_code=trust)
    check_backend(name, backend.capabilities, outline, torch.device(device), page_size)  # before weights are read
    loaded = load_model(folder, dtype=config.model.dtype, device=device, trust_remote_code=trust)
    needs = probe(loaded)
    check_backend(name, backend.capabilities, needs, loaded.device, page_size)
    layout = backend.layout(needs.shape, page_size, needs.dtype)
    fuse_layers(loaded)
    pack_linears(loaded)
    limits, reason = _limits(config, loaded, layout.bytes_per_slot)  # of what is free once the model is in its place
    pool = KVPool(layout, limits.pool_tokens, loaded.device)
    known = min(vocab_size, loaded.facts.vocab_size)
    rows, context = limits.max_running + 1, limits.context_length
    runner = ModelRunner(loaded, backend, pool, rows=rows, context_length=context)
    overlap = overlaps(config, loaded.device.type)
    executor = InlineExecutor(runner, known)
    return Computing(
        # Devices other than CPUs compute by themselves: there it is the host alone that a thread would have to share.
        executor=ThreadExecutor(executor) if overlap and loaded.device.type == "cpu" else executor,
        limits=limits,
        vocab_size=known,
        end_tokens=frozenset(loaded.facts.end_tokens),
        generation_config=loaded.facts.generation_config,
        summary=_summary(folder, loaded, name, limits, reason),
        overlap=overlap,
    )


def _limits(config: Config, loaded: "LoadedModel", bytes_per_slot: int) -> tuple[Limits, str]:
    """The sizes that requests are measured against, and how the pool's came about."""
    from rtk.model.memory import check_tables, free_bytes, pool_size

    page_size, max_running = config.cache.page_size, config.schedule.max_running
    longest = context_length(config, loaded.facts.context_length)
    free = free_bytes(loaded.device)
    check_tables(free, max_running, longest)
    size = pool_size(
        free=free,
        device=loaded.device.type,
        mem_fraction=config.cache.mem_fraction,
        pool_tokens=config.cache.pool_tokens,
        bytes_per_slot=bytes_per_slot,
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
        chunk_tokens=chunk_tokens(config, loaded.device.type),
        align_tokens=config.schedule.truncation_align_size or 1,
    )
    return limits, size.reason


def overlaps(config: Config, device: str) -> bool:
    """Whether steps overlap on a device of this type."""
    wanted = config.schedule.overlap
    return device in OVERLAP if wanted is None else wanted


def chunk_tokens(config: Config, device: str) -> int | None:
    """Longest piece of a prompt; None where prompts are not cut. Pieces reach from border to border."""
    schedule, page = config.schedule, config.cache.page_size
    piece, align = schedule.chunked_prefill_size, schedule.truncation_align_size or 1
    if piece == -1:
        return None
    border = lcm(page, align)
    for name, tokens in (("chunked_prefill_size", piece), ("max_prefill_tokens", schedule.max_prefill_tokens)):
        if tokens is not None and tokens < border:
            aligned = f" and multiples of schedule.truncation_align_size = {align}" if align > 1 else ""
            raise ConfigError(
                f"schedule.{name} = {tokens}: prompts are cut at borders of pages, which hold {page} tokens{aligned}; "
                f"make it at least {border}, or set schedule.chunked_prefill_size = -1"
            )
    return piece or max(border, CHUNK_ON_CPU if device == "cpu" else CHUNK)


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
    """The longest sequence that is served, of a model that was made for `own` tokens."""
    wanted = config.model.context_length
    length = own if wanted is None else wanted
    if length is None:
        raise ConfigError("the model's files name no context length; set model.context_length")
    if own is not None and length > own:
        raise ConfigError(
            f"model.context_length = {length}: the model was made for at most {own} tokens; choose that or fewer"
        )
    return length


def _summary(folder: Path, loaded: "LoadedModel", backend: str, limits: Limits, reason: str) -> str:
    facts = loaded.facts
    return (
        f"{folder.name}: {facts.kind}, {facts.dtype} on {loaded.device}, {facts.parameter_bytes / 2**20:,.0f} MiB; "
        f"attention {backend}; up to {limits.max_running} requests of {limits.context_length:,} tokens; "
        f"KV pool {limits.pool_tokens:,} tokens: {reason}"
    )
