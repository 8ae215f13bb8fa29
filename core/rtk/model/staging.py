"""Folders that appear whole or not at all.

Work happens in a hidden folder beside the target, on the same file system; the last step is one rename. The owner holds
a file lock for as long as it lives, so what a killed process left behind is told apart and removed by the next one.
"""

import fcntl
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_FOLDER, _LOCK = ".tmp", ".lock"


@contextmanager
def staging_folder(parent: Path) -> Iterator[Path]:
    """A new folder inside `parent` (created if missing) that is gone afterwards, with whatever was left in it.

    Raises:
        OSError: the folder cannot be made.
    """
    parent.mkdir(parents=True, exist_ok=True)
    _remove_stale(parent)
    folder = parent / f".{secrets.token_hex(8)}{_FOLDER}"
    lock = folder.with_suffix(_LOCK)
    with lock.open("w") as held:
        # a file system without locks keeps stale folders, which costs space and nothing else
        with suppress(OSError):
            fcntl.flock(held, fcntl.LOCK_EX)
        try:
            folder.mkdir()
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            lock.unlink(missing_ok=True)


def _remove_stale(parent: Path) -> None:
    """Remove the folders whose owner is dead: while a living one has a folder, it holds the lock beside it."""
    for folder in parent.glob(f".*{_FOLDER}"):
        lock = folder.with_suffix(_LOCK)
        with suppress(OSError), lock.open("r+") as held:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
            lock.unlink(missing_ok=True)


def publish(folder: Path, target: Path) -> bool:
    """Make `folder`, which lies on the target's file system, durable under the target's name.

    Returns:
        False, with the target untouched, if something has that name already.

    Raises:
        OSError: it cannot be written or renamed for another reason.
    """
    for path in [*folder.iterdir(), folder]:
        _sync(path)
    try:
        folder.rename(target)
    except OSError:
        if target.exists():
            return False
        raise
    _sync(target.parent)
    return True


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
