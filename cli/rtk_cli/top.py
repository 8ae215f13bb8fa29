"""`rtk top`: a live view of a running server."""

import json
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rtk.errors import ConfigError, RequestError, printable
from rtk_cli.looks import Scrape, look, scraped
from rtk_cli.server import HERE, KEY_VARIABLE, NoAnswerError, Server

if TYPE_CHECKING:
    from rich.console import RenderableType

LIMIT_S = 8.0
"""How long the server may take: /metrics answers within three seconds, whatever the engine does."""
WIDTH = 80
BAR = 64
MARKS = {"held": ("#", "red"), "protected": ("=", "yellow"), "evictable": ("-", "green"), "free": (".", "bright_black")}
"""How the slots of the pool are drawn, by state."""


def top(
    url: Annotated[str | None, typer.Option(help=f"where the server is  [default: {HERE}]")] = None,
    host: Annotated[str | None, typer.Option(help="the same in parts: the host, 127.0.0.1 if there is a port")] = None,
    port: Annotated[int | None, typer.Option(help="and the port, 8000 if there is a host", min=1, max=65535)] = None,
    api_key: Annotated[
        str | None,
        typer.Option(
            "--api-key", "--admin-key", help="a key that may read /metrics", envvar=KEY_VARIABLE, show_envvar=True
        ),
    ] = None,
    interval: Annotated[float, typer.Option(help="seconds between two looks", min=0.1)] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="look once; rates are those since the server's start")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print each look as a line of JSON")] = False,
) -> None:
    """Watch a running server: its queue, batch, pool and pace. q ends it."""
    server = Server(_address(url, host, port), api_key, limit_s=LIMIT_S)
    if once:
        found = look(None, _scrape(server))
        typer.echo(json.dumps(found) if as_json else _text(found))
        return
    try:
        if as_json or not sys.stdout.isatty():
            _print_on(server, interval, as_json=as_json)
        else:
            _live(server, interval)
    except KeyboardInterrupt:
        return


def _address(url: str | None, host: str | None, port: int | None) -> str:
    if host is None and port is None:
        return url or HERE
    if url is not None:
        raise ConfigError("--url, --host, --port: give the address once, as a whole or in parts")
    host = host or "127.0.0.1"
    return f"http://{f'[{host}]' if ':' in host else host}:{port or 8000}"


def _scrape(server: Server) -> Scrape:
    """One look. Raises `RequestError`."""
    text = server.text("/metrics")
    try:
        return scraped(text)
    except ValueError:
        raise RequestError("what is there answers /metrics like no rtk server; name another one with --url") from None


def _looks(server: Server) -> Iterator[tuple[dict[str, Any] | None, str]]:
    """Look after look: what was seen last, if anything was, and why there is nothing newer.

    Raises `RequestError` for a first look that is refused; a server that is gone is asked again.
    """
    before: Scrape | None = None
    found: dict[str, Any] | None = None
    while True:
        problem = ""
        try:
            now = _scrape(server)
            before, found = now, look(before, now)
        except NoAnswerError as error:
            problem = str(error)
        except RequestError as error:
            if found is None:
                raise
            problem = str(error)
        yield found, problem


def _print_on(server: Server, interval: float, *, as_json: bool) -> None:
    """One look after the other, for a pipe."""
    for found, problem in _looks(server):
        if problem:
            typer.echo(f"{printable(problem)}; trying again", err=True)
        elif found is not None:
            typer.echo(json.dumps(found) if as_json else f"{_text(found)}\n")
        sys.stdout.flush()
        time.sleep(interval)


def _live(server: Server, interval: float) -> None:
    from rich.console import Console
    from rich.live import Live

    with (
        _keys() as pressed,
        Live(console=Console(highlight=False), screen=True, auto_refresh=False) as screen,
    ):
        for found, problem in _looks(server):
            screen.update(_picture(found, problem), refresh=True)
            if pressed(interval):
                return


@contextmanager
def _keys() -> Iterator[Any]:
    """Gives a function that waits so many seconds and answers whether q was pressed meanwhile."""

    def sleeps(seconds: float) -> bool:
        time.sleep(seconds)
        return False

    try:
        import select
        import termios
        import tty

        fd = sys.stdin.fileno()
        before = termios.tcgetattr(fd)
    except (ImportError, OSError, ValueError, termios.error):  # no such terminal: Ctrl-C ends it
        yield sleeps
        return

    def pressed(seconds: float) -> bool:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0 and select.select([fd], [], [], left)[0]:
            import os

            key = os.read(fd, 1)
            if key in (b"q", b"Q"):
                return True
            if not key:  # nobody types any more
                return sleeps(max(0.0, end - time.monotonic()))
        return False

    tty.setcbreak(fd)
    try:
        yield pressed
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)


