"""`rtk plugins new`: what it writes installs as a wheel and passes its tests, where rtk is a wheel too."""

import subprocess
import sys
from pathlib import Path

import pytest
from workshop import passed

from rtk.errors import PluginError
from rtk.plugin.info import KINDS
from rtk.plugin.new import SKETCHES, write_package
from rtk.plugin.testing import suite

OWN_TESTS = {"eviction": 1, "schedule": 1, "attention": 0, "grammar": 1, "storage": 1, "observer": 1}
"""Tests of each template beside the contract."""


def test_there_is_a_template_for_every_kind():
    assert SKETCHES.keys() == set(KINDS) == OWN_TESTS.keys()


@pytest.fixture(scope="module")
def packages(workshop):
    """A new package of each kind, by kind, installed."""
    folders = {kind: write_package(kind, "My_Own", workshop.folder) for kind in KINDS}
    workshop.install(*folders.values())
    return folders


def test_new_packages_pass_their_tests_at_once(workshop, packages):
    """All in one run, to save time; the tutorial's test runs pytest in the package's folder, with its own settings."""
    asked = [word for kind in KINDS for word in ("--rtk-plugin", f"{kind}:my-own")]
    folders = [str(folder / "tests") for folder in packages.values()]
    said = workshop.pytest("-W", "error", "--import-mode=importlib", *asked, *folders)
    assert passed(said) >= sum(len(suite(kind)) + OWN_TESTS[kind] for kind in KINDS)


def test_new_plugins_are_shown_and_sound(workshop, packages):
    shown = workshop.run("rtk", "plugins", "show", "eviction:my-own")
    assert "distribution: rtk-eviction-my-own\nversion: 0.1.0\n" in shown
    assert "eviction.my_own.keep_hits = 1  # an integer from 1 up: hits from which on" in shown
    lines = workshop.run("rtk", "plugins", "doctor", *(f"{kind}:my-own" for kind in KINDS)).splitlines()
    assert [(*line.split()[:2], line.split()[-1]) for line in lines[1:]] == [(kind, "my-own", "ok") for kind in KINDS]


def test_the_command_says_what_is_next(workshop, tmp_path):
    said = workshop.run("rtk", "plugins", "new", "eviction", "another", cwd=tmp_path)
    folder = Path("rtk-eviction-another")
    assert said.splitlines() == [
        f"wrote {folder}; next:",
        f"  pip install --editable '{folder}[testing]'",
        f"  pytest {folder}",
    ]
    assert (tmp_path / folder / "pyproject.toml").exists()


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_written_is_tidy(tmp_path, kind):
    folder = write_package(kind, "calm", tmp_path)
    for command in (["check", "--select", "E,F,I,B,UP,RUF"], ["format", "--check"]):
        ruff = [sys.executable, "-m", "ruff", *command, "--isolated", "--no-cache", "--line-length", "120"]
        done = subprocess.run(ruff, cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout
    assert "$" not in "".join(path.read_text() for path in folder.rglob("*") if path.is_file())


RULE = "write letters from a to z and digits, a letter first, with single dashes between words"


@pytest.mark.parametrize(
    ("kind", "name", "message"),
    [
        ("evict", "calm", "unknown kind 'evict'; kinds: eviction, schedule, attention, grammar, storage, observer"),
        ("eviction", "-x", f"'-x' is no name of a plugin; {RULE}"),
        ("eviction", "a b", f"'a b' is no name of a plugin; {RULE}"),
        ("eviction", "2nd", f"'2nd' is no name of a plugin; {RULE}"),
        ("eviction", "é", f"'é' is no name of a plugin; {RULE}"),
        (
            "schedule",
            "max-queue",
            "schedule.max-queue is a key of rtk's own, so no plugin can be called so; choose another name",
        ),
        (
            "observer",
            "plugins",
            "observe.plugins is a key of rtk's own, so no plugin can be called so; choose another name",
        ),
        (
            "eviction",
            "LRU",
            "eviction plugin 'lru' is there, of rtk-inference 0.1.0 (entry point 'eviction-lru'); choose another name",
        ),
    ],
)
def test_a_name_that_cannot_be_had(tmp_path: Path, kind, name, message):
    with pytest.raises(PluginError) as caught:
        write_package(kind, name, tmp_path)
    assert str(caught.value) == message
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("name", "into"), [("x" * 300, "."), ("calm", "a-file"), ("calm", "a-file/below")])
def test_what_cannot_be_written(tmp_path: Path, name, into):
    (tmp_path / "a-file").touch()
    with pytest.raises(
        PluginError, match=r"cannot be written: .*Error: .*; choose another name or --into another folder"
    ):
        write_package("eviction", name, tmp_path / into)


def test_a_folder_that_exists_is_left_alone(tmp_path: Path):
    folder = write_package("eviction", "calm", tmp_path)
    (folder / "README.md").write_text("mine")
    with pytest.raises(PluginError, match="exists; choose another name or --into another folder"):
        write_package("eviction", "calm", tmp_path)
    assert (folder / "README.md").read_text() == "mine"
