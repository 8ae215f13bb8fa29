"""`rtk attention`."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from typer.testing import CliRunner

from rtk.plugin import KVShape, Plugin
from rtk.plugin.host import installed
from rtk.plugin.registry import Origin, Registered, Registry
from rtk_attention.torch.backend import TorchAttention
from rtk_cli.main import app

OTHERS = [one for one in installed().all() if one.plugin.kind != "attention"]
TOYS: dict[str, dict[str, Any]] = {
    "plain": {"features": frozenset(), "preference": 20},
    "flash": {"page_sizes": frozenset({32, 64}), "preference": 10},
    "far": {"devices": frozenset({"cuda"}), "compute_capabilities": frozenset({9, 10}), "preference": 30},
}


@pytest.fixture(autouse=True)
def toys(monkeypatch: pytest.MonkeyPatch) -> None:
    """rtk's torch backend, three that declare other things, and one that lacks a package."""
    module = ModuleType("toys")
    monkeypatch.setitem(sys.modules, "toys", module)
    found = [installed().get("attention", "torch")]
    for name, declared in TOYS.items():
        capabilities = replace(TorchAttention.capabilities, kinds=frozenset({"mha"}), **declared)
        setattr(module, name, type(name, (TorchAttention,), {"capabilities": capabilities}))
    for name in (*TOYS, "lacking"):
        plugin = Plugin(kind="attention", name=name, summary="s", target=f"toys:{name}")
        found.append(Registered(plugin, Origin(name, f"rtk-{name}", "1")))
    monkeypatch.setattr("rtk.plugin.host.installed", lambda: Registry([*OTHERS, *found]))


def run(*args: str) -> tuple[int, list[str], list[str]]:
    result = CliRunner().invoke(app, ["attention", "--device", "cpu", *args])
    return result.exit_code, [line.rstrip() for line in result.stdout.splitlines()], result.stderr.splitlines()


LACKING = "cannot be built: AttributeError: module 'toys' has no attribute 'lacking'"


def test_the_table_of_a_model(zoo: Any) -> None:
    code, out, err = run("--model", str(zoo.folder("gemma2")))
    assert (code, err) == (0, [])
    assert out[0] == f"model: {zoo.folder('gemma2')}: gemma2, float32, sliding_window, softcap"
    assert out[1] == "device: cpu"
    assert out[2].split("  ")[0] == "name"
    assert [line.split()[:2] for line in out[3:8]] == [
        ["far", "no"], ["plain", "no"], ["flash", "taken"], ["torch", "yes"], ["lacking", "no"]
    ]  # fmt: skip
    assert out[3].endswith("device cpu (it runs on cuda)")
    assert "  32, 64  " in out[5]
    assert "cuda 9, 10" in out[3]
    assert out[7].endswith(LACKING)
    assert out[8:] == [
        "a start takes flash: pages of 32 tokens (it takes 32, 64), by auto; not far: device cpu (it runs on cuda); "
        f"not plain: the model's sliding_window, softcap; not lacking: {LACKING}"
    ]


def test_of_a_model_that_is_not_here_nothing_is_known(tmp_path: Path) -> None:
    code, out, _ = run("--set", f"model.cache_dir={tmp_path}", "--page-size", "16")
    assert (code, out[0]) == (0, "model: smollm2-135m-instruct, to be fetched: nothing is known of it")
    assert out[-1].startswith("a start takes plain: pages of 16 tokens, by auto; not far: ")
    assert "cache.page_size = 16 (it takes 32, 64)" in out[5]
    assert list(tmp_path.iterdir()) == []


def test_what_a_start_refuses_is_an_error_below_the_table(zoo: Any) -> None:
    given = ("--model", str(zoo.folder("llama")), "--page-size", "16")
    code, out, err = run(*given, "--attention", "flash")
    assert (code, len(out)) == (1, 8)
    problem = "cannot serve cache.page_size = 16 (it takes 32, 64); choose plain, torch"
    assert err == [f"error: attention backend 'flash' {problem}"]
    code, out, err = run(*given, "--attention", "lacking", "--json")
    assert (code, json.loads("".join(out))["taken"]) == (1, None)
    assert err == [f"error: attention plugin 'lacking' of rtk-lacking 1 (entry point 'lacking') {LACKING}"]


def test_one_that_cannot_lay_out_what_the_files_tell_is_not_taken(zoo: Any) -> None:
    def fails(self: object, shape: KVShape, page_size: int, kv_dtype: str) -> None:
        raise KeyError(f"{shape.layers} layers, {shape.kv_heads} of {shape.q_heads} heads, {shape.head_dim} wide")

    sys.modules["toys"].plain.layout = fails
    given = ("--model", str(zoo.folder("llama")))
    problem = "the model's K/V (KeyError: '2 layers, 2 of 4 heads, 8 wide')"
    code, out, _ = run(*given)
    assert (code, [line.split()[:2] for line in out[4:6]]) == (0, [["plain", "no"], ["flash", "taken"]])
    assert out[4].endswith(problem)
    assert f"; not plain: {problem};" in out[-1]
    code, _, err = run(*given, "--attention", "plain")
    assert (code, err[-1]) == (1, f"error: attention backend 'plain' cannot serve {problem}; choose flash, torch")


def test_a_model_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    code, out, (error,) = run("--model", str(tmp_path))
    assert (code, out) == (1, [])
    assert error == f"error: {tmp_path}: has no config.json, it is not a model folder"


def test_json_for_machines(zoo: Any) -> None:
    code, out, _ = run("--json", "--model", str(zoo.folder("llama")), "--attention", "flash")
    answer = json.loads("\n".join(out))
    assert code == 0
    assert answer["model"] == {
        "path": str(zoo.folder("llama")), "type": "llama", "dtype": "float32", "mla": False, "features": []
    }  # fmt: skip
    assert (answer["device"], answer["compute_capability"]) == ("cpu", None)
    assert (answer["taken"], answer["why"]) == ("flash", "pages of 32 tokens (it takes 32, 64), by attention.backend")
    far, plain, flash, torch, lacking = answer["backends"]
    assert (plain["serves"], torch["page_size"]) == (True, 1)
    assert (far["problems"], far["compute_capabilities"]) == (["device cpu (it runs on cuda)"], [9, 10])
    assert flash == {
        "name": "flash",
        "distribution": "rtk-flash",
        "version": "1",
        "serves": True,
        "problems": [],
        "page_size": 32,
        "devices": ["cpu", "cuda"],
        "compute_capabilities": None,
        "dtypes": ["bfloat16", "float16", "float32", "float64"],
        "kinds": ["mha"],
        "features": ["sinks", "sliding_window", "softcap"],
        "page_sizes": [32, 64],
        "preference": 10,
        "graphs": False,
    }
    assert lacking == {
        "name": "lacking",
        "distribution": "rtk-lacking",
        "version": "1",
        "serves": False,
        "problems": [LACKING],
        "page_size": None,
    }
