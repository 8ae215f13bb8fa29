"""Reading GGUF files: header, metadata, tensor table, and the tensors' bytes.

A file (little-endian, version 2 or 3) is, in this order:

    "GGUF", u32 version, u64 tensors, u64 metadata entries
    per metadata entry   string key, u32 type, value    (string = u64 length, UTF-8; array = u32 type, u64 count, items)
    per tensor           string name, u32 dimensions, u64 each (fastest first), u32 encoding, u64 offset into the data
    padding to `general.alignment` (32 unless stated), then the data

The file is mapped, not read. Nothing in it is believed: a count is compared with the bytes that are left before
anything is allocated for it, so time and memory are linear in the file's size, and whatever is wrong is one ModelError.
"""

import mmap
import struct
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from rtk.errors import ModelError
from rtk.model.gguf_quants import FOREIGN_TENSOR_TYPES, TENSOR_TYPES, Bytes, Floats, TensorType, dequantise

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_MAX_DIMENSIONS = 4
_MAX_ARRAY_DEPTH = 4
_DEFAULT_ALIGNMENT = 32
_UNSTATED: Any = object()

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_STRING, _ARRAY, _BOOL = 8, 9, 7
_SCALARS: dict[int, np.dtype[Any]] = {
    code: np.dtype(dtype)
    for code, dtype in {
        0: "<u1",
        1: "<i1",
        2: "<u2",
        3: "<i2",
        4: "<u4",
        5: "<i4",
        6: "<f4",
        _BOOL: "<u1",
        10: "<u8",
        11: "<i8",
        12: "<f8",
    }.items()
}
#: The fewest bytes that one item of each type can take: what bounds a claimed count.
_LEAST_BYTES = {code: dtype.itemsize for code, dtype in _SCALARS.items()} | {_STRING: 8, _ARRAY: 12}
_LEAST_ENTRY_BYTES = 8 + 4 + 1
_LEAST_TENSOR_BYTES = 8 + 4 + 4 + 8


@dataclass(frozen=True)
class Tensor:
    """A line of the tensor table: `shape` is row-major (stored reversed), `start` and `nbytes` say where it is."""

    name: str
    shape: tuple[int, ...]
    kind: TensorType
    start: int
    nbytes: int


@dataclass(frozen=True)
class GgufFile:
    """An open file. In `metadata`, scalars are Python values, arrays of strings lists, other arrays numpy views."""

    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, Tensor]
    _data: mmap.mmap = field(repr=False)

    def raw(self, tensor: Tensor) -> Bytes:
        """The stored bytes, uint8 [rows, bytes a row] where the tensor has rows, else [bytes]: a view, no copy."""
        raw = np.frombuffer(self._data, np.uint8, tensor.nbytes, tensor.start)
        return raw.reshape(tensor.shape[0], -1) if len(tensor.shape) > 1 else raw

    def values(self, tensor: Tensor) -> Floats:
        """The tensor as float32 of `tensor.shape`."""
        return dequantise(self.raw(tensor), tensor.kind).reshape(tensor.shape)

    def get(self, key: str, kind: type, default: Any = _UNSTATED) -> Any:
        """The metadata value under `key`, an instance of `kind` (int, float, bool, str or list).

        Raises:
            ModelError: the value is of another type, or the key is missing and no default is given.
        """
        value = self.metadata.get(key, default)
        if value is _UNSTATED:
            raise self.error(f"has no {key!r}")
        # bool is an int to Python, but not to the format
        if key in self.metadata and (not isinstance(value, kind) or isinstance(value, bool) is not (kind is bool)):
            raise self.error(f"{key!r} should be {kind.__name__}, found {short(value)}")
        return value

    def error(self, problem: str) -> ModelError:
        """The one line that says what is wrong with this file."""
        return ModelError(f"{self.path}: {problem}")


