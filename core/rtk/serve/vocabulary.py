"""The bytes that each token of a tokenizer stands for, which is what grammars are over."""

import re
from collections.abc import Callable, Set
from contextlib import suppress

from rtk.errors import ModelError
from rtk.plugin.grammar import Vocabulary
from rtk.serve.text import BROKEN
from rtk.serve.tokenizer import Tokenizer

BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
"""How a byte is written in vocabularies that have bytes for what they have no piece for."""
AT_THE_EDGE = frozenset({"Fuse", "Strip"})
"""Decoders that change nothing inside a text."""


def vocabulary(tokenizer: Tokenizer, size: int, ends: Set[int]) -> Vocabulary:
    """The first `size` tokens; silent ones, and ids that stand for nothing, have no bytes.

    Raises `ModelError` for a tokenizer whose tokens have other bytes beside other tokens. O(size).
    """
    read = _reader(tokenizer)
    pieces = (None if token in tokenizer.silent else tokenizer.piece(token) for token in range(size))
    return Vocabulary([b"" if piece is None else read(piece) for piece in pieces], frozenset(ends))


class TokenBytes:
    """What single tokens stand for, for people and for those who put them together."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._read: Callable[[str], bytes] | None = None
        with suppress(ModelError):
            self._read = _reader(tokenizer)

    def of(self, token: int) -> bytes | None:
        """The token's bytes, those of a special one being its name; None where they are not known. O(1)."""
        piece = self._tokenizer.piece(token)
        if piece is None:
            return b""
        if token in self._tokenizer.silent:
            return piece.encode()
        if self._read is not None:
            return self._read(piece)
        text = self._tokenizer.text_of(token)
        return None if BROKEN in text else text.encode()


def _reader(tokenizer: Tokenizer) -> Callable[[str], bytes]:
    """From a piece as the vocabulary writes it to its bytes."""
    steps = [step for step in tokenizer.decoders if step["type"] not in AT_THE_EDGE]
    space = ""
    match steps:
        case [{"type": "ByteLevel"}]:
            return _byte_level
        case [{"type": "Replace", "pattern": {"String": space}, "content": " "}, {"type": "ByteFallback"}]:
            pass
        case [{"type": "ByteFallback"}, {"type": "Metaspace", "replacement": space}]:
            pass
        case [{"type": "Metaspace", "replacement": space}]:
            return lambda piece: piece.replace(space, " ").encode()
        case _:
            kinds = ", ".join(str(step["type"]) for step in steps) or "none"
            raise ModelError(f"the bytes of this model's tokens are not known: its tokenizer's decoder is {kinds}")

    def with_bytes(piece: str) -> bytes:
        byte = BYTE.fullmatch(piece)
        return bytes([int(byte[1], 16)]) if byte else piece.replace(space, " ").encode()

    return with_bytes


def _byte_names() -> dict[str, int]:
    """How byte-level vocabularies write each byte: printable ones as they are, the others from U+0100 up."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


_BYTES = _byte_names()


def _byte_level(piece: str) -> bytes:
    """What is not written in these names throughout is a text that was added to the vocabulary."""
    try:
        return bytes([_BYTES[name] for name in piece])
    except KeyError:
        return piece.encode()
