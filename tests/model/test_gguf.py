"""The GGUF parser and the encodings, against files and values written from the format's definition."""

import struct
import time
import tracemalloc
import warnings

import gguf_writer as w
import numpy as np
import pytest
from gguf_writer import ARRAY, BOOL, FLOAT32, INT8, INT32, STRING, UINT8, UINT32, UINT64, Gguf
from hypothesis import given, settings
from hypothesis import strategies as st

from rtk.errors import ModelError
from rtk.model import gguf_quants
from rtk.model.gguf import open_gguf
from rtk.model.gguf_quants import TENSOR_TYPES, dequantise

BY_NAME = {kind.name: kind for kind in TENSOR_TYPES.values()}


def parse(path):
    return open_gguf(path, "llama")


def refusal(path):
    """The one line with which a file is refused."""
    with pytest.raises(ModelError) as caught:
        parse(path)
    message = str(caught.value)
    assert message.startswith(str(path)) and "\n" not in message and len(message) < len(str(path)) + 250
    return message


# metadata and table


def test_metadata_of_every_type_is_read(tmp_path):
    scalars = {
        code: {"?": True, "f": 0.5, "d": -2.25}.get(form, 100 if form.isupper() else -100)
        for code, form in w.SCALARS.items()
    }
    metadata = {f"scalar.{code}": (code, content) for code, content in scalars.items()}
    metadata |= {f"array.{code}": (ARRAY, (code, [content] * 3)) for code, content in scalars.items()}
    metadata["text"] = (STRING, "naïve 日本 🙂\n")
    metadata["texts"] = w.strings(["a", "", "日"])
    metadata["nested"] = (ARRAY, (ARRAY, [(UINT8, [1, 2]), (STRING, ["x"])]))
    metadata["empty"] = (ARRAY, (FLOAT32, []))
    read = parse(Gguf(metadata).write(tmp_path / "a.gguf")).metadata
    for code, content in scalars.items():
        assert read[f"scalar.{code}"] == content and type(read[f"scalar.{code}"]) is type(content)
        assert read[f"array.{code}"].tolist() == [content] * 3
    assert read["text"] == "naïve 日本 🙂\n" and read["texts"] == ["a", "", "日"]
    assert [list(items) for items in read["nested"]] == [[1, 2], ["x"]]
    assert len(read["empty"]) == 0


def test_typed_access_names_key_and_type(tmp_path):
    file = parse(Gguf({"n": (UINT32, 3), "flag": (BOOL, True), "text": (STRING, "x" * 500)}).write(tmp_path / "a.gguf"))
    assert file.get("n", int) == 3 and file.get("flag", bool) is True and file.get("other", int, None) is None
    for key, kind, problem in [
        ("n", str, "'n' should be str, found 3"),
        ("n", bool, "'n' should be bool, found 3"),
        ("flag", int, "'flag' should be int, found True"),
        ("missing", int, "has no 'missing'"),
        ("text", int, "'text' should be int, found 'xxx"),
    ]:
        with pytest.raises(ModelError, match=problem):
            file.get(key, kind)


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("alignment", [None, 8, 64, 4096])
def test_tensors_are_found_where_the_table_says(tmp_path, version, alignment):
    data = struct.pack("<6f", *range(6))
    tensors = {"a": ((2, 3), "F32", data), "b": ((6,), "F32", data[::-1]), "c": ((1, 2, 3), "F32", data)}
    metadata = {"general.alignment": (UINT32, alignment)} if alignment else {}
    path = Gguf(metadata, tensors, version=version, alignment=alignment or 32).write(tmp_path / "a.gguf")
    file = parse(path)
    assert file.tensors["a"].shape == (2, 3)
    assert file.values(file.tensors["a"]).tolist() == [[0, 1, 2], [3, 4, 5]]
    assert file.raw(file.tensors["b"]).tobytes() == data[::-1]
    assert file.raw(file.tensors["c"]).shape == (1, 24) and file.values(file.tensors["c"]).shape == (1, 2, 3)


# encodings


def edge_blocks(kind):
    """Blocks at the corners of an encoding: no scale, negative scale, least and greatest integers, single high bits."""
    if kind not in w.SCALES:
        words = [0, 1, 0x8000, 0x3C00, 0xBC01, 0x3F80, 0x7BFF, 0x0400, 0x7F7F]
        return [word.to_bytes(2, "little") if kind != "F32" else word.to_bytes(4, "big") for word in words]
    size = w.BLOCK_BYTES[kind]
    bodies = [b"\0" * size, b"\xff" * size, b"\x0f" * size, b"\xf0" * size, b"\x80" * size]
    bodies += [
        bytes(at % 256 for at in range(size)),
        *((1 << 8 * at + at % 8).to_bytes(size, "little") for at in range(size)),
    ]
    scales = [(0.0, 0.0), (1.0, 0.0), (-0.37, 1.5), (65504.0, -65504.0), (6e-8, 6e-8), (-0.0, -2.0)]
    return [w.with_scales(kind, body, pair) for pair in scales for body in bodies]


