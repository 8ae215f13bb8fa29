"""Keys that once had another name. One table: sources warn by it, and `rtk config migrate` rewrites by it."""

from collections.abc import Iterator
from dataclasses import dataclass

VERSION = 1
"""Of configuration files, as they are written now. One up with every entry of `MOVED`: a file says what it knows."""
MARKER = "version"
"""The key of a file, outside of all sections, that holds its version. A file without it may be of any."""


@dataclass(frozen=True, slots=True)
class Moved:
    """A key with a new name."""

    old: str
    new: str
    version: int
    """The first version of files in which the old name is no key any more."""
    flag: str | None = None
    """The flag of the old name, where it had one."""


MOVED: tuple[Moved, ...] = ()
"""The oldest first. What is taken out of here is an unknown key from then on."""


def moved(version: int | None = None) -> Iterator[Moved]:
    """The old names that a file of `version` may hold; of one that does not say, all."""
    return (one for one in MOVED if version is None or version < one.version)
