"""Writes small GGUF files, and the encodings in them, straight from the format's definition, one value at a time."""

import random
import struct

import numpy as np

UINT8, INT8, UINT16, INT16, UINT32, INT32, FLOAT32, BOOL, STRING, ARRAY, UINT64, INT64, FLOAT64 = range(13)
SCALARS = dict(enumerate("BbHhIif?")) | {UINT64: "Q", INT64: "q", FLOAT64: "d"}
KINDS = {"F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q5_0": 6, "Q5_1": 7, "Q8_0": 8, "Q4_K": 12, "BF16": 30}


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


def decode_block(kind, data):
    """The 32 values of one block (1 value of a plain encoding), as exact Python floats."""
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
    raise AssertionError(kind)


BLOCK_BYTES = {"F32": 4, "F16": 2, "BF16": 2, "Q4_0": 18, "Q4_1": 20, "Q5_0": 22, "Q5_1": 24, "Q8_0": 34}
BLOCK_LEN = {kind: 1 if size <= 4 else 32 for kind, size in BLOCK_BYTES.items()}
SCALES = {"Q4_0": 1, "Q4_1": 2, "Q5_0": 1, "Q5_1": 2, "Q8_0": 1}


def decode(kind, data):
    size = BLOCK_BYTES[kind]
    exact = [v for at in range(0, len(data), size) for v in decode_block(kind, data[at : at + size])]
    return np.array(exact, dtype=np.float64).astype(np.float32)


def random_tensor(kind, shape, seed=0):
    """Bytes of a tensor of finite values of about weight size."""
    rng = random.Random(f"{kind}{shape}{seed}")
    blocks = int(np.prod(shape)) // BLOCK_LEN[kind]
    if kind in SCALES:
        body = BLOCK_BYTES[kind] - 2 * SCALES[kind]
        scales = [struct.pack("<e", rng.uniform(-0.02, 0.02)) for _ in range(blocks * SCALES[kind])]
        step = SCALES[kind]
        return b"".join(b"".join(scales[i * step : i * step + step]) + rng.randbytes(body) for i in range(blocks))
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


def llama(kind="F32", *, tied=True, tokenizer=None, rows=None, head_dim=HEAD_DIM):
    """A complete two-layer model whose matrices are of one kind and whose norms are float32."""
    tokenizer = tokenizer or byte_level()
    rows = rows or len(tokenizer["tokenizer.ggml.tokens"][1][1])
    metadata = {
        "llama.block_count": (UINT32, LAYERS),
        "llama.context_length": (UINT32, 128),
        "llama.embedding_length": (UINT32, HIDDEN),
        "llama.feed_forward_length": (UINT32, INNER),
        "llama.attention.head_count": (UINT32, HEADS),
        "llama.attention.head_count_kv": (UINT32, KV_HEADS),
        "llama.attention.layer_norm_rms_epsilon": (FLOAT32, 1e-5),
        "llama.rope.freq_base": (FLOAT32, 100000.0),
        "llama.rope.dimension_count": (UINT32, head_dim),
    }
    if head_dim != HEAD_DIM:
        metadata["llama.attention.key_length"] = (UINT32, head_dim)
    shapes = {"token_embd": (rows, HIDDEN), "output_norm": (HIDDEN,)} | ({} if tied else {"output": (rows, HIDDEN)})
    for layer in range(LAYERS):
        layer_shapes = {
            "attn_norm": (HIDDEN,),
            "attn_q": (HEADS * head_dim, HIDDEN),
            "attn_k": (KV_HEADS * head_dim, HIDDEN),
            "attn_v": (KV_HEADS * head_dim, HIDDEN),
            "attn_output": (HIDDEN, HEADS * head_dim),
            "ffn_norm": (HIDDEN,),
            "ffn_gate": (INNER, HIDDEN),
            "ffn_up": (INNER, HIDDEN),
            "ffn_down": (HIDDEN, INNER),
        }
        shapes |= {f"blk.{layer}.{name}": shape for name, shape in layer_shapes.items()}
    tensors = {}
    for seed, (name, shape) in enumerate(shapes.items()):
        tensor_kind = kind if len(shape) == 2 else "F32"
        tensors[f"{name}.weight"] = (shape, tensor_kind, random_tensor(tensor_kind, shape, seed))
    return Gguf(metadata | tokenizer, tensors)
