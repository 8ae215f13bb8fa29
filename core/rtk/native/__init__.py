"""Small kernels in C++ for what torch does in many steps on a CPU, built by the machine that runs them.

They are an addition: whoever uses them computes the same without them, more slowly, where there is no compiler. A
library is plain functions over pointers; nothing of torch is compiled, so a build takes seconds, once for each source,
compiler and processor. Kernels use the OpenMP runtime that torch brought: two runtimes would have twice as many workers
as there are cores, each waiting actively for its next turn.
"""

import ctypes
import functools
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path

from platformdirs import user_cache_path

from rtk.errors import one_line

log = logging.getLogger(__name__)

COMPILERS = ("c++", "g++", "clang++")
FLAGS = ("-std=c++17", "-O3", "-march=native", "-fopenmp", "-fno-math-errno", "-fno-trapping-math", "-fPIC")
LIMIT_S = 120


class Unavailable(ImportError):  # noqa: N818 - an answer: the caller goes on without them
    """The kernels cannot be had on this machine; says why, and what would help."""


_folder: ContextVar[Path | None] = ContextVar("rtk_native_folder", default=None)


@contextmanager
def built_in(folder: Path) -> Iterator[None]:
    """Inside, whoever asks for kernels has them built in this folder."""
    token = _folder.set(folder)
    try:
        yield
    finally:
        _folder.reset(token)


def library(source: Path) -> ctypes.CDLL:
    """The functions of a source file. Raises `Unavailable`.

    They are compiled, unless they are there, into the folder of `built_in`; where nobody names one, into the user's
    cache for rtk. A source may include headers that lie beside it. What was refused once is refused at once from then
    on: a model asks for each of its products, and a compiler may take its time to fail.
    """
    found = _library(source, _folder.get() or user_cache_path("rtk") / "native")
    if isinstance(found, Unavailable):
        raise Unavailable(*found.args) from found.__cause__
    return found


@functools.cache
def _library(source: Path, cache: Path) -> ctypes.CDLL | Unavailable:
    try:
        return _built(source, cache)
    except Unavailable as refusal:
        return refusal


def _built(source: Path, cache: Path) -> ctypes.CDLL:
    if platform.system() != "Linux":
        raise Unavailable(f"{source.stem} kernels are built on Linux only")
    compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
    if compiler is None:
        raise Unavailable(f"{source.stem} kernels need a C++ compiler; install g++ or clang++")
    try:
        openmp = _openmp()
        if openmp is None:
            raise Unavailable(f"{source.stem} kernels need torch's OpenMP runtime, and this torch has none")
        built = cache / f"{source.stem}-{_digest(compiler, source, openmp)}.so"
        if built.is_file():
            with suppress(OSError):  # what a disk spoiled is built again
                return ctypes.CDLL(str(built))
        _build(compiler, source, openmp, built)
        return ctypes.CDLL(str(built))
    except (OSError, subprocess.SubprocessError) as error:
        raise Unavailable(f"{source.stem} kernels cannot be built or loaded: {one_line(error)}") from error


def _openmp() -> Path | None:
    """The OpenMP runtime that torch loaded into this process."""
    import torch  # noqa: F401 - loads it

    with Path("/proc/self/maps").open(encoding="utf-8", errors="surrogateescape") as maps:
        paths = {line.split(maxsplit=5)[5].rstrip("\n") for line in maps if "libgomp" in line}
    return Path(sorted(paths)[0]) if len(paths) == 1 else None


def _digest(compiler: str, source: Path, openmp: Path) -> str:
    """Of everything that a build depends on: the compiler's version and the processor's features, too."""
    digest = hashlib.sha256()
    sources = [file.read_bytes() for file in (source, *sorted(source.parent.glob("*.h")))]
    version = subprocess.run([compiler, "--version"], capture_output=True, check=False, timeout=LIMIT_S).stdout
    parts: tuple[bytes | str, ...] = (*sources, compiler, str(openmp), version, _processor(), *FLAGS)
    for part in parts:
        digest.update(part if isinstance(part, bytes) else os.fsencode(part))
        digest.update(b"\0")
    return digest.hexdigest()[:16]


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace").splitlines()
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")


def _build(compiler: str, source: Path, openmp: Path, built: Path) -> None:
    """Complete or not there at all: several processes may build at once."""
    built.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=built.parent) as folder:
        made = Path(folder) / built.name
        # The object is linked by hand: what -fopenmp would link is the system's runtime, beside torch's.
        objects = Path(folder) / "kernels.o"
        for command in (
            [compiler, *FLAGS, "-c", str(source), "-o", str(objects)],
            [compiler, "-shared", str(objects), str(openmp), "-o", str(made)],
        ):
            done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=LIMIT_S)
            if done.returncode:
                raise OSError(f"{Path(compiler).name}: {done.stderr.strip() or f'exit status {done.returncode}'}")
        ctypes.CDLL(str(made))  # what cannot be loaded is not kept
        with made.open("rb") as file:
            os.fsync(file.fileno())
        made.replace(built)
    log.info("built %s", built)
