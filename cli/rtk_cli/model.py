"""`rtk model`: list, fetch, import and locate models."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from rtk.errors import ModelError
from rtk.model.catalogue import DEFAULT_MODEL
from rtk_cli.bars import transfer_bars
from rtk_cli.options import with_config

if TYPE_CHECKING:
    from rtk.config.load import LoadedConfig

app = typer.Typer(help="List, fetch, import and locate models.", no_args_is_help=True)

with_cache_dir = with_config(lambda key: key.path == "model.cache_dir")
Name = Annotated[str, typer.Argument(help="a model of 'rtk model list'")]


@app.command("list")
@with_cache_dir
def list_models(loaded: "LoadedConfig") -> None:
    """List the models that can be fetched, and those that are here already."""
    from rtk.model import store

    table = Table(box=None, pad_edge=False)
    for header in ("model", "state", "size"):
        table.add_column(header, no_wrap=True)
    table.add_column("what it is")
    for listing in store.list_models(cache_dir=loaded.config.model.cache_dir):
        state = "imported" if listing.path else "to fetch"
        size = f"{listing.size_bytes / 1e6:,.0f} MB" if listing.path else ""
        table.add_row(listing.name, state, size, listing.summary)
    Console().print(table)


@app.command()
@with_cache_dir
def fetch(loaded: "LoadedConfig", name: Name = DEFAULT_MODEL) -> None:
    """Download a model of the catalogue, verify its checksums, and import it."""
    from rtk.model import store

    with transfer_bars() as progress:
        folder = store.fetch(name, cache_dir=loaded.config.model.cache_dir, progress=progress)
    typer.echo(folder)


@app.command("import")
@with_cache_dir
def import_file(
    loaded: "LoadedConfig",
    file: Annotated[Path, typer.Argument(metavar="FILE.gguf", help="a GGUF file of the llama architecture")],
    name: Annotated[str | None, typer.Option(help="what to call it; by default the file's name")] = None,
) -> None:
    """Import a GGUF file, so that --model can name it."""
    from rtk.model import store

    with transfer_bars() as progress:
        folder = store.import_gguf(file, name, cache_dir=loaded.config.model.cache_dir, progress=progress)
    typer.echo(folder)


@app.command()
@with_cache_dir
def path(loaded: "LoadedConfig", name: Name = DEFAULT_MODEL) -> None:
    """Print the folder of an imported model, and nothing else."""
    from rtk.model import store

    folder = store.find_imported(name, cache_dir=loaded.config.model.cache_dir)
    if folder is None:
        raise ModelError(f"model {name!r} is not imported; see 'rtk model list', then 'rtk model fetch {name}'")
    typer.echo(folder)
