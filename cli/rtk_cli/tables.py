"""Tables on the terminal, and whole lines in a pipe."""

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table


def table_of(*columns: str) -> "Table":
    """An empty one with these columns."""
    from rich.table import Table

    return Table(*columns, box=None, pad_edge=False)


def print_table(table: "Table") -> None:
    """Print it; a pipe has no width to fit: one row, one line."""
    from rich.console import Console

    Console(markup=False, highlight=False, width=None if sys.stdout.isatty() else 1000).print(table)
