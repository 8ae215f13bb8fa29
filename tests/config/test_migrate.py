"""`rtk config migrate`: old names are replaced where they stand, and nothing else changes."""

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rtk.config import migrate as migration
from rtk.config import moved as moves
from rtk.config import sources
from rtk.config.load import load_files
from rtk.config.moved import Moved
from rtk.plugin.host import installed
from rtk_cli.main import app


@pytest.fixture(autouse=True)
def old_names(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    table = (
        Moved("schedule.order", "schedule.policy", 2),
        Moved("cache.budget", "cache.pins.budget", 3),
        Moved("cache.page", "schedule.truncation_align_size", 3),
        Moved("http.key", "serve.admin_api_key", 4),
        Moved("eviction.gdsf.a", "eviction.gdsf.b", 4),
        Moved("serve.models", "plugins.require", 4),
    )
    monkeypatch.setattr(moves, "MOVED", table)
    for module in (moves, migration, sources):
        monkeypatch.setattr(module, "VERSION", 4)


def migrate(text: str, name: str = "rtk.toml", *args: str) -> tuple[int, str, str]:
    """Exit code, what is printed, and the file afterwards."""
    Path(name).write_bytes(text.encode())
    result = CliRunner().invoke(app, ["config", "migrate", name, *args])
    return result.exit_code, result.stdout + result.stderr, Path(name).read_bytes().decode()


TOML = """\
# ours
[schedule]  # who goes first
# the order
"order" = 'lpm'   # good for chats
max_running = 3

[cache]
budget=7 # pins
page = 16  # cut here
"""
TOML_AFTER = """\
version = 4
# ours
[schedule]  # who goes first
truncation_align_size = 16  # cut here
# the order
policy = 'lpm'   # good for chats
max_running = 3

[cache]
pins.budget=7 # pins
"""
YAML = """\
---
# ours
schedule:  # who goes first
    # the order
    order: lpm   # good for chats
    max_running: 3
cache:
  budget: 7 # pins
  page: 16  # cut here
"""
YAML_AFTER = """\
---
version: 4
# ours
schedule:  # who goes first
    # the order
    truncation_align_size: 16  # cut here
    policy: lpm   # good for chats
    max_running: 3
cache:
  pins.budget: 7 # pins
"""


@pytest.mark.parametrize(("name", "text", "expected"), [("a.toml", TOML, TOML_AFTER), ("a.yaml", YAML, YAML_AFTER)])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_keys_are_renamed_and_moved_and_comments_stay(name: str, text: str, expected: str, newline: str) -> None:
    text, expected = text.replace("\n", newline), expected.replace("\n", newline)
    Path(name).write_bytes(text.encode())
    before = load_files(installed(), [Path(name)]).config
    code, out, after = migrate(text, name)
    assert (code, after) == (0, expected)
    assert f"--- {name}\n+++ {name}\n" in out
    assert "-budget=7 # pins\n" in out or "-  budget: 7 # pins\n" in out
    assert load_files(installed(), [Path(name)]).config == before
    assert migrate(after, name) == (0, "nothing to migrate\n", expected)


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("a.toml", "[cache]\npage = 16\n", "version = 4\n[cache]\n\n[schedule]\ntruncation_align_size = 16\n"),
        ("a.yml", "cache:\n  page: 16\n", "version: 4\ncache:\n\nschedule:\n  truncation_align_size: 16\n"),
        ("a.toml", "cache.page = 16", "version = 4\n[schedule]\ntruncation_align_size = 16\n"),
        ("a.toml", "version = 2\n[schedule]\npolicy = 'lpm'\n", "version = 4\n[schedule]\npolicy = 'lpm'\n"),
        ("a.yaml", "schedule.order: lpm\n", "version: 4\nschedule.policy: lpm\n"),
        ("a.yaml", "{schedule: {order: lpm}}\n", "{schedule: {policy: lpm}}\n"),
        ("a.toml", "schedule = {order = 'lpm', x = 1}\n", "version = 4\nschedule = {policy = 'lpm', x = 1}\n"),
    ],
)  # fmt: skip
def test_sections_are_made_where_there_are_none(name: str, text: str, expected: str) -> None:
    code, _, after = migrate(text, name)
    assert (code, after) == (0, expected)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("[schedule]\norder = 'lpm'\npolicy = 'hrrn'\n", 2),
        ("cache = { page = 16 }\n", 1),
        ("[cache]\nbudget = 5\n[cache.pins]\n", 2),
        ("[serve.models]\nnumpy = ''\n", 1),
    ],
)
def test_what_cannot_be_rewritten_is_left_alone(text: str, line: int) -> None:
    code, out, after = migrate(text)
    assert (code, after) == (1, text)
    assert f"error: rtk.toml:{line}: write " in out
    assert " by hand, then try again" in out


def test_a_section_may_have_moved_as_a_whole() -> None:
    text = "[http] # ours\nkey = 's3cret'\n"
    Path("rtk.toml").write_text(text)
    before = load_files(installed(), [Path("rtk.toml")]).config
    assert before.serve.admin_api_key is not None
    code, _, after = migrate(text)
    assert (code, after) == (0, "version = 4\n[http] # ours\n\n[serve]\nadmin_api_key = 's3cret'\n")
    assert load_files(installed(), [Path("rtk.toml")]).config == before


def test_checking_writes_nothing() -> None:
    code, out, after = migrate(TOML, "rtk.toml", "--check")
    assert (code, after) == (1, TOML)
    assert "+policy = 'lpm'   # good for chats\n" in out
    assert migrate("[serve]\n", "rtk.toml", "--check") == (0, "nothing to migrate\n", "[serve]\n")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.toml", "[http]\nkey = 's3cret'\n[schedule]\norder = 'lpm'\n[serve]\nadmin_api_key = 's3cret'\n"),
        ("a.toml", "[schedule]\norder = 'lpm'\n[serve]\nadmin_api_key = '''\ns3cret'''\n"),
        ("a.yaml", "schedule:\n  order: lpm\nserve:\n  admin_api_key: s3cret\n"),
        ("a.yaml", "http: {key: s3cret}\nschedule:\n  order: lpm\n"),
    ],
)
def test_a_secret_is_not_in_the_diff(name: str, text: str) -> None:
    _, out, after = migrate(text, name)
    assert "s3cret" not in out
    assert "s3cret" in after


@pytest.mark.parametrize("text", ["a\n", "version = 5\n", "version = 'x'\n"])
def test_a_file_that_cannot_be_read_is_refused(text: str) -> None:
    code, out, after = migrate(text)
    assert (code, after) == (1, text)
    assert out.startswith("error: rtk.toml:1: ")


@pytest.mark.parametrize("text", ["", "[eviction.gdsf]\na = 1\n", "[cache]\npins.budget = 3\n"])
def test_there_may_be_nothing_to_do(text: str) -> None:
    assert migrate(text) == (0, "nothing to migrate\n", text)


def test_a_file_that_may_not_be_written_is_an_expected_failure() -> None:
    Path("rtk.toml").write_text("[schedule]\norder = 'lpm'\n")
    Path("rtk.toml").chmod(0o400)
    code = CliRunner().invoke(app, ["config", "migrate", "rtk.toml"]).exit_code
    assert code == (0 if os.geteuid() == 0 else 1)