def short(value: object) -> str:
    """A value from a file as it may stand in a one-line message: quoted, escaped, at most about 60 characters."""
    if isinstance(value, np.ndarray | list):
        return f"an array of {len(value)}"
    text = repr(value[:60] if isinstance(value, str) else value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def open_gguf(path: Path, architecture: str) -> GgufFile:
    """Map a file and parse everything but the tensors' data.

    Raises:
        ModelError: the file cannot be read, is not GGUF, is truncated or damaged, is of another architecture, or has an
            encoding that rtk does not read.
    """
    data = _map(path)
    if data[:4] != _MAGIC:
        raise ModelError(f"{path}: not a GGUF file: it begins with {bytes(data[:4])!r}, not {_MAGIC!r}")
    cursor = _Cursor(path, data)
    cursor.pos = len(_MAGIC)
    _check_version(cursor)
    tensor_count, entry_count = cursor.u64("tensor count"), cursor.u64("metadata count")
    metadata = _read_metadata(cursor, entry_count)
    # before the encodings, or a person would look for another encoding of a model that cannot be imported at all
    if (found := metadata.get("general.architecture")) != architecture:
        raise cursor.unsupported(f"architecture {short(found)} cannot be imported; rtk imports {architecture!r} only")
    table = _read_table(cursor, tensor_count)
    return GgufFile(path, metadata, _place(cursor, table, metadata), data)


def _map(path: Path) -> mmap.mmap:
    try:
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except ValueError:
        raise ModelError(f"{path}: not a GGUF file: it is empty") from None
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror}") from None


