"""What model, device and page size ask of an attention backend in vain, and the page size that follows."""

import json
import pkgutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from rtk.model.negotiation import compute_capability, conflicts, page_size
from rtk.model.probe import Probe
from rtk.plugin import Capabilities, KVShape
from rtk.plugin.host import installed

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
NEEDS = Probe(KVShape(2, 2, 8, 8, 4), frozenset({"softcap", "sliding_window"}), "float32")
LATENT = Probe(KVShape(2, 1, 576, 512, 16, mla=True), frozenset(), "bfloat16")
FORCED = json.loads((Path(__file__).parents[1] / "data" / "worked_examples.json").read_text())["forced_pages"]


def test_a_backend_that_can_do_it_all():
    every = Capabilities(frozenset({"cpu"}), frozenset({"float32"}), features=NEEDS.features)
    assert conflicts(every, NEEDS, CPU, 7) == []
    assert conflicts(Capabilities(every.devices, every.dtypes, frozenset({7}), every.features), NEEDS, CPU, 7) == []


def test_every_conflict_is_named():
    limited = Capabilities(frozenset({"cuda"}), frozenset({"float16", "bfloat16"}), frozenset({64, 32}))
    device, pages = "device cpu (it runs on cuda)", "cache.page_size = 1 (it takes 32, 64)"
    dtype, features = "dtype float32 (it computes bfloat16, float16)", "the model's sliding_window, softcap"
    assert conflicts(limited, NEEDS, CPU, 1) == [device, dtype, pages, features]
    assert conflicts(limited, None, CPU, 1) == [device, pages]
    assert conflicts(limited, NEEDS, CPU, None) == [device, dtype, features]


def test_graphs_that_are_asked_for():
    none = Capabilities(frozenset({"cpu", "cuda"}), frozenset({"float32"}), features=NEEDS.features)
    some = replace(none, graphs=True)
    for declared in (none, some):
        assert conflicts(declared, NEEDS, CUDA, None) == []
        assert conflicts(declared, NEEDS, CPU, None, graphs=True) == ["model.cuda_graphs = true (device cpu has none)"]
    assert conflicts(none, NEEDS, CUDA, None, graphs=True) == ["model.cuda_graphs = true (it cannot be captured)"]
    assert conflicts(some, NEEDS, CUDA, None, graphs=True) == []


@pytest.mark.parametrize(
    ("kinds", "needs", "expected"),
    [
        ({"mha"}, LATENT, ["the model's mla attention (it computes mha)"]),
        ({"mla"}, LATENT, []),
        ({"mla"}, NEEDS, ["the model's mha attention (it computes mla)"]),
        ({"mha", "mla"}, NEEDS, []),
    ],
)
def test_the_kind_of_attention(kinds, needs, expected):
    declared = Capabilities(
        frozenset({"cpu"}), frozenset({"float32", "bfloat16"}), features=NEEDS.features, kinds=frozenset(kinds)
    )
    assert conflicts(declared, needs, CPU, None) == expected


def test_the_compute_capability(monkeypatch):
    declared = Capabilities(frozenset({"cpu", "cuda"}), frozenset(), compute_capabilities=frozenset({9, 10}))
    none = "device cpu without a compute capability (it has kernels for 9, 10)"
    assert conflicts(declared, None, CPU, None) == [none]
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 6))
    assert compute_capability(CUDA) == 8
    assert conflicts(declared, None, CUDA, None) == ["device cuda of compute capability 8 (it has kernels for 9, 10)"]
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (10, 0))
    assert conflicts(declared, None, CUDA, None) == []
    monkeypatch.setattr(torch.version, "hip", "6.4")
    assert compute_capability(CUDA) is None


def test_a_device_that_is_not_served_says_nothing_of_its_compute_capability():
    declared = Capabilities(frozenset({"cuda"}), frozenset(), compute_capabilities=frozenset({9}))
    assert conflicts(declared, None, CPU, None) == ["device cpu (it runs on cuda)"]


@pytest.mark.parametrize(("takes", "expected"), [(None, 1), ({1, 16}, 1), ({64}, 64), ({64, 32}, 32)])
def test_pages_are_as_small_as_the_backend_takes_them(takes, expected):
    declared = Capabilities(frozenset(), frozenset(), None if takes is None else frozenset(takes))
    assert page_size(declared, None) == expected
    assert page_size(declared, 48) == 48


@pytest.mark.parametrize(("name", "expected"), [("flashmla", 64), ("trtllm_mla", 32)])
def test_forced_pages(monkeypatch, name, expected):
    """The worked example, of what the backends themselves declare."""
    takes = FORCED[name] if isinstance(FORCED[name], list) else [FORCED[name]]
    declared = pkgutil.resolve_name(installed().get("attention", name).plugin.target).capabilities
    assert declared.page_sizes == set(takes)
    (major,) = declared.compute_capabilities
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (major, 0))
    assert page_size(declared, None) == expected
    assert [size for size in (1, 16, 32, 64, 128) if not conflicts(declared, LATENT, CUDA, size)] == takes
    shown = ", ".join(map(str, takes))
    assert conflicts(declared, LATENT, CUDA, 16) == [f"cache.page_size = 16 (it takes {shown})"]
    assert conflicts(declared, LATENT, CUDA, None) == []
