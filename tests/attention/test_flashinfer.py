"""The flashinfer backend without a GPU and without FlashInfer: against the oracle, by a stand-in that computes."""

import sys
from dataclasses import replace

import fake_flashinfer as fake
import pytest
import torch

from rtk.plugin.testing import NotApplicable, suite
from rtk_attention.flashinfer import FlashInferOptions
from rtk_attention.flashinfer.backend import FlashInferAttention


class OnCPU(FlashInferAttention):
    """As if the CPU were a device with that many multiprocessors."""

    capabilities = replace(
        FlashInferAttention.capabilities,
        devices=frozenset({"cpu"}),
        dtypes=frozenset({"float32", "float16", "bfloat16"}),
    )

    def multiprocessors(self, device):
        return 8

    def compute_capability(self, device):
        return 9


@pytest.fixture(autouse=True)
def library(monkeypatch):
    for name, module in fake.module().items():
        monkeypatch.setitem(sys.modules, name, module)


@pytest.fixture
def backend():
    return OnCPU(FlashInferOptions())


@pytest.mark.parametrize("check", suite("attention"), ids=str)
def test_the_contract_is_kept(check, backend):
    try:
        check(lambda: backend)
    except NotApplicable as reason:
        assert str(reason) == "does not declare float64"