class _Cursor:
    """A position in the mapped file; every step is checked against its end."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self._path = path
        self._data = data
        self.pos = 0

    @property
    def left(self) -> int:
        return len(self._data) - self.pos

    def damaged(self, problem: str) -> ModelError:
        return ModelError(f"{self._path}: truncated or damaged GGUF file: {problem}")

    def unsupported(self, problem: str) -> ModelError:
        return ModelError(f"{self._path}: {problem}")

    def advance(self, size: int, what: str) -> int:
        """Step over `size` bytes; answers where they begin."""
        if size > self.left:
            raise self.damaged(f"{what} at byte {self.pos} needs {size:,} bytes, {self.left:,} are left")
        start = self.pos
        self.pos += size
        return start

    def u32(self, what: str) -> int:
        return int(_U32.unpack_from(self._data, self.advance(4, what))[0])

    def u64(self, what: str) -> int:
        return int(_U64.unpack_from(self._data, self.advance(8, what))[0])

    def string(self, what: str) -> str:
        size = self.u64(what)
        start = self.advance(size, what)
        try:
            return self._data[start : start + size].decode()
        except UnicodeDecodeError:
            raise self.damaged(f"{what} at byte {start} is not UTF-8") from None

    def numbers(self, code: int, count: int, what: str) -> np.ndarray[Any, Any]:
        dtype = _SCALARS[code]
        numbers = np.frombuffer(self._data, dtype, count, self.advance(count * dtype.itemsize, what))
        if code == _BOOL and (numbers > 1).any():
            raise self.damaged(f"{what} is a boolean that is neither 0 nor 1")
        return numbers.view(np.bool_) if code == _BOOL else numbers

    def at_most(self, count: int, least_bytes: int, what: str) -> int:
        """`count`, once it is known that so many items can fit in what is left."""
        if count * least_bytes > self.left:
            raise self.damaged(f"{what} claims {count:,} items, {self.left:,} bytes are left")
        return count


def _check_version(cursor: _Cursor) -> None:
    version = cursor.u32("version")
    if version in _VERSIONS:
        return
    swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
    found = f"big-endian, version {swapped}" if swapped in (1, *_VERSIONS) else f"version {version}"
    raise cursor.unsupported(f"GGUF {found} is not supported; rtk reads versions 2 and 3, little-endian")


def _read_metadata(cursor: _Cursor, count: int) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    for _ in range(cursor.at_most(count, _LEAST_ENTRY_BYTES, "metadata")):
        key = cursor.string("metadata key")
        if key in metadata:
            raise cursor.damaged(f"metadata key {short(key)} appears twice")
        metadata[key] = _read_value(cursor, cursor.u32("metadata type"), f"metadata {short(key)}", 0)
    return metadata


def _read_value(cursor: _Cursor, code: int, what: str, depth: int) -> Any:
    if code in _SCALARS:
        return cursor.numbers(code, 1, what)[0].item()
    if code == _STRING:
        return cursor.string(what)
    if code == _ARRAY and depth < _MAX_ARRAY_DEPTH:
        return _read_array(cursor, what, depth)
    raise cursor.damaged(f"{what} has unknown type {code} or nests arrays deeper than {_MAX_ARRAY_DEPTH}")


def _read_array(cursor: _Cursor, what: str, depth: int) -> Any:
    code = cursor.u32(what)
    count = cursor.at_most(cursor.u64(what), _LEAST_BYTES.get(code, 1), what)
    if code in _SCALARS:
        return cursor.numbers(code, count, what)
    return [_read_value(cursor, code, what, depth + 1) for _ in range(count)]


@dataclass(frozen=True)
class _Row:
    """A line of the tensor table before its place is checked; `offset` counts from the start of the data."""

    name: str
    shape: tuple[int, ...]
    kind: TensorType
    offset: int


def _read_table(cursor: _Cursor, count: int) -> list[_Row]:
    rows = [_read_row(cursor) for _ in range(cursor.at_most(count, _LEAST_TENSOR_BYTES, "tensor table"))]
    if len({row.name for row in rows}) < len(rows):
        raise cursor.damaged("two tensors have the same name")
    return rows


def _read_row(cursor: _Cursor) -> _Row:
    name = cursor.string("tensor name")
    what = f"tensor {short(name)}"
    dimensions = cursor.u32(what)
    if not 1 <= dimensions <= _MAX_DIMENSIONS:
        raise cursor.damaged(f"{what} has {dimensions} dimensions, GGUF allows 1 to {_MAX_DIMENSIONS}")
    shape = tuple(cursor.u64(what) for _ in range(dimensions))[::-1]
    code = cursor.u32(what)
    if code not in TENSOR_TYPES:
        found = FOREIGN_TENSOR_TYPES.get(code, f"of unknown encoding {code}")
        known = ", ".join(kind.name for kind in TENSOR_TYPES.values())
        raise cursor.unsupported(f"{what} is {found}; rtk reads {known}")
    kind = TENSOR_TYPES[code]
    if 0 in shape or shape[-1] % kind.block_len:
        raise cursor.damaged(f"{what} of shape {list(shape)} has no whole blocks of {kind.block_len} ({kind.name})")
    return _Row(name, shape, kind, cursor.u64(what))


def _place(cursor: _Cursor, rows: list[_Row], metadata: dict[str, Any]) -> dict[str, Tensor]:
    """Turn offsets into file positions; each tensor must lie inside the file, aligned, and apart from the others."""
    alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or alignment <= 0 or alignment % 8:
        raise cursor.damaged(f"'general.alignment' is {short(alignment)}, a positive multiple of 8 is needed")
    base = -(-cursor.pos // alignment) * alignment
    tensors = [_place_row(cursor, row, base, alignment) for row in rows]
    for before, after in pairwise(sorted(tensors, key=lambda tensor: tensor.start)):
        if before.start + before.nbytes > after.start:
            raise cursor.damaged(f"tensors {short(before.name)} and {short(after.name)} overlap")
    return {tensor.name: tensor for tensor in tensors}


def _place_row(cursor: _Cursor, row: _Row, base: int, alignment: int) -> Tensor:
    values = 1
    for dimension in row.shape:
        values *= dimension
    nbytes = values // row.kind.block_len * row.kind.block_bytes
    start = base + row.offset
    if row.offset % alignment:
        raise cursor.damaged(f"tensor {short(row.name)} is not aligned to {alignment} bytes")
    if start + nbytes > cursor.pos + cursor.left:
        raise cursor.damaged(f"tensor {short(row.name)}, {nbytes:,} bytes at byte {start:,}, passes the file's end")
    return Tensor(row.name, row.shape, row.kind, start, nbytes)
