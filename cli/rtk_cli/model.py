"""`rtk model`: list, fetch, import and locate models."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from rtk.errors import ModelError
from rtk.model.catalogue import DEFAULT_MODEL
from rtk.model.progress import Progress, silent

app = typer.Typer(help="List, fetch, import and locate models.", no_args_is_help=True)

CacheDir = Annotated[Path | None, typer.Option(help="where imported models live; by default the user's cache folder")]
Name = Annotated[str, typer.Argument(help="a model of 'rtk model list'")]


@contextmanager
def transfer_bars() -> Iterator[Progress]:
    """Draw one bar a stage on standard error while the block runs; nothing is drawn unless that is a terminal."""
    from rich.progress import BarColumn, DownloadColumn, TaskID, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    bars = Bars(*columns, console=console, transient=True)
    tasks: dict[str, TaskID] = {}

    def report(stage: str, done: int, total: int) -> None:
        if not tasks:
            bars.start()  # not earlier: pip draws its own bar on the same terminal first
        if stage not in tasks:
            tasks[stage] = bars.add_task(stage, total=total)
        bars.update(tasks[stage], completed=done)

    try:
        yield report if console.is_terminal else silent
    finally:
        if tasks:
            bars.stop()


@app.command("list")
def list_models(cache_dir: CacheDir = None) -> None:
    """List the models that can be fetched, and those that are here already."""
    from rtk.model import store

    table = Table(box=None, pad_edge=False)
    for header in ("model", "state", "size"):
        table.add_column(header, no_wrap=True)
    table.add_column("what it is")
    for listing in store.list_models(cache_dir=cache_dir):
        state = "imported" if listing.path else "to fetch"
        size = f"{listing.size_bytes / 1e6:,.0f} MB" if listing.path else ""
        table.add_row(listing.name, state, size, listing.summary)
    Console().print(table)


@app.command()
def fetch(name: Name = DEFAULT_MODEL, cache_dir: CacheDir = None) -> None:
    """Download a model of the catalogue, verify its checksums, and import it."""
    from rtk.model import store

    with transfer_bars() as progress:
        folder = store.fetch(name, cache_dir=cache_dir, progress=progress)
    typer.echo(folder)


@app.command("import")
def import_file(
    file: Annotated[Path, typer.Argument(metavar="FILE.gguf", help="a GGUF file of the llama architecture")],
    name: Annotated[str | None, typer.Option(help="what to call it; by default the file's name")] = None,
    cache_dir: CacheDir = None,
) -> None:
    """Import a GGUF file, so that --model can name it."""
    from rtk.model import store

    with transfer_bars() as progress:
        folder = store.import_gguf(file, name, cache_dir=cache_dir, progress=progress)
    typer.echo(folder)


@app.command()
def path(name: Name = DEFAULT_MODEL, cache_dir: CacheDir = None) -> None:
    """Print the folder of an imported model, and nothing else."""
    from rtk.model import store

    folder = store.find_imported(name, cache_dir=cache_dir)
    if folder is None:
        raise ModelError(f"model {name!r} is not imported; see 'rtk model list', then 'rtk model fetch {name}'")
    typer.echo(folder)
