"""`rtk serve`: the HTTP server."""

from typing import TYPE_CHECKING

from rtk_cli.bars import transfer_bars
from rtk_cli.options import with_config

if TYPE_CHECKING:
    from rtk.config.load import LoadedConfig


@with_config()
def serve(loaded: "LoadedConfig") -> None:
    """Serve a model over HTTP."""
    import logging

    from rtk.serve.launch import serve as run

    logging.getLogger("rtk").setLevel(logging.INFO)
    run(loaded, transfer_bars)
