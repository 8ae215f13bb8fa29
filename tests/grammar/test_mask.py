"""Masks on logits: bit by bit on the CPU, and the kernel against that, in triton's interpreter and compiled."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from rtk.grammar.mask import apply_mask
from rtk.plugin.grammar import write_row

INF, NAN = np.inf, np.nan


def packed(*rows, words):
    mask = np.zeros((len(rows), words), np.int32)
    for row, allowed in zip(mask, rows, strict=True):
        write_row(row, allowed)
    return mask


def test_what_is_not_allowed_becomes_minus_infinity_in_the_rows_that_are_named():
    logits = torch.arange(120.0).reshape(3, 40)
    before = logits.clone()
    apply_mask(logits, packed([0, 31, 32, 39], [5], words=2), np.array([2, 0], np.int32))
    assert logits[1].tolist() == before[1].tolist()
    assert {i: v for i, v in enumerate(logits[2].tolist()) if v != -INF} == {0: 80.0, 31: 111.0, 32: 112.0, 39: 119.0}
    assert {i: v for i, v in enumerate(logits[0].tolist()) if v != -INF} == {5: 5.0}


def test_tokens_that_no_word_stands_for_are_not_allowed_and_bits_without_a_token_do_no_harm():
    logits = torch.zeros(1, 70)
    apply_mask(logits, packed(range(64), words=2), np.array([0], np.int32))
    assert logits[0].tolist() == [0.0] * 64 + [-INF] * 6
    logits = torch.zeros(2, 40)
    apply_mask(logits[:, :35], packed(range(64), words=2), np.array([1], np.int32))
    assert logits.tolist() == [[0.0] * 40] * 2


def test_a_nan_stays_one_and_an_infinite_logit_is_taken_out():
    logits = torch.tensor([[NAN, INF, -INF, 1.0]])
    apply_mask(logits, packed([3], words=1), np.array([0], np.int32))
    assert logits[0].isnan().tolist() == [True, False, False, False]
    assert logits[0, 1:].tolist() == [-INF, -INF, 1.0]


AGAINST_THE_CPU = """
import numpy as np, torch
from rtk.grammar.mask import apply_mask
from rtk.grammar.mask_kernel import forbid

rng = np.random.default_rng(0)
for n, width, words, rows in [(3, 2100, 66, [2, 0]), (1, 5, 1, [0]), (4, 1024, 32, [1, 2, 3]), (2, 1500, 32, [1])]:
    mask = rng.integers(-(2**31), 2**31, (len(rows), words)).astype(np.int32)
    mask[0, 0] = -(2**31)
    logits = torch.from_numpy(rng.standard_normal((n, width + 3)).astype(np.float32))
    logits[:, 3] = torch.nan
    logits[:, 4] = torch.inf
    wanted, got = logits.clone(), logits.clone()
    apply_mask(wanted[:, :width], mask, np.array(rows, np.int32))
    forbid(got[:, :width], torch.from_numpy(mask), torch.tensor(rows, dtype=torch.int32))
    assert torch.equal(*(t.nan_to_num(7, 8, 9) for t in (wanted, got))), (n, width, words)
    assert torch.equal(wanted[:, width:], logits[:, width:])
    assert ((wanted == -torch.inf).sum(1) > width // 4).nonzero().flatten().tolist() == sorted(rows)
print("same")
"""


def test_the_kernel_does_what_the_cpu_does():
    pytest.importorskip("triton")
    env = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run([sys.executable, "-c", AGAINST_THE_CPU], env=env, capture_output=True, text=True)
    assert done.stdout == "same\n", done.stderr


@pytest.mark.parametrize("capability", [80, 90, 100])
def test_the_kernel_can_be_compiled_ahead_of_time(capability, tmp_path, monkeypatch):
    triton = pytest.importorskip("triton")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from rtk.grammar.mask_kernel import BLOCK, forbid_kernel

    signature = {"logits": "*fp32", "mask": "*i32", "rows": "*i32", "width": "i32", "stride": "i32", "words": "i32"}
    source = ASTSource(fn=forbid_kernel, signature=signature | {"block": "constexpr"}, constexprs={"block": BLOCK})
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32))
    suffix = "" if capability == 80 else "a"
    assert f".target sm_{capability}{suffix}" in compiled.asm["ptx"]
    assert compiled.asm["cubin"][:4] == b"\x7fELF"
