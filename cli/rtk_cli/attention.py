"""`rtk attention`: which attention backends can serve a model on this machine, and which one would."""

import json
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rtk.errors import RtkError, printable
from rtk_cli.options import with_config
from rtk_cli.tables import print_table, table_of

if TYPE_CHECKING:
    from rtk.config.load import LoadedConfig
    from rtk.model.loader import Outline
    from rtk.serve.backends import Backend, Choice

KEYS = {"model.path", "model.cache_dir", "model.dtype", "model.device", "cache.page_size", "attention.backend"}
"""What has a flag here; other keys that a start reads come from files, variables and --set."""


@with_config(lambda key: key.path in KEYS)
def attention(
    loaded: "LoadedConfig", as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False
) -> None:
    """Tell which attention backends can serve a model here, why others cannot, and which one would.

    Reads no weights; what only they show is compared at the start. Ends with code 1 where no backend would serve.
    """
    from rtk.model.loader import read_outline
    from rtk.model.store import find_model
    from rtk.plugin.host import installed
    from rtk.serve.backends import every_backend
    from rtk.serve.computing import usable_device

    model = loaded.config.model
    device, outline = usable_device(loaded.config), None
    folder = find_model(model.path, cache_dir=model.cache_dir)
    if folder is not None:
        outline = read_outline(folder, dtype=model.dtype, device=device, trust_remote_code=model.trust_remote_code)
    every = every_backend(loaded.config, installed(), device).rehearsed(outline)
    chosen, refusal = None, None
    try:
        chosen = every.configured().left(outline)
    except RtkError as error:
        refusal = error
    if as_json:
        typer.echo(json.dumps(_data(every, chosen, outline), indent=2))
    else:
        for line in _head(every, outline):
            typer.echo(printable(line))
        _print(every, chosen)
    if refusal is not None:
        raise refusal


def _head(every: "Choice", outline: "Outline | None") -> Iterator[str]:
    from rtk.serve.computing import weight_types

    path, major = every.config.model.path, every.compute_capability
    if outline is None:
        yield f"model: {path}, to be fetched: nothing is known of it"
    else:
        asks = ", ".join(["mla"] * (outline.mla is True) + sorted(outline.features))
        types = weight_types(outline.dtype or "type of its weights", every.config)
        yield f"model: {path}: {outline.kind}, {types}" + f", {asks}" * bool(asks)
    yield f"device: {every.device}" + (f" of compute capability {major}" if major is not None else "")


def _print(every: "Choice", chosen: "Choice | None") -> None:
    table = table_of("name", "serves", "pages", "takes pages", "devices", "types", "attention", "preference", "why not")
    for one in every.backends:
        declared = one.declared
        cells = ["", "", "", "", ""]
        if declared is not None:
            takes = "any" if declared.page_sizes is None else _listed(declared.page_sizes)
            majors = "" if declared.compute_capabilities is None else f" {_listed(declared.compute_capabilities)}"
            able = _listed((*sorted(declared.kinds), *sorted(declared.features)))
            types = _listed(sorted(declared.dtypes))
            cells = [takes, _listed(sorted(declared.devices)) + majors, types, able, str(declared.preference)]
        pages = "" if one.problems else str(one.page_size)
        table.add_row(one.name, _state(one, chosen), pages, *cells, printable(one.why_not()))
    print_table(table)
    if chosen is not None:
        typer.echo(printable(f"a start takes {chosen.taken.name}: {chosen.why}"))


def _state(one: "Backend", chosen: "Choice | None") -> str:
    if chosen is not None and one.name == chosen.taken.name:
        return "taken"
    return "no" if one.problems else "yes"


def _listed(values: Iterable[object]) -> str:
    return ", ".join(map(str, values))


def _data(every: "Choice", chosen: "Choice | None", outline: "Outline | None") -> dict[str, Any]:
    model: dict[str, Any] = {"path": every.config.model.path}
    if outline is not None:
        model |= {"type": outline.kind, "dtype": outline.dtype, "mla": outline.mla}
        model |= {"features": sorted(outline.features)}
    return {
        "model": model,
        "device": every.device,
        "compute_capability": every.compute_capability,
        "taken": None if chosen is None else chosen.taken.name,
        "why": None if chosen is None else chosen.why,
        "backends": [_backend(one) for one in every.backends],
    }


def _backend(one: "Backend") -> dict[str, Any]:
    origin, declared = one.entry.origin, one.declared
    facts: dict[str, Any] = {
        "name": one.name,
        "distribution": origin.distribution,
        "version": origin.version,
        "serves": not one.problems,
        "problems": list(one.problems),
        "page_size": None if one.problems else one.page_size,
    }
    if declared is not None:
        for name in ("devices", "compute_capabilities", "dtypes", "kinds", "features", "page_sizes"):
            values = getattr(declared, name)
            facts[name] = None if values is None else sorted(values)
        facts |= {"preference": declared.preference, "graphs": declared.graphs}
    return facts
