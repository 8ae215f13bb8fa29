"""Tensor encodings of GGUF, and their values as float32.

A quantised row is a run of blocks. `d` and `m` are float16; `q` is an unsigned integer, stored in blocks of 32 as

    Q4_0    d, 16 bytes          value = d * (q - 8)    q has 4 bits: byte j holds value j (low nibble) and j + 16
    Q4_1    d, m, 16 bytes       value = d * q + m
    Q5_0    d, u32, 16 bytes     value = d * (q - 16)   q has 5 bits: as above, with bit j of the u32 on top of value j
    Q5_1    d, m, u32, 16 bytes  value = d * q + m
    Q8_0    d, 32 int8           value = d * q          q is signed here
    IQ4_NL  d, 16 bytes          value = d * LEVELS[q]  q as in Q4_0

K-quants have blocks of 256 values in groups of 16 or 32, each with a small integer `s` that scales it, and in some
an `n` that lowers it. Their bits lie in layers: a layer of 32 bytes holds the same bits of several runs of 32 values,
one above the other, the earlier run in the lower bits.

    Q2_K    16 bytes, 64 bytes, d, m             value = d * s * q - m * n          16 groups; a byte is s and n (high)
    Q3_K    32 bytes, 64 bytes, 12 bytes, d      value = d * (s - 32) * (q - 4)     16 groups; q: layers of 2 bits, on
                                                 top of them the one of 1 bit that stands first; s: 8 bytes with the
                                                 low nibbles of all first, on top of them 4 bytes of 2 bits alike
    Q4_K    d, m, 12 bytes, 128 bytes            value = d * s * q - m * n          8 groups; s, n: see `_six_bits`
    Q5_K    d, m, 12 bytes, 32 bytes, 128 bytes  value = d * s * q - m * n          as Q4_K, top bits of q first
    Q6_K    128 bytes, 64 bytes, 16 int8, d      value = d * s * (q - 32)           16 groups; q: nibbles in layers of
                                                 64 bytes, on top of them layers of 2 bits
    Q8_K    d, 256 int8, 32 bytes                value = d * q                      d is a float32; the end is sums
    IQ4_XS  d, u16, 4 bytes, 128 bytes           value = d * (s - 32) * LEVELS[q]   8 groups, each as in Q4_0; s: 4
                                                 bytes of nibbles, on top of them 2 bits each of the u16

What multiplies a float16 has at most 12 bits, so that each product fits in a float32 mantissa, and what is added after
it rounds once (in Q8_K the product does): the results are the exact values rounded to float32.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]
Integers = npt.NDArray[np.integer[Any]]
Blocks = npt.NDArray[np.void]

#: Values decoded at a time: keeps the temporaries (about 8 MB of float32) inside the processor's cache.
_CHUNK_VALUES = 1 << 21

#: What the 4 bits of IQ4 stand for: finer near zero, where most weights are.
LEVELS = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32)


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
    step = _CHUNK_VALUES // kind.block_len
    # a damaged scale decodes to inf or nan: the caller looks for them
    with np.errstate(invalid="ignore", over="ignore"):
        for start in range(0, len(blocks), step):
            values[start : start + step] = kind.decode(blocks[start : start + step])
    return values.reshape(-1)


def _column(blocks: Blocks, field: str) -> Floats:
    """A floating-point field as a float32 column [blocks, 1]."""
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


def _q8(blocks: Blocks) -> Floats:
    values = blocks["q"].astype(np.float32)
    values *= _column(blocks, "d")
    return values


def _iq4_nl(blocks: Blocks) -> Floats:
    values = LEVELS[_nibbles(blocks)]
    values *= _column(blocks, "d")
    return values


# K-quants: [blocks, groups, values of a group] until they are returned


def _layers(packed: Bytes, bits: int, width: int = 32) -> Bytes:
    """The integers of `bits` bits in layers of `width` bytes, [blocks, 256]."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    layers = np.ascontiguousarray(packed).reshape(len(packed), -1, 1, width)
    integers: Bytes = layers >> shifts
    integers &= (1 << bits) - 1
    return integers.reshape(len(packed), -1)


def _scaled(integers: Integers | Floats, scales: Floats) -> Floats:
    """Each group of integers times its scale, [blocks, groups, values of a group]."""
    values = integers.reshape(*scales.shape, -1).astype(np.float32)
    values *= scales[..., None]
    return values


