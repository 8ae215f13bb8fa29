"""`rtk plugins`."""

import json

import pytest
from typer.testing import CliRunner

from rtk.plugin import Plugin
from rtk.plugin.host import installed
from rtk.plugin.registry import Failure, Origin, Registered, Registry
from rtk_cli.main import app

BAD = Failure(Origin("bad", "rtk-bad", "0.3"), "ImportError: [broken] \N{GREEK SMALL LETTER RHO}")


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Registry:
    """One plugin with a long description, and one failure."""
    plugin = Plugin(kind="schedule", name="calm", summary="[a] " + "word " * 40, target="m:C")
    found = Registry([Registered(plugin, Origin("calm", "rtk-schedule-calm", "2.0"))], [BAD])
    monkeypatch.setattr("rtk.plugin.host.installed", lambda: found)
    return found


def run(*args: str) -> str:
    result = CliRunner().invoke(app, ["plugins", *args])
    assert result.exit_code == 0
    return result.stdout


def test_every_installed_plugin_is_one_line() -> None:
    lines = run().splitlines()
    assert lines[0].split() == ["kind", "name", "distribution", "version", "what", "it", "does"]
    assert [line.split()[:2] for line in lines[1:]] == [[e.plugin.kind, e.plugin.name] for e in installed().all()]


def test_nothing_is_cut_or_read_as_markup(registry: Registry) -> None:
    _, line, failure = run().splitlines()
    assert line.split()[:5] == ["schedule", "calm", "rtk-schedule-calm", "2.0", "[a]"]
    assert line.count("word") == 40
    assert failure == f"not available: rtk-bad 0.3 (entry point 'bad'): {BAD.reason}"


def test_json_for_machines(registry: Registry) -> None:
    answer = json.loads(run("--json"))
    assert answer["plugins"] == [
        {
            "kind": "schedule",
            "name": "calm",
            "summary": registry.all()[0].plugin.summary,
            "distribution": "rtk-schedule-calm",
            "version": "2.0",
            "entry_point": "calm",
        }
    ]
    assert answer["failures"] == [
        {"distribution": "rtk-bad", "version": "0.3", "entry_point": "bad", "reason": BAD.reason}
    ]
