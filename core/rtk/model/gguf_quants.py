"""Tensor encodings of GGUF, and their values as float32.

A quantised row is a run of 32-value blocks. `d` and `m` are float16; `q` is an unsigned integer, stored as

    Q4_0  d, 16 bytes           value = d * (q - 8)    q has 4 bits: byte j holds value j (low nibble) and j + 16 (high)
    Q4_1  d, m, 16 bytes        value = d * q + m
    Q5_0  d, u32, 16 bytes      value = d * (q - 16)   q has 5 bits: as above, with bit j of the u32 on top of value j
    Q5_1  d, m, u32, 16 bytes   value = d * q + m
    Q8_0  d, 32 int8            value = d * q          q is signed here

d * q fits in a float32 mantissa and adding m rounds once, so the results are the exact values rounded to float32.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]
Blocks = npt.NDArray[np.void]

#: Blocks decoded at a time: keeps the temporaries (about 8 MB of float32) inside the processor's cache.
_CHUNK_BLOCKS = 1 << 16


@dataclass(frozen=True)
class TensorType:
    """An encoding: `block_len` values are stored together as one record of type `record`."""

    name: str
    block_len: int
    record: np.dtype[np.void]
    decode: Callable[[Blocks], Floats]

    @property
    def block_bytes(self) -> int:
        return self.record.itemsize


def dequantise(raw: Bytes, kind: TensorType) -> Floats:
    """Decode whole blocks.

    Args:
        raw: contiguous uint8 of any shape whose size is a multiple of `kind.block_bytes`.

    Returns:
        float32 of shape [blocks * block_len], in storage order. O(values) time, temporaries bounded by a constant.
    """
    blocks = raw.reshape(-1).view(kind.record)
    values = np.empty((len(blocks), kind.block_len), dtype=np.float32)
    # a damaged scale decodes to inf or nan: the caller looks for them
    with np.errstate(invalid="ignore", over="ignore"):
        for start in range(0, len(blocks), _CHUNK_BLOCKS):
            values[start : start + _CHUNK_BLOCKS] = kind.decode(blocks[start : start + _CHUNK_BLOCKS])
    return values.reshape(-1)


def _column(blocks: Blocks, field: str) -> Floats:
    """A float16 field as a float32 column [blocks, 1]."""
    return blocks[field].astype(np.float32)[:, None]


def _nibbles(blocks: Blocks) -> Bytes:
    """The 4-bit integers of each block, [blocks, 32]."""
    packed = blocks["q"]
    return np.concatenate((packed & 0x0F, packed >> 4), axis=1)


def _five_bits(blocks: Blocks) -> Bytes:
    """The 5-bit integers of each block, [blocks, 32]."""
    top = np.unpackbits(np.ascontiguousarray(blocks["top"]), axis=1, bitorder="little")
    quanta: Bytes = _nibbles(blocks) | (top << 4).astype(np.uint8)
    return quanta


def _q4_0(blocks: Blocks) -> Floats:
    values = _nibbles(blocks).astype(np.float32)
    values -= 8
    values *= _column(blocks, "d")
    return values


def _q4_1(blocks: Blocks) -> Floats:
    values = _nibbles(blocks).astype(np.float32)
    values *= _column(blocks, "d")
    values += _column(blocks, "m")
    return values


def _q5_0(blocks: Blocks) -> Floats:
    values = _five_bits(blocks).astype(np.float32)
    values -= 16
    values *= _column(blocks, "d")
    return values


def _q5_1(blocks: Blocks) -> Floats:
    values = _five_bits(blocks).astype(np.float32)
    values *= _column(blocks, "d")
    values += _column(blocks, "m")
    return values


def _q8_0(blocks: Blocks) -> Floats:
    values = blocks["q"].astype(np.float32)
    values *= _column(blocks, "d")
    return values


def _plain(blocks: Blocks) -> Floats:
    return blocks["v"].astype(np.float32)[:, None]


def _bf16(blocks: Blocks) -> Floats:
    """bfloat16 is the upper half of a float32."""
    return (blocks["v"].astype(np.uint32) << 16).view(np.float32)[:, None]


_D, _M, _TOP, _Q4 = ("d", "<f2"), ("m", "<f2"), ("top", "u1", 4), ("q", "u1", 16)


def _type(name: str, block_len: int, fields: list[Any], decode: Callable[[Blocks], Floats]) -> TensorType:
    return TensorType(name, block_len, np.dtype(fields), decode)


#: The encodings that rtk reads, by the code that stands in the file.
TENSOR_TYPES: dict[int, TensorType] = {
    0: _type("F32", 1, [("v", "<f4")], _plain),
    1: _type("F16", 1, [("v", "<f2")], _plain),
    2: _type("Q4_0", 32, [_D, _Q4], _q4_0),
    3: _type("Q4_1", 32, [_D, _M, _Q4], _q4_1),
    6: _type("Q5_0", 32, [_D, _TOP, _Q4], _q5_0),
    7: _type("Q5_1", 32, [_D, _M, _TOP, _Q4], _q5_1),
    8: _type("Q8_0", 32, [_D, ("q", "i1", 32)], _q8_0),
    30: _type("BF16", 1, [("v", "<u2")], _bf16),
}

#: Names of the encodings that rtk refuses, so that a refusal can say which one it met.
FOREIGN_TENSOR_TYPES: dict[int, str] = {
    9: "Q8_1",
    10: "Q2_K",
    11: "Q3_K",
    12: "Q4_K",
    13: "Q5_K",
    14: "Q6_K",
    15: "Q8_K",
    16: "IQ2_XXS",
    17: "IQ2_XS",
    18: "IQ3_XXS",
    19: "IQ1_S",
    20: "IQ4_NL",
    21: "IQ3_S",
    22: "IQ2_S",
    23: "IQ4_XS",
    24: "I8",
    25: "I16",
    26: "I32",
    27: "I64",
    28: "F64",
    29: "IQ1_M",
    34: "TQ1_0",
    35: "TQ2_0",
    39: "MXFP4",
    40: "NVFP4",
    41: "Q1_0",
}
