"""The benchmark of attention at a tiny size on the CPU: what it counts is exact; what it times is not looked at."""

import importlib.util
import json
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from rtk.plugin import Plugin
from rtk.plugin.host import installed
from rtk.plugin.registry import Origin, Registered, Registry
from rtk.plugin.testing import suite
from rtk_attention.torch.backend import TorchAttention


@pytest.fixture
def bench(monkeypatch):
    """With two checks in place of all."""
    file = Path(__file__).parents[2] / "bench" / "gpu" / "attention.py"
    spec = importlib.util.spec_from_file_location("gpu_attention", file)
    made = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "gpu_attention", made)
    spec.loader.exec_module(made)
    few = [check for check in suite("attention") if check.name in ("layout", "equals the oracle: sinks")]
    monkeypatch.setattr(made, "suite", lambda kind: few)
    return made


class Broken(TorchAttention):
    def forward(self, q, kv, call, plan):
        raise RuntimeError("no kernel\nfor it")


class OfAnotherChip(TorchAttention):
    capabilities = replace(TorchAttention.capabilities, compute_capabilities=frozenset({9, 10}))


def test_every_backend_is_checked_and_timed_or_says_why_not(bench, tmp_path, capsys):
    file = tmp_path / "told.json"
    code = bench.main(
        ["--tiny", "--backends", "torch", "triton", "--dtype", "float32", "--rounds", "2", "--json", str(file)]
    )
    told = json.loads(file.read_text())
    nothing = {"skipped": 0, "left_out": 0, "failed": {}}
    assert (code, told["device"], told["dtype"], told["left_out"]) == (0, "cpu", "float32", [])
    assert told["backends"]["torch"] == nothing | {"passed": 2, "why_not": ""}
    assert told["backends"]["triton"] == nothing | {"passed": 0, "why_not": "needs one of: cuda"}
    layers = [(one["kind"], one["batch"], one["backend"], one["page_size"]) for one in told["layers"]]
    batches = [(kind, batch) for kind in ("mha", "mla") for batch in ("decode", "chunk")]
    assert layers == [(kind, batch, "torch", 64) for kind, batch in batches]
    assert all(one["off_by"] < 2e-5 for one in told["layers"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines[1:4]] == [["backend", "passed"], ["torch", "2"], ["triton", "cannot"]]
    assert [line.split()[:3] for line in lines[6:]] == [[kind, batch, "torch"] for kind, batch in batches]


def test_one_that_fails_is_told_and_the_others_go_on(bench, monkeypatch, tmp_path):
    origin = Origin("e", "test", "1")
    plugins = [
        Plugin(kind="attention", name=name, summary="-", target=f"{__name__}:{made}")
        for name, made in (("broken", "Broken"), ("torch", "TorchAttention"), ("gone", "Gone"))
    ]
    monkeypatch.setattr(bench, "installed", lambda: Registry([Registered(one, origin) for one in plugins]))
    file = tmp_path / "told.json"
    assert bench.main(["--tiny", "--dtype", "float32", "--rounds", "2", "--json", str(file)]) == 1
    told = json.loads(file.read_text())
    assert told["backends"]["broken"]["failed"] == {"equals the oracle: sinks": "RuntimeError: no kernel for it"}
    assert told["backends"]["gone"]["why_not"].startswith("AttributeError: module ")
    assert told["backends"]["torch"]["passed"] == 2
    assert {one["backend"] for one in told["layers"]} == {"torch"}
    assert "mla chunk: broken: RuntimeError: no kernel for it" in told["left_out"]


def test_nothing_is_begun_when_time_is_up(bench, tmp_path):
    file = tmp_path / "told.json"
    assert bench.main(["--tiny", "--backends", "torch", "--seconds", "0", "--json", str(file)]) == 0
    told = json.loads(file.read_text())
    assert (told["backends"]["torch"]["passed"], told["backends"]["torch"]["left_out"]) == (0, 2)
    assert told["layers"] == []
    assert told["left_out"][0] == "mha decode: no time was left"
    assert len(told["left_out"]) == 4


def test_a_device_of_another_compute_capability_is_named(bench, monkeypatch):
    backend = OfAnotherChip(installed().get("attention", "torch").plugin.options())
    assert bench.why_not(backend) == ""  # a CPU has none
    monkeypatch.setattr(bench, "device_of", lambda backend: torch.device("cuda"))
    fake = SimpleNamespace(get_device_capability=lambda: (8, 6))
    monkeypatch.setattr(bench, "torch", SimpleNamespace(cuda=fake))
    assert bench.why_not(backend) == "needs compute capability 9.x, 10.x, not 8.6"
    fake.get_device_capability = lambda: (9, 0)
    assert bench.why_not(backend) == ""


def test_bytes_and_operations_are_those_that_attention_needs(bench):
    rows = ((1, 100), (3, 10))
    # K and V of 110 tokens, and 4 queries with their answers, in two bytes
    assert bench.bytes_moved(bench.LLAMA, rows, "bfloat16") == 2 * (110 * 8 * (128 + 128) + 4 * 32 * (128 + 128))
    assert bench.bytes_moved(bench.DEEPSEEK, rows, "bfloat16") == 2 * (110 * 576 + 4 * 128 * (576 + 512))
    assert bench.flops(bench.DEEPSEEK, rows) == 2 * (100 + 8 + 9 + 10) * 128 * (576 + 512)
