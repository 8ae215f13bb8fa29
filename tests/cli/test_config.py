"""`rtk config show`."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rtk.config.keys import KeyTable
from rtk.config.tree import config_model
from rtk.plugin.host import installed
from rtk_cli.main import app


def run(*args: str) -> str:
    result = CliRunner().invoke(app, ["config", "show", *args])
    assert result.exit_code == 0
    return result.stdout


def test_every_key_is_one_line() -> None:
    lines = run().splitlines()
    assert [line.partition(" = ")[0] for line in lines] == list(KeyTable(config_model(installed())).by_path)
    assert "serve.port = 8000" in lines
    assert "cache.pool_tokens = null" in lines
    assert "cache.disable = false" in lines


def test_sources_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RTK_SERVE__PORT", "9000")
    lines = run("--sources", "--page-size", "16", "--set", "eviction.slru.protect_after_hits=3").splitlines()
    assert "serve.port = 9000  # variable RTK_SERVE__PORT" in lines
    assert "cache.page_size = 16  # flag --page-size" in lines
    assert "eviction.slru.protect_after_hits = 3  # --set eviction.slru.protect_after_hits" in lines
    assert "schedule.policy = fcfs  # default" in lines


def test_json_is_the_tree() -> None:
    tree = json.loads(run("--json", "--eviction", "SLRU"))
    assert tree["eviction"] == {"policy": "slru", "slru": {"protect_after_hits": 2}} | {
        name: tree["eviction"][name] for name in tree["eviction"] if name not in ("policy", "slru")
    }
    assert (tree["cache"]["page_size"], tree["attention"]["backend"]) == (None, "auto")


def test_a_secret_is_masked_in_every_form(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RTK_SERVE__ADMIN_API_KEY", "s3cret")
    for args in ((), ("--sources",), ("--json",), ("--json", "--sources")):
        assert "s3cret" not in run(*args)
    assert "serve.admin_api_key = **********" in run().splitlines()
    assert json.loads(run("--json"))["serve"]["admin_api_key"] == "**********"


def test_json_with_sources_is_a_list_of_keys() -> None:
    rows = json.loads(run("--json", "--sources", "--device", "cpu"))
    assert rows["model.device"] == {"value": "cpu", "source": "flag --device"}
    assert rows["model.threads"] == {"value": None, "source": "default"}


def test_the_order_of_the_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RTK_SCHEDULE__MAX_PREFILL_TOKENS", "128")
    assert "schedule.max_prefill_tokens = 256" in run("--max-prefill-tokens", "256")
    assert "schedule.max_prefill_tokens = 128" in run()
    monkeypatch.setenv("RTK_SCHEDULE__MAX_PREFILL_TOKENS", "")
    assert "schedule.max_prefill_tokens = 16384" in run()


def test_files_are_read_and_named(tmp_path: Path) -> None:
    below, above = tmp_path / "a.toml", tmp_path / "b.yaml"
    below.write_text("[serve]\nport = 1\nhost = 'h'\n")
    above.write_text("serve: {port: 2}\n")
    lines = run("--sources", "--config", str(below), "--config", str(above)).splitlines()
    assert f"serve.port = 2  # {above}:1" in lines
    assert f"serve.host = h  # {below}:3" in lines


def test_unknown_keys_can_be_allowed(caplog: pytest.LogCaptureFixture) -> None:
    assert "serve.port = 5" in run("--set", "colour=red", "--port", "5", "--allow-unknown").splitlines()
    assert caplog.messages == ["--set colour: unknown key 'colour'; see 'rtk config show'"]


def test_mistakes_are_refused_here_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RTK_CACHE__PAGE_SISE", "4")
    result = CliRunner().invoke(app, ["config", "show", "--schedule", "hrrn", "--disable-cache"])
    assert result.exit_code == 1
    assert "unknown variable RTK_CACHE__PAGE_SISE; did you mean RTK_CACHE__PAGE_SIZE?\n" in result.stderr
    assert "error: schedule.policy = 'hrrn' (flag --schedule): requires prefix_match" in result.stderr
