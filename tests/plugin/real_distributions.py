"""Real distributions for tests: `*.dist-info` folders and modules on the path, and the command in its own process."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint, distributions
from pathlib import Path

import pytest

from rtk.plugin.host import load
from rtk.plugin.registry import Registry

Install = Callable[..., None]

HEADER = "from rtk.plugin import EvictionPolicy, Options, Plugin, SchedulePolicy, hookimpl\n"

GOOD = f"""{HEADER}
class Fast(EvictionPolicy):
    def __init__(self, options):
        pass
    def key(self, node):
        return (node.hits,)

@hookimpl
def rtk_plugins():
    return [Plugin(kind="eviction", name="fast-lru", summary="s", target=__name__ + ":Fast")]
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Put a distribution with one entry point and its module on the path."""
    monkeypatch.syspath_prepend(tmp_path)

    def put(
        source: str,
        name: str = "rtk-sample",
        module: str = "sample",
        entry: str = "sample",
        value: str = "",
        requires: str = "",
    ) -> None:
        (tmp_path / f"{module}.py").write_text(source)
        write_metadata(tmp_path, name, f"[rtk]\n{entry} = {value or module}\n", requires=requires)

    before = set(sys.modules)
    yield put
    for name in set(sys.modules) - before:
        if (tmp_path / f"{name}.py").exists():
            del sys.modules[name]


def write_metadata(folder: Path, name: str, entry_points: str, version: str = "1.2", requires: str = "") -> None:
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    needs = f"Requires-Dist: {requires}\n" if requires else ""
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}")
    (info / "entry_points.txt").write_text(entry_points)


def found_in(folder: Path, *more: EntryPoint) -> Registry:
    """The registry of the distributions in `folder`, in the order of their names."""
    present = sorted(distributions(path=[str(folder)]), key=lambda one: one.name)
    return load([point for one in present for point in one.entry_points] + list(more))


def rtk(path: Path, *args: str, first: str = "") -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, with `path` before everything else that is installed.

    `first` is Python code that runs there before it.
    """
    environ = {name: value for name, value in os.environ.items() if not name.startswith("RTK_")}
    environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(path), environ.get("PYTHONPATH")]))
    script = f"{first}\nfrom rtk_cli.main import main; main()"
    return subprocess.run(
        [sys.executable, "-c", script, *args],
        env=environ,
        cwd=path,  # metadata in the current folder, as a build leaves it, would come first
        timeout=60,
        capture_output=True,
        text=True,
        check=False,
    )
