import os
import threading
from pathlib import Path

import pytest
from platformdirs import user_cache_path

from rtk import native
from rtk.model.threads import in_parallel
from rtk.native import COMPILERS, Unavailable
from rtk.plugin.foreign import in_time

SOURCE = """
#include <omp.h>
extern "C" int answer() {
    int found = 0;
#pragma omp parallel num_threads(2)
#pragma omp single
    found = 40 + omp_get_num_threads();
    return found;
}
"""


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "sums.cpp"
    path.write_text(SOURCE)
    return path


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache" / "native"


library = native._built
"""What is there already shows in the folder alone."""

needs_compiler = pytest.mark.skipif(not any(map(native.shutil.which, COMPILERS)), reason="no compiler")


@pytest.fixture
def compiler(tmp_path, monkeypatch):
    """Makes `c++` a script that does this, and nothing else a compiler."""

    def make(script):
        folder = tmp_path / "bin"
        folder.mkdir()
        path = folder / "c++"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        monkeypatch.setattr(native, "COMPILERS", (str(path),))

    return make


def refusal(source, cache):
    with pytest.raises(Unavailable) as caught:
        library(source, cache)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_where_kernels_are_built(source, tmp_path, monkeypatch):
    monkeypatch.setattr(native, "_library", lambda source, cache: cache)
    everywhere = user_cache_path("rtk") / "native"
    assert native.library(source) == everywhere
    with native.built_in(tmp_path):
        assert native.library(source) == tmp_path
        with native.built_in(tmp_path / "inner"):
            assert in_parallel(lambda: native.library(source)) == tmp_path / "inner"
        assert in_time(lambda: native.library(source), 30, name="ask", module="m") == tmp_path
    assert native.library(source) == everywhere


@needs_compiler
def test_a_source_is_built_once(source, cache, monkeypatch):
    assert library(source, cache).answer() == 42
    (built,) = cache.iterdir()
    monkeypatch.setattr(native, "_build", None)
    assert library(source, cache).answer() == 42
    assert [built] == list(cache.iterdir())


@needs_compiler
def test_another_source_is_another_library(source, cache):
    library(source, cache)
    source.write_text('extern "C" int answer() { return 43; }')
    assert library(source, cache).answer() == 43
    assert len(list(cache.iterdir())) == 2


@needs_compiler
def test_kernels_use_the_openmp_runtime_of_torch(source, cache):
    library(source, cache)
    runtimes = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "libgomp" in line}
    assert len(runtimes) == 1


@needs_compiler
def test_builds_at_once_and_those_that_were_killed_leave_one_library(source, cache):
    (cache / "tmp0").mkdir(parents=True)
    (cache / "tmp0" / "kernels.o").write_bytes(b"half")
    ready, found = threading.Barrier(3), []

    def build():
        ready.wait()
        found.append(library(source, cache).answer())

    threads = [threading.Thread(target=build) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [42, 42, 42]
    assert sorted(path.suffix for path in cache.iterdir()) == ["", ".so"]


@needs_compiler
def test_a_source_that_does_not_compile_is_told_in_one_line(source, cache):
    source.write_text("int broken( {")
    assert "sums kernels cannot be built or loaded: OSError: " in refusal(source, cache)
    assert list(cache.iterdir()) == []


FAILURES = {
    "exit 1": "c++: exit status 1",
    "echo 'no space' >&2; echo 'left' >&2; exit 3": "c++: no space left",
    "printf '\\377' >&2; exit 1": "c++: \N{REPLACEMENT CHARACTER}",
    "exit 0": "cannot be built or loaded",
    'for last; do :; done; test "$1" = --version || echo text > "$last"': "cannot be built or loaded",
}


@pytest.mark.parametrize("script", FAILURES)
def test_a_compiler_that_gives_nothing_useful_is_told_in_one_line(source, cache, compiler, script):
    compiler(script)
    assert FAILURES[script] in refusal(source, cache)
    assert list(cache.iterdir()) == []


def test_a_compiler_that_never_answers_is_told_in_one_line(source, cache, compiler, monkeypatch):
    compiler("sleep 60")
    monkeypatch.setattr(native, "LIMIT_S", 0.01)
    assert "timed out" in refusal(source, cache)


def test_a_folder_that_cannot_be_written_is_told_in_one_line(source, tmp_path, compiler):
    compiler("exit 0")
    (tmp_path / "file").touch()
    assert "NotADirectoryError" in refusal(source, tmp_path / "file" / "native")


def test_a_source_that_is_not_there_is_told_in_one_line(source, cache, compiler):
    compiler("exit 0")
    assert "FileNotFoundError" in refusal(source.with_name("other.cpp"), cache)


def test_without_a_compiler_or_elsewhere_than_on_linux_there_are_no_kernels(source, cache, monkeypatch):
    monkeypatch.setattr(native, "COMPILERS", ("no-such-compiler",))
    assert refusal(source, cache) == "sums kernels need a C++ compiler; install g++ or clang++"
    monkeypatch.setattr(native.platform, "system", lambda: "Windows")
    assert refusal(source, cache) == "sums kernels are built on Linux only"


def test_without_an_openmp_runtime_in_torch_there_are_no_kernels(source, cache, compiler, monkeypatch):
    compiler("exit 0")
    monkeypatch.setattr(native, "_openmp", lambda: None)
    assert refusal(source, cache) == "sums kernels need torch's OpenMP runtime, and this torch has none"


def test_what_cannot_be_loaded_is_told_in_one_line(source, cache, compiler):
    """A library that is there, in a folder from which nothing is run, as far as this compiler's can be."""
    compiler("exit 0")
    built = cache / f"sums-{native._digest(native.COMPILERS[0], source, native._openmp())}.so"
    cache.mkdir(parents=True)
    built.write_text("text")
    assert "sums kernels cannot be built or loaded: OSError" in refusal(source, cache)


@needs_compiler
def test_what_a_disk_spoiled_is_built_again(source, cache):
    compiler = next(filter(None, map(native.shutil.which, COMPILERS)))
    built = cache / f"sums-{native._digest(compiler, source, native._openmp())}.so"
    cache.mkdir(parents=True)
    built.write_bytes(b"\x7fELF")
    assert library(source, cache).answer() == 42
    assert [built] == list(cache.iterdir())


def test_a_compiler_that_fails_is_asked_once(source, cache, compiler, tmp_path):
    compiler(f"echo asked >> {tmp_path}/asked; exit 1")
    refusals = []
    for _ in range(3):
        with native.built_in(cache), pytest.raises(Unavailable, match="exit status 1") as caught:
            native.library(source)
        refusals.append(caught.value)
    assert (tmp_path / "asked").read_text().split() == ["asked"] * 2  # its version, and the source
    assert len(set(map(id, refusals))) == 3  # each with a traceback of its own
    assert [str(refusal) for refusal in refusals] == [str(refusals[0])] * 3


def test_paths_may_have_any_bytes(source):
    """As the names of folders on Linux may."""
    strange = Path(os.fsdecode(b"/opt/\xff libgomp.so"))
    assert native._digest("c++", source, strange) != native._digest("c++", source, Path("/opt/libgomp.so"))
