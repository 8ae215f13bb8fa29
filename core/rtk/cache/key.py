"""What cached K/V is looked up by: a namespace (everything but the tokens that changes K/V) and the tokens."""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

TOKEN_BYTES = 4
"""Tokens are kept as little-endian int32, so that slices hash and compare at memory speed."""


class AdapterRef(NamedTuple):
    """One loading of an adapter: loading other weights under the same name gives another generation."""

    name: str
    generation: int


class Namespace(NamedTuple):
    """Everything but the tokens that changes K/V. A tuple, never a joined string, so that no two can collide."""

    adapter: AdapterRef | None = None
    salt: str | None = None
    extra: str | None = None
    tenant: str = ""
    """Whose it is; tenants share nothing, whatever salts they choose."""


DEFAULT_NAMESPACE = Namespace()


class Key(NamedTuple):
    """A sequence in a namespace. `tokens` holds int32s as bytes, see `pack`."""

    namespace: Namespace
    tokens: bytes

    @property
    def length(self) -> int:
        """Length in tokens."""
        return len(self.tokens) // TOKEN_BYTES


def pack(tokens: ArrayLike) -> bytes:
    """Token ids as the bytes that keys are made of. O(n)."""
    return np.asarray(tokens, dtype="<i4").tobytes()


def unpack(tokens: bytes) -> list[int]:
    """The inverse of `pack`. O(n)."""
    return list(np.frombuffer(tokens, dtype="<i4").tolist())


def common_prefix(a: bytes, a_start: int, b: bytes, b_start: int, limit: int) -> int:
    """How many of the next `limit` bytes of a and b agree, counting whole tokens. O(limit), at memory speed.

    Halves the undecided stretch: each round is one comparison of two slices.
    """
    if a[a_start : a_start + limit] == b[b_start : b_start + limit]:
        return limit
    low, high = 0, limit // TOKEN_BYTES  # the first difference lies in token `low` .. `high - 1`
    while high - low > 1:
        middle = (low + high) // 2
        i, j = low * TOKEN_BYTES, middle * TOKEN_BYTES
        if a[a_start + i : a_start + j] == b[b_start + i : b_start + j]:
            low = middle
        else:
            high = middle
    return low * TOKEN_BYTES
