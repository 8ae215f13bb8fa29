"""The `rtk` command: mounts one file per command and decides how a run ends.

An expected failure is one line (a configuration's: one for each problem) and exit code 1, a usage error exit code 2; a
bug keeps its traceback.
"""

import re
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from rtk.errors import ConfigError, RtkError, printable
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
from rtk_cli.theirs import told
from rtk_cli.top import top
from rtk_cli.version import DISTRIBUTION, version, version_of

UsageError: Any = typer.BadParameter.__base__
"""What click makes of wrong usage, under a name that every release of typer has: some of them have click inside."""


class Rtk(TyperGroup):
    """The root command: turns expected failures and Ctrl-C into exit codes, and knows options of other engines."""

    def invoke(self, ctx: Any) -> Any:
        """Run the chosen command."""
        try:
            return super().invoke(ctx)
        except UsageError as error:
            if hasattr(error, "possibilities"):  # no such option
                own = {name for parameter in error.ctx.command.params for name in parameter.opts}
                if known := told(error.option_name, own):
                    error.ctx.fail(f"No such option: {error.option_name}; {known}")
            raise
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


class OfModel(TyperCommand):
    """A command with a model and no arguments, which says so where it gets the model as one."""

    allow_extra_args = True

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Refuse what is left."""
        extra = super().parse_args(ctx, args)
        if extra and not ctx.resilient_parsing:
            words = printable(" ".join(extra))
            ctx.fail(f"Got unexpected extra argument(s) ({words}); name the model by --model {printable(extra[0])}")
        return extra


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
app.command(cls=OfModel)(serve)
app.command()(generate)
app.command(cls=OfModel)(chat)
app.command()(explain)
app.command(cls=OfModel)(attention)
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
