"""Pages as files in a folder, which outlive the process; the least recently used make room.

A page is written to a file beside its own, brought to the disk, and renamed: under its name it is whole or not there.
"""

import errno
import os
import shutil
import tempfile
import weakref
from pathlib import Path

from rtk.plugin import Storage

from . import StoreOptions

_PAGE, _PART = ".page", ".part"


class Store(Storage):
    def __init__(self, options: StoreOptions) -> None:
        self._folder = options.path or Path(tempfile.mkdtemp(prefix="rtk-pages-"))
        if options.path is None:
            weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        self._room = options.max_bytes
        self._folder.mkdir(parents=True, exist_ok=True)
        for part in self._folder.glob(f"*{_PART}"):  # of a process that was ended while it wrote
            part.unlink()
        found = sorted(self._folder.glob(f"*{_PAGE}"), key=lambda path: path.stat().st_mtime_ns)
        self._sizes = {path.stem: path.stat().st_size for path in found}  # the least recently used first
        self._held = sum(self._sizes.values())

    def exists(self, key: str) -> bool:
        return self._file(key).is_file()

    def get(self, key: str) -> bytes | None:
        try:
            page = self._file(key).read_bytes()
            os.utime(self._file(key))
        except FileNotFoundError:
            self._forget(key)
            return None
        self._remember(key, len(page))
        return page

    def put(self, key: str, page: memoryview) -> bool:
        if self.exists(key):
            return True
        self._forget(key)
        if page.nbytes > self._room:
            return False
        while self._held + page.nbytes > self._room:
            oldest = next(iter(self._sizes))
            self._file(oldest).unlink(missing_ok=True)
            self._forget(oldest)
        part = self._folder / f"{key}{_PART}"
        try:
            with part.open("wb") as out:
                out.write(page)
                out.flush()
                os.fsync(out.fileno())
            part.replace(self._file(key))
        except OSError as error:
            part.unlink(missing_ok=True)
            if error.errno != errno.ENOSPC:
                raise
            return False
        self._remember(key, page.nbytes)
        return True

    def _file(self, key: str) -> Path:
        return self._folder / f"{key}{_PAGE}"

    def _remember(self, key: str, size: int) -> None:
        self._forget(key)
        self._sizes[key] = size
        self._held += size

    def _forget(self, key: str) -> None:
        self._held -= self._sizes.pop(key, 0)