@pytest.mark.parametrize("kind", BY_NAME)
def test_values_are_those_of_the_definition(kind):
    data = b"".join(edge_blocks(kind)) + w.random_tensor(kind, (8, 256))
    values = dequantise(np.frombuffer(data, np.uint8), BY_NAME[kind])
    assert values.dtype == np.float32
    assert np.array_equal(values, w.decode(kind, data), equal_nan=True)


@pytest.mark.parametrize("kind", ["Q5_1", "Q4_K"])
def test_decoding_goes_in_pieces(monkeypatch, kind):
    data = np.frombuffer(w.random_tensor(kind, (17, 256)), np.uint8)
    whole = dequantise(data, BY_NAME[kind])
    monkeypatch.setattr(gguf_quants, "_CHUNK_VALUES", 5 * BY_NAME[kind].block_len)
    assert np.array_equal(dequantise(data, BY_NAME[kind]), whole)


def test_a_damaged_scale_gives_a_value_that_is_not_finite_and_no_warning():
    data = struct.pack("<e", float("inf")) + b"\x88" * 16
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.isnan(dequantise(np.frombuffer(data, np.uint8), BY_NAME["Q4_0"])).all()


# refusals


def test_files_that_cannot_be_read(tmp_path):
    assert "cannot be read: No such file" in refusal(tmp_path / "missing.gguf")
    assert "cannot be read" in refusal(tmp_path)
    (tmp_path / "empty.gguf").write_bytes(b"")
    assert "not a GGUF file: it is empty" in refusal(tmp_path / "empty.gguf")


@pytest.mark.parametrize(
    ("file", "problem"),
    [
        (Gguf(magic=b"GGML"), "not a GGUF file: it begins with b'GGML', not b'GGUF'"),
        (Gguf(version=1), "GGUF version 1 is not supported; rtk reads versions 2 and 3, little-endian"),
        (Gguf(version=4), "GGUF version 4 is not supported"),
        (Gguf(version=3 << 24), "GGUF big-endian, version 3 is not supported"),
        (
            Gguf({"general.architecture": (STRING, "qwen2")}, {"a": ((256,), "IQ2_XXS", b"")}),
            "architecture 'qwen2' cannot be imported; rtk imports 'llama' only",
        ),
        (Gguf({"general.architecture": (UINT32, 1)}), "architecture 1 cannot be imported"),
        (
            Gguf(tensors={"a\nb": ((256,), "IQ2_XXS", b"")}),
            r"tensor 'a\nb' is IQ2_XXS; rtk reads F32, F16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, "
            "Q6_K, Q8_K, IQ4_NL, IQ4_XS, BF16",
        ),
        (Gguf(tensors={"a": ((256,), 99, b"")}), "tensor 'a' is of unknown encoding 99"),
        (Gguf(tensors={"a": ((), "F32", b"")}), "tensor 'a' has 0 dimensions, GGUF allows 1 to 4"),
        (Gguf(tensors={"a": ((1,) * 5, "F32", b"")}), "tensor 'a' has 5 dimensions"),
        (Gguf(tensors={"a": ((2, 0), "F32", b"")}), "tensor 'a' of shape [2, 0] has no whole blocks"),
        (Gguf(tensors={"a": ((33,), "Q8_0", b"")}), "tensor 'a' of shape [33] has no whole blocks of 32 (Q8_0)"),
        (Gguf(tensors={"a": ((2, 96), "Q6_K", b"")}), "tensor 'a' of shape [2, 96] has no whole blocks of 256 (Q6_K)"),
        (Gguf(tensors={"a": ((16,), "F32", b"1234")}), "tensor 'a', 64 bytes at byte 128, passes the file's end"),
        (Gguf(tensors={"a": ((1 << 60, 1 << 60), "F32", b"")}), "passes the file's end"),
        (
            Gguf(tensors={"a": ((16,), "F32", b"1" * 4), "b": ((8,), "F32", b"1" * 32)}),
            "tensors 'a' and 'b' overlap",
        ),
        (
            Gguf({"general.alignment": (UINT32, 64)}, {"a": ((1,), "F32", b"1234"), "b": ((1,), "F32", b"1234")}),
            "tensor 'b' is not aligned to 64 bytes",
        ),
        (Gguf({"general.alignment": (UINT32, 12)}), "'general.alignment' is 12, a positive multiple of 8 is needed"),
        (Gguf({"general.alignment": (UINT32, 0)}), "'general.alignment' is 0"),
        (Gguf({"general.alignment": (STRING, "8")}), "'general.alignment' is '8'"),
        (Gguf({"a": (ARRAY, (ARRAY, [(ARRAY, [(ARRAY, [(ARRAY, [(UINT8, [1])])])])]))}), "nests arrays deeper than 4"),
    ],
)  # fmt: skip
def test_refusals_name_file_finding_and_support(tmp_path, file, problem):
    assert problem in refusal(file.write(tmp_path / "a.gguf"))


def with_entry(key, code, rest):
    """A file whose last metadata entry has these raw bytes as its value."""
    file = Gguf()
    data = bytearray(file.header())
    data[16:24] = struct.pack("<Q", 2)
    return bytes(data) + w.string(key) + struct.pack("<I", code) + rest


