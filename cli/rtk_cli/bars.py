"""Progress bars for what takes long enough to need one."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console

from rtk.model.progress import Progress, silent


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
