"""The program that looks at a GPU, at a tiny size on the CPU: what it finds is looked at, what it times is not."""

import contextlib
import importlib.util
import json
import sys
from pathlib import Path

import pytest
import torch

from rtk import Engine
from rtk.errors import ModelError
from rtk.plugin.host import installed
from rtk.plugin.testing import suite

FOLDER = Path(__file__).parents[2] / "bench" / "gpu"
BACKENDS = [f"attention {name}" for name in installed().names("attention")]
TINY = {"vocab_size": 300, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 8,
        "num_key_value_heads": 2, "intermediate_size": 48, "initializer_range": 0.3}  # fmt: skip


def answers(folder, change=lambda ids: ids):
    """In place of a server, an engine in this process."""

    @contextlib.contextmanager
    def served(settings, dtype):
        with Engine({"model.path": folder or settings.model, "model.device": "cpu", "cache.pool_tokens": 4096}) as one:

            def ask(prompt, new):
                found = one.generate(prompt, {"temperature": 0, "max_new_tokens": new, "ignore_eos": True})
                return change(list(found.token_ids))

            yield ask, "attention torch, pages of 1 token"

    return served


@pytest.fixture
def run(monkeypatch, tmp_path):
    """With a tiny model in place of one that cannot be fetched, and two checks in place of all."""
    monkeypatch.setattr(sys, "path", [str(FOLDER), *sys.path])
    for name in ("attention", "run"):
        spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
        made = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, made)
        spec.loader.exec_module(made)
    few = [check for check in suite("attention") if check.name in ("layout", "equals the oracle: sinks")]
    monkeypatch.setattr(sys.modules["attention"], "suite", lambda kind: few)

    def absent(name):
        raise ModelError("no network")

    monkeypatch.setattr(made, "resolve_model", absent)
    monkeypatch.setattr(made, "SHAPE", made.SHAPE | TINY)
    monkeypatch.setattr(made, "served", answers(None))

    def told(*arguments):
        file = tmp_path / "told.json"
        code = made.main(["--tiny", "--json", str(file), *arguments])
        return code, json.loads(file.read_text())

    made.told_by = told
    return made


def test_every_part_is_run_or_says_why_not(run, capsys):
    code, told = run.told_by("--here", "--seconds", "6000")
    verdicts = {part: found["verdict"] for part, found in told["parts"].items()}
    assert code == 0
    del verdicts["attention native"]  # which is there where a compiler is
    run_here = ["sampling", "serve", "graphs", "attention torch", "attention torch-plain"]
    elsewhere = [part for part in BACKENDS if part not in (*run_here, "attention native")]
    assert verdicts == dict.fromkeys(run_here, "passed") | dict.fromkeys(elsewhere, "cannot run")
    assert (told["device"], told["model"]) == ("cpu", "random weights, for want of smollm2-135m-instruct")
    parts = told["parts"]
    assert parts["attention triton"]["told"] == "needs one of: cuda"
    assert parts["attention torch"]["data"]["backends"]["torch"]["passed"] == 2
    assert [batch["differing"] for batch in parts["sampling"]["data"]["batches"]] == [0]
    assert parts["serve"]["data"]["runs"][0]["equal"] == 2
    graphs = parts["graphs"]["data"]
    assert (graphs["replayed"], graphs["equal_answers"]) == ({"without": 0, "with": 0}, 4)
    lines = capsys.readouterr().out.splitlines()
    assert [line[:24].strip() for line in lines[-len(parts) :]] == list(parts)


def test_other_answers_than_those_of_transformers_are_a_failure(run, monkeypatch):
    monkeypatch.setattr(run, "served", answers(None, lambda ids: [*ids[:2], (ids[2] + 1) % 300, ids[3]]))
    code, told = run.told_by("--here", "--parts", "serve")
    assert code == 1
    serve = told["parts"]["serve"]
    assert serve["told"].startswith("at token 2 another one than transformers', ")
    assert [difference["position"] for difference in serve["data"]["runs"][0]["differences"]] == [2, 2]
    monkeypatch.setattr(run, "NEAR_TIE", 1e6)
    assert run.told_by("--here", "--parts", "serve")[0] == 0
    monkeypatch.setattr(run, "served", answers(None, lambda ids: ids[:3]))
    assert run.told_by("--here", "--parts", "serve")[1]["parts"]["serve"]["told"].startswith("float32: 3 tokens in")


def test_rows_that_are_drawn_otherwise_are_a_failure(run, monkeypatch):
    draw = run.draw
    monkeypatch.setattr(run, "draw", lambda *args: draw(*args) + 1)
    code, told = run.told_by("--here", "--parts", "sampling")
    assert (code, told["parts"]["sampling"]["told"]) == (1, "2 of 2 rows are drawn otherwise than on the host")


def test_logits_that_are_altered_otherwise_are_a_failure(run, monkeypatch):
    sample, calls = run.sample, []

    def other(logits, given, width):
        calls.append(given)
        on_device = len(calls) == 4  # after the host's draws, and its two steps of altered rows
        return sample(-logits if on_device else logits, given, width)

    monkeypatch.setattr(run, "sample", other)
    code, told = run.told_by("--here", "--parts", "sampling")
    assert (code, told["parts"]["sampling"]["told"]) == (1, "2 x 500: other tokens where logits are altered")


def test_a_part_that_breaks_fails_alone(run, monkeypatch):
    monkeypatch.setattr(run, "draw", None)
    code, told = run.told_by("--here", "--parts", "sampling", "attention triton")
    assert code == 1
    assert told["parts"]["sampling"]["told"] == "TypeError: 'NoneType' object is not callable"
    assert told["parts"]["attention triton"]["verdict"] == "cannot run"


def test_nothing_is_begun_when_time_is_up(run):
    code, told = run.told_by("--seconds", "0")
    assert code == 0
    assert {(found["verdict"], found["told"]) for found in told["parts"].values()} == {("left out", "no time was left")}


@pytest.mark.parametrize(
    ("program", "told"),
    [
        ("while True: pass", "did not end within 0 s"),
        ("raise SystemExit(3)", "its process ended with 3"),
        ("import os; os.abort()", "its process ended with -6"),
    ],
)
def test_a_process_that_does_not_answer_fails_alone(run, monkeypatch, tmp_path, program, told):
    (tmp_path / "program.py").write_text(program)
    monkeypatch.setattr(run, "__file__", str(tmp_path / "program.py"))
    limit = 0.3 if "while" in program else 60
    assert run.apart("sampling", run.Settings(1, "m", tiny=True), limit) == run.Outcome("failed", told)


def test_a_part_in_a_process_of_its_own_answers_in_json(run, monkeypatch, tmp_path):
    program = """
import json, sys
outcome = {"verdict": "passed", "told": " ".join(sys.argv[1:7]), "data": {"a": 1}}
open(sys.argv[sys.argv.index("--json") + 1], "w").write(json.dumps({"parts": {"attention x": outcome}}))
"""
    (tmp_path / "program.py").write_text(program)
    monkeypatch.setattr(run, "__file__", str(tmp_path / "program.py"))
    told = "--here --quiet --parts attention x --seconds 7"
    assert run.apart("attention x", run.Settings(7, "m", tiny=True), 60) == run.Outcome("passed", told, {"a": 1})


def test_without_a_device_there_is_nothing_to_look_at(run, capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert run.main([]) == 2
    assert capsys.readouterr().out == "no CUDA device; --tiny tries the program on the CPU\n"
