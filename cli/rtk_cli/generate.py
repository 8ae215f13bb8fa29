"""`rtk generate`: one answer to one prompt, printed as it comes."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rtk.errors import harmless
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
    json_schema: Annotated[
        Path | None, typer.Option(help="file with a JSON Schema that the answer is valid under")
    ] = None,
    regex: Annotated[str | None, typer.Option(help="regular expression that the whole answer matches")] = None,
    ebnf: Annotated[Path | None, typer.Option(help="file with a grammar that the answer follows")] = None,
    choice: Annotated[list[str] | None, typer.Option(help="text that the answer may be; repeatable")] = None,
    chat: Annotated[
        bool | None,
        typer.Option("--chat/--raw", help="wrap the prompt in the chat template; default: when there is one"),
    ] = None,
) -> None:
    """Answer one prompt on the command line."""
    from rtk.engine import Engine

    params: dict[str, object] = {
        "max_new_tokens": max_tokens,
        "temperature": temperature,
        "top_p": top_p,
        "top_k": top_k,
        "seed": seed,
        "stop": stop or [],
    }
    forms = {
        "json_schema": None if json_schema is None else _read(json_schema),
        "regex": regex,
        "ebnf": None if ebnf is None else _read(ebnf),
        "choice": choice or None,
    }
    params |= {name: value for name, value in forms.items() if value is not None}
    verified, end = None, "\n"
    with Engine(loaded.config, fetching=transfer_bars) as engine:
        try:
            for chunk in engine.stream(prompt, params, chat=chat):
                text = harmless(chunk.text) if on_terminal() else chunk.text
                typer.echo(text, nl=False)
                verified, end = chunk.verified, text[-1:] or end
        except BaseException:
            if on_terminal() and end != "\n":  # what went wrong is told on a line of its own
                typer.echo()
            raise
    typer.echo()
    if verified is False:
        typer.echo("warning: the answer does not have the form that was asked for, or was cut (--max-tokens)", err=True)


def _read(path: Path) -> str:
    """The text of a file. Raises `ConfigError`."""
    from rtk.errors import ConfigError, one_line

    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {one_line(error)}") from error


def on_terminal() -> bool:
    """Whether what is printed is looked at, rather than piped."""
    return sys.stdout.isatty()
