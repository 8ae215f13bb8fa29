"""`rtk serve --dry-run`: everything that a start does before it reads weights, and what it would run with."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from rtk.config.keys import as_text
from rtk.config.load import LoadedConfig
from rtk.config.models import PLUGIN_SECTIONS, Config
from rtk.config.sources import DEFAULT
from rtk.plugin.registry import Registry
from rtk.schedule.budget import ceil_page
from rtk.serve.backends import Choice
from rtk.serve.computing import (
    choose_backend,
    chunk_tokens,
    context_length,
    mixed_tokens,
    mixes,
    overlaps,
    weight_types,
)
from rtk.serve.runtime import build_grammar_backends, build_policies, start_observers
from rtk.serve.tls import tls_context

if TYPE_CHECKING:
    from rtk.model.loader import Outline


def rehearse(loaded: LoadedConfig, registry: Registry) -> list[str]:
    """Lines that say what would run. Fetches nothing and takes no port.

    How many tokens the free memory holds, and whether the backend computes the model's attention, shows only with the
    weights. Raises `RtkError` where the start would fail before them.
    """
    from rtk.model.store import find_model

    config = loaded.config
    tls = tls_context(config.serve.tls)
    build_policies(config)
    grammars = [one.entry.plugin.name for one in build_grammar_backends(config)]
    start_observers(config).close()
    choice = choose_backend(config, registry)
    folder = find_model(config.model.path, cache_dir=config.model.cache_dir)
    if folder is None:
        lines = [f"model: {config.model.path}, to be fetched; device {choice.device}"]
    else:
        outline = _outline(config, folder, choice.device)
        choice = choice.rehearsed(outline).left(outline)
        lines = [*_model(config, folder, outline, choice)]
    lines += _plugins(config, registry, choice, grammars)
    serve = config.serve
    host = f"[{serve.host}]" if ":" in serve.host else serve.host
    lines.append(
        f"address: {'http' if tls is None else 'https'}://{host}:{serve.port}"
        + (" (any free port)" if serve.port == 0 else "")
    )
    given = [(key.path, value, source) for key, value, source in loaded.rows() if source != DEFAULT]
    return [*lines, *(f"{path} = {as_text(value)}  # {source}" for path, value, source in given)]


def _outline(config: Config, folder: Path, device: str) -> "Outline":
    from rtk.model.loader import read_outline
    from rtk.serve.tokenizer import Tokenizer

    Tokenizer.load(folder)
    model = config.model
    return read_outline(folder, dtype=model.dtype, device=device, trust_remote_code=model.trust_remote_code)


def _model(config: Config, folder: Path, outline: "Outline", choice: Choice) -> Iterator[str]:
    import torch

    device, page = choice.device, choice.taken.page_size
    longest = context_length(config, outline.context_length)
    types = weight_types(outline.dtype or "type of its weights", config)
    yield f"model: {folder}: {outline.kind}, {types} on {device}"
    kind = torch.device(device).type
    piece = chunk_tokens(config, kind, page)
    cut = "prompts are not cut" if piece is None else f"prompts in pieces of {piece:,} tokens"
    if mixes(config, kind):
        beside = mixed_tokens(config, kind, page)
        cut += ", decoding along" + ("" if beside is None else f" with pieces of {beside:,}")
    steps = "overlapping steps" if overlaps(config, kind) else "steps one after the other"
    yield f"sizes: up to {config.schedule.max_running} requests of {longest:,} tokens, {cut}, {steps}"
    yield _pool(config, kind, longest, page)


def _pool(config: Config, kind: str, longest: int, page: int) -> str:
    from rtk.model.memory import share_of_free, useful_tokens

    cache = config.cache
    if cache.pool_tokens is not None:
        return f"KV pool: {ceil_page(cache.pool_tokens, page):,} tokens in pages of {page:,}"
    share = share_of_free(kind) if cache.mem_fraction is None else cache.mem_fraction
    most = useful_tokens(config.schedule.max_running, longest, page)
    return f"KV pool: up to {most:,} tokens in pages of {page:,}, from {share:g} of what is free beside the weights"


def _plugins(config: Config, registry: Registry, choice: Choice, grammars: list[str]) -> Iterator[str]:
    for section in (getattr(config, name) for name in PLUGIN_SECTIONS):
        attends = section.kind == "attention"
        found = {"attention": [choice.taken.name], "grammar": grammars}.get(section.kind, section.all_chosen)
        for chosen in found:
            entry = registry.get(section.kind, chosen)
            options = ", ".join(f"{option} = {as_text(value)}" for option, value in section.options(chosen))
            origin = f"{entry.origin.distribution} {entry.origin.version}"
            line = f"{section.kind}: {entry.plugin.name} of {origin}" + (f" ({options})" if options else "")
            yield f"{line}, {choice.why}" if attends else line