def _six_bits(packed: Bytes) -> tuple[Integers, Integers]:
    """Of 12 bytes: s and n of 8 groups, [blocks, 8] each.

    Bytes 0 to 3 hold s of groups 0 to 3 in their lower six bits, bytes 4 to 7 n of these. The s of group 4 + i is the
    low nibble of byte 8 + i under the top two bits of byte i, and n the high nibble under the top two of byte 4 + i.
    """
    s, n, rest = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = np.concatenate((s & 63, rest & 15 | s >> 6 << 4), axis=1)
    minima = np.concatenate((n & 63, rest >> 4 | n >> 6 << 4), axis=1)
    return scales, minima


def _lowered(blocks: Blocks, integers: Integers, scales: Integers, minima: Integers) -> Floats:
    """d * s * q - m * n"""
    values = _scaled(integers, scales * _column(blocks, "d"))
    values -= (minima * _column(blocks, "m"))[..., None]
    return values.reshape(len(blocks), -1)


def _q2_k(blocks: Blocks) -> Floats:
    both = blocks["scales"]
    return _lowered(blocks, _layers(blocks["q"], 2), both & 15, both >> 4)


def _q3_k(blocks: Blocks) -> Floats:
    low, high = _layers(blocks["scales"][:, :8], 4, 8), _layers(blocks["scales"][:, 8:], 2, 4)
    scales = (low | high << 4).astype(np.float32)
    scales -= 32
    integers = (_layers(blocks["q"], 2) | _layers(blocks["top"], 1) << 2).view(np.int8)
    integers -= 4
    return _scaled(integers, scales * _column(blocks, "d")).reshape(len(blocks), -1)


def _q4_k(blocks: Blocks) -> Floats:
    return _lowered(blocks, _layers(blocks["q"], 4), *_six_bits(blocks["scales"]))


def _q5_k(blocks: Blocks) -> Floats:
    integers = _layers(blocks["q"], 4) | _layers(blocks["top"], 1) << 4
    return _lowered(blocks, integers, *_six_bits(blocks["scales"]))


def _q6_k(blocks: Blocks) -> Floats:
    integers = (_layers(blocks["q"], 4, 64) | _layers(blocks["top"], 2) << 4).view(np.int8)
    integers -= 32
    return _scaled(integers, blocks["scales"] * _column(blocks, "d")).reshape(len(blocks), -1)


def _iq4_xs(blocks: Blocks) -> Floats:
    low = _layers(blocks["scales"], 4, 1)
    high = blocks["top"][:, None] >> np.arange(0, 16, 2, dtype=np.uint16) & 3
    scales = (low | high << 4).astype(np.float32)
    scales -= 32
    levels = LEVELS[_layers(blocks["q"], 4, 16)]
    return _scaled(levels, scales * _column(blocks, "d")).reshape(len(blocks), -1)


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
    8: _type("Q8_0", 32, [_D, ("q", "i1", 32)], _q8),
    10: _type("Q2_K", 256, [("scales", "u1", 16), ("q", "u1", 64), _D, _M], _q2_k),
    11: _type("Q3_K", 256, [("top", "u1", 32), ("q", "u1", 64), ("scales", "u1", 12), _D], _q3_k),
    12: _type("Q4_K", 256, [_D, _M, ("scales", "u1", 12), ("q", "u1", 128)], _q4_k),
    13: _type("Q5_K", 256, [_D, _M, ("scales", "u1", 12), ("top", "u1", 32), ("q", "u1", 128)], _q5_k),
    14: _type("Q6_K", 256, [("q", "u1", 128), ("top", "u1", 64), ("scales", "i1", 16), _D], _q6_k),
    15: _type("Q8_K", 256, [("d", "<f4"), ("q", "i1", 256), ("sums", "<i2", 16)], _q8),
    20: _type("IQ4_NL", 32, [_D, _Q4], _iq4_nl),
    23: _type("IQ4_XS", 256, [_D, ("top", "<u2"), ("scales", "u1", 4), ("q", "u1", 128)], _iq4_xs),
    30: _type("BF16", 1, [("v", "<u2")], _bf16),
}

#: Names of the encodings that rtk refuses, so that a refusal can say which one it met.
FOREIGN_TENSOR_TYPES: dict[int, str] = {
    9: "Q8_1",
    16: "IQ2_XXS",
    17: "IQ2_XS",
    18: "IQ3_XXS",
    19: "IQ1_S",
    21: "IQ3_S",
    22: "IQ2_S",
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
