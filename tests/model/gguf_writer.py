"""Writes small GGUF files, and the encodings in them, straight from the format's definition, one value at a time."""

import random
import struct
from itertools import cycle

import numpy as np

UINT8, INT8, UINT16, INT16, UINT32, INT32, FLOAT32, BOOL, STRING, ARRAY, UINT64, INT64, FLOAT64 = range(13)
SCALARS = dict(enumerate("BbHhIif?")) | {UINT64: "Q", INT64: "q", FLOAT64: "d"}
KINDS = {"F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q5_0": 6, "Q5_1": 7, "Q8_0": 8, "Q2_K": 10, "Q3_K": 11, "Q4_K": 12}
KINDS |= {"Q5_K": 13, "Q6_K": 14, "Q8_K": 15, "IQ2_XXS": 16, "IQ4_NL": 20, "IQ4_XS": 23, "BF16": 30}


def string(text):
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def value(code, content):
    """The bytes of a value; an array's content is (type of its items, items)."""
    if code == STRING:
        return string(content)
    if code == ARRAY:
        item_code, items = content
        return struct.pack("<IQ", item_code, len(items)) + b"".join(value(item_code, item) for item in items)
    return struct.pack("<" + SCALARS[code], content)


def strings(items):
    return ARRAY, (STRING, items)


class Gguf:
    """A file in the making: metadata is {key: (type, content)}, tensors is {name: (row-major shape, kind, bytes)}."""

    def __init__(self, metadata=None, tensors=None, *, version=3, magic=b"GGUF", alignment=32):
        self.metadata = {"general.architecture": (STRING, "llama")} | (metadata or {})
        self.tensors = tensors or {}
        self.version = version
        self.magic = magic
        self.alignment = alignment

    def header(self):
        parts = [self.magic, struct.pack("<IQQ", self.version, len(self.tensors), len(self.metadata))]
        for key, (code, content) in self.metadata.items():
            parts.append(string(key) + struct.pack("<I", code) + value(code, content))
        offset = 0
        for name, (shape, kind, data) in self.tensors.items():
            parts.append(string(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape)))
            parts.append(struct.pack("<IQ", KINDS.get(kind, kind), offset))
            offset += self.padded(len(data))
        return b"".join(parts)

    def padded(self, size):
        return -(-size // self.alignment) * self.alignment

    def to_bytes(self):
        header = self.header()
        body = header.ljust(self.padded(len(header)), b"\0")
        for _, _, data in self.tensors.values():
            body += data.ljust(self.padded(len(data)), b"\0")
        return body

    def write(self, path):
        path.write_bytes(self.to_bytes())
        return path


# encodings, one scalar at a time


def half(data, at):
    return struct.unpack_from("<e", data, at)[0]


def nibble(packed, j):
    return packed[j] & 15 if j < 16 else packed[j - 16] >> 4


IQ4_LEVELS = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113]


def decode_block(kind, data):
    """The values of one block (1, 32 or 256), as exact Python floats."""
    if kind == "F32":
        return list(struct.unpack("<f", data))
    if kind == "F16":
        return [half(data, 0)]
    if kind == "BF16":
        return list(struct.unpack("<f", b"\0\0" + data))
    if kind == "Q4_0":
        return [half(data, 0) * (nibble(data[2:], j) - 8) for j in range(32)]
    if kind == "Q4_1":
        return [half(data, 0) * nibble(data[4:], j) + half(data, 2) for j in range(32)]
    if kind == "Q5_0":
        high = int.from_bytes(data[2:6], "little")
        return [half(data, 0) * ((nibble(data[6:], j) | (high >> j & 1) << 4) - 16) for j in range(32)]
    if kind == "Q5_1":
        high = int.from_bytes(data[4:8], "little")
        return [half(data, 0) * (nibble(data[8:], j) | (high >> j & 1) << 4) + half(data, 2) for j in range(32)]
    if kind == "Q8_0":
        return [half(data, 0) * q for q in struct.unpack_from("<32b", data, 2)]
    if kind == "IQ4_NL":
        return [half(data, 0) * IQ4_LEVELS[nibble(data[2:], j)] for j in range(32)]
    return [K_QUANTS[kind](data, i) for i in range(256)]