HUGE = struct.pack("<Q", 1 << 60)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (with_entry("k", STRING, HUGE), "metadata 'k' at byte 90 needs 1,152,921,504,606,846,976 bytes, 0 are left"),
        (with_entry("k", ARRAY, struct.pack("<I", UINT64) + HUGE), "'k' claims 1,152,921,504,606,846,976 items"),
        (with_entry("k", ARRAY, struct.pack("<I", STRING) + HUGE), "metadata 'k' claims"),
        (with_entry("k", ARRAY, struct.pack("<I", ARRAY) + HUGE), "metadata 'k' claims"),
        (with_entry("k", ARRAY, struct.pack("<I", 77) + HUGE), "metadata 'k' claims"),
        (with_entry("k", ARRAY, struct.pack("<IQ", 77, 1) + b"1"), "metadata 'k' has unknown type 77"),
        (with_entry("k", 13, b""), "metadata 'k' has unknown type 13"),
        (with_entry("k", BOOL, b"\2"), "metadata 'k' is a boolean that is neither 0 nor 1"),
        (with_entry("k", ARRAY, struct.pack("<IQ", BOOL, 2) + b"\1\2"), "neither 0 nor 1"),
        (with_entry("k", STRING, struct.pack("<Q", 2) + b"\xff\xff"), "metadata 'k' at byte 90 is not UTF-8"),
        (with_entry("general.architecture", BOOL, b"\1"), "metadata key 'general.architecture' appears twice"),
        (b"GGUF" + struct.pack("<I", 3) + HUGE + struct.pack("<Q", 0) + b"x" * 99, "architecture None cannot"),
        (b"GGUF" + struct.pack("<I", 3) + struct.pack("<Q", 0) + HUGE, "metadata claims"),
        (Gguf().header()[:8] + HUGE + Gguf().header()[16:], "tensor table claims"),
    ],
)  # fmt: skip
def test_damage_is_found_before_anything_is_allocated_for_it(tmp_path, data, problem):
    path = tmp_path / "a.gguf"
    path.write_bytes(data)
    tracemalloc.start()
    try:
        assert problem in refusal(path)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_two_tensors_of_one_name(tmp_path):
    data = Gguf(tensors={"a": ((1,), "F32", b"1234"), "b": ((1,), "F32", b"1234")}).to_bytes()
    path = tmp_path / "a.gguf"
    path.write_bytes(data.replace(w.string("b"), w.string("a")))
    assert "two tensors have the same name" in refusal(path)


# damage at every byte


def sample():
    """A file with one of everything."""
    metadata = {
        "u": (UINT64, 7),
        "b": (BOOL, True),
        "f": (FLOAT32, 1.5),
        "s": (STRING, "text"),
        "n": (ARRAY, (INT32, [1, 2, 3])),
        "t": w.strings(["a", "bc", ""]),
        "d": (ARRAY, (ARRAY, [(INT8, [1]), (BOOL, [False])])),
        "general.alignment": (UINT32, 8),
    }
    kinds = ["Q2_K", *(kind for kind in BY_NAME if kind not in w.K_QUANTS)]
    shapes = {kind: (2, max(w.BLOCK_LEN[kind], 32)) for kind in kinds}
    tensors = {kind: (shape, kind, w.random_tensor(kind, shape)) for kind, shape in shapes.items()}
    return Gguf(metadata, tensors, alignment=8)


def parse_or_refuse(path, data):
    """Parse and read every value, or be refused with a ModelError of one line; nothing else may happen."""
    path.write_bytes(data)
    try:
        file = parse(path)
    except ModelError as error:
        assert "\n" not in str(error) and len(str(error)) < len(str(path)) + 250
        return False
    for tensor in file.tensors.values():
        assert file.values(tensor).shape == tensor.shape
    return True


def test_every_prefix_is_refused(tmp_path):
    data = sample().to_bytes()
    assert parse_or_refuse(tmp_path / "a.gguf", data)
    accepted = [size for size in range(len(data)) if parse_or_refuse(tmp_path / "a.gguf", data[:size])]
    assert not accepted


def test_every_changed_header_byte_is_refused_or_read(tmp_path):
    file = sample()
    data, size = file.to_bytes(), len(file.header())
    began = time.monotonic()
    for at in range(size):
        for change in (0x01, 0x80, 0xFF):
            parse_or_refuse(tmp_path / "a.gguf", data[:at] + bytes([data[at] ^ change]) + data[at + 1 :])
    assert time.monotonic() - began < 60


@settings(deadline=None, max_examples=300)
@given(st.data())
def test_any_damage_is_refused_or_read(tmp_path_factory, data):
    file = sample()
    content, size = bytearray(file.to_bytes()), len(file.header())
    for at in data.draw(st.lists(st.integers(4, size - 1), min_size=1, max_size=6)):
        content[at : at + 1] = data.draw(st.binary(max_size=9))
    parse_or_refuse(tmp_path_factory.getbasetemp() / "damaged.gguf", bytes(content))
