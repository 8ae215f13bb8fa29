"""The kernel that takes forbidden tokens out of logits on a CUDA device."""

import torch
import triton
import triton.language as tl

BLOCK = 1024
"""Tokens of one program."""


@triton.jit  # type: ignore[untyped-decorator]
def forbid_kernel(logits, mask, rows, width, stride, words, block: tl.constexpr):  # type: ignore[no-untyped-def]
    """Program (i, j): the j-th block of tokens of row `rows[i]`, under row i of the mask. `width` tokens in all."""
    i = tl.program_id(0)
    tokens = tl.program_id(1) * block + tl.arange(0, block)
    inside = tokens < width
    word = tl.load(mask + i * words + tokens // 32, mask=inside & (tokens // 32 < words), other=0)
    forbidden = ((word >> (tokens % 32)) & 1) == 0
    own = logits + tl.load(rows + i).to(tl.int64) * stride + tokens
    value = tl.load(own, mask=inside & forbidden, other=0.0)
    tl.store(own, float("-inf"), mask=inside & forbidden & (value == value))  # a NaN stays, to be found


def forbid(logits: torch.Tensor, mask: torch.Tensor, rows: torch.Tensor) -> None:
    """Set what row i of `mask` [m, words] does not allow to -inf in row `rows[i]` of `logits` [n, width].

    The tokens of a row lie side by side; all on one device.
    """
    width = logits.shape[1]
    grid = len(rows), triton.cdiv(width, BLOCK)
    forbid_kernel[grid](logits, mask, rows, width, logits.stride(0), mask.shape[1], block=BLOCK)