def q2_k(data, i):
    scale, q = data[i // 16], data[16 + i // 128 * 32 + i % 32] >> i % 128 // 32 * 2 & 3
    return half(data, 80) * (scale & 15) * q - half(data, 82) * (scale >> 4)


def q3_k(data, i):
    q = data[32 + i // 128 * 32 + i % 32] >> i % 128 // 32 * 2 & 3
    high = data[i % 32] >> i // 32 & 1
    group = i // 16
    low = data[96 + group] & 15 if group < 8 else data[96 + group - 8] >> 4
    scale = low | (data[104 + group % 4] >> group // 4 * 2 & 3) << 4
    return half(data, 108) * (scale - 32) * ((q | high << 2) - 4)


def scale_and_min(packed, group):
    """The six-bit pair of one of eight groups."""
    if group < 4:
        return packed[group] & 63, packed[group + 4] & 63
    low = packed[group + 4]
    return low & 15 | packed[group - 4] >> 6 << 4, low >> 4 | packed[group] >> 6 << 4


def q4_k(data, i):
    scale, least = scale_and_min(data[4:16], i // 32)
    q = data[16 + i // 64 * 32 + i % 32] >> i % 64 // 32 * 4 & 15
    return half(data, 0) * scale * q - half(data, 2) * least


def q5_k(data, i):
    scale, least = scale_and_min(data[4:16], i // 32)
    q = data[48 + i // 64 * 32 + i % 32] >> i % 64 // 32 * 4 & 15
    return half(data, 0) * scale * (q | (data[16 + i % 32] >> i // 32 & 1) << 4) - half(data, 2) * least


def q6_k(data, i):
    low = data[i // 128 * 64 + i % 64] >> i % 128 // 64 * 4 & 15
    high = data[128 + i // 128 * 32 + i % 32] >> i % 128 // 32 * 2 & 3
    return half(data, 208) * struct.unpack_from("<b", data, 192 + i // 16)[0] * ((low | high << 4) - 32)


def q8_k(data, i):
    return struct.unpack_from("<f", data, 0)[0] * struct.unpack_from("<b", data, 4 + i)[0]


def iq4_xs(data, i):
    group = i // 32
    low = data[4 + group // 2] >> group % 2 * 4 & 15
    scale = low | (int.from_bytes(data[2:4], "little") >> group * 2 & 3) << 4
    return half(data, 0) * (scale - 32) * IQ4_LEVELS[nibble(data[8 + 16 * group :], i % 32)]


K_QUANTS = {"Q2_K": q2_k, "Q3_K": q3_k, "Q4_K": q4_k, "Q5_K": q5_k, "Q6_K": q6_k, "Q8_K": q8_k, "IQ4_XS": iq4_xs}
BLOCK_BYTES = {"F32": 4, "F16": 2, "BF16": 2, "Q4_0": 18, "Q4_1": 20, "Q5_0": 22, "Q5_1": 24, "Q8_0": 34, "IQ4_NL": 18}
BLOCK_BYTES |= {"Q2_K": 84, "Q3_K": 110, "Q4_K": 144, "Q5_K": 176, "Q6_K": 210, "Q8_K": 292, "IQ4_XS": 136}
BLOCK_LEN = {kind: 256 if kind in K_QUANTS else 1 if size <= 4 else 32 for kind, size in BLOCK_BYTES.items()}
#: Where the float16 of a block are, and about how large what they multiply gets.
SCALES = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "IQ4_NL": [0], "IQ4_XS": [0]}
SCALES |= {"Q2_K": [80, 82], "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "Q8_K": [0]}
RANGES = {"Q2_K": 45, "Q3_K": 128, "Q4_K": 945, "Q5_K": 1953, "Q6_K": 4096, "Q8_K": 127, "IQ4_XS": 4064, "IQ4_NL": 127}


def with_scales(kind, block, scales):
    """The block with other floating-point fields."""
    form = "<f" if kind == "Q8_K" else "<e"
    block = bytearray(block)
    for at, scale in zip(SCALES[kind], scales, strict=False):
        struct.pack_into(form, block, at, scale)
    return bytes(block)


def decode(kind, data):
    size = BLOCK_BYTES[kind]
    exact = [v for at in range(0, len(data), size) for v in decode_block(kind, data[at : at + size])]
    with np.errstate(over="ignore"):
        return np.array(exact, dtype=np.float64).astype(np.float32)


def random_tensor(kind, shape, seed=0):
    """Bytes of a tensor of finite values of about weight size."""
    rng = random.Random(f"{kind}{shape}{seed}")
    blocks = int(np.prod(shape)) // BLOCK_LEN[kind]
    if kind in SCALES:
        most = 0.32 / RANGES.get(kind, 16)
        scales = [[rng.uniform(-most, most) for _ in SCALES[kind]] for _ in range(blocks)]
        return b"".join(with_scales(kind, rng.randbytes(BLOCK_BYTES[kind]), pair) for pair in scales)
    values = [rng.uniform(-0.2, 0.2) for _ in range(blocks)]
    if kind == "BF16":
        return b"".join(struct.pack("<f", v)[2:] for v in values)
    return b"".join(struct.pack({"F32": "<f", "F16": "<e"}[kind], v) for v in values)


# a small model


def byte_alphabet():
    """What stands for each byte in byte-level BPE: printable characters for themselves, others from U+0100."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(others)}


WORDS = [tuple(line.split()) for line in ("h e", "l l", "he ll", "hell o", "Ġ w", "Ġ 1", "1 2", "12 3", "! !")]


def byte_level(pre="smollm", *, specials=("<|endoftext|>", "<|im_start|>", "<|im_end|>"), extra=()):
    """Metadata of a byte-level tokenizer; `extra` is (token, type) pairs after the merges' tokens."""
    tokens = [*specials, *byte_alphabet().values(), *(left + right for left, right in WORDS), *(t for t, _ in extra)]
    types = [3] * len(specials) + [1] * (256 + len(WORDS)) + [kind for _, kind in extra]
    return {
        "tokenizer.ggml.model": (STRING, "gpt2"),
        "tokenizer.ggml.pre": (STRING, pre),
        "tokenizer.ggml.tokens": strings(tokens),
        "tokenizer.ggml.token_type": (ARRAY, (INT32, types)),
        "tokenizer.ggml.merges": strings([f"{left} {right}" for left, right in WORDS]),
        "tokenizer.ggml.bos_token_id": (UINT32, 1),
        "tokenizer.ggml.eos_token_id": (UINT32, 2),
    }


PIECES = ["\u2581", "a", "b", "c", "l", "ab", "\u2581a", "bc", "abc", "\u2581ab", "ll", "\u2581abc", "cab"]


def sentence_piece(pieces=PIECES, extra=()):
    """Metadata of a SentencePiece tokenizer: earlier pieces score better, except that single characters come last."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces, *(t for t, _ in extra)]
    scores = [0.0] * 259 + [-float(i if len(piece) > 1 else 1000 + i) for i, piece in enumerate(pieces)]
    types = [2, 3, 3] + [6] * 256 + [1] * len(pieces) + [kind for _, kind in extra]
    return {
        "tokenizer.ggml.model": (STRING, "llama"),
        "tokenizer.ggml.tokens": strings(tokens),
        "tokenizer.ggml.scores": (ARRAY, (FLOAT32, scores + [0.0] * len(extra))),
        "tokenizer.ggml.token_type": (ARRAY, (INT32, types)),
        "tokenizer.ggml.bos_token_id": (UINT32, 1),
        "tokenizer.ggml.eos_token_id": (UINT32, 2),
        "tokenizer.ggml.unknown_token_id": (UINT32, 0),
    }


HIDDEN, INNER, HEADS, KV_HEADS, HEAD_DIM, LAYERS = 64, 96, 4, 2, 16, 2


def llama(*kinds, tied=True, tokenizer=None, rows=None, head_dim=HEAD_DIM, hidden=HIDDEN, inner=INNER, layers=LAYERS):
    """A complete model whose matrices are of these kinds in turn (float32), and whose norms are float32."""
    tokenizer = tokenizer or byte_level()
    rows = rows or len(tokenizer["tokenizer.ggml.tokens"][1][1])
    metadata = {
        "llama.block_count": (UINT32, layers),
        "llama.context_length": (UINT32, 128),
        "llama.embedding_length": (UINT32, hidden),
        "llama.feed_forward_length": (UINT32, inner),
        "llama.attention.head_count": (UINT32, HEADS),
        "llama.attention.head_count_kv": (UINT32, KV_HEADS),
        "llama.attention.layer_norm_rms_epsilon": (FLOAT32, 1e-5),
        "llama.rope.freq_base": (FLOAT32, 100000.0),
        "llama.rope.dimension_count": (UINT32, head_dim),
    }
    if head_dim * HEADS != hidden:
        metadata["llama.attention.key_length"] = (UINT32, head_dim)
    shapes = {"token_embd": (rows, hidden), "output_norm": (hidden,)} | ({} if tied else {"output": (rows, hidden)})
    for layer in range(layers):
        layer_shapes = {
            "attn_norm": (hidden,),
            "attn_q": (HEADS * head_dim, hidden),
            "attn_k": (KV_HEADS * head_dim, hidden),
            "attn_v": (KV_HEADS * head_dim, hidden),
            "attn_output": (hidden, HEADS * head_dim),
            "ffn_norm": (hidden,),
            "ffn_gate": (inner, hidden),
            "ffn_up": (inner, hidden),
            "ffn_down": (hidden, inner),
        }
        shapes |= {f"blk.{layer}.{name}": shape for name, shape in layer_shapes.items()}
    tensors = {}
    matrix_kinds = cycle(kinds or ["F32"])
    for seed, (name, shape) in enumerate(shapes.items()):
        tensor_kind = next(matrix_kinds) if len(shape) == 2 else "F32"
        tensors[f"{name}.weight"] = (shape, tensor_kind, random_tensor(tensor_kind, shape, seed))
    return Gguf(metadata | tokenizer, tensors)
