"""An environment of its own, with rtk installed from a wheel and no source tree on the path."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = "core", "cli", "plugins", "pyproject.toml", "README.md", "LICENSE"


class Workshop:
    """A virtual environment with the libraries of this one, and without its editable packages and variables."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        venv.EnvBuilder(with_pip=False, symlinks=True).create(folder / "venv")
        (site,) = (folder / "venv").glob("lib/python*/site-packages")
        libraries = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
        # a folder that a .pth file names is put on the path; the .pth files in it are not read
        (site / "libraries.pth").write_text("\n".join(sorted(libraries)) + "\n")
        self.bin = folder / "venv" / "bin"
        self.home = folder / "elsewhere"
        self.home.mkdir()
        source = folder / "rtk-inference"
        source.mkdir()
        for name in SOURCES:
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
            else:
                shutil.copy(ROOT / name, source)
        self.install(source)

    def install(self, *projects: Path) -> None:
        """Build the projects' wheels, from copies, and install those. Brings nothing from anywhere."""
        copies = self.folder / "copies"
        for project in projects:
            shutil.copytree(project, copies / project.name, ignore=shutil.ignore_patterns("__pycache__"))
        pip = [sys.executable, "-m", "pip", "--python", str(self.bin / "python"), "--disable-pip-version-check"]
        options = ["--quiet", "--no-index", "--no-deps", "--no-build-isolation"]
        done = subprocess.run(
            [*pip, "install", *options, *(str(copies / project.name) for project in projects)],
            env=self._environ(),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        shutil.rmtree(copies)

    def run(self, *command: str, cwd: Path | None = None, code: int = 0, **variables: str) -> str:
        """What a command of the environment prints; it must end with this code."""
        done = subprocess.run(
            [self.bin / command[0], *command[1:]],
            cwd=cwd or self.home,
            env=self._environ() | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert done.returncode == code, done.stdout
        return done.stdout

    def pytest(self, *args: str, cwd: Path | None = None, code: int = 0) -> str:
        """A run of pytest, without what it leaves behind, and with nothing of the folder on the path."""
        return self.run("python", "-P", "-m", "pytest", "-p", "no:cacheprovider", *args, cwd=cwd, code=code)

    def _environ(self) -> dict[str, str]:
        dropped = ("PYTHON", "RTK_", "PYTEST_", "VIRTUAL_ENV")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
        return kept | {"PYTHONDONTWRITEBYTECODE": "1", "HOME": str(self.folder)}


def passed(said: str) -> int:
    """How many tests passed, of which none failed."""
    assert " failed" not in said
    found = re.search(r"(\d+) passed", said)
    assert found, said
    return int(found[1])
