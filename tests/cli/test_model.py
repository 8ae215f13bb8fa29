"""`rtk model`, through a runner that ends like the real command: an expected failure is one line and exit code 1."""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rtk.errors import RtkError
from rtk.model import store
from rtk.model.catalogue import DEFAULT_MODEL
from rtk_cli import model


@pytest.fixture
def gguf(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "model"))
    return importlib.import_module("gguf_writer").llama("Q8_0").write(tmp_path / "tiny.gguf")


def run(*arguments):
    """Answers (exit code, standard output, the error's line)."""
    result = CliRunner().invoke(model.app, [str(argument) for argument in arguments])
    if isinstance(result.exception, RtkError):
        return 1, result.stdout, str(result.exception)
    return result.exit_code, result.stdout, result.stderr


def test_import_list_and_path(gguf, tmp_path):
    cache = tmp_path / "cache"
    folder = cache / "models" / "tiny"
    assert run("import", gguf, "--cache-dir", cache) == (0, f"{folder}\n", "")
    assert run("path", "tiny", "--cache-dir", cache) == (0, f"{folder}\n", "")
    code, listed, _ = run("list", "--cache-dir", cache)
    assert code == 0
    header, default, *_, mine = [line.split() for line in listed.splitlines()]
    assert header[:3] == ["model", "state", "size"]
    assert default[:3] == [DEFAULT_MODEL, "to", "fetch"]
    assert mine[:3] == ["tiny", "imported", "0"] and mine[-1] == "tiny.gguf"


def test_import_under_a_name(gguf, tmp_path):
    assert run("import", gguf, "--name", "other", "--cache-dir", tmp_path)[1] == f"{tmp_path / 'models' / 'other'}\n"


def test_path_of_a_model_that_is_not_here_says_how_to_get_it(tmp_path):
    code, out, error = run("path", "--cache-dir", tmp_path)
    assert (code, out) == (1, "")
    move = f"see 'rtk model list', then 'rtk model fetch {DEFAULT_MODEL}'"
    assert error == f"model {DEFAULT_MODEL!r} is not imported; {move}"


def test_fetch_prints_the_folder(monkeypatch, tmp_path):
    seen = []

    def fetch(name, *, cache_dir, progress):
        seen.append((name, cache_dir))
        for done in (1, 2):
            progress("verify", done, 2)
        return tmp_path / "here"

    monkeypatch.setattr(store, "fetch", fetch)
    monkeypatch.delenv("RTK_MODEL__CACHE_DIR", raising=False)
    assert run("fetch") == (0, f"{tmp_path / 'here'}\n", "")
    assert run("fetch", "x", "--cache-dir", tmp_path)[0] == 0
    assert seen == [(DEFAULT_MODEL, store.default_cache_dir()), ("x", tmp_path)]


def test_failures_are_one_line(tmp_path):
    code, out, error = run("import", tmp_path / "missing.gguf", "--cache-dir", tmp_path)
    assert (code, out) == (1, "") and error.startswith(f"{tmp_path}/missing.gguf: cannot be read") and "\n" not in error
    assert run("fetch", "nothing", "--cache-dir", tmp_path)[2].startswith("unknown model 'nothing'")


def test_bars_are_drawn_on_a_terminal_only(monkeypatch, capsys):
    with model.transfer_bars() as progress:
        progress("extract", 1, 2)
    assert capsys.readouterr() == ("", "")
    monkeypatch.setenv("FORCE_COLOR", "1")
    with model.transfer_bars() as progress:
        progress("extract", 1, 2)
        progress("extract", 2, 2)
    captured = capsys.readouterr()
    assert captured.out == "" and "extract" in captured.err


def test_importing_the_command_is_light():
    heavy = "torch transformers numpy safetensors tokenizers huggingface_hub"
    check = f"import sys, rtk_cli.model; print([m for m in '{heavy}'.split() if m in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", check], text=True) == "[]\n"
