"""The `rtk` command: mounts one file per command and decides how a run ends.

An expected failure is one line (a configuration's: one for each problem) and exit code 1, a usage error exit code 2; a
bug keeps its traceback.
"""

import re
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from rtk.errors import ConfigError, RtkError
from rtk.observe import logs
from rtk_cli.attention import attention
from rtk_cli.cache import app as cache_app
from rtk_cli.chat import chat
from rtk_cli.config import app as config_app
from rtk_cli.explain import explain
from rtk_cli.generate import generate
from rtk_cli.model import app as model_app
from rtk_cli.plugins import app as plugins_app
from rtk_cli.serve import serve
from rtk_cli.top import top
from rtk_cli.version import DISTRIBUTION, version, version_of


class Rtk(TyperGroup):
    """The root command: turns expected failures and Ctrl-C into exit codes."""

    def invoke(self, ctx: Any) -> Any:
        """Run the chosen command."""
        try:
            return super().invoke(ctx)
        except RtkError as error:
            for problem in error.problems if isinstance(error, ConfigError) else (error,):
                typer.echo(f"error: {problem}", err=True)
            raise typer.Exit(1) from error
        except ModuleNotFoundError as error:
            if error.name not in _needed():
                raise
            typer.echo(
                f"error: {error.name} is not installed, and this command needs it; pip install '{DISTRIBUTION}'",
                err=True,
            )
            raise typer.Exit(1) from error
        except KeyboardInterrupt as interrupt:
            raise typer.Exit(130) from interrupt


def _needed() -> set[str]:
    """The packages that rtk needs; an environment that only checks files has a few of them."""
    from importlib.metadata import requires

    return {re.split(r"[^\w.-]", one, maxsplit=1)[0] for one in requires(DISTRIBUTION) or () if "extra ==" not in one}


app = typer.Typer(
    cls=Rtk,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help never shortens a flag, however narrow the terminal
    help="An LLM inference runtime in which every policy is a plugin.",
)
app.command()(serve)
app.command()(generate)
app.command()(chat)
app.command()(explain)
app.command()(attention)
app.command()(top)
app.command()(version)
app.add_typer(plugins_app, name="plugins")
app.add_typer(model_app, name="model")
app.add_typer(config_app, name="config")
app.add_typer(cache_app, name="cache")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"rtk {version_of(DISTRIBUTION)}")
        raise typer.Exit


@app.callback()
def root(
    show_version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="print the version and exit")
    ] = False,
) -> None:
    """Options of `rtk` itself."""


def main() -> None:
    """Entry point of the `rtk` script."""
    logs.begin()
    app()
