"""`rtk serve`: the HTTP server."""

from typing import TYPE_CHECKING, Annotated

import typer

from rtk.errors import printable
from rtk_cli.bars import transfer_bars
from rtk_cli.options import with_config

if TYPE_CHECKING:
    from rtk.config.load import LoadedConfig


@with_config()
def serve(
    loaded: "LoadedConfig",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="load all but the weights, print what would run, and end")
    ] = False,
) -> None:
    """Serve a model over HTTP."""
    from rtk.config.lock import check_lock
    from rtk.plugin.host import installed

    if loaded.config.serve.locked:
        check_lock(loaded, installed())
    if dry_run:
        from rtk.serve.dry_run import rehearse

        typer.echo("\n".join(map(printable, rehearse(loaded, installed()))))
        return
    from rtk.observe.logs import configure
    from rtk.serve.launch import serve as run

    configure(loaded.config)
    run(loaded, transfer_bars)
