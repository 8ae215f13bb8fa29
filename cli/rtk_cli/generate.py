"""`rtk generate`: one answer to one prompt, printed as it comes."""

from typing import TYPE_CHECKING, Annotated

import typer

from rtk_cli.bars import transfer_bars
from rtk_cli.options import with_config

if TYPE_CHECKING:
    from rtk.config.load import LoadedConfig


@with_config(lambda key: key.section != "serve")
def generate(
    loaded: "LoadedConfig",
    prompt: Annotated[str, typer.Argument(help="the text to answer or continue", show_default=False)],
    max_tokens: Annotated[int | None, typer.Option(help="longest answer in tokens; default: what fits")] = None,
    temperature: Annotated[float, typer.Option(help="0 takes the likeliest token")] = 0.0,
    top_p: Annotated[float, typer.Option(help="keep the likeliest tokens up to this probability")] = 1.0,
    top_k: Annotated[int, typer.Option(help="keep this many of the likeliest tokens; -1: all")] = -1,
    seed: Annotated[int | None, typer.Option(help="the same seed gives the same text; default: drawn")] = None,
    stop: Annotated[list[str] | None, typer.Option(help="text that ends the answer; repeatable")] = None,
    chat: Annotated[
        bool | None,
        typer.Option("--chat/--raw", help="wrap the prompt in the chat template; default: when there is one"),
    ] = None,
) -> None:
    """Answer one prompt on the command line."""
    from rtk.engine import Engine

    params = {
        "max_new_tokens": max_tokens,
        "temperature": temperature,
        "top_p": top_p,
        "top_k": top_k,
        "seed": seed,
        "stop": stop or [],
    }
    with Engine(loaded.config, fetching=transfer_bars) as engine:
        for chunk in engine.stream(prompt, params, chat=chat):
            typer.echo(chunk.text, nl=False)
    typer.echo()