# --- the picture ------------------------------------------------------------------------------------------------


def _text(found: Mapping[str, Any]) -> str:
    """The picture without colours, at most `WIDTH` wide."""
    import io

    from rich.console import Console

    out = io.StringIO()
    Console(file=out, width=WIDTH, highlight=False, markup=False, no_color=True).print(_picture(found, ""))
    return "\n".join(line.rstrip() for line in out.getvalue().rstrip().splitlines())


def _picture(found: Mapping[str, Any] | None, problem: str) -> "RenderableType":
    from rich.console import Group
    from rich.text import Text

    said = [Text(f"{printable(problem)}; trying again", style="red")] if problem else []
    if found is None:
        return Group(*said, Text("q ends"))
    if not found["up"]:
        said.append(Text(f"the engine does not answer: what it said is {found['stats_age_s']:.0f} s old", style="red"))
    return Group(_head(found), *said, Text(), *_pool(found), Text(), _numbers(found), Text(), _waits(found))


def _head(found: Mapping[str, Any]) -> "RenderableType":
    from rich.text import Text

    minutes, seconds = divmod(int(found["uptime_s"]), 60)
    hours, minutes = divmod(minutes, 60)
    name = printable(f"rtk {found['version']}  {found['model']}")
    return Text(f"{name[:56]}  up {hours}:{minutes:02}:{seconds:02}", style="bold", no_wrap=True, overflow="crop")


def _pool(found: Mapping[str, Any]) -> "list[RenderableType]":
    """The slots by state, drawn and in words."""
    from rich.text import Text

    bar, words, end, drawn = Text("pool  "), Text("      "), 0, 0
    for state, (mark, style) in MARKS.items():
        end += found[state]
        width = round(BAR * end / found["pool"]) - drawn if found["pool"] else 0
        bar.append(mark * width, style=style)
        drawn += width
        words.append(mark, style=style)
        words.append(f" {state} {_short(found[state])}   ")
    words.append(f"of {_short(found['pool'])}")
    return [bar, words]


def _numbers(found: Mapping[str, Any]) -> Any:
    full = " (full)" if found["queue_full"] else ""
    hits = found["hit_rate"]
    cells = [
        ("running", f"{found['running']:,}"),
        ("waiting", f"{found['waiting']:,}{full}"),
        ("compiling", f"{found['compiling']:,}"),
        ("following", f"{found['following']:,}"),
        ("generated/s", _rate(found["generated_tokens_s"])),
        ("prefill/s", _rate(found["prefill_tokens_s"])),
        ("steps/s", _rate(found["steps_s"])),
        ("hit rate", "-" if hits is None else f"{hits:.1%}"),
        ("finished/s", _rate(found["finished_s"])),
        ("rho", f"{found['new_token_ratio']:.3f}"),
        ("retractions", f"{found['retractions']:,}"),
        ("retractions/s", _rate(found["retractions_s"])),
    ]
    table = _table(6)
    for start in range(0, len(cells), 3):
        table.add_row(*(part for cell in cells[start : start + 3] for part in cell))
    return table


def _waits(found: Mapping[str, Any]) -> Any:
    rows = {"first token": found["ttft_s"], "next token": found["inter_token_s"], "queue": found["queue_s"]}
    table = _table(4)
    table.add_row("seconds", *next(iter(rows.values())))
    for name, values in rows.items():
        table.add_row(name, *("-" if value is None else f"{value:.4f}" for value in values.values()))
    return table


def _table(columns: int) -> Any:
    from rich.table import Table

    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    for number in range(columns):
        label = number == 0 or (columns == 6 and number % 2 == 0)
        table.add_column(justify="left" if label else "right", style="dim" if label else "", min_width=11)
    return table


def _rate(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f}"


def _short(tokens: int) -> str:
    """A number of tokens in at most six characters."""
    for size, unit in ((10**9, "G"), (10**6, "M"), (10**4, "k")):
        if tokens >= size:
            return f"{tokens / (1000 if unit == 'k' else size):.4g}{unit}"
    return f"{tokens:,}"
